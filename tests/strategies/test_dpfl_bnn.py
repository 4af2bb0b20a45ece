"""DPFL-BNN's server half: the mean, its controls, reports of all clients, both statements."""

import json
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

from fl_app.config.compose import compose
from fl_app.run.hosts import build_model
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.algorithms.dpfl_bnn.network import bnn
from murmur.learning.data.datasets import Examples
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Threat
from murmur.privacy.budget import Budget
from murmur.privacy.events import NonPrivateEvent, RandomizedBitsEvent
from murmur.round.setup import ServerSetup
from murmur.secure_sum.settings import SecureSumSettings
from strategies.dpfl_bnn import DPFLBNN
from tests.made import made

SHAPE = (1, 8, 8)
BUDGET = {"hamming": None, "mask": 1.0}
RUN = [
    *("strategy=dpfl_bnn", "strategy.gamma=0.1", "privacy.epsilon=inf", "privacy.threat=local"),
    "dataset=digits",
    "federation.num_clients=6",
    "federation.num_rounds=3",
    "strategy.local.steps=2",
    "strategy.evaluate_examples=50",
    "model.hidden=8",
    "model.channels=[4, 4]",
    "privacy.noise=seeded",
    "privacy.secure_aggregation=simulated",
]


def server(epsilon=np.inf, rounds=10, sums=None, honest=None, **changed):
    images = np.zeros((5, *SHAPE), np.float32)
    setup = ServerSetup(
        trainer=Trainer(partial(bnn, channels=[2, 3], hidden=5), SHAPE, 4),
        public=images,
        test=Examples(images, np.zeros(5, np.int64)),
        budget=Budget(
            epsilon,
            1e-5,
            rounds,
            threat="local" if honest is None else "secure_aggregation",
            honest_clients=honest or 1,
        ),
        seed=1,
        num_clients=20,
        cohort_size=20,
        quorum=0.5,
        secure_sums=sums or SecureSumSettings(),
    )
    settings = {
        "gamma": 0.1,
        "upload": "sign",
        "noise": True,
        "flip": "bit",
        "debias": False,
        "scale_only": False,
        "evaluate_every": 0,
        "budget": BUDGET,
    }
    return made(DPFLBNN, setup, **{**settings, **changed})


def run(folder, *overrides, nodes=1):
    words = ["engine=inline", f"engine.nodes={nodes}", *RUN, *overrides, f"run_dir={folder}"]
    result = RunFolder(folder)
    ValidatedRun.of(words).run()
    return result


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [-1.0, 0.0, 0.4]),
        ({"debias": True}, [-5.0, 0.0, 2.0]),
        ({"noise": False, "scale_only": True}, [-0.2, 0.0, 0.08]),
        ({"noise": False}, [-1.0, 0.0, 0.4]),
    ],
)
def test_update_is_the_mean_of_plus_minus_one_and_its_controls(changed, expected):
    strategy = server(**changed)
    model = strategy.setup.initial_parameters()
    counts = np.full(len(model), 10)
    counts[:3] = [0, 10, 14]
    found = strategy.update(1, model, counts, 20)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:3], expected, atol=1e-6)


def test_masked_coordinates_keep_the_servers_last_mean():
    strategy = server(budget={**BUDGET, "mask": 0.25})
    model = strategy.setup.initial_parameters()
    size = strategy.codec().size
    assert size == -(-len(model) // 4)
    first = strategy.update(1, model, np.full(size, 20), 20)
    assert np.count_nonzero(first == 1) == size
    assert np.array_equal(first[first != 1], model[first != 1])
    second = strategy.update(2, first, np.full(size, 20), 20)
    assert size < np.count_nonzero(second == 1) < 2 * size


def test_claimed_epsilon_is_theorem_one_with_its_rounds():
    strategy = server()
    strategy.rounds.participations.update({0: 100, 1: 3})
    per_round, total = strategy.claims().claimed
    assert total == pytest.approx(28.31, rel=1e-3)
    assert per_round < total


def test_release_event_counts_every_bit_and_nothing_private_without_noise():
    size = server().trainer.num_parameters
    assert server().release_event().event == RandomizedBitsEvent(0.1, size, size)
    assert server(noise=False).release_event() == NonPrivateEvent()
    assert server(flip="tensor").release_event() == NonPrivateEvent()
    clipped = server(budget={**BUDGET, "hamming": 4})
    assert clipped.release_event().event == RandomizedBitsEvent(0.1, size, 8)


def test_gamma_follows_from_the_budget_where_it_is_not_given():
    strategy = server(epsilon=8.0, gamma=None)
    strategy.rounds.participations.update({0: 10})
    local = strategy.rounds.statement().guarantees[0]
    assert local.threat is Threat.LOCAL
    assert 7.9 < local.proven_total <= 8.0
    assert local.claimed_total < local.proven_total


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"debias": True, "scale_only": True}, "debias=True"),
        ({"debias": True, "noise": False}, "noise=False"),
        ({"scale_only": True}, "noise=True"),
        ({"scale_only": True, "noise": False, "gamma": None}, "gamma=None"),
        ({"evaluate_every": -1}, "evaluate_every=-1"),
        ({"epsilon": 8.0}, "gamma=0.1: fixes the noise"),
        ({"epsilon": 8.0, "gamma": None, "flip": "tensor"}, "flip='tensor'"),
    ],
)
def test_contradictory_settings_are_refused_on_construction(changed, words):
    with pytest.raises(ValueError, match=words):
        server(**changed)


def test_budget_against_the_server_of_a_secure_sum_counts_on_its_honest_clients():
    sums, shared = SecureSumSettings("simulated", minimum=1.0), server(epsilon=8.0, gamma=None)
    strategy = server(epsilon=8.0, gamma=None, sums=sums, honest=20)
    assert strategy.release.gamma > shared.release.gamma
    strategy.rounds.participations.update({0: 10})
    strategy.rounds.sums.least_survivors = 20
    spent = {g.threat: g for g in strategy.rounds.statement().guarantees}
    summed = spent[Threat.SECURE_AGGREGATION]
    assert 7.9 < summed.assumed_total <= 8.0 < summed.proven_total
    assert summed.proven_total == spent[Threat.LOCAL].proven_total


def test_run_reports_all_clients_models_and_states_both_adversaries(tmp_path):
    result = run(tmp_path / "run", "strategy.evaluate_every=2")
    rows = result.rows()
    evaluated = [row["round"] for row in rows if "accuracy" in row]
    assert evaluated == [2, 3]
    assert rows[-1]["clients_evaluated"] == 6
    assert 0 <= rows[-1]["accuracy_server_signs"] <= 1
    threats = {g["threat"]: g for g in result.statement()["guarantees"]}
    assert set(threats) == {"local", "secure_aggregation"}
    local, summed = threats["local"], threats["secure_aggregation"]
    assert summed["assumed_total"] < summed["proven_total"] == local["proven_total"]
    assert local["claimed_total"] == summed["claimed_total"] < summed["proven_total"]
    saved = load_file(tmp_path / "run" / "model/model.safetensors")
    assert sum(v.size for k, v in saved.items() if k.endswith("weight") and v.ndim > 1) > 0


def test_reports_are_neither_charged_nor_counted_as_participation(tmp_path):
    often = run(tmp_path / "often", "strategy.evaluate_every=1")
    once = run(tmp_path / "once")
    assert often.statement()["guarantees"] == once.statement()["guarantees"]
    assert often.rows()[-1]["accuracy"] == once.rows()[-1]["accuracy"]
    for row in ("bytes_up", "bytes_down"):
        assert [r[row] for r in often.rows()] == [r[row] for r in once.rows()]


def test_grouping_over_nodes_changes_nothing(tmp_path):
    one = run(tmp_path / "one", nodes=1)
    six = run(tmp_path / "six", nodes=6)
    a, b = (load_file(r.path / "model/model.safetensors") for r in (one, six))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert one.rows()[-1]["accuracy"] == six.rows()[-1]["accuracy"]


def test_a_resumed_run_ends_as_one_that_was_never_interrupted(tmp_path):
    mask = "strategy.budget.mask=0.5"  # the server's mean then holds coordinates of old rounds
    through = run(tmp_path / "same", mask, "federation.num_rounds=3")
    halves = [run(tmp_path / "other" / "same", mask, f"federation.num_rounds={n}") for n in (2, 3)]
    a, b = (load_file(r.path / "model/model.safetensors") for r in (through, halves[1]))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert through.rows()[-1]["accuracy"] == halves[1].rows()[-1]["accuracy"]
    assert [row["round"] for row in halves[1].rows()] == [0, 1, 2, 3]


def test_one_clients_bits_travel_packed(tmp_path):
    result = run(tmp_path / "run", "privacy.secure_aggregation=off", nodes=6)
    config = compose(RUN)
    size = Trainer(build_model(config.model), SHAPE, 10).num_parameters
    packed = -(-size // 8)
    per_client = result.rows()[-1]["bytes_up"] / 6
    assert packed < per_client < packed + 400  # and Flower's envelope


@pytest.mark.parametrize(
    "overrides",
    [
        ["strategy.upload=stochastic"],
        ["strategy.debias=true"],
        ["strategy.noise=false", "strategy.scale_only=true"],
        ["strategy.flip=tensor"],
        ["strategy.budget.hamming=20", "strategy.budget.mask=0.5"],
        ["model.bn=none"],
        ["privacy.secure_aggregation=on"],
        ["privacy.epsilon=8", "strategy.gamma=null"],
    ],
)
def test_every_mode_runs(tmp_path, overrides):
    result = run(tmp_path / "run", "federation.num_rounds=1", *overrides)
    assert json.loads(result.metrics_path.read_text())["failed"] == 0
    assert "accuracy" in result.rows()[-1]
