"""Class statistics: what a client releases, what it costs, what the server makes of the sum."""

import json

import numpy as np
import pytest

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from murmur.algorithms.class_statistics import (
    StatisticsRelease,
    coordinates,
    located,
    moments,
    posterior,
    unit,
)
from murmur.learning.public_labels import LabelSpreading
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.noise import NoiseGenerator
from tests.fl_app.running import run_inline

SMALL = [
    "strategy=class_statistics",
    "engine=inline",
    "features.components=30",
    "federation.num_clients=60",
    "privacy.noise=seeded",
    "privacy.secure_aggregation=simulated",
    "privacy.secure_sum.minimum=0.9",
    "privacy.secure_sum.colluders=3",
]


def accuracy(folder):
    return json.loads((folder / "metrics.json").read_text())["accuracy"]


def test_matrix_has_norm_one_and_says_where_each_class_lies():
    rng = np.random.default_rng(0)
    labels = np.array([0, 0, 1, 2, 2, 2])
    rows = rng.normal(size=(6, 5)).astype(np.float32)
    matrix = moments(rows, labels, 4)
    expected = sum(
        np.outer(rows[labels == c].sum(axis=0), np.eye(4)[c] - 0.25) / np.sqrt(n)
        for c, n in enumerate([2, 1, 3])
    )
    np.testing.assert_allclose(matrix, expected / np.linalg.norm(expected))
    assert np.array_equal(moments(rows * 0, labels, 4), np.zeros((5, 4)))


@pytest.mark.parametrize("honest", [1, 54])
def test_budget_is_kept_against_the_threat_it_is_meant_for(honest):
    budget = Budget(2.0, 1e-5, honest_clients=honest)
    release = StatisticsRelease(budget, 30, 10)
    assert release.noise is not None
    seen = epsilon(release.noise.event(), 1e-5, Threat.SECURE_AGGREGATION).epsilon
    assert 1.99 < seen <= 2.0
    # Analytic Gaussian: σ = 2/μ(2, 1e-5) = 7.975 / 2.
    assert release.sigma(honest) == pytest.approx(2 * 3.9876 / 2, rel=0.01)


def test_integers_never_exceed_the_norm_that_was_paid_for():
    release = StatisticsRelease(Budget(np.inf, 1e-5), 50, 10)
    for seed in range(20):
        matrix = np.random.default_rng(seed).normal(size=(50, 10))
        matrix /= np.linalg.norm(matrix)
        steps = release.privatize(matrix, NoiseGenerator.seeded(seed))
        assert (steps.astype(object) ** 2).sum() <= CLIP_STEPS**2


def test_without_noise_the_posterior_follows_the_sum_and_with_much_noise_the_pool():
    rng = np.random.default_rng(1)
    pool = rng.normal(size=(200, 8)).astype(np.float32) / 3
    truth, prior = rng.normal(size=(8, 4)), rng.normal(size=(8, 4))
    second = pool.T.astype(float) @ pool / 200
    total = 1e4 * second @ truth
    found = posterior(total, pool, prior, sigma=1e-3, clients=1)

    def direction(w):
        return w / np.linalg.norm(w)

    near = np.abs(direction(found) - direction(truth)).max()
    assert near < np.abs(direction(prior) - direction(truth)).max() / 2
    np.testing.assert_allclose(posterior(total, pool, prior, sigma=1e9, clients=1), prior)


def test_digits_are_learned_under_secure_sums_and_not_from_noise(tmp_path):
    run_inline(tmp_path / "run", "privacy.epsilon=8", small=SMALL)
    assert accuracy(tmp_path / "run") > 0.8
    run_inline(tmp_path / "noise", "privacy.epsilon=0.01", small=SMALL)
    assert accuracy(tmp_path / "noise") < 0.4


def test_statement_keeps_the_budget_against_a_server_that_sees_sums(tmp_path):
    # Simulated sums are an assumption, and the statement lists them as one.
    run_inline(tmp_path / "run", "privacy.epsilon=2", small=SMALL)
    guarantees = json.loads((tmp_path / "run/privacy.json").read_text())["guarantees"]
    sums = next(g for g in guarantees if g["threat"] == "secure_aggregation")
    assert 1.8 < sums["assumed_total"] <= 2.0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["federation.num_rounds=2"], "num_rounds=2"),
        (["strategy.components=31"], "components=31"),
        (["model=mlp"], "model=linear"),
        (["strategy.coordinates=graph"], "must be one of features, pool"),
        (["privacy.epsilon=0.0000001"], "32 bits"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(words, says):
    with pytest.raises(ConfigError, match=says):
        ValidatedRun(compose([*SMALL, *words]))


def test_few_components_teach_few_clients_more_than_all(tmp_path):
    # The noise on an entry is the same, and there are fewer entries that share the norm.
    words = ["features.components=60", "federation.public=720", "privacy.epsilon=3"]
    run_inline(tmp_path / "few", *words, "strategy.components=15", small=SMALL)
    run_inline(tmp_path / "all", *words, small=SMALL)
    assert accuracy(tmp_path / "few") > accuracy(tmp_path / "all") + 0.05
    run = json.loads((tmp_path / "few/metrics.json").read_text())
    assert run["bytes_up"] < json.loads((tmp_path / "all/metrics.json").read_text())["bytes_up"] / 2


def test_places_in_the_pool_need_the_fewest_clients(tmp_path):
    words = ["privacy.epsilon=2", "federation.public=720", "partition=dirichlet"]
    run_inline(tmp_path / "features", *words, "strategy.components=15", small=SMALL)
    places = ["strategy.coordinates=pool", "strategy.components=15", "strategy.balance=1"]
    run_inline(tmp_path / "pool", *words, *places, small=SMALL)
    assert accuracy(tmp_path / "pool") > accuracy(tmp_path / "features")
    assert accuracy(tmp_path / "pool") > 0.85
    run_inline(tmp_path / "noise", *words, *places, "privacy.epsilon=0.01", small=SMALL)
    assert accuracy(tmp_path / "noise") < 0.4


def test_an_image_of_the_pool_is_near_its_own_place_and_others_near_their_neighbours():
    """Four clusters in a chain: of clusters apart each eigenvalue is 1, and any basis is right."""
    rng = np.random.default_rng(3)
    kinds = np.repeat(np.arange(4), [20, 40, 60, 80])
    centres = np.eye(4)[kinds]
    shares = np.linspace(0.1, 0.9, 12)[:, None]
    bridges = [(1 - shares) * np.eye(4)[kind] + shares * np.eye(4)[kind + 1] for kind in range(3)]
    clusters = centres + rng.normal(0, 0.05, centres.shape)
    pool = np.concatenate([clusters, *bridges]).astype(np.float32)
    places = coordinates(LabelSpreading(components=4).graph(pool), 4)
    rows = np.arange(0, 200, 7)
    found = located(pool[rows] * 7, pool, places, 3)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    to_clusters = found @ unit(places[:200]).T @ centres / centres.sum(axis=0)
    assert np.array_equal(to_clusters.argmax(axis=1), kinds[rows])
