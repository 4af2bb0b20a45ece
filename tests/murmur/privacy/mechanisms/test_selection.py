import itertools
import math

import numpy as np
import pytest
from scipy import stats

from murmur.privacy.events import PureEvent
from murmur.privacy.mechanisms.selection import ExponentialMechanism, PermuteAndFlip
from murmur.privacy.noise import NoiseGenerator

BOTH = pytest.mark.parametrize("mechanism", [ExponentialMechanism, PermuteAndFlip])


def exponential_probabilities(scores, rate):
    weights = np.exp(rate * (np.array(scores) - max(scores)))
    return weights / weights.sum()


def permute_and_flip_probabilities(scores, rate):
    """By enumeration of all orders and coins."""
    coins = np.exp(rate * (np.array(scores) - max(scores)))
    chosen = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        reached = 1.0 / math.factorial(len(scores))
        for i in order:
            chosen[i] += reached * coins[i]
            reached *= 1 - coins[i]
    return chosen


PROBABILITIES = {
    ExponentialMechanism: exponential_probabilities,
    PermuteAndFlip: permute_and_flip_probabilities,
}


@BOTH
@pytest.mark.parametrize("scores", [[1.0, 0.2, 0.9, -3.0], [0.5, 0.5, 0.5], [2.0, 1.9]])
@pytest.mark.parametrize(("monotonic", "rate"), [(False, 1.5), (True, 3.0)])
def test_choices_follow_the_closed_form(mechanism, scores, monotonic, rate):
    n = 200_000
    chosen = mechanism(epsilon=1.5, sensitivity=0.5, monotonic=monotonic).privatize(
        np.tile(scores, (n, 1)), NoiseGenerator.seeded("choices", len(scores))
    )
    expected = n * PROBABILITIES[mechanism](scores, rate)
    counts = np.bincount(chosen, minlength=len(scores))
    enough = expected > 5
    assert counts[~enough].sum() <= 20
    observed, wanted = counts[enough], expected[enough]
    assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


@pytest.mark.parametrize("monotonic", [False, True])
def test_both_are_private_by_enumeration(monotonic):
    # Every coordinate moves by at most Δ = 1; monotonic ones in the same direction.
    rate = 2.0 if monotonic else 1.0
    moves = itertools.product((0, 1) if monotonic else (-1, 0, 1), repeat=4)
    for probabilities in PROBABILITIES.values():
        before = probabilities([0.0, 0.0, 1.0, 3.0], rate)
        worst = max(
            np.abs(np.log(before / probabilities(np.add([0.0, 0.0, 1.0, 3.0], m), rate))).max()
            for m in (moves if probabilities is exponential_probabilities else [(1, 0, 0, 0)])
        )
        assert worst <= 2.0


def test_permute_and_flip_is_never_worse():
    scores, n = np.tile([1.0, 0.6, 0.5, 0.0], (200_000, 1)), 200_000
    means = [
        scores[0][m(2.0, 1.0).privatize(scores, NoiseGenerator.seeded("never worse"))].mean()
        for m in (ExponentialMechanism, PermuteAndFlip)
    ]
    assert means[1] > means[0] + 4 * 0.5 / math.sqrt(n)


@BOTH
def test_huge_scores_neither_overflow_nor_hang(mechanism):
    scores = np.array([[1e300, -1e300, 0.0], [0.0, 1e-300, -1e300]])
    chosen = mechanism(1.0, 1.0).privatize(scores, NoiseGenerator.seeded("huge"))
    assert chosen[0] == 0 and chosen[1] in (0, 1)


@BOTH
def test_shapes_follow_the_rows(mechanism):
    rng, scores = NoiseGenerator.seeded("shapes"), np.zeros((2, 3, 5))
    assert mechanism(1.0, 1.0).privatize(scores, rng).shape == (2, 3)
    assert mechanism(1.0, 1.0).privatize(scores[0, 0], rng).shape == ()
    assert mechanism(1.0, 1.0).privatize([2.0], rng) == 0
    assert mechanism(1.0, 1.0).privatize(scores[:0], rng).shape == (0, 3)
    assert not scores.any()


@BOTH
@pytest.mark.parametrize("scores", [1.0, np.zeros((3, 0)), [math.nan, 0.0], [math.inf, 0.0]])
def test_scores_that_cannot_be_ranked_are_refused(mechanism, scores):
    with pytest.raises(ValueError, match=r"^scores"):
        mechanism(1.0, 1.0).privatize(scores, NoiseGenerator.seeded(0))


@BOTH
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_bad_settings_are_refused_at_construction(mechanism, value):
    with pytest.raises(ValueError, match=f"^epsilon={value}: "):
        mechanism(value, 1.0)
    with pytest.raises(ValueError, match=f"^sensitivity={value}: "):
        mechanism(1.0, value)


@BOTH
def test_event_is_pure(mechanism):
    assert mechanism(1.5, 2.0).event() == PureEvent(1.5)
