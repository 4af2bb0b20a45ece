"""Second moments of classes: lengths, distances of neighbours, and what is read from them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from murmur.algorithms import class_moments as moments
from murmur.learning.linear_model import directions, unit
from murmur.privacy.budget import Budget
from murmur.privacy.events import Unit

RNG = np.random.default_rng(1)
VECTORS = arrays(np.float64, (2, 4), elements=st.floats(-3, 3))


def seen(rows, middle, radius):
    """U of records whose features are ``rows``."""
    return moments.with_constant(directions(unit(rows), middle, radius), 0.3)


@given(VECTORS, arrays(np.float64, 4, elements=st.floats(-1, 1)), st.floats(0.01, 2))
def test_a_record_is_never_longer_than_one_whatever_the_centre(rows, middle, radius):
    u = seen(rows, middle, radius)
    assert (np.linalg.norm(u, axis=1) <= 1 + 1e-12).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_record_that_is_not_finite_counts_as_one_of_zeros(wrong):
    """Finite data may have features that overflow; one record must not turn the sums of all."""
    budget = Budget(5.0, 1e-5, unit="record")
    it = moments.CentreSum(budget, 4, 0.5, Unit.RECORD, 100)
    images = RNG.normal(size=(6, 4, 1, 1)).astype(np.float32)
    before = it.of(images)
    images[2, 1] = wrong
    moved = np.linalg.norm((it.of(images) - before) / it.steps)
    assert moved <= 1 + 1e-9


@given(VECTORS)
def test_exchanging_a_record_moves_the_second_moments_by_at_most_root_two(rows):
    u = seen(rows, np.zeros(4), 0.1)
    first, second = moments.packed(u)
    assert np.linalg.norm(first - second) <= math.sqrt(2) + 1e-12


def test_packed_is_undone_and_keeps_inner_products():
    rows = RNG.normal(size=(3, 5))
    packed = moments.packed(rows)
    whole = np.einsum("ni,nj->nij", rows, rows)
    np.testing.assert_allclose(moments.unpacked(packed, 5), whole)
    np.testing.assert_allclose(packed[0] @ packed[1], (whole[0] * whole[1]).sum())


def test_a_centre_that_noise_explains_is_none():
    assert not moments.centre(np.full(4, 3.0), 100, deviation=10.0).any()
    np.testing.assert_allclose(moments.centre(np.full(4, 50.0), 100, 0.0), 0.5)


def test_without_noise_the_rule_is_that_of_linear_discriminants():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    labels = RNG.integers(3, size=600)
    rows = RNG.normal(size=(600, 4)) + 2 * np.eye(4)[labels]
    u = seen(rows, np.zeros(4), 0.1)
    matrices = moments.unpacked(
        np.array([moments.packed(u[labels == k]).sum(axis=0) for k in range(3)]), 5
    )
    weights, offsets = moments.discriminants(matrices, 600, 0.3, 0.0, 1.0)
    peer = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / 3] * 3).fit(u[:, 1:], labels)
    ours = (u[:, 1:] @ weights.T + offsets).argmax(axis=1)
    assert (ours == peer.predict(u[:, 1:])).mean() > 0.98


@pytest.mark.parametrize(
    ("mu", "first", "second"),
    [
        (0.268051, 26.37955, 6.21772),
        (0.501552, 14.09838, 3.32302),
        (0.924931, 7.64497, 1.80194),
        (1.666031, 4.24426, 1.00038),
    ],
)
def test_the_noise_of_both_releases_is_that_of_the_specification(mu, first, second):
    """One of five hospitals colludes, so that four share the noise of five."""
    assert 2 / (mu * math.sqrt(0.1)) * math.sqrt(5 / 4) == pytest.approx(first, rel=1e-5)
    assert math.sqrt(2) / (mu * math.sqrt(0.9)) * math.sqrt(5 / 4) == pytest.approx(
        second, rel=1e-5
    )
