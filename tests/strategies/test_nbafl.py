"""NbAFL's server half: mean, downlink noise, both adversaries, checkpoints, bad settings."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fl_app.testing import Grid
from murmur.learning.data.datasets import Examples
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Adjacency, Unit, epsilon
from murmur.privacy.budget import Budget
from murmur.round.question import Outcome
from murmur.round.setup import ServerSetup
from murmur.secure_sum import SecureSumSettings
from strategies.nbafl import NbAFL
from tests.fl_app.running import run_inline
from tests.made import made

N, M = 10, 100


def server(epsilon=50.0, rounds=8, sizes=(M,) * N, cohort=None, local=None, sums="off", **changed):
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[40]), (1, 4, 4), 4
    )
    images = np.zeros((5, 1, 4, 4), np.float32)
    setup = ServerSetup(
        trainer=trainer,
        public=images,
        test=Examples(images, np.zeros(5, np.int64)),
        budget=Budget(epsilon, 0.01, rounds, paper_semantics=True),
        seed=1,
        num_clients=N,
        cohort_size=cohort or N,
        quorum=0.3,
        client_sizes=sizes,
        seeded_noise=True,
        secure_sums=SecureSumSettings(sums),
    )
    noise = {
        "num_clients": N, "clients_per_round": cohort, "clip": 1.0, "exposures": 1,
        "smallest_dataset": None, "lipschitz": None, "proximal_mu": 0.0, "sensitivity": "paper",
        "calibration": "paper",
    }  # fmt: skip
    return made(
        NbAFL, setup, **{**noise, **changed}, local=local or {"batch_size": 10, "epochs": 1}
    )


def one_round(strategy, models, clients, number=1):
    """The model after ``clients`` uploaded ``models`` (clients, d), noise-free."""
    strategy.rounds.outcome = Outcome(number, answered=list(clients))
    strategy.rounds.participations.update(clients)
    steps = np.rint(models / strategy.noise.grid).astype(np.int64)
    sizes = np.array([strategy.sizes[client] for client in clients])
    total = (steps * sizes[:, None]).sum(axis=0)
    return strategy.update(number, models[0].astype(np.float32), total, int(sizes.sum()))


def uploads(strategy, count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.01, (count, strategy.trainer.num_parameters))


def test_without_protection_the_model_is_the_weighted_mean():
    strategy = server(epsilon=math.inf, sizes=(100, 300, *[M] * 8))
    models = uploads(strategy, 2)
    expected = 0.25 * models[0] + 0.75 * models[1]
    np.testing.assert_allclose(one_round(strategy, models, [0, 1]), expected, atol=1e-6)


def test_broadcast_noise_has_the_papers_deviation():
    strategy = server(rounds=25)
    sigma = strategy.noise.broadcast_sigma([1 / N] * N)
    models = np.zeros((N, strategy.trainer.num_parameters))
    drawn = np.concatenate([one_round(strategy, models, range(N), t) for t in range(1, 6)])
    assert sigma > 0
    # 5 standard errors of an estimated standard deviation.
    assert abs(drawn.std() / sigma - 1) < 5 / math.sqrt(2 * drawn.size)
    assert abs(drawn.mean()) < 5 * sigma / math.sqrt(drawn.size)


def test_no_broadcast_noise_where_uploads_carry_enough():
    strategy = server(rounds=3)
    models = uploads(strategy, N)
    expected = models.mean(axis=0)
    np.testing.assert_allclose(one_round(strategy, models, range(N)), expected, atol=1e-6)


def test_missing_answers_raise_the_weights_and_the_noise():
    strategy = server(rounds=25)
    noise = strategy.noise
    assert noise.broadcast_sigma([1 / 4] * 4) > 2 * noise.broadcast_sigma([1 / N] * N)


def test_same_seed_gives_the_same_broadcast():
    first, second = server(rounds=25), server(rounds=25)
    models = uploads(first, N)
    assert np.array_equal(one_round(first, models, range(N)), one_round(second, models, range(N)))


def guarantees(strategy):
    return {g.threat: g for g in strategy.rounds.statement().guarantees}


def test_statement_holds_both_adversaries():
    strategy = server(rounds=8)
    for number in range(1, 9):
        one_round(strategy, uploads(strategy, N), range(N), number)
    outsider, curious = guarantees(strategy)["outsider"], guarantees(strategy)["local"]
    assert outsider.claimed_total == 50.0
    assert outsider.assumed_total > 165.9
    assert curious.claimed_total == 8 * 50.0
    assert curious.assumed_total > 2 * outsider.assumed_total
    assert "1 upload of each client" in outsider.adversary
    assert outsider.proven_total > 1e4 and curious.proven_total > 1e4
    assert "2C/m" in outsider.assumptions[0]


def test_one_upload_at_nominal_50_is_proven_166():
    strategy = server(rounds=1)
    one_round(strategy, uploads(strategy, N), range(N))
    for guarantee in guarantees(strategy).values():
        assert guarantee.claimed_total == 50.0
        assert guarantee.assumed_total == pytest.approx(165.94, rel=2e-3)


def test_outsider_who_may_see_all_uploads_gains_nothing_from_broadcasts():
    strategy = server(rounds=4, exposures=None)
    for number in range(1, 5):
        one_round(strategy, uploads(strategy, N), range(N), number)
    outsider, curious = guarantees(strategy)["outsider"], guarantees(strategy)["local"]
    assert outsider.assumed_total == curious.assumed_total
    assert outsider.claimed_total == curious.claimed_total == 50.0


@pytest.mark.parametrize("answering", [range(10), range(4), [0]])
def test_proven_calibration_keeps_the_outsiders_epsilon(answering):
    strategy = server(epsilon=5.0, rounds=6, sizes=(150, *[M] * 9), cohort=5, calibration="proven")
    for number in range(1, 7):
        one_round(strategy, uploads(strategy, len(answering)), answering, number)
    outsider = guarantees(strategy)["outsider"]
    assert outsider.assumed_total <= outsider.claimed_total == 5.0
    assert guarantees(strategy)["local"].claimed_total is None


@pytest.mark.parametrize(
    ("sensitivity", "unit", "adjacency", "words"),
    [
        ("paper", Unit.RECORD, Adjacency.REPLACE_ONE, ["per-sample minimisers"]),
        ("worst", Unit.CLIENT, Adjacency.REPLACE_ONE, []),
        ("erm", Unit.RECORD, Adjacency.REPLACE_ONE, ["exactly", "Lipschitz constant of 1"]),
        ("dpsgd", Unit.RECORD, Adjacency.REPLACE_SPECIAL, []),
    ],
)
def test_statement_names_the_sensitivity_and_its_assumption(sensitivity, unit, adjacency, words):
    strategy = server(sensitivity=sensitivity, calibration="proven", lipschitz=1.0, proximal_mu=1.0)
    statement = strategy.rounds.statement()
    assert (statement.unit, statement.adjacency) == (unit, adjacency)
    for guarantee in statement.guarantees:
        assert len(guarantee.assumptions) == len(words)
        for said, word in zip(guarantee.assumptions, words, strict=True):
            assert word in said and f"sensitivity={sensitivity}" in said


def test_dpsgd_keeps_the_budget_against_both_adversaries():
    strategy = server(
        epsilon=4.0, sizes=(M, 250, *[M] * 8), sensitivity="dpsgd", calibration="proven"
    )
    strategy.rounds.participations.update(dict.fromkeys(range(N), 8))
    for guarantee in guarantees(strategy).values():
        assert 3.9 < guarantee.proven_total <= 4.0
        assert guarantee.clients["0"] != guarantee.clients["1"]


def test_dpsgd_states_the_largest_epsilon_of_any_client_to_every_adversary():
    """Clients of all sizes keep ε in the whole run; earlier, small ones may have spent less."""
    strategy = server(
        epsilon=8.0,
        sizes=(1300, *[20] * 8, 17),
        sums="simulated",
        sensitivity="dpsgd",
        calibration="proven",
    )
    alone = [epsilon(strategy.schedule.event(8.0, 0.01, size), 0.01) for size in (17, 20, 1300)]
    worst = max(each.epsilon for each in alone)
    assert worst > 1.05 * alone[0].epsilon
    assert epsilon(strategy.release_event(), 0.01).epsilon == worst
    strategy.rounds.participations.update(range(N))
    assert epsilon(strategy.claims().spent(), 0.01).epsilon == worst
    assert set(guarantees(strategy)) == {"local", "outsider", "secure_aggregation"}
    for guarantee in guarantees(strategy).values():
        assert guarantee.stated_per_round == worst
        assert guarantee.stated == max(guarantee.clients.values()) == worst


def test_checkpoint_carries_the_weakest_broadcast():
    strategy, other = server(rounds=25), server(rounds=25)
    one_round(strategy, uploads(strategy, N), range(N))
    one_round(strategy, uploads(strategy, 4), range(4), 2)
    other.restore(strategy.state())
    other.rounds.participations.update(strategy.rounds.participations)
    assert guarantees(other)["outsider"] == guarantees(strategy)["outsider"]


@pytest.mark.parametrize(("heavy", "counts"), [(10 * M, True), (10**6, False), (10**6 + 1, False)])
def test_others_noise_counts_only_where_it_is_fine_beside_their_weights(heavy, counts):
    """Of weights 1 and 10⁶ the sum modulo 10⁶ shows the light client's upload by itself."""
    strategy = server(rounds=2, sizes=(1, *[heavy] * (N - 1)), smallest_dataset=1)
    one_round(strategy, uploads(strategy, N), range(N))
    assert (strategy.weakest["rest"] > 1.5 * strategy.noise.upload_sigma) == counts
    alike = server(rounds=2, sizes=(heavy,) * N)
    one_round(alike, uploads(alike, N), range(N))
    assert alike.weakest["rest"] > 1.5 * alike.noise.upload_sigma


def test_scheduling_without_broadcast_noise_is_pointed_out():
    assert "clients_per_round=4" in server(rounds=25, cohort=4).warnings()[0]
    proven = {"calibration": "proven", "exposures": 25}
    assert server(rounds=25, cohort=4, **proven).warnings() == []
    assert server(rounds=25).warnings() == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"exposures": 9}, "exposures=9: must lie in 1..8"),
        ({"sizes": (0,) + (M,) * 9}, "smallest_dataset=0: every client needs an example"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"clients_per_round": 11}, "clients_per_round=11: must lie in 1..10"),
        ({"sizes": None}, "client_sizes=None"),
    ],
)
def test_bad_settings_are_refused_on_construction(changed, words):
    with pytest.raises(ValueError) as caught:
        server(**changed)
    assert str(caught.value).startswith(words)


def test_a_node_that_lies_about_its_weight_is_left_out():
    strategy = server(epsilon=math.inf)
    start = np.zeros(strategy.trainer.num_parameters, np.float32)
    asked = list(
        strategy.configure_train(
            1, ArrayRecord({"model": Array(start)}), ConfigRecord(), Grid(11, 12)
        )
    )
    replies = []
    for message, factor in zip(asked, (1, 1000), strict=True):
        clients = message.content["task"]["clients"]
        total = np.full(len(start), M * len(clients), np.int64)
        report = {
            "clients": clients, "refused": [], "reasons": [], "packed": False,
            "weight": factor * M * len(clients),
        }  # fmt: skip
        content = RecordDict(
            {
                "report": ConfigRecord(report),
                "contribution": ArrayRecord({"sum": Array(total * factor)}),
            }
        )
        replies.append(Message(content, reply_to=message))
    arrays, _ = strategy.aggregate_train(1, replies)
    assert len(strategy.rounds.outcome.answered) == 5
    assert all("public sizes" in why for why in strategy.rounds.outcome.failed.values())
    np.testing.assert_allclose(arrays["model"].numpy(), strategy.noise.grid, rtol=1e-6)


RUN = [
    *("strategy=nbafl", "privacy=paper", "federation.public=0"),
    *("privacy.epsilon=400", "strategy.exposures=1"),
]


def test_a_client_that_diverges_answers_as_every_other(tmp_path, monkeypatch):
    from murmur.learning.training.trainer import Trainer as Local

    plain = Local.train

    def broken(self, *data, **how):
        values = plain(self, *data, **how)
        broken.calls += 1
        if broken.calls % 6 == 2:
            values[3] = np.nan if broken.calls % 12 == 2 else np.inf
        return values

    broken.calls = 0
    monkeypatch.setattr(Local, "train", broken)
    run = run_inline(tmp_path, *RUN)
    rows = run.rows()[1:]
    assert [row["answered"] for row in rows] == [6, 6]
    assert run.metrics()["failed"] == 0


def test_results_do_not_depend_on_how_clients_are_grouped(tmp_path):
    runs = [
        run_inline(tmp_path / str(nodes), *RUN, "federation.clients_per_round=5", nodes=nodes)
        for nodes in (1, 3)
    ]
    first, second = ([row["loss"] for row in run.rows()] for run in runs)
    assert first == second
    assert runs[0].statement() == runs[1].statement()


def test_dpsgd_runs_end_to_end_within_its_budget(tmp_path):
    run = run_inline(
        tmp_path,
        "strategy=nbafl",
        "federation.public=0",
        "federation.num_clients=3",
        "privacy.epsilon=6",
        "strategy.proximal_mu=0.1",
    )
    assert all(5.5 < g["proven_total"] <= 6 for g in run.statement()["guarantees"])
    assert run.metrics()["failed"] == 0


def test_secure_sums_carry_the_uploads(tmp_path):
    plain = run_inline(tmp_path / "plain", *RUN)
    masked = run_inline(tmp_path / "masked", *RUN, "privacy.secure_aggregation=on")
    assert masked.metrics()["accuracy"] == plain.metrics()["accuracy"]
    assert [g["threat"] for g in masked.statement()["guarantees"]][-1] == "secure_aggregation"
