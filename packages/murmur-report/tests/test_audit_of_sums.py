"""`murmur audit` of secure sums, the way of the bytes: what is charged bounds what is shown.

In each case an earlier version charged less than an attack shows.
"""

import numpy as np
import pytest

from fl_app.config.compose import changed, compose
from fl_app.run.hosts import SimulatedHost
from fl_app.run.validated import ValidatedRun
from murmur.learning.codec import Codec
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import SummedEvent
from murmur.privacy.noise import NoiseGenerator
from murmur.round.collectors import MaskedSum
from murmur.round.site import SimulatedSite
from murmur.secure_sum.server import SecureServer
from murmur_report import sums
from murmur_report.audit import Effort, findings
from murmur_report.sums import Asked, SecureSum

COMMON = [
    "engine=inline",
    "dataset=digits",
    "model=linear",
    "strategy.local.epochs=1",
    "privacy.secure_aggregation=on",
    "federation.num_clients=6",
    "federation.num_rounds=1",
]
WEIGHTS = [
    *COMMON,
    "strategy=nbafl",
    "privacy.sensitivity=worst",
    "privacy.epsilon=4",
    "partition=quantity_skew",
]
VOTES = [
    *COMMON,
    "strategy=votes",
    "strategy.K=5",
    "privacy.threat=secure_aggregation",
    "privacy.epsilon=1",
]
ROWS = [
    *COMMON,
    "strategy=privatekt",
    "strategy.answers=disjoint",
    "strategy.target=posterior",
    "strategy.K=3",
    "privacy.epsilon=3",
]


@pytest.fixture
def audited(tmp_path, monkeypatch):
    """(adversary, bound, finding) of every attack on the sums of a configuration."""
    monkeypatch.setattr("murmur_report.audit.SCOUTS", 20)
    monkeypatch.setattr(sums, "CHECKED", 1)

    def run(words, runs):
        config = compose(words)
        node = SimulatedHost(config, SimulatedSite.of(tmp_path))
        found = findings(
            ValidatedRun(config).strategy, node, Effort(runs), Threat.SECURE_AGGREGATION
        )
        return [(seen.adversary, bound.epsilon, finding) for seen, bound, finding in found]

    return run


def sum_of(words, tmp_path, victim=0):
    config = changed(compose(words), "privacy.secure_aggregation", "on")
    node = Asked(config, SimulatedSite.of(tmp_path))
    return SecureSum(ValidatedRun(config).strategy, node, node, victim)


def test_a_sum_is_that_of_different_clients_weights_and_places(tmp_path):
    summed = sum_of(WEIGHTS, tmp_path)
    weights = [part.weight for part in summed.parts.values()]
    assert len(summed.parts) == 5 and len(set(weights)) > 1  # the fewest of 6
    assert summed.parts[0].weight == max(weights)
    rows = sum_of(ROWS, tmp_path / "rows")
    total = rows(rows.data_of(0), NoiseGenerator.seeded(1))
    answered = total.reshape(6, 3, 10).sum(axis=2)  # each client labels the images of its row
    assert answered.sum() == 15 and set(answered.ravel().tolist()) == {0, 1}


def test_the_whole_way_gives_what_its_shortcut_gives(tmp_path):
    summed = sum_of(VOTES, tmp_path)
    data = summed.data_of(0)
    checked = [summed(data, NoiseGenerator.seeded(n)) for n in range(sums.CHECKED)]
    added = [summed(data, NoiseGenerator.seeded(n)) for n in range(sums.CHECKED)]
    assert np.array_equal(checked, added)


@pytest.mark.parametrize("part", ["collector", "server"])
def test_what_loses_a_bit_on_the_way_is_found(tmp_path, monkeypatch, part):
    if part == "collector":
        add = MaskedSum.add

        def broken(self, client, codec: Codec, packed, weight):
            add(self, client, codec, packed, weight + (client == 0))

        monkeypatch.setattr(MaskedSum, "add", broken)
    else:
        total = SecureServer.total
        monkeypatch.setattr(
            SecureServer, "total", lambda *given, **named: total(*given, **named) + 1
        )
    with pytest.raises((RuntimeError, sums.SumRefusedError)):
        sum_of(VOTES, tmp_path)


def test_colluders_noise_is_known(tmp_path):
    def spread(colluders):
        """Of what is seen, in votes."""
        words = [*VOTES, f"privacy.secure_sum.colluders={colluders}"]
        summed = sum_of(words, tmp_path / str(colluders))
        data = summed.data_of(0)
        drawn = [summed(data, NoiseGenerator.seeded(number)) for number in range(80)]
        return np.std(drawn, axis=0).mean() * summed.parts[0].codec.grid

    # Fewer share the same noise, whatever others add.
    assert spread(1) == pytest.approx(spread(0), rel=0.05)


def test_a_heavy_client_s_sum_shows_more_than_it_would_cost_among_equals(audited, tmp_path):
    charged = sum_of(WEIGHTS, tmp_path / "charged").charged
    equals = SummedEvent(charged.event, charged.honest_clients)
    believed = epsilon(equals, 1e-5, Threat.SECURE_AGGREGATION).epsilon
    (_, bound, heavy), *_, (_, least, light), _ = audited(WEIGHTS, 100)
    assert believed < heavy.likely <= bound
    assert light.likely <= least == pytest.approx(believed)


def test_others_who_are_asked_for_no_noise_take_no_part(audited):
    (_, bound, found), (lied_to, _, nothing) = audited(VOTES, 100)
    assert 0.5 * bound < found.likely <= bound
    assert nothing is None and "no sum comes about" in lied_to
    assert "for another release than this client would make" in lied_to


def test_a_row_of_its_own_costs_the_same_in_a_sum(audited):
    (_, bound, found), *_ = audited(ROWS, 400)
    assert bound == pytest.approx(3.0, rel=1e-3)
    assert found.likely <= bound
