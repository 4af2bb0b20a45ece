"""Scores equal scikit-learn's, undefined ones are NaN, and noise that looks fine is found out."""

import math

import numpy as np
import pytest
from sklearn import metrics

from murmur.algorithms.protected_evaluation import LaplaceResult, project
from murmur.learning.metrics import CLUSTERINGS, clustering_score, judge, rank_correlation
from murmur.privacy.noise import NoiseGenerator

CLIENTS, K = 1000, 10


def clients():
    """Confident clients: one class each, in equal numbers."""
    rng = np.random.default_rng(3)
    vectors = 0.2 * rng.dirichlet(np.ones(K), CLIENTS)
    vectors[np.arange(CLIENTS), np.arange(CLIENTS) % K] += 0.8
    return vectors


def test_golden_silhouette():
    vectors = np.array([[3.0, 2, 1], [4, 3, 2], [3, 4, 5]])
    assert clustering_score("silhouette", vectors, np.array([0, 0, 1])) == pytest.approx(
        0.363489, abs=1e-6
    )


def test_scores_are_scikit_learns():
    vectors = np.random.default_rng(0).random((60, 5))
    labels = vectors.argmax(axis=1)
    for name in CLUSTERINGS:
        theirs = getattr(metrics, f"{name}_score")(vectors, labels)
        assert clustering_score(name, vectors, labels) == theirs


@pytest.mark.parametrize("name", CLUSTERINGS)
@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]], ids=["one cluster", "all alone"])
def test_undefined_scores_are_nan(name, labels):
    assert math.isnan(clustering_score(name, np.eye(3), np.array(labels)))


def test_an_empty_class_between_others_is_harmless():
    vectors = np.array([[1.0, 0, 0], [0.9, 0, 0.1], [0, 0, 1.0], [0.1, 0, 0.9]])
    for name in CLUSTERINGS:
        assert math.isfinite(clustering_score(name, vectors, vectors.argmax(axis=1)))


def test_unknown_metric_is_named():
    with pytest.raises(ValueError, match=r"^metric=f1"):
        clustering_score("f1", np.eye(3), np.arange(3))


def verdict(epsilon, process=lambda decoded: decoded, metric="silhouette"):
    it, truth = LaplaceResult(epsilon, K), clients()
    found = process(it.decode(it.privatize_rows(truth, NoiseGenerator.seeded("rows"))))
    nulls = [
        tuple(process(it.decode(it.pure_noise(CLIENTS, NoiseGenerator.seeded("null", i)))))
        for i in range(5)
    ]
    return judge(metric, found.vectors, found.labels, nulls, truth)


def test_projected_noise_scores_high_and_is_flagged():
    """The trap: at ε=0.1 labels are at chance, yet the silhouette beats that of real clusters."""
    trap = verdict(0.1, project)
    assert trap.score > 0.95 > trap.clean
    assert trap.null > 0.95
    assert trap.is_at_chance
    assert abs(trap.retention - trap.chance) < 0.04
    assert not trap.beats_noise


@pytest.mark.parametrize("metric", CLUSTERINGS)
def test_little_noise_keeps_the_story_and_beats_the_null(metric):
    good = verdict(100.0, metric=metric)
    assert good.retention > 0.99
    assert good.beats_noise


def test_ten_is_about_where_a_client_level_silhouette_becomes_visible():
    low, high = verdict(1.0), verdict(10.0)
    assert low.score - low.null < 0.02
    assert not low.beats_noise
    assert high.score - high.null > 0.05
    assert high.score < 0.4 < high.clean


def test_one_hot_labels_score_one_and_so_does_their_noise():
    labels = np.arange(100) % K
    noise = np.random.default_rng(1).integers(0, K, 100)
    it = judge("silhouette", np.eye(K)[labels], labels, [(np.eye(K)[noise], noise)])
    assert it.score == it.null == 1
    assert not it.beats_noise


def test_rank_correlation_needs_three_points_that_move():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 25, 99]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(rank_correlation([1, 2], [1, 2]))
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))
    assert rank_correlation([1, math.nan, 2, 3], [1, 0, 2, 3]) == pytest.approx(1)
