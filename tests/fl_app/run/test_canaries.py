"""`audit=canaries`: what joins a run, what it measures, that it is the same everywhere and told."""

import json

import numpy as np
import pytest

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from murmur.learning.sums import SumAccumulator
from murmur.privacy.events import Adjacency
from murmur.privacy.statement import Statement
from tests.fl_app.running import SMALL, interrupt, run_inline

AUDIT = ["audit=canaries", "audit.canaries=64", "model=linear"]
CENTRAL = ["strategy=dp_fedavg", "privacy.epsilon=4"]
SUMS = ["privacy.threat=secure_aggregation", "privacy.secure_aggregation=simulated"]
LABELS = ["strategy=privatekt", "strategy.K=4", "privacy.epsilon=16"]


def statement(folder):
    return Statement.from_dict(json.loads((folder.path / "privacy.json").read_text()))


def guarantee(folder):
    return statement(folder).guarantees[0]


@pytest.mark.parametrize(
    "words",
    [
        CENTRAL,
        [*CENTRAL, "strategy=dp_ftrl", "federation.schedule=rotate"],
        ["protection=distributed", "strategy=fedavg", "privacy=local", *SUMS],
        ["strategy=scaffold", "protection=central", "privacy=local", "privacy.threat=central"],
        ["strategy=nbafl", "privacy.sensitivity=worst", "privacy.epsilon=16"],
        LABELS,
        [*LABELS, "strategy.answers=disjoint", "strategy.target=posterior"],
        [*LABELS, "strategy=votes", *SUMS],
        ["strategy=class_statistics", "federation.num_rounds=1", *SUMS],
        ["strategy=gradient_rounds", "federation.num_rounds=2", *SUMS],
    ],
    ids=" ".join,
)
def test_what_canaries_measure_is_in_the_statement_and_not_above_what_is_proven(tmp_path, words):
    trains = words[0] not in ("strategy=class_statistics", "strategy=gradient_rounds")
    own = [word for word in SMALL if trains or "local" not in word]
    found = guarantee(run_inline(tmp_path, *words, *AUDIT, small=own))
    audit = found.canaries
    assert audit is not None
    assert audit.count == 64
    assert 0 <= audit.at_least <= found.stated
    assert (audit.estimate is None) is (words[:3] == LABELS and SUMS[0] not in words)
    assert audit.estimate is None or audit.low <= min(audit.estimate, found.stated)
    [note] = [note for note in found.notes if "64 canary clients" in note]
    assert ("hidden less" in note) is (SUMS[0] in words)


def test_a_release_of_a_whole_client_is_measured_closely(tmp_path):
    """Each canary's message bears its own noise and no other's."""
    words = ["protection=distributed", "strategy=fedavg", "privacy=local", "privacy.threat=local"]
    found = guarantee(
        run_inline(tmp_path, *words, *AUDIT, "audit.canaries=600", "privacy.epsilon=6")
    )
    assert 0.7 * found.proven_total < found.canaries.estimate < 1.3 * found.proven_total
    assert found.canaries.low <= found.proven_total


def test_a_server_that_forgets_its_noise_is_seen_by_canaries(tmp_path, monkeypatch):
    from murmur.privacy.protection import Central

    monkeypatch.setattr(Central, "noised", lambda self, number, total, multiplier, noise: total)
    run = run_inline(tmp_path, *CENTRAL, *AUDIT, "audit.canaries=600", "privacy.epsilon=2")
    found = guarantee(run)
    assert found.canaries.low > found.proven_total
    assert any("more than is stated" in reason for reason in statement(run).doubts)
    assert found.canaries.at_least > 2


def test_a_canary_that_contributes_nothing_still_sends_a_message():
    """Else whoever reads messages tells it from one that does by there being one."""
    words = ["protection=distributed", "strategy=fedavg", "privacy=local", "privacy.threat=local"]
    strategy = ValidatedRun(compose([*AUDIT, *words])).strategy
    canaries = strategy.rounds.canaries
    strategy.adjacency = Adjacency.REPLACE_SPECIAL
    canaries.add_to(
        strategy.training(1, strategy.setup.initial_parameters()).task(0),
        SumAccumulator(strategy.codec()),
    )
    out = canaries.scores[~canaries.inside]
    assert len(out) and out.all()
    assert np.abs(out.mean()) < 3 * out.std() / np.sqrt(len(out))


def test_a_run_is_the_same_on_one_node_and_three_and_after_an_interruption(tmp_path):
    words = [*LABELS, *AUDIT]
    whole = run_inline(tmp_path / "one", *words)
    split = run_inline(tmp_path / "three", *words, nodes=3)
    folder = interrupt(tmp_path / "cut", *words, before=2)
    resumed = run_inline(folder, *words)
    for other in (split, resumed):
        assert guarantee(other).canaries == guarantee(whole).canaries
        assert [r["accuracy"] for r in other.rows()] == [r["accuracy"] for r in whole.rows()]


def test_a_run_without_canaries_is_what_it_was_and_says_so(tmp_path):
    plain = run_inline(tmp_path / "plain", *CENTRAL, "model=linear")
    audited = run_inline(tmp_path / "audited", *CENTRAL, *AUDIT)
    assert guarantee(plain).canaries is None
    assert plain.metrics()["canaries"] == 0
    assert audited.metrics()["canaries"] == 64
    assert audited.metrics()["bytes_up"] == plain.metrics()["bytes_up"]
    assert guarantee(audited).clients == guarantee(plain).clients


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy=dpsgd_fedavg"], "has no canaries"),
        (["strategy=fedavg", "privacy=none"], "nothing to measure"),
        (["strategy=nbafl", "privacy=paper"], "protects records"),
        ([*CENTRAL, "audit.canaries=8"], "audit.canaries=8: must be at least 16"),
        ([*CENTRAL, "audit.canaries=651"], "canaries=651: must be at most 650, the size of"),
    ],
)
def test_what_canaries_cannot_measure_is_refused_before_the_run(words, said):
    with pytest.raises(ConfigError, match=said):
        ValidatedRun(compose([*AUDIT, *words]))


def test_canaries_join_the_sum_after_the_clients_and_share_no_entry():
    strategy = ValidatedRun(compose([*AUDIT, *CENTRAL, "privacy.noise=seeded"])).strategy
    model, canaries = strategy.setup.initial_parameters(), strategy.rounds.canaries
    total = SumAccumulator(strategy.codec())
    canaries.add_to(strategy.training(1, model).task(0), total)
    assert set(total.clients) <= {-1 - name for name in np.flatnonzero(canaries.inside)}
    steps = np.abs(total.total)
    assert 0 < steps.max() <= 2**20 / np.sqrt(len(model) // canaries.count)


def test_messages_of_canaries_that_are_read_are_in_no_sum(tmp_path):
    plain = run_inline(tmp_path / "plain", *LABELS, "model=linear")
    audited = run_inline(tmp_path / "audited", *LABELS, *AUDIT)
    assert [r["loss"] for r in audited.rows()] == [r["loss"] for r in plain.rows()]
