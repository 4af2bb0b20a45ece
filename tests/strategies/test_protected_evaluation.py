"""The evaluation's server half: hostile rows, composition with training, what a row reports."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.error import Error

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from fl_app.testing import Grid
from murmur.algorithms.protected_evaluation import CLEAN_TOTAL
from murmur.learning.data.datasets import Examples
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Adjacency, Unit
from murmur.privacy.budget import Budget
from murmur.privacy.events import GaussianEvent, RandomizedResponseEvent, Release
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection import Unprotected
from murmur.privacy.statement_text import render
from murmur.round.client_evaluation import CLEAN, PROTECTED
from murmur.round.server_step import Sgd
from murmur.round.setup import ServerSetup
from murmur.secure_sum.settings import SecureSumSettings
from strategies.fedavg import FedAvg
from strategies.protected_evaluation import ProtectedClustering
from tests.fl_app.running import interrupt, run_inline

NODES, CLIENTS, K = [11, 12], 40, 4

PLAIN = {"server_step": Sgd(learning_rate=1.0), "protection": Unprotected}


def setup(**changed):
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[2]), (1, 2, 2), K
    )
    test = Examples(np.zeros((4, 1, 2, 2), np.float32), np.zeros(4, np.int64))
    known = {"client_sizes": (30,) * CLIENTS, **changed}
    return ServerSetup(
        trainer=trainer,
        public=test.images,
        test=test,
        budget=Budget(np.inf, 1e-5),
        seed=1,
        num_clients=CLIENTS,
        cohort_size=CLIENTS,
        quorum=0.5,
        **known,
    )


def evaluation(privacy="laplace", epsilon=50.0, setup_=None, **changed):
    result = {"privacy": privacy, "epsilon": epsilon}
    result |= {key: changed.pop(key) for key in ("unit", "seed_compat") if key in changed}
    settings = {
        "cluster_client_num": 1000,
        "metric": "silhouette",
        "postprocess": "none",
        "every": 1,
        "show_clean": True,
        **changed,
    }
    return ProtectedClustering(setup_ or setup(), result=result, **settings)


def begin(it, number=1):
    arrays = ArrayRecord({"model": Array(np.zeros(3, np.float32))})
    messages = it.messages(number, arrays, Grid(*NODES))
    for place, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"m{place}"
    return messages


def vectors(clients):
    values = np.full((len(clients), K), 0.02)
    values[np.arange(len(clients)), np.array(clients) % K] = 1 - 0.02 * (K - 1)
    return values


def reply(it, message, rows=None, **report):
    clients = list(message.content["task"]["clients"])
    if rows is None and message.content["task"]["purpose"] == CLEAN:
        rows = np.rint(vectors(clients) * CLEAN_TOTAL).astype(np.int32)
    elif rows is None:
        noise = NoiseGenerator.seeded("reply", clients[0])
        rows = it.protection.privatize_rows(vectors(clients), noise).astype(np.int32)
    known = {"clients": clients, "refused": [], "reasons": [], **report}
    content = RecordDict({"report": ConfigRecord(known)})
    content["contribution"] = ArrayRecord({"rows": Array(rows)})
    return Message(content, reply_to=message)


def test_all_clients_are_asked_once_for_each_purpose():
    messages = begin(evaluation())
    for purpose in (PROTECTED, CLEAN):
        asked = [m.content["task"] for m in messages if m.content["task"]["purpose"] == purpose]
        assert sorted(c for task in asked for c in task["clients"]) == list(range(CLIENTS))
    assert len(begin(evaluation(show_clean=False))) == len(NODES)


def test_nobody_is_asked_where_nothing_is_due():
    assert begin(evaluation(every=3), 4) == []
    assert len(begin(evaluation(every=3), 6)) == 4
    assert begin(evaluation("none")) == []
    assert begin(evaluation(metric="none")) == []


def test_report_has_clean_score_null_retention_and_verdict():
    it = evaluation()
    it.take([reply(it, message) for message in begin(it)])
    scores = it.scores
    assert scores["clean_score"] > 0.99
    assert scores["protected_score"] > scores["noise_score"] + 0.2
    assert scores["label_retention"] == 1
    assert scores["beats_noise"] == 1
    assert scores["evaluation_epsilon"] == pytest.approx(50)


def test_rank_correlation_follows_after_three_rounds():
    it = evaluation(epsilon=1e5)
    for number in (1, 2, 3):
        messages = begin(it, number)
        spread = 0.02 + 0.05 * number
        clean = [m.content["task"]["purpose"] == CLEAN for m in messages]
        replies = []
        for message, is_clean in zip(messages, clean, strict=True):
            rng = np.random.default_rng(number)
            values = vectors(message.content["task"]["clients"])
            values = values * (1 - spread) + spread * rng.dirichlet(np.ones(K), len(values))
            noise = NoiseGenerator.seeded(number)
            rows = (
                np.rint(values * CLEAN_TOTAL)
                if is_clean
                else it.protection.privatize_rows(values, noise)
            )
            replies.append(reply(it, message, rows.astype(np.int32)))
        it.take(replies)
    assert it.scores["rank_correlation"] == pytest.approx(1)
    assert np.all(np.diff(it.history[:, 2]) < 0)


def test_clients_are_accounted_for_even_where_their_node_fails_or_is_silent():
    it = evaluation()
    first, second, *_ = begin(it)
    it.take([Message(Error(code=2, reason="broken"), reply_to=first)])
    assert sum(it.participations.values()) == CLIENTS
    assert "broken" in it.failed[first.content["task"]["clients"][0]]
    assert "deadline" in it.failed[second.content["task"]["clients"][0]]
    assert "protected_score" not in it.scores


def test_refusing_clients_are_reported_and_not_charged():
    it = evaluation()
    first, *others = begin(it)
    clients = list(first.content["task"]["clients"])
    rows = np.zeros((len(clients) - 1, K), np.int32)
    answer = reply(it, first, rows, clients=clients[1:], refused=clients[:1], reasons=["policy"])
    it.take([answer, *(reply(it, m) for m in others)])
    assert it.failed == {clients[0]: "policy"}
    assert it.participations[clients[0]] == 0


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((20, K + 1), np.int32),
        np.zeros((19, K), np.int32),
        np.zeros((20, K), np.float32),
        np.zeros(20, np.int32),
        np.array(3, np.int32),
    ],
    ids=["wide", "too few", "reals", "flat", "scalar"],
)
def test_hostile_rows_are_rejected_as_a_whole_and_counted_as_released(rows):
    it = evaluation()
    first, *others = begin(it)
    it.take([reply(it, first, rows), *(reply(it, m) for m in others)])
    assert set(it.failed) == set(first.content["task"]["clients"])
    assert it.scores["evaluation_clients"] == CLIENTS - len(it.failed)


def with_training(it, participations):
    strategy = FedAvg(it.setup, **PLAIN)
    strategy.release_event = lambda: RandomizedResponseEvent(1.0, 4)
    strategy.rounds.participations.update(participations)
    strategy.rounds.switch_on(it)
    return strategy


def test_one_statement_composes_training_and_evaluation_for_each_client():
    it = evaluation("krr", 2.0)
    it.participations.update({0: 3, 1: 1, 7: 2})
    statement = with_training(it, {0: 2, 1: 5}).rounds.statement()
    (guarantee,) = statement.guarantees
    assert guarantee.bounds["basic"] == pytest.approx(2 * 1 + 3 * 2)
    assert guarantee.clients["7"] == pytest.approx(4, rel=1e-3)
    assert guarantee.clients["1"] <= 7
    assert "includes the protected evaluation" in render(statement).replace("\n    ", " ")


def test_private_evaluation_of_an_unprotected_training_is_still_not_private():
    it = evaluation("krr", 2.0)
    it.participations.update({0: 1})
    strategy = FedAvg(it.setup, **PLAIN)
    strategy.rounds.participations.update({0: 1})
    strategy.rounds.switch_on(it)
    statement = strategy.rounds.statement()
    assert not statement.is_private
    assert math.isinf(statement.guarantees[0].proven_total)
    assert any("ε=2 for each result" in warning for warning in statement.warnings)


def test_record_unit_makes_the_statement_one_of_records():
    it = evaluation(unit="record")
    assert with_training(it, {}).rounds.statement().unit is Unit.RECORD
    assert FedAvg(it.setup, **PLAIN).unit is Unit.CLIENT
    strategy = FedAvg(it.setup, **PLAIN)
    # A client as a whole contributes, or nothing.
    noise = Release(GaussianEvent(9.0), Unit.CLIENT, Adjacency.REPLACE_SPECIAL)
    strategy.adjacency = Adjacency.REPLACE_SPECIAL
    strategy.claims = lambda: SimpleNamespace(planned=lambda: noise)
    with pytest.raises(ValueError, match=r"^unit=record: .*unit=client.* counts twice .*record"):
        strategy.rounds.switch_on(it)
    in_part = replace(noise, in_part=True)
    strategy.claims = lambda: SimpleNamespace(planned=lambda: in_part)
    strategy.rounds.switch_on(it)
    assert strategy.unit is Unit.RECORD


def test_seed_compat_prints_its_true_epsilon():
    it = evaluation(epsilon=230_260.0, seed_compat=True)
    it.participations.update({0: 1})
    text = " ".join(it.warnings())
    assert "really 460,520" in text
    assert "ε=460,520 for each result" in text


def test_snapshot_carries_the_evaluation():
    it = evaluation()
    strategy = with_training(it, {})
    it.take([reply(it, message) for message in begin(it)])
    other = with_training(evaluation(), {})
    other.rounds.resume(strategy.rounds.state(0, np.zeros(0, np.float32), 1))
    assert other.rounds.evaluation.participations == it.participations
    assert np.array_equal(other.rounds.evaluation.history, it.history)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"metric": "f1"}, "metric=f1"),
        ({"every": 0}, "every=0"),
        ({"cluster_client_num": 0}, "cluster_client_num=0"),
        ({"privacy": "gauss"}, "privacy='gauss'"),
        ({"epsilon": -1.0}, "epsilon=-1"),
    ],
)
def test_bad_settings_are_refused_on_construction(changed, words):
    with pytest.raises(ValueError, match="^" + words):
        evaluation(**changed)


def test_a_postprocessing_that_nobody_knows_is_refused():
    words = ["strategy=clustering", "evaluation=protected_clustering"]
    with pytest.raises(ConfigError, match="postprocess=smooth: must be one of none, project"):
        ValidatedRun(compose([*words, "evaluation.postprocess=smooth"]))


def test_secure_sums_and_client_side_scores_of_a_strategys_own_are_refused():
    with pytest.raises(ValueError, match=r"^secure_aggregation=on"):
        evaluation(setup_=setup(secure_sums=SecureSumSettings("on")))
    config = compose(["strategy=dpfl_bnn", "evaluation=protected_counts"])
    with pytest.raises(ConfigError, match="evaluation"):
        ValidatedRun(config)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("laplace", 230260.0, True, "silhouette")),
        (
            ["unsupervised.eval_type=DAVIES_BOULDIN_SCORE"],
            ("laplace", 230260.0, True, "davies_bouldin"),
        ),
        (
            ["unsupervised.eval_type=CALINSKI_HARABASZ_SCORE"],
            ("laplace", 230260.0, True, "calinski_harabasz"),
        ),
        (["unsupervised.eval_type=NOT_EVAL"], ("laplace", 230260.0, True, "none")),
        (["encrypt.laplace_eval.laplace_eval_eps=7"], ("laplace", 7, True, "silhouette")),
        (["encrypt.privacy_eval_type=NOT_ENCRYPT"], ("none", 230260.0, False, "silhouette")),
        (["unsupervised.eval_type=BEST"], ("laplace", 230260.0, True, "BEST")),
    ],
)
def test_mindspores_own_keys_are_ours_in_other_words(words, expected):
    it = compose(
        ["strategy=clustering", "evaluation=mindspore", *(f"evaluation.{w}" for w in words)]
    )
    result = it.evaluation.result
    found = (result.privacy, result.epsilon, result.seed_compat, it.evaluation.metric)
    assert found == expected


def test_run_reports_protected_clustering_and_charges_it(tmp_path):
    run = run_inline(
        tmp_path / "run",
        "strategy=clustering",
        "evaluation=protected_clustering",
        "evaluation.every=2",
        "federation.public=100",
    )
    first, second = run.rows()[1:]
    assert "protected_score" not in first
    assert second["evaluation_clients"] == 6
    assert second["evaluation_epsilon"] == pytest.approx(10, rel=1e-4)
    assert second["loss"] < run.rows()[0]["loss"]


def test_an_evaluation_that_is_off_leaves_the_training_as_it_is(tmp_path):
    words = ["strategy=clustering", "federation.public=100"]
    kinds = ["evaluation=mindspore", "evaluation.unsupervised.cluster_client_num=6"]
    off = "evaluation.encrypt.privacy_eval_type=NOT_ENCRYPT"
    runs = [
        run_inline(tmp_path / str(number), *words, *more).rows()
        for number, more in enumerate([[*kinds, off], kinds])
    ]
    assert [row["loss"] for row in runs[0]] == [row["loss"] for row in runs[1]]
    assert runs[1][-1]["evaluation_clients"] == 6
    assert not any("score" in name or "evaluation" in name for name in runs[0][-1])


def test_supervised_strategy_reports_no_client_metric_unless_switched_on(tmp_path):
    without = run_inline(tmp_path / "plain")
    plain = without.rows()[-1]
    assert not any(name.startswith(("protected", "clean", "evaluation")) for name in plain)
    protected = run_inline(tmp_path / "on", "evaluation=protected_counts")
    on = protected.rows()[-1]
    assert abs(on["protected_accuracy"] - on["clean_accuracy"]) < 5 * on["protected_accuracy_error"]
    less, more = (r.statement()["guarantees"][0]["proven_total"] for r in (without, protected))
    assert less < more <= less + 2


SUMS = [
    "strategy=fedavg",
    "privacy=local",
    "protection=distributed",
    "federation.num_clients=12",
    "privacy.threat=secure_aggregation",
    "privacy.secure_sum.minimum=0.8",
    "privacy.secure_sum.colluders=1",
    "privacy.epsilon=4",
]
COUNTS = ["evaluation=protected_counts", "evaluation.counts.noise=gaussian"]


@pytest.mark.parametrize("mode", ["on", "simulated"])
def test_counts_are_summed_securely_with_shared_noise(tmp_path, mode):
    run = run_inline(tmp_path / mode, *SUMS, *COUNTS, f"privacy.secure_aggregation={mode}")
    row = run.rows()[-1]
    assert row["evaluation_clients"] == 12
    assert abs(row["protected_accuracy"] - row["clean_accuracy"]) < 0.05
    assert row["protected_accuracy_error"] < 0.02  # twelve clients' own noise makes it 0.04
    summed, local = run.statement()["guarantees"]
    assert summed["threat"] == "secure_aggregation"
    assert 1.0 < row["evaluation_epsilon"] < 2 * 1.0  # twice, with nine honest
    assert row["evaluation_epsilon"] < summed["assumed_total"] < 4 + 2 * 1.0
    assert local["proven_total"] > summed["assumed_total"]
    assert any("of an evaluation holds 9 honest" in each for each in summed["assumptions"])


def test_sums_of_counts_are_the_same_with_and_without_masks(tmp_path):
    rows = [
        run_inline(tmp_path / mode, *SUMS, *COUNTS, f"privacy.secure_aggregation={mode}").rows()[-1]
        for mode in ("on", "simulated")
    ]
    assert rows[0]["protected_accuracy"] == rows[1]["protected_accuracy"]


def test_an_interrupted_evaluation_goes_on_with_the_sum_that_was_masked(tmp_path):
    whole = run_inline(tmp_path / "whole", *SUMS, *COUNTS)
    folder = interrupt(tmp_path / "half", *SUMS, *COUNTS, before=2, trained=True)
    resumed = run_inline(folder, *SUMS, *COUNTS)
    scores = [[row["protected_accuracy"] for row in run.rows()[1:]] for run in (whole, resumed)]
    assert scores[0] == scores[1]
    assert (
        resumed.statement()["guarantees"][0]["assumed_total"]
        == whole.statement()["guarantees"][0]["assumed_total"]
    )


def test_an_evaluation_among_fewer_than_share_the_noise_is_refused():
    with pytest.raises(ConfigError, match="clients=5: a sum over 4 is too small: 10 share"):
        ValidatedRun(compose([*SUMS, *COUNTS, "evaluation.clients=5"]))


def test_before_the_first_round_an_evaluation_alone_is_spent(tmp_path):
    words = ["strategy=dpsgd_fedavg", "model=mlp", "evaluation=protected_counts"]
    run = run_inline(tmp_path, *words)
    assert [row["round"] for row in run.rows()] == [0, 1, 2]


def test_centroids_are_placed_by_the_first_round_that_counts_after_the_pretraining():
    words = ["strategy=clustering", "federation.public=100", "strategy.pretrain_rounds=2"]
    strategy = ValidatedRun(compose(words)).strategy
    start = strategy.setup.initial_parameters()
    nothing = {"update": np.zeros(len(start))}
    assert np.array_equal(strategy.apply(1, start, nothing), start)
    placed = strategy.apply(3, start, nothing)  # round 2 was lost
    assert not np.array_equal(placed, start)
    again = ValidatedRun(compose(words)).strategy
    again.restore(strategy.state())
    assert np.array_equal(again.apply(4, placed, nothing), placed)
