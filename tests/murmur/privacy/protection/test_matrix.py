"""Matrix factorisation: its sensitivity, its ε by another library, and its noise over rounds."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from murmur.privacy.accounting import epsilon
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection import Central, MatrixFactorization
from murmur.privacy.protection.matrix import band

ROUNDS = 12
CLIPPING = {"norm": 1.0}


def protection(patterns=((1, 5, 9), (4, 8, 12)), budget=4.0, **settings):
    cohorts = Cohorts(40, 10, patterns=lambda: patterns)
    promise = Budget(budget, 1e-5, ROUNDS, threat="central")
    return MatrixFactorization(promise, cohorts, clipping=CLIPPING, **settings)


def outputs(it, totals, seed=0):
    return [
        it.noised(number, total, 1.0, NoiseGenerator.seeded(seed, number))
        for number, total in enumerate(totals, 1)
    ]


def test_band_is_the_square_root_of_the_matrix_of_ones():
    rows = np.arange(ROUNDS)
    coefficients = band(ROUNDS) / band(1)[0]
    root = np.tril(coefficients[np.abs(rows[:, None] - rows)])
    np.testing.assert_allclose(root @ root, np.tril(np.ones((ROUNDS, ROUNDS))), atol=0.02)


@pytest.mark.parametrize("bands", [1, 4, 7, 12])
def test_sensitivity_is_the_worst_of_all_signs(bands):
    it = protection(bands=bands)
    matrix = np.zeros((ROUNDS, ROUNDS))
    for k, value in enumerate(it.coefficients):
        matrix += value * np.eye(ROUNDS, k=-k)
    worst = max(
        np.linalg.norm(matrix[:, np.array(pattern) - 1] @ signs)
        for pattern in it.cohorts.patterns()
        for signs in itertools.product([-1, 1], repeat=len(pattern))
    )
    assert it.sensitivity(ROUNDS) == pytest.approx(worst * CLIP_STEPS)


def test_epsilon_is_that_of_another_library_and_meets_the_budget():
    it = protection()
    it.rounds_published = ROUNDS
    own = epsilon(it.spent({}), 1e-5).epsilon
    assert 0.995 * 4.0 < own <= 4.0
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(GaussianDpEvent(it.sigma / it.sensitivity(ROUNDS)))
    assert own == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


def test_prefix_sums_carry_less_noise_than_that_of_independent_rounds():
    it, zeros = protection(), np.zeros(4000, np.int64)
    last = np.sum(outputs(it, [zeros] * ROUNDS), axis=0)
    promise = Budget(4.0, 1e-5, ROUNDS, threat="central", participations=3)
    independent = Central(promise, Cohorts(40, 10), clipping=CLIPPING).noise_multiplier
    assert last.std() < 0.75 * independent * CLIP_STEPS * math.sqrt(ROUNDS)


def test_without_noise_every_round_is_its_sum():
    it = protection(budget=math.inf)
    totals = list(np.random.default_rng(0).integers(-1000, 1000, (ROUNDS, 5)))
    np.testing.assert_allclose(outputs(it, totals), totals, atol=1e-6)


def test_a_round_that_failed_keeps_its_row():
    """Else later rounds would move closer together than the sensitivity allows for."""
    it, zeros = protection(), np.zeros(3, np.int64)
    it.noised(1, zeros, 1.0, NoiseGenerator.seeded(1))
    it.noised(5, zeros, 1.0, NoiseGenerator.seeded(2))
    assert it.rounds_published == 5


def test_a_restored_protection_goes_on_with_the_same_bits():
    totals = list(np.random.default_rng(0).integers(-1000, 1000, (ROUNDS, 5)))
    whole = outputs(protection(), totals)
    first, second = protection(), protection()
    outputs(first, totals[:5])
    second.restore(first.state())
    for number in range(6, ROUNDS + 1):
        rest = second.noised(number, totals[number - 1], 1.0, NoiseGenerator.seeded(0, number))
        np.testing.assert_array_equal(rest, whole[number - 1])


@pytest.mark.parametrize(
    ("cohorts", "budget", "words"),
    [
        (Cohorts(40, 10, rate=0.25), {}, "schedule=poisson"),
        (Cohorts(), {"threat": "local"}, "threat=local"),
    ],
)
def test_what_it_cannot_keep_is_refused(cohorts, budget, words):
    promise = Budget(4.0, 1e-5, **{"rounds": 4, "threat": "central", **budget})
    with pytest.raises(ValueError, match=words):
        MatrixFactorization(promise, cohorts, clipping=CLIPPING)
