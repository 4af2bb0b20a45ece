"""Robust aggregation: it is Flower's, withstands liars, and pays for what one client may move."""

import math

import numpy as np
import pytest
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from omegaconf import OmegaConf

from clients.fedavg import FedAvgClient
from fl_app.config.compose import compose, load
from fl_app.config.errors import ConfigError
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.events import DiscreteGaussianEvent
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection.central import NoisedRows
from strategies.robust import Krum, krum
from tests.fl_app.running import run_inline

SMALL = [
    *("engine=inline", "federation.num_clients=8", "federation.public=0", "privacy.noise=seeded"),
    *("model=mlp", "model.hidden=[8]", "tracking=none", "federation.num_rounds=2"),
]
CENTRAL = ["protection=rows", "privacy=local", "privacy.threat=central"]
ADAPTIVE = ["protection.clipping.adaptive=true", "protection.clipping.bit_noise=5"]
SETTINGS = {
    "median": [],
    "trimmed_mean": ["aggregation.trimmed=0.2"],
    "krum": ["aggregation.malicious=2"],
}


def strategy(*words):
    return ValidatedRun(compose([*SMALL, "strategy=robust", *words])).strategy


@pytest.mark.parametrize("rule", [*SETTINGS, None])
def test_a_hostile_client_moves_a_mean_and_no_robust_aggregate(tmp_path, monkeypatch, rule):
    train = FedAvgClient.train

    def hostile(self, task, data):
        if task.client == 3:
            return np.full(self.parts.size, 100.0)
        return train(self, task, data)

    monkeypatch.setattr(FedAvgClient, "train", hostile)
    words = ["strategy=fedavg"]
    if rule is not None:
        words = ["strategy=robust", f"aggregation={rule}", *SETTINGS[rule]]
    last = run_inline(tmp_path, *words, "strategy.local.epochs=10", small=SMALL).rows()[-1]
    assert last["answered"] == 8
    assert (last["accuracy"] > 0.6) == (rule is not None)


def test_rows_are_aggregated_by_flower_s_own_functions():
    rows = np.random.default_rng(1).normal(size=(9, 5))
    trimmed = strategy("aggregation=trimmed_mean", "aggregation.trimmed=0.2")
    assert np.array_equal(trimmed.aggregation.aggregate(rows), trim_mean(rows, 0.2))
    assert np.array_equal(strategy().aggregation.aggregate(rows), np.median(rows, axis=0))
    multi = strategy("aggregation=krum", "aggregation.selected=3").aggregation
    assert np.array_equal(multi.aggregate(rows), krum(rows, 0, 3))
    assert krum(rows, 2, 1).tolist() in rows.tolist()
    assert np.allclose(krum(rows, 0, 9), rows.mean(axis=0))


def clusters(moved):
    """Eight clipped updates (8, 2) of norm 1 in two opposite clusters; one client may change."""
    rows = np.array([[1.0, 0.0]] * 4 + [[-1.0, 0.0]] * 4)
    rows += 1e-9 * np.arange(8)[:, None]
    if moved:
        rows[0] = [-1.0, 0.0]
    return rows


def test_noise_made_for_a_mean_loses_its_budget_with_eight_clients_in_two_clusters():
    """Krum's result is one client's update: exchanging one client moves it by 2C, not by 2C/8."""
    mean = np.linalg.norm(clusters(False).mean(axis=0) - clusters(True).mean(axis=0))
    chosen = np.linalg.norm(krum(clusters(False), 2, 1) - krum(clusters(True), 2, 1))
    middle = np.linalg.norm(np.median(clusters(False), 0) - np.median(clusters(True), 0))
    assert mean == pytest.approx(2 / 8, rel=1e-6)
    assert chosen == pytest.approx(2.0, rel=1e-6)
    assert middle == pytest.approx(1.0, rel=1e-6)

    def cost(moves):
        """ε at noise that is made for a mean at ε = 1, if the result moves so far."""
        multiplier = strategy(*CENTRAL, "privacy.epsilon=1", "federation.num_rounds=1")
        sigma = multiplier.protection.noise_multiplier * mean * CLIP_STEPS
        event = DiscreteGaussianEvent(sigma, moves * CLIP_STEPS)
        return epsilon(event, 1e-5, Threat.CENTRAL).epsilon

    assert cost(mean) == pytest.approx(1.0, rel=0.01)
    assert cost(middle) > 4 and cost(chosen) > 10


@pytest.mark.parametrize("protection", ["central", "matrix"])
def test_noise_made_for_a_mean_is_refused(protection):
    words = ["privacy=local", "privacy.threat=central"]
    with pytest.raises(ConfigError, match="its noise is made for a mean"):
        strategy(f"protection={protection}", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["protection=distributed", "privacy=local", "privacy.threat=secure_aggregation"], "local"),
        (["privacy.secure_aggregation=on"], "each client's own contribution"),
        ([*CENTRAL, *ADAPTIVE], "clipping.adaptive"),
        ([*CENTRAL, "federation.schedule=poisson", "federation.clients_per_round=4"], "poisson"),
        (["aggregation=krum", "aggregation.malicious=3"], "aggregation.malicious=3"),
        (["aggregation=mean"], "median"),
        (["aggregation.malicious=1"], "type aggregation=krum aggregation.malicious=1"),
        (["strategy.aggregation=krum"], "set aggregation=krum"),
        (["strategy=fedavg", "aggregation=krum"], "is for strategy=robust"),
        (["aggregation=trimmed_mean", "aggregation.trimmed=0.5"], "aggregation.trimmed=0.5"),
    ],
)
def test_what_it_cannot_keep_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        strategy(*words)


def test_every_row_is_noised_by_itself_and_the_silent_count_as_zero():
    found = strategy(*CENTRAL, "privacy.epsilon=1", "federation.num_rounds=1")
    protection = found.protection
    rows = np.zeros((3, 4000), np.int64)
    noised = protection.noised_rows(rows, NoiseGenerator.seeded(1))
    assert noised.shape == (8, 4000)
    sigma = protection.noise_multiplier * 2 * CLIP_STEPS
    assert noised.std(axis=1) == pytest.approx(np.full(8, sigma), rel=0.1)
    assert np.abs(np.corrcoef(noised) - np.eye(8)).max() < 0.1


def test_the_bit_of_an_adaptive_norm_is_paid_for_beside_a_noised_sum():
    clipping = {"norm": 1.0, "adaptive": True, "bit_noise": 8.0}
    budget = Budget(4.0, 1e-5, rounds=10, threat="central")
    rows = NoisedRows(budget, Cohorts(8, 8), clipping=clipping)
    assert rows.update_multiplier > 1.1 * rows.noise_multiplier
    assert epsilon(rows.planned(), 1e-5).epsilon == pytest.approx(4.0, rel=1e-3)


def test_no_adversary_is_stated_who_sees_sums_only():
    words = ["protection=distributed", "privacy=local", "privacy.secure_aggregation=simulated"]
    found = strategy(*words, "privacy.threat=local", "privacy.epsilon=8")
    found.rounds.participations.update(range(8))
    assert [exposure.threat for exposure in found.claims().exposures()] == [Threat.LOCAL]


@pytest.mark.parametrize("threat", ["local", "central"])
def test_a_budget_is_kept_and_stated(tmp_path, threat):
    protection = {"local": "distributed", "central": "rows"}[threat]
    words = ["strategy=robust", f"protection={protection}", "privacy=local"]
    words += [f"privacy.threat={threat}", "privacy.epsilon=20"]
    done = run_inline(tmp_path, *words, small=SMALL)
    stated = next(each for each in done.statement()["guarantees"] if each["threat"] == threat)
    assert 0.98 * 20 < stated["proven_total"] <= 20
    assert math.isfinite(done.rows()[-1]["loss"])


OLD = {"aggregation": "krum", "trimmed": 0.1, "malicious": 2, "selected": 1}  # keys of the strategy


def test_a_recorded_run_with_the_earlier_keys_is_read(tmp_path):
    words = [*SMALL, "strategy=robust", "aggregation=krum", "aggregation.malicious=2"]
    recorded = OmegaConf.to_container(compose(words))
    del recorded["aggregation"], recorded["strategy"]["server"]["aggregation"]
    recorded["strategy"] |= OLD
    path = tmp_path / "config.yaml"
    OmegaConf.save(OmegaConf.create(recorded), path)
    read = ValidatedRun(load(path)).strategy.aggregation
    assert (type(read), read.malicious, read.selected) == (Krum, 2, 1)
    run = RunFolder(tmp_path)
    run.save_overrides(["strategy=robust", "strategy.aggregation=krum", "strategy.malicious=2"])
    assert run.overrides() == ["strategy=robust", *words[-2:]]
