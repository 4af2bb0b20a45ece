import math
from decimal import Decimal, localcontext

import numpy as np
import opendp.prelude as dp
import pytest
from scipy import stats

from murmur.privacy.accounting import epsilon
from murmur.privacy.events import RandomizedResponseEvent
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse, _lie_threshold
from murmur.privacy.noise import NoiseGenerator

SETTINGS = [(0.01, 2), (0.5, 10), (2.5, 10), (1.0, 256), (8.0, 3), (20.0, 10), (40.0, 256)]


class Scripted:
    """A noise generator that gives the numbers that a test wants."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def uint64(self, n):
        given, self.draws = self.draws[:n], self.draws[n:]
        return np.array(given, dtype=np.uint64)


def ideal_lie(epsilon, categories):
    with localcontext() as context:
        context.prec = 80
        return (categories - 1) / (Decimal(epsilon).exp() + categories - 1)


def test_keep_probability_is_the_papers():
    # PrivateKT, MNIST: ε = 5 per round, K = 2 labels, C = 10.
    mechanism = RandomizedResponse(epsilon=2.5, categories=10)
    assert mechanism.keep == pytest.approx(0.5279, abs=5e-5)
    assert mechanism.keep == pytest.approx(math.expm1(2.5) / (math.expm1(2.5) + 10), rel=1e-14)
    assert mechanism.truth_probability == pytest.approx(mechanism.keep + (1 - mechanism.keep) / 10)


@pytest.mark.parametrize(("epsilon", "categories"), SETTINGS)
def test_probability_of_lying_is_within_one_unit_and_never_too_small(epsilon, categories):
    excess = _lie_threshold(epsilon, categories) - ideal_lie(epsilon, categories) * 2**64
    assert 0 <= excess < 1


@pytest.mark.parametrize(("epsilon", "categories"), SETTINGS)
def test_epsilon_of_the_integers_is_at_most_the_nominal(epsilon, categories):
    lie = _lie_threshold(epsilon, categories)
    with localcontext() as context:
        context.prec = 60
        exact = (Decimal(2**64 - lie) * (categories - 1) / lie).ln()
    # One unit in the probability of lying, and no more, is lost.
    unit = Decimal(2) ** -61 * (Decimal(epsilon).exp() + categories)
    assert 0 <= Decimal(epsilon) - exact <= unit


def test_huge_epsilon_stays_private_and_does_not_overflow():
    mechanism = RandomizedResponse(epsilon=1000.0, categories=10)
    assert mechanism.keep == 1.0 and mechanism.truth_probability == 1.0
    assert _lie_threshold(1000.0, 10) == 9
    labels = np.arange(10)
    assert np.array_equal(mechanism.privatize(labels, NoiseGenerator.seeded("huge")), labels)


def test_every_boundary_of_the_draw_gives_the_label_that_the_integers_say():
    mechanism = RandomizedResponse(epsilon=2.5, categories=10)
    lie = _lie_threshold(2.5, 10)
    per_category, uneven = divmod(lie, 9)
    assert uneven  # else the next test would test nothing
    draws, expected = [lie, 2**64 - 1], [3, 3]
    for shift in range(1, 10):
        draws += [(shift - 1) * per_category, shift * per_category - 1]
        expected += [(3 + shift) % 10] * 2
    released = mechanism.privatize(np.full(len(draws), 3), Scripted(*draws))
    assert released.tolist() == expected


def test_draws_that_would_favour_a_category_are_drawn_again_among_the_other_labels():
    mechanism = RandomizedResponse(epsilon=2.5, categories=10)
    lie = _lie_threshold(2.5, 10)
    ninth = 2**64 // 9
    # The first label's draw is uneven; again too large for a ninth; then the ninth's fifth part.
    rng = Scripted(lie - 1, lie, 2**64 - 1, 4 * ninth)
    assert mechanism.privatize(np.array([3, 3]), rng).tolist() == [(3 + 5) % 10, 3]
    assert not rng.draws


def test_keep_rate_lies_within_four_standard_errors():
    mechanism, n = RandomizedResponse(epsilon=2.5, categories=10), 1_000_000
    labels = np.random.default_rng(1).integers(0, 10, n, dtype=np.uint8)
    kept = (mechanism.privatize(labels, NoiseGenerator.seeded("keep rate")) == labels).mean()
    p = mechanism.truth_probability
    assert abs(kept - p) < 4 * math.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize(("epsilon", "categories"), [(0.5, 10), (2.5, 10), (1.0, 2), (3.0, 256)])
def test_reports_follow_the_closed_form(epsilon, categories):
    mechanism, n = RandomizedResponse(epsilon, categories), 500_000
    truth = categories // 3
    rng = NoiseGenerator.seeded("closed form", categories)
    released = mechanism.privatize(np.full(n, truth), rng)
    expected = np.full(categories, (1 - mechanism.keep) / categories)
    expected[truth] = mechanism.truth_probability
    counts = np.bincount(released, minlength=categories)
    assert stats.chisquare(counts, n * expected).pvalue > 1e-3


def test_labels_are_randomised_independently():
    released = RandomizedResponse(1.0, 3).privatize(
        np.zeros(300_000, dtype=np.uint8), NoiseGenerator.seeded("independent")
    )
    pairs = np.bincount(3 * released[:-1:2].astype(int) + released[1::2], minlength=9)
    assert stats.chi2_contingency(pairs.reshape(3, 3)).pvalue > 1e-3


def test_agrees_with_opendp():
    dp.enable_features("contrib")
    mechanism, n = RandomizedResponse(epsilon=1.5, categories=5), 20_000
    theirs = dp.m.make_randomized_response(list(range(5)), mechanism.truth_probability)
    assert theirs.map(1) == pytest.approx(1.5)
    released = mechanism.privatize(np.full(n, 2), NoiseGenerator.seeded("opendp"))
    counts = [np.bincount(released, minlength=5), np.bincount([theirs(2) for _ in range(n)])]
    # OpenDP cannot be seeded: one in a million runs fails by chance.
    assert stats.chi2_contingency(np.array(counts)).pvalue > 1e-6


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.uint64])
def test_shape_is_kept_and_the_input_left_alone(dtype):
    labels = np.arange(60).reshape(3, 4, 5).astype(dtype) % 10
    before = labels.copy()
    released = RandomizedResponse(1.0, 10).privatize(labels, NoiseGenerator.seeded("shape"))
    assert released.shape == (3, 4, 5) and released.dtype == np.uint8
    assert np.array_equal(labels, before) and not np.shares_memory(labels, released)
    empty = RandomizedResponse(1.0, 10).privatize(labels[:0], NoiseGenerator.seeded("shape"))
    assert empty.shape == (0, 4, 5)


@pytest.mark.parametrize(
    "labels", [np.array([0, 10]), np.array([-1, 3]), np.array([1.0]), np.array([True])]
)
def test_labels_that_are_none_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        RandomizedResponse(1.0, 10).privatize(labels, NoiseGenerator.seeded("refused"))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_epsilon_that_is_no_privacy_or_no_number_is_refused(epsilon):
    with pytest.raises(ValueError, match=f"^epsilon={epsilon}: "):
        RandomizedResponse(epsilon, 10)


@pytest.mark.parametrize("categories", [1, 257])
def test_categories_that_are_no_choice_or_no_byte_are_refused(categories):
    with pytest.raises(ValueError, match=f"^categories={categories}: "):
        RandomizedResponse(1.0, categories)


def test_debiasing_inverts_the_expected_counts_row_by_row():
    mechanism = RandomizedResponse(1.0, 4)
    frequencies = np.array([[0.5, 0.3, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25]])
    n = np.array([40, 1000])
    expected = n[:, None] * (mechanism.keep * frequencies + (1 - mechanism.keep) / 4)
    assert mechanism.debias(expected, n) == pytest.approx(frequencies)
    assert mechanism.debias(expected[0], 40) == pytest.approx(frequencies[0])


def test_debiased_estimates_are_unbiased():
    mechanism, n = RandomizedResponse(1.0, 4), 400_000
    labels = np.repeat([0, 1, 2], [n // 2, n // 4, n // 4])
    released = mechanism.privatize(labels, NoiseGenerator.seeded("debias"))
    estimate = mechanism.debias(np.bincount(released, minlength=4), n)
    assert estimate == pytest.approx([0.5, 0.25, 0.25, 0.0], abs=5 * 0.5 / mechanism.keep / n**0.5)


def test_debiasing_refuses_empty_rows_and_other_shapes():
    with pytest.raises(ValueError, match="n: every row"):
        RandomizedResponse(1.0, 4).debias(np.zeros((2, 4)), np.array([3, 0]))
    with pytest.raises(ValueError, match=r"counts of shape \(2, 3\)"):
        RandomizedResponse(1.0, 4).debias(np.zeros((2, 3)), 5)


def test_event_is_one_label():
    assert RandomizedResponse(2.5, 10).event() == RandomizedResponseEvent(2.5, 10)


def test_a_release_of_several_labels_costs_all_of_them():
    release = RandomizedResponse(2.5, 10).release(3)
    assert epsilon(release, 0.0).epsilon == pytest.approx(7.5)
