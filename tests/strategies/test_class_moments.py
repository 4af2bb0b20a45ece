"""Second moments of classes: what a record moves, what it costs, what the server makes of sums."""

import json

import numpy as np
import pytest

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.hosts import build_client
from fl_app.run.validated import ValidatedRun
from murmur.algorithms.class_moments import CentreSum, MomentSum
from murmur.learning.data.examples import LocalData
from murmur.privacy.accounting import Threat, Unit, epsilon
from murmur.privacy.budget import Budget
from tests.fl_app.running import run_inline

RNG = np.random.default_rng(3)
SMALL = [
    "strategy=class_moments",
    "privacy.unit=record",
    "engine=inline",
    "dataset=digits",
    "federation.public=0",
    "federation.num_clients=5",
    "privacy.noise=seeded",
    "privacy.secure_aggregation=simulated",
    "privacy.secure_sum.minimum=1.0",
    "privacy.secure_sum.colluders=1",
]
TIGHT = Budget(2.0, 1e-5, prerun_fraction=0.1)


def accuracy(folder):
    return json.loads((folder.path / "metrics.json").read_text())["accuracy"]


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
def test_no_exchange_moves_the_integers_further_than_is_paid_for(unit):
    """Opposite vectors are 2 apart; outer products of records of two classes √2."""
    centre = CentreSum(TIGHT, 6, 0.1, unit, 50)
    moments = MomentSum(TIGHT, 6, 3, 0.9, unit, 50, 0.3)
    worst = {"centre": 0.0, "moments": 0.0}
    for _ in range(60):
        rows = RNG.normal(size=(2, 6)) * 10.0 ** RNG.integers(-3, 3)
        rows[1] = [rows[1], -rows[0]][RNG.integers(2)]
        rows /= np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
        labels = RNG.integers(3, size=2)
        images = rows.astype(np.float32).reshape(2, 6, 1, 1)
        one, other = (centre.of(images[i : i + 1]) for i in (0, 1))
        worst["centre"] = max(worst["centre"], float(np.linalg.norm(one - other)))
        one, other = (moments.of(rows[i : i + 1], labels[i : i + 1]) for i in (0, 1))
        worst["moments"] = max(worst["moments"], float(np.linalg.norm(one - other)))
    assert 0.9 * centre.noise.sensitivity < worst["centre"] <= centre.noise.sensitivity
    assert 0.8 * moments.noise.sensitivity < worst["moments"] <= moments.noise.sensitivity


def test_a_clients_mean_is_no_longer_than_one_however_many_records_it_has():
    moments = MomentSum(TIGHT, 6, 3, 0.9, Unit.CLIENT, 1, 0.3)
    rows = RNG.normal(size=(700, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = moments.of(rows, RNG.integers(3, size=700))
    assert np.linalg.norm(found / moments.steps) <= 1
    assert not moments.of(rows[:0], np.zeros(0, np.int64)).any()


def test_the_sum_does_not_depend_on_which_owner_has_a_record():
    moments = MomentSum(TIGHT, 6, 3, 0.9, Unit.RECORD, 500, 0.3)
    rows, labels = RNG.normal(size=(500, 6)) / 4, RNG.integers(3, size=500)
    whole = moments.of(rows, labels)
    parts = [moments.of(rows[i::3], labels[i::3]) for i in range(3)]
    assert np.array_equal(whole, sum(parts))


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("threat", ["local", "secure_aggregation"])
def test_both_releases_share_one_budget(unit, threat):
    words = ["privacy.epsilon=2", f"privacy.unit={unit}", f"privacy.threat={threat}"]
    strategy = ValidatedRun(compose([*SMALL, *words])).strategy
    strategy.rounds.before.update(range(5))
    strategy.rounds.participations.update(dict.fromkeys(range(5), 2))
    strategy.rounds.sums.least_survivors = strategy.setup.least_survivors
    assert 1.99 < epsilon(strategy.claims().spent(), 1e-5, Threat(threat)).epsilon <= 2
    for exposure in strategy.claims().exposures():
        if exposure.threat == threat:
            costs = {epsilon(e, 1e-5, exposure.threat).epsilon for e in exposure.clients.values()}
            assert len(costs) == 1
            assert 1.99 < costs.pop() <= 2


def test_the_noise_is_that_of_the_specification():
    """Five hospitals of which one colludes, ε = 1: 26.37955 and 6.21772 on their sums."""
    releases = ValidatedRun(compose([*SMALL, "privacy.epsilon=1"])).strategy.releases
    assert releases.centre.deviation(5) == pytest.approx(26.37955, rel=2e-3)
    assert releases.moments.deviation(5) == pytest.approx(6.21772, rel=2e-3)


def test_iid_and_skewed_owners_give_the_same_model_up_to_noise(tmp_path):
    found = []
    for name, partition in (("iid", "iid"), ("skewed", "dirichlet")):
        words = ["privacy.epsilon=inf", f"partition={partition}"]
        found.append(run_inline(tmp_path / name, *words, small=SMALL).load_checkpoint().run.model)
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)


def test_digits_are_learnt_from_two_sums(tmp_path):
    assert accuracy(run_inline(tmp_path / "open", "privacy.epsilon=inf", small=SMALL)) > 0.9
    assert accuracy(run_inline(tmp_path / "eight", "privacy.epsilon=8", small=SMALL)) > 0.7


def test_more_records_than_were_stated_are_cut_and_change_nothing_of_the_bound(tmp_path):
    experiment = ValidatedRun(compose([*SMALL, "strategy.records=2"]))
    client = build_client(experiment.config, experiment.population, experiment.trainer, tmp_path)
    train = experiment.population.dataset.train
    data = LocalData(train.images, train.labels, np.arange(600))
    question = experiment.strategy.before_rounds()
    release = client.releases.centre
    found = client.train(question.task(0), data)
    assert np.abs(found).max() > release.largest
    quiet = np.clip(found, -release.largest, release.largest)
    assert np.abs(quiet).max() == 2 * release.steps


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=linear"], "class_moments: releases a centre; set model=centred"),
        (["privacy.unit=house"], "unit=house: must be one of"),
        (["federation.num_rounds=2"], "num_rounds=2: moments are released once"),
        (["strategy.records=1000000000"], "records=1000000000: sums of so many records"),
        (["strategy.centre_share=1.0"], "centre_share=1.0: must"),
        (["privacy.threat=central"], "threat=central"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(words, message):
    with pytest.raises(ConfigError, match=message):
        ValidatedRun(compose([*SMALL, *words]))


def test_only_a_run_that_drowns_is_warned_of():
    words = ["strategy=class_moments", "engine=inline"]
    drowned = ValidatedRun(compose([*words, "privacy.epsilon=0.1"])).strategy
    (warning,) = drowned.warnings()
    assert warning.startswith("signal-to-noise ratio 0.02; not at this budget")
    above = ValidatedRun(compose([*words, "privacy.unit=record"])).strategy
    assert above.forecast().share is None and not above.forecast().is_drowned
    assert not above.warnings()
