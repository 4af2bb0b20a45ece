"""`murmur audit`: never above the proof, close to it where the mechanism is tight, and no fake."""

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from clients.privatekt import PrivateKTClient
from clients.protected_evaluation import CountsClient
from fl_app.cli import main as murmur
from fl_app.config.compose import compose
from fl_app.run.hosts import SimulatedHost
from fl_app.run.validated import ValidatedRun
from murmur.learning.data.examples import LocalData
from murmur.learning.models import mlp
from murmur.learning.objective import Objective
from murmur.learning.training.dpsgd import PerSampleGradients
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.audit import Success
from murmur.privacy.events import GaussianEvent, RandomizedResponseEvent
from murmur.privacy.guarantee import Exposure
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.mechanisms.sampled_gaussian import SampledGaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.statement import Statement
from murmur.round.site import SimulatedSite
from murmur_report.attack import AttackResult
from murmur_report.audit import Bound, Effort, _measured, _refuted, findings, main
from murmur_report.neighbours import neighbours
from strategies.fedavg import FedAvg
from tests.fl_app.running import SMALL, run_inline
from tests.sums import noised

LABELS = ["privacy.epsilon=3", "strategy.K=1", "strategy.local.epochs=5"]
STATISTICS = [
    "strategy=class_statistics",
    "model=linear",
    "federation.num_rounds=1",
    "federation.num_clients=6",
    "privacy.epsilon=8",
    "privacy.secure_aggregation=simulated",
    "privacy.threat=secure_aggregation",
    "engine=inline",
]
CENTRAL = [
    "strategy=dp_fedavg",
    "federation.num_clients=12",
    "federation.num_rounds=1",
    "privacy.epsilon=3",
    "model=linear",
    "strategy.local.epochs=1",
    "engine=inline",
]
RECORDS = [
    "strategy=dpsgd_fedavg",
    "privacy.unit=record",
    "model=linear",
    "privacy.epsilon=4",
    "federation.num_clients=30",
    "federation.num_rounds=1",
    "engine=inline",
]


@pytest.fixture
def repeatable(monkeypatch):
    """The operating system's noise is the same every time, and still nobody's seed."""
    keys = itertools.count()
    monkeypatch.setattr(
        NoiseGenerator,
        "from_os",
        classmethod(lambda cls: cls(next(keys).to_bytes(32, "big"), is_seeded=False)),
    )


@pytest.fixture
def audited(tmp_path, repeatable, monkeypatch):
    """(ε, finding) of each attack on a configuration, of one release or of all together.

    ``alarms`` of what it returns: for each whether more was counted than its bound.
    Of sums: of those whose clients are all asked alike; for others see ``test_audit_of_sums.py``.
    """
    monkeypatch.setattr("murmur_report.audit.SCOUTS", 40)

    def run(words, runs, together=False):
        config = compose(words)
        node = SimulatedHost(config, SimulatedSite.of(tmp_path))
        found = findings(ValidatedRun(config).strategy, node, Effort(runs))
        chosen = [
            (bound, finding)
            for seen, bound, finding in found
            if finding is not None and (bound.releases > 1) is together
            if "no noise" not in seen.adversary
        ]
        run.alarms = [bound.beaten_at(finding) is not None for bound, finding in chosen]
        return [(bound.epsilon, finding) for bound, finding in chosen]

    return run


def test_measured_epsilon_of_labels_lies_between_half_and_all_of_the_proven(audited):
    [(proven, found)] = audited([*SMALL, *LABELS, "privacy=paper"], 10_000)
    assert proven == pytest.approx(3.0, rel=0.01)
    assert proven / 2 < found.counted <= proven


def test_measured_epsilon_of_a_sum_and_of_messages_stays_below_the_bounds(audited):
    for bound, found in audited(STATISTICS, 200):
        assert 0.7 * bound < found.estimate.low <= bound and found.counted <= bound


def test_measured_epsilon_of_published_models_stays_below_the_bound(audited):
    [(bound, found)] = audited(CENTRAL, 600)
    assert 0.3 * bound < found.estimate.low <= bound and found.counted <= bound


LAST_MODEL = [*CENTRAL, "federation.num_rounds=4"]


def test_measured_epsilon_of_the_last_model_stays_below_the_bound_of_all_rounds(audited):
    [(one, _)] = audited(LAST_MODEL, 200)
    [(bound, found)] = audited(LAST_MODEL, 400, together=True)
    assert one < bound == pytest.approx(3.0, rel=0.02)
    assert 0.2 * bound < found.estimate.low <= bound and found.counted <= bound


NULLED = [
    "privacy.unit=client",
    "model=linear",
    "dataset=digits",
    "federation.num_clients=12",
    "federation.num_rounds=1",
    "strategy.local.epochs=1",
    "strategy.local.lot_size=500",
    "engine=inline",
]
QUICK_LABELS = ["strategy.labelling.epochs=1", "strategy.labelling.queries=5"]


@pytest.mark.parametrize("strategy", [["dpsgd_fedavg"], ["kd_dpfl", *QUICK_LABELS]])
def test_a_client_that_is_nulled_still_sends_a_model(audited, strategy):
    """Beside zeros, which it never sends, any model stands out, and a correct run is accused."""
    words = [f"strategy={strategy[0]}", *strategy[1:], *NULLED]
    bound, found = audited(words, 100)[0]
    assert not any(audited.alarms)
    assert found.neighbours.endswith("a client that contributes nothing")
    assert found.is_normal
    assert 0.6 * bound < found.estimate.low <= bound <= found.estimate.high


def test_few_runs_and_many_agree_within_their_confidence(audited):
    words = ["strategy=fedavg", "protection=distributed", "privacy=local", *CENTRAL[1:]]
    words.append("privacy.threat=local")
    [(bound, few)] = audited(words, 200)
    [(same, many)] = audited(words, 2_000)
    assert bound == same
    assert few.estimate.low <= many.estimate.estimate <= few.estimate.high
    assert few.estimate.low <= bound <= few.estimate.high
    assert many.estimate.low <= bound <= many.estimate.high
    assert max(few.counted, many.counted) <= min(few.estimate.high, many.estimate.high)


def without(self, x, rng, out=None):
    """In place of a mechanism."""
    return x


def test_a_last_model_with_noise_in_its_first_round_alone_is_caught(audited, monkeypatch):
    update = FedAvg.update

    def forgetful(self, number, model, total, weight):
        with monkeypatch.context() as patch:
            if number > 1:
                patch.setattr(DiscreteGaussian, "privatize_integers", without)
            return update(self, number, model, total, weight)

    monkeypatch.setattr(FedAvg, "update", forgetful)
    [(bound, found)] = audited(LAST_MODEL, 500, together=True)
    assert found.estimate.low > bound


def test_noise_within_the_training_is_attacked_through_the_answer_that_leaves(audited):
    [(bound, found)] = audited(RECORDS, 200)
    assert "null record" in found.neighbours
    assert found.counted <= bound and found.estimate.low <= bound


ONE_STEP = [*RECORDS, "strategy.local.epochs=1", "strategy.local.lot_size=100"]


def test_one_step_on_all_records_is_normal_and_shows_nearly_all_of_its_epsilon(audited):
    [(bound, found)] = audited(ONE_STEP, 500)
    assert found.is_normal
    assert 0.85 * bound < found.estimate.low <= bound


def test_a_record_s_gradient_clipped_at_half_as_much_again_is_caught(audited, monkeypatch):
    clipped_sum = PerSampleGradients.clipped_sum
    monkeypatch.setattr(
        PerSampleGradients, "clipped_sum", lambda *given: (1.5 * clipped_sum(*given)).trunc()
    )
    [(bound, found)] = audited(ONE_STEP, 200)
    assert found.estimate.low > bound


BITS = [
    "strategy=dpfl_bnn",
    "model.channels=[]",
    "model.hidden=32",
    "model.bn=none",
    "strategy.local.steps=1",
    "privacy.threat=local",
    "privacy.epsilon=6",
    "federation.num_clients=12",
    "federation.num_rounds=1",
    "engine=inline",
]


def test_thousands_of_bits_are_told_apart_as_well_as_is_proven(audited):
    [(bound, found)] = audited(BITS, 2_500)
    assert found.neighbours == "two opposite results of training"
    assert not found.is_normal
    assert 0.6 * bound < found.estimate.low <= bound


def test_bits_that_are_kept_a_little_too_often_are_caught(audited, monkeypatch):
    monkeypatch.setattr(
        BinaryRandomizedResponse,
        "_flips",
        lambda self, n, rng: rng.uint16(n) < (0.5 - 1.5 * self.gamma) * 2**16,
    )
    audited(BITS, 1_000)
    assert audited.alarms == [True]


ROUNDS = [*SMALL, *LABELS[1:], "privacy.epsilon=6", "federation.num_rounds=2"]


def test_a_clients_releases_over_the_run_tell_more_than_one_and_no_more_than_is_proven(audited):
    [(one_bound, one)] = audited(ROUNDS, 10_000)
    [(bound, found)] = audited(ROUNDS, 10_000, together=True)
    assert bound == pytest.approx(6.0, rel=0.01) and one_bound < bound
    assert 0.6 * bound < found.counted <= bound
    assert one.counted < found.counted


def test_a_budget_for_each_round_that_should_be_for_the_run_is_caught(audited, monkeypatch):
    monkeypatch.setattr(
        PrivateKTClient,
        "privatize",
        lambda self, update, task, noise: RandomizedResponse(6.0, 10).privatize(update, noise),
    )
    audited(ROUNDS, 10_000, together=True)
    assert audited.alarms == [True]


PRIVATEKT_PAPER = [
    *SMALL,
    "privacy=paper",
    "privacy.epsilon=5",
    "strategy.K=2",
    "federation.num_rounds=6",
]
NBAFL_PAPER = [
    "experiment=digits_nbafl",
    "engine=inline",
    "privacy.calibration=paper",
    "privacy.epsilon=1",
    "privacy.delta=0.01",
    "strategy.exposures=1",
    "federation.num_rounds=1",
    "strategy.local.epochs=5",
]


def test_privatekt_s_claim_for_a_run_is_refuted_by_counting_what_happened(audited):
    config = compose(PRIVATEKT_PAPER)
    assert ValidatedRun(config).strategy.claims().claimed == (5.0, 5.0)
    [(bound, found)] = audited(PRIVATEKT_PAPER, 12_000, together=True)
    assert 5.0 < found.counted <= bound


def test_nbafl_s_claim_is_refuted_by_one_record_and_said_to_be(capsys):
    assert main([*NBAFL_PAPER, "--runs", "1500"]) == 1
    shown = capsys.readouterr()
    assert "claimed ε   1 for one release" in shown.out
    assert "The claim is refuted: " in shown.out and "BEATEN" in shown.out
    assert "an assumption is false" in shown.err


def careless(self, update, task, noise):
    return RandomizedResponse(2 * 3.0, 10).privatize(update, noise)


def forgetful(self, update, task, noise):
    return update.astype(np.uint8)


def predictable(self, update, task, noise):
    return RandomizedResponse(3.0, 10).privatize(update, NoiseGenerator.seeded("always"))


@pytest.mark.parametrize("broken", [careless, forgetful, predictable])
def test_labels_with_too_little_noise_are_caught(audited, monkeypatch, broken):
    monkeypatch.setattr(PrivateKTClient, "privatize", broken)
    audited([*SMALL, *LABELS, "privacy=paper"], 10_000)
    assert audited.alarms == [True]


def test_shared_noise_of_a_third_of_the_scale_is_caught_in_the_sum(audited, monkeypatch):
    privatize = DiscreteGaussian.privatize_integers

    def thin(self, x, rng, out=None):
        return x + (privatize(self, x, rng) - x) // 3

    monkeypatch.setattr(DiscreteGaussian, "privatize_integers", thin)
    (most, message), (bound, total) = audited(STATISTICS, 200)
    assert total.estimate.low > bound and message.estimate.low > most
    # Of an ε of 74 so few runs count nothing, and what normal noise would show accuses nobody.
    assert audited.alarms == [False, True]


def test_a_server_that_forgets_its_noise_is_caught(audited, monkeypatch):
    monkeypatch.setattr(DiscreteGaussian, "privatize_integers", without)
    audited(CENTRAL, 200)
    assert audited.alarms == [True]


def test_dp_sgd_without_noise_is_caught(audited, monkeypatch):
    monkeypatch.setattr(SampledGaussian, "perturb", lambda self, total, rng: total)
    audited(RECORDS, 200)
    assert audited.alarms == [True]


def test_audit_of_a_run_is_written_into_its_statement(tmp_path, capsys):
    run = run_inline(tmp_path / "run", *LABELS)
    earlier = run.statement()
    most = earlier["guarantees"][0]["proven_per_round"]
    earlier["guarantees"][0]["measured"] = most  # another look does not add to it
    (run.path / "privacy.json").write_text(json.dumps(earlier))
    assert main([str(run.path), "--runs", "2000"]) == 0
    assert "measured ε  at least" in capsys.readouterr().out
    guarantee = json.loads((run.path / "privacy.json").read_text())["guarantees"][0]
    assert 0 < guarantee["measured"] < most
    assert "by attack" in (run.path / "privacy.txt").read_text()


def test_a_run_that_an_attack_beats_has_a_void_statement(tmp_path, monkeypatch, capsys):
    run = run_inline(tmp_path / "run", *LABELS)
    monkeypatch.setattr(PrivateKTClient, "privatize", forgetful)
    assert main([str(run.path), "--runs", "2000"]) == 1
    assert "BEATEN" in capsys.readouterr().out
    said = Statement.from_dict(run.statement())
    assert any("an attack found more than is stated" in reason for reason in said.doubts)
    assert not said.is_private


def test_a_refutation_is_said_once():
    seen = Exposure(Threat.LOCAL, "a server", RandomizedResponseEvent(5.0, 10), {})
    costs = replace(seen, clients={"a": seen.per_round})
    statement = Statement.of("it", Unit.CLIENT, Adjacency.REPLACE_ONE, 1e-5, [costs])
    once = _refuted(statement, seen)
    assert once.doubts and _refuted(once, seen) == once


def test_no_later_audit_takes_a_refutation_back(tmp_path):
    run = run_inline(tmp_path / "run", *LABELS)
    refuted = run.statement()
    refuted["guarantees"][0]["measured"] = 99.0
    (run.path / "privacy.json").write_text(json.dumps(refuted))
    assert main([str(run.path), "--runs", "8"]) == 0
    said = Statement.from_dict(run.statement())
    assert said.guarantees[0].measured == 99.0
    assert said.doubts and not said.is_private


def test_what_is_found_of_a_smaller_sum_than_the_runs_is_not_in_its_statement():
    """The charge is for the fewest clients that may be in a sum, and the run's had more."""

    def said(honest):
        event = noised(GaussianEvent(2.0), honest)
        seen = Exposure(
            Threat.SECURE_AGGREGATION, "a server", event, {"a": event}, assumptions=("it is so",)
        )
        return Statement.of("it", Unit.CLIENT, Adjacency.REPLACE_ONE, 1e-5, [seen]), seen

    run, seen = said(6)
    found = AttackResult("", 1, 1.0, {1e-5: 1.0}, None, False, Success(1, 1))
    smaller = Bound.of(said(3)[1], run, 1)
    assert smaller.epsilon > run.guarantees[0].stated_per_round
    assert _measured(run, seen, smaller, found) == run
    same = Bound.of(seen, run, 1)
    assert _measured(run, seen, same, found).guarantees[0].measured == 1.0


def test_what_beats_a_statement_that_says_too_little_is_in_it():
    seen = Exposure(Threat.LOCAL, "a server", RandomizedResponseEvent(5.0, 10), {})
    costs = replace(seen, clients={"a": seen.per_round})
    much = Statement.of("it", Unit.CLIENT, Adjacency.REPLACE_ONE, 1e-5, [costs])
    little = replace(much.guarantees[0], proven_per_round=1.0)
    found = AttackResult("", 1, 4.0, {1e-5: 4.0}, None, False, Success(1, 1))
    statement = replace(much, guarantees=(little,))
    assert not statement.doubts
    assert _measured(statement, seen, Bound.of(seen, much, 1), found).doubts


def test_bad_words_get_one_error(capsys):
    assert murmur(["audit", "privacy.epsilonn=1"]) == 2
    assert "privacy.epsilonn=1" in capsys.readouterr().err
    assert murmur(["audit", "--runs", "3"]) == 2
    assert "--runs=3: must be at least 8" in capsys.readouterr().err


EVALUATIONS = pytest.mark.parametrize(
    "words",
    [
        ["evaluation=protected_counts", "evaluation.every=1"],
        ["evaluation=protected_counts", "evaluation.every=1", "evaluation.counts.unit=client"],
        ["evaluation=protected_counts", "evaluation.every=1", "evaluation.counts.noise=gaussian"],
        ["strategy=clustering", "evaluation=protected_clustering", "evaluation.every=1"],
    ],
    ids=" ".join,
)


@EVALUATIONS
def test_a_client_s_evaluation_is_attacked_as_a_release_of_its_own(audited, words):
    own = [word for word in SMALL if "clustering" not in words[0] or "local" not in word]
    bound, found = audited([*own, *words], 4_000)[-1]
    assert found.neighbours == "two results as far apart as they can be"
    assert 0.2 * bound < found.likely <= bound


EVALUATED_SUM = [
    *SMALL,
    "federation.num_clients=6",
    "evaluation=protected_counts",
    "evaluation.every=1",
    "evaluation.counts.noise=gaussian",
    "privacy.secure_aggregation=simulated",
]


def test_sums_of_evaluations_are_attacked_as_the_server_sees_them(audited, monkeypatch):
    (message, _), (bound, found) = audited(EVALUATED_SUM, 100)[-2:]
    assert bound < message
    assert 0.5 * bound < found.likely <= bound
    privatize = DiscreteGaussian.privatize_integers
    monkeypatch.setattr(
        DiscreteGaussian,
        "privatize_integers",
        lambda self, x, rng, out=None: x + (privatize(self, x, rng) - x) // 2,
    )
    bound, found = audited(EVALUATED_SUM, 100)[-1]
    assert found.likely > bound


def test_an_evaluation_without_noise_is_caught(audited, monkeypatch):
    monkeypatch.setattr(CountsClient, "privatize", lambda self, update, task, noise: update)
    words = [*SMALL, "evaluation=protected_counts", "evaluation.every=1"]
    audited(words, 400)
    assert audited.alarms[-1]


LARGE = [
    "experiment=digits_kd_dpfl",
    "engine=inline",
    "strategy.labelling.mechanism=rr",
    "strategy.labelling.epochs=1",
    "strategy.labelling.queries=1",
]


def test_labels_of_a_large_client_are_attacked_as_they_leave(audited, monkeypatch):
    monkeypatch.setattr("murmur_report.audit.SCOUTS_TRAINED", 4)
    bound, found = audited(LARGE, 8)[-1]
    assert math.isfinite(bound)
    assert found.likely <= bound


def test_results_apart_are_no_farther_than_clipping_allows(audited):
    words = ["strategy=nbafl", "privacy.sensitivity=worst", "model=linear", "privacy.epsilon=4"]
    bound, found = audited([*SMALL, *words], 200)[0]
    assert found.neighbours == "two opposite results of training"
    assert 0.6 * bound < found.estimate.low <= bound


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.RECORD])
def test_neighbours_of_tasks_without_classes_have_labels_of_the_task(unit):
    prices = np.array([20.0, 40.0, 30.0], np.float32)
    bits = np.array([[0, 1], [1, 1], [0, 0]], np.float32)
    for objective, labels in (
        (Objective("regression", 20.0, 60.0), prices),
        (Objective("multilabel"), bits),
    ):
        outputs = len(labels.shape)
        trainer = Trainer(partial(mlp, hidden=[]), (1, 1, 2), outputs, objective=objective)
        messages = SimpleNamespace(client=SimpleNamespace(trainer=trainer), trains_alone=False)
        images = np.zeros((3, 1, 1, 2), np.float32)
        exposure = Exposure(Threat.LOCAL, "", GaussianEvent(1.0), {})
        own = LocalData(images, labels, np.arange(3))
        pairs = neighbours(messages, own, exposure, unit, Adjacency.REPLACE_ONE)
        for pair in pairs:
            for data in (pair.one, pair.other):
                assert data.labels.shape == labels.shape
                objective.require_labels(data.labels, outputs)
        assert any(not np.array_equal(pair.one.labels, pair.other.labels) for pair in pairs)
