"""Gradients on fixed features: the equations, by autograd and by hand."""

import numpy as np
import pytest
import torch

from murmur.algorithms.gradient_rounds import (
    flattened,
    gradient,
    log_frequencies,
    start_from_names,
)

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(7, 5)).astype(np.float32)
LABELS = RNG.integers(3, size=7)
WEIGHTS = RNG.normal(size=(6, 3))


@pytest.mark.parametrize(("balance", "adjustment"), [(0.0, 0.0), (0.5, 1.0), (1.0, 0.3)])
def test_the_gradient_is_that_of_the_likelihood(balance, adjustment):
    weights = torch.from_numpy(WEIGHTS).requires_grad_()
    rows = torch.cat([torch.full((7, 1), 0.3), torch.from_numpy(FEATURES)], dim=1).double()
    frequencies = torch.from_numpy((np.bincount(LABELS) + 1) / 10)
    loss = torch.nn.functional.cross_entropy(
        rows @ weights + adjustment * frequencies.log(), torch.from_numpy(LABELS), reduction="sum"
    )
    loss.backward()
    found = gradient(FEATURES, LABELS, WEIGHTS, 0.3, balance, adjustment)
    np.testing.assert_allclose(found, -weights.grad.numpy() / 7**balance, atol=1e-6)


def test_a_client_without_examples_says_nothing():
    assert not gradient(FEATURES[:0], LABELS[:0], WEIGHTS, 0.3, 0.5).any()


def test_an_adjusted_gradient_does_not_say_how_often_a_client_has_its_classes():
    labels = np.repeat([0, 1], [90, 10])
    features = RNG.normal(size=(100, 5)).astype(np.float32)
    plain = gradient(features, labels, np.zeros((6, 3)), 1.0, 0.0)
    adjusted = gradient(features, labels, np.zeros((6, 3)), 1.0, 0.0, 1.0)
    np.testing.assert_allclose(plain[0], [90 - 100 / 3, 10 - 100 / 3, -100 / 3])
    assert np.abs(adjusted[0]).max() < 2
    assert np.exp(log_frequencies(labels, 3)).sum() == pytest.approx(1)


@pytest.mark.parametrize("flatten", [0.3, 0.9])
def test_flattening_raises_weak_directions_and_keeps_the_length(flatten):
    slopes = RNG.normal(size=(2, 6, 3)) * [10, 1, 0.1]
    found = flattened(slopes, flatten)
    for before, after in zip(slopes, found, strict=True):
        left, values, right = np.linalg.svd(before, full_matrices=False)
        wanted = left * values ** (1 - flatten) @ right
        wanted *= np.linalg.norm(before) / np.linalg.norm(wanted)
        np.testing.assert_allclose(after, wanted, rtol=1e-6, atol=1e-9)


def test_flattening_leaves_alone_what_has_one_direction_or_none():
    one = np.outer(RNG.normal(size=6), [1.0, -1.0])
    np.testing.assert_allclose(flattened(one, 0.6), one, atol=1e-9)
    assert not flattened(np.zeros((6, 3)), 0.6).any()


def test_names_become_weights_of_one_length_that_tell_classes_apart():
    names = RNG.normal(size=(3, 5)).astype(np.float32)
    start = start_from_names(names, 10)
    np.testing.assert_allclose(np.linalg.norm(start[1:], axis=0), 10)
    assert not start[0].any()
    away = names - names.mean(axis=0)
    assert (away @ start[1:]).argmax(axis=1).tolist() == [0, 1, 2]


def test_names_with_the_same_features_are_refused():
    with pytest.raises(ValueError, match="one line for each class"):
        start_from_names(np.ones((2, 4), np.float32), 10)
