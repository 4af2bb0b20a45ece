import math
from decimal import Decimal, localcontext
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.privacy.accounting import gaussian, privacy_loss
from murmur.privacy.accounting.elementary_losses import label_loss as loss
from murmur.privacy.accounting.elementary_losses import report_probabilities
from murmur.privacy.accounting.privacy_loss import LatticeLoss, common_lattice


def brute_force_delta(labels, epsilon):
    """δ(ε) over every output of the labels (ε0, C), all inputs 0 against all inputs 1."""
    total = 0.0
    for outputs in product(*(range(categories) for _, categories in labels)):
        upper = lower = 1.0
        for output, (epsilon0, categories) in zip(outputs, labels, strict=True):
            true, other = report_probabilities(epsilon0, categories)
            upper *= true if output == 0 else other
            lower *= true if output == 1 else other
        total += max(0.0, upper - math.exp(epsilon) * lower)
    return total


def precise_delta(epsilon0, categories, count, epsilon):
    """δ(ε) of `count` labels, convolved in 60 decimal digits."""
    with localcontext() as context:
        context.prec = 60
        growth = Decimal(epsilon0).exp()
        other = 1 / (growth + categories - 1)
        step = {1: growth * other, 0: (categories - 2) * other, -1: other}
        masses = {0: Decimal(1)}
        for _ in range(count):
            grown = {}
            for total, mass in masses.items():
                for change, probability in step.items():
                    grown[total + change] = (
                        grown.get(total + change, Decimal(0)) + mass * probability
                    )
            masses = grown
        gaps = {s: 1 - (Decimal(epsilon) - s * Decimal(epsilon0)).exp() for s in masses}
        return sum(masses[s] * gap for s, gap in gaps.items() if gap > 0)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.1, 2.9, 3.9])
def test_delta_of_equal_labels_is_the_sum_over_all_outputs(epsilon):
    labels = [(1.0, 3)] * 4
    exact = brute_force_delta(labels, epsilon)
    found = privacy_loss.epsilon([loss(1.0, 3, 4)], exact)
    assert found == pytest.approx(epsilon, abs=1e-8)


@pytest.mark.parametrize("second", [0.5, 0.35, 1 / math.pi])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.3, 1.7])
def test_delta_of_different_labels_is_the_sum_over_all_outputs(second, epsilon):
    labels = [(0.7, 3)] * 3 + [(second, 2)] * 2
    exact = brute_force_delta(labels, epsilon)
    parts = [loss(0.7, 3, 3), loss(second, 2, 2)]
    assert privacy_loss.epsilon(parts, exact * (1 + 1e-4) + 1e-12) <= epsilon
    assert privacy_loss.epsilon(parts, exact * (1 - 1e-9)) >= epsilon


@pytest.mark.parametrize(("epsilon0", "categories", "count"), [(0.5, 10, 60), (2.5, 10, 60)])
@pytest.mark.parametrize("fraction", [0.2, 0.6, 0.95, 0.999])
def test_the_far_tail_keeps_its_digits(epsilon0, categories, count, fraction):
    epsilon = fraction * epsilon0 * count
    exact = precise_delta(epsilon0, categories, count, epsilon)
    computed = privacy_loss.epsilon([loss(epsilon0, categories, count)], float(exact))
    assert computed == pytest.approx(epsilon, rel=1e-8)


@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-40, 1e-120])
def test_epsilon_inverts_delta_from_above(delta):
    epsilon = privacy_loss.epsilon([loss(0.5, 10, 60)], delta)
    assert precise_delta(0.5, 10, 60, epsilon) <= Decimal(delta)
    assert precise_delta(0.5, 10, 60, epsilon * (1 - 1e-8)) > Decimal(delta)


def test_one_label_has_a_closed_form():
    true, other = report_probabilities(2.5, 10)
    closed = math.log((true - 1e-5) / other)
    assert privacy_loss.epsilon([loss(2.5, 10)], 1e-5) == pytest.approx(closed, rel=1e-11)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999, 1.0, 1.001, 1.1, 1.5])
@pytest.mark.parametrize("labels", [[(0.42, 10)], [(0.2, 2)], [(0.3, 3)] * 3, [(0.02, 2)] * 6])
def test_a_delta_about_as_likely_as_the_worst_loss_is_composed_exactly(labels, share):
    """There the losses that decide lie far from those which a Chernoff bound points to."""
    (epsilon0, categories), count = labels[0], len(labels)
    delta = share * report_probabilities(epsilon0, categories)[0] ** count
    found = privacy_loss.epsilon([loss(epsilon0, categories, count)], delta)
    assert brute_force_delta(labels, found) <= delta * (1 + 1e-9)
    if found > 0:
        assert brute_force_delta(labels, found * (1 - 1e-3)) > delta


def test_a_label_beside_a_gaussian_is_tilted_as_far_as_the_gaussian_needs():
    # The label alone would be at its worst loss by θ = 1.3 already.
    found = privacy_loss.epsilon([loss(5.434556981731819, 10)], 4.86e-15, 0.27533)
    assert 7.4 < found < 7.5


def test_no_delta_means_basic_composition():
    assert privacy_loss.epsilon([loss(2.5, 10, 7), loss(1.0, 2, 3)], 0.0) == pytest.approx(20.5)
    assert privacy_loss.epsilon([], 0.0, gaussian_mu=1.0) == math.inf


def test_nothing_released_costs_nothing():
    assert privacy_loss.epsilon([], 1e-5) == 0.0


def test_huge_counts_meet_the_central_limit():
    # ε0 so small that the sum of the losses is Gaussian with μ² = n·Var(loss).
    count, epsilon0 = 10**8, 1e-4
    mu = math.sqrt(count * loss(epsilon0, 10).moments()[1])
    exact = privacy_loss.epsilon([loss(epsilon0, 10, count)], 1e-5)
    assert exact == pytest.approx(privacy_loss.epsilon([], 1e-5, mu), rel=1e-5)


def test_counts_beyond_the_window_fall_back_to_a_valid_bound():
    count = 10**13
    mean = count * loss(2.5, 10).moments()[0]
    epsilon = privacy_loss.epsilon([loss(2.5, 10, count)], 1e-5)
    assert mean < epsilon < mean * (1 + 1e-5)


def test_a_gaussian_beside_labels_is_the_expectation_over_the_labels():
    # Three binary labels: losses ±0.8; every sign pattern by hand.
    true, other = report_probabilities(0.8, 2)
    by_hand = 0.0
    for signs in product((1, -1), repeat=3):
        probability = math.prod(true if sign > 0 else other for sign in signs)
        by_hand += probability * math.exp(float(gaussian.log_delta(1.5 - 0.8 * sum(signs), 1.3)))
    found = privacy_loss.epsilon([loss(0.8, 2, 3)], by_hand, 1.3)
    assert found == pytest.approx(1.5, rel=1e-9)


def test_splitting_atoms_keeps_the_mass_under_both_distributions():
    losses, masses = np.array([-0.31, 0.07, 0.55]), np.array([0.2, 0.3, 0.5])
    split = LatticeLoss.of(losses, masses, 0.1)
    assert split.probabilities.sum() == pytest.approx(1.0, rel=1e-14)
    assert split.probabilities @ np.exp(-split.losses) == pytest.approx(
        masses @ np.exp(-losses), rel=1e-13
    )


@settings(max_examples=40, derandomize=True)
@given(
    st.lists(st.floats(-2, 2), min_size=1, max_size=6),
    st.floats(0.01, 0.7),
    st.floats(0, 2),
)
def test_a_coarser_lattice_is_never_better(losses, step, epsilon):
    atoms = np.array(losses)
    masses = np.full(atoms.size, 1 / atoms.size)
    exact = float(masses @ np.maximum(0, -np.expm1(epsilon - atoms)))
    split = LatticeLoss.of(atoms, masses, step)
    coarse = float(split.probabilities @ np.maximum(0, -np.expm1(epsilon - split.losses)))
    assert coarse >= exact - 1e-13


def test_commensurate_steps_share_an_exact_lattice():
    first, second = common_lattice([loss(2.5, 10, 5), loss(0.1, 10, 5)])
    assert first.step == second.step == pytest.approx(0.1)
    assert np.count_nonzero(first.probabilities > 1e-12) == 3


@settings(max_examples=40, derandomize=True)
@given(
    st.floats(0.05, 4),
    st.integers(2, 20),
    st.integers(1, 400),
    st.integers(1, 50),
    st.floats(-30, -2),
)
def test_epsilon_grows_with_the_count_and_falls_with_delta(
    epsilon0, categories, count, more, log_delta
):
    delta = math.exp(log_delta)
    one = privacy_loss.epsilon([loss(epsilon0, categories, count)], delta)
    assert one <= count * epsilon0 * (1 + 1e-12)
    assert one <= privacy_loss.epsilon([loss(epsilon0, categories, count + more)], delta) + 1e-9
    assert one <= privacy_loss.epsilon([loss(epsilon0, categories, count)], delta / 2) + 1e-9
