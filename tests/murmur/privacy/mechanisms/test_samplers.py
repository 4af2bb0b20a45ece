"""The exact samplers: implied probabilities by high-precision arithmetic, draws by tests."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplaceSampler
from murmur.privacy.mechanisms.exact_sampling import (
    TOTAL,
    Categorical,
    Geometric,
    bernoulli_exp,
    exp_neg,
    flip_exp,
    round_down,
    round_up,
    uniform_below,
)
from murmur.privacy.noise import NoiseGenerator


class Scripted:
    """A noise generator that answers each kind of request from its own list."""

    def __init__(self, uint16=(), uint64=()):
        self.lists = {"uint16": list(uint16), "uint64": list(uint64)}

    def _take(self, kind, n):
        given, self.lists[kind] = self.lists[kind][:n], self.lists[kind][n:]
        assert len(given) == n
        return np.array(given, dtype=kind)

    def uint16(self, n):
        return self._take("uint16", n)

    def uint64(self, n):
        return self._take("uint64", n)


def weights_of(*fractions):
    """Integer weights near ``fractions``, the last one taking what is left."""
    weights = [int(Fraction(f) * TOTAL) for f in fractions[:-1]]
    return [*weights, TOTAL - sum(weights)]


def draw_128(categorical, number):
    """The category of one 128-bit random number, asking for its bits as the sampler does."""
    high, low = number >> 64, number & (2**64 - 1)
    settled = categorical._table[high >> 48] >= 0
    on_step = any(step >> 64 == high for step in categorical._steps)
    asked = [] if settled else [(high & (2**48 - 1)) << 16]
    rng = Scripted([high >> 48], [*asked, low] if on_step else asked)
    found = int(categorical.sample(1, rng)[0])
    assert rng.lists == {"uint16": [], "uint64": []}
    return found


@pytest.mark.parametrize(
    "weights",
    [
        weights_of("0.3", "0.3", "0.4"),
        [TOTAL],
        [TOTAL - 1, 1],
        [1, TOTAL - 2, 1],
        [1 << 127, 1 << 127],
        [0, TOTAL // 4, 0, 0, TOTAL // 4, TOTAL // 2, 0],
        [1] * 5 + [TOTAL - 1000] + [199] * 5,
        [TOTAL // 1024] * 1024,
    ],
)
def test_a_categorical_decides_all_128_bits(weights):
    categorical, step = Categorical(weights), 0
    for category, weight in enumerate(weights):
        if weight:
            assert draw_128(categorical, step) == category
            assert draw_128(categorical, step + weight - 1) == category
        step += weight


def test_a_categorical_draws_in_proportion():
    weights = weights_of(*(f"0.{d}" for d in ("01", "5", "002", "25", "138", "1")))
    draws = Categorical(weights).sample(1_000_000, NoiseGenerator.seeded("categorical"))
    expected = [1e6 * weight / TOTAL for weight in weights]
    assert stats.chisquare(np.bincount(draws, minlength=6), expected).pvalue > 1e-3


@pytest.mark.parametrize("weights", [[], [TOTAL - 1], [TOTAL + 1, -1], [0] * 2**15])
def test_weights_that_are_no_distribution_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        Categorical(weights)


def geometric_probability(sampler, g):
    """P(G = g) that the digits' integer weights imply, exactly."""
    p = Fraction(1)
    for digit in sampler._digits:
        p *= Fraction(digit.weights[g % len(digit.weights)], TOTAL)
        g //= len(digit.weights)
    overflows, top = divmod(g, sampler._top_radix)
    *tops, overflow = sampler._top.weights
    return p * Fraction(overflow, TOTAL) ** overflows * Fraction(tops[top], TOTAL)


@pytest.mark.parametrize("mean", ["0.0625", "0.3", "1", "7", "63.9", "64.1", "5000", "1e6", "1e11"])
def test_geometric_digits_imply_the_right_probabilities(mean):
    with localcontext() as context:
        context.prec = 60
        rate = 1 / Decimal(mean)
        sampler = Geometric(rate)
        for multiple in map(Decimal, ("0", "0.001", "0.1", "1", "3", "17", "40")):
            g = int(multiple * Decimal(mean)) + int(multiple > 1)
            ideal = (1 - (-rate).exp()) * (-rate * g).exp()
            implied = geometric_probability(sampler, g)
            off = Decimal(implied.numerator) / Decimal(implied.denominator) / ideal - 1
            # The docstring's factor: 2⁻⁸⁰ for each of up to six digits, and every 16 means.
            assert abs(off) < (6 + g / Decimal(mean) / 16) * Decimal(2) ** -80
            assert abs(off * ideal) < Decimal(2) ** -64


@pytest.mark.parametrize("mean", [0.1, 1.0, 30.0, 100.0])
def test_geometric_draws_follow_the_closed_form(mean):
    n, ratio = 500_000, math.exp(-1 / mean)
    draws = Geometric(1 / Decimal(mean)).sample(n, NoiseGenerator.seeded("geometric", str(mean)))
    last = int(mean * math.log(n / 50)) + 1
    expected = n * (1 - ratio) * ratio ** np.arange(last)
    counts = np.bincount(np.minimum(draws, last), minlength=last + 1)
    assert stats.chisquare(counts, [*expected, n - expected.sum()]).pvalue > 1e-3


def test_geometric_goes_on_beyond_the_top_digit():
    sampler = Geometric(Decimal(1))  # one digit below 16, or "16 or more"
    beyond = TOTAL - 1  # the largest 128-bit number: the last category
    high = beyond >> 64
    rng = Scripted([high >> 48, high >> 48, 0xC000], [high, high])  # and ¾: the digit 1
    assert sampler.sample(1, rng).tolist() == [33]


@pytest.mark.parametrize("rate", [Decimal(0), Decimal(2) ** -51, Decimal(1025)])
def test_geometric_rates_out_of_range_are_refused(rate):
    with pytest.raises(ValueError, match=f"^rate={rate}: "):
        Geometric(rate)


@pytest.mark.parametrize("scale", ["0.0625", "0.5", "1", "10", "300", "1e5"])
def test_discrete_laplace_probabilities_are_within_2_to_the_minus_64(scale):
    with localcontext() as context:
        context.prec = 60
        sampler = DiscreteLaplaceSampler(Fraction(scale))
        ratio = (-1 / Decimal(scale)).exp()
        zero, plus, minus = sampler._signs.weights
        assert plus == minus
        assert abs(Decimal(zero) / TOTAL - (1 - ratio) / (1 + ratio)) < Decimal(2) ** -64
        for x in (1, 2, 3, 10, 1000):
            implied = Fraction(plus, TOTAL) * geometric_probability(sampler._beyond, x - 1)
            ideal = (1 - ratio) / (1 + ratio) * ratio**x
            off = Decimal(implied.numerator) / Decimal(implied.denominator) - ideal
            assert abs(off) < Decimal(2) ** -64


@pytest.mark.parametrize("exponent", [0.7, 20.0, 40.0])
def test_exponential_coins_are_exact_where_doubles_cannot_tell(exponent):
    x = np.array([exponent])
    threshold = round_down(exp_neg(exponent), 128)
    high, low = threshold >> 64, threshold & (2**64 - 1)
    for last, heads in ((low - 1, True), (low, False)):
        rng = Scripted(uint64=[last])
        coin = bernoulli_exp(x, x.__getitem__, np.array([high], dtype=np.uint64), rng)
        assert coin.tolist() == [heads] and not rng.lists["uint64"]


@pytest.mark.parametrize("x", [0.0, 1e-9, 0.3, 2.0, 10.0])
def test_exponential_coins_fall_with_their_probability(x):
    n = 1_000_000
    heads = flip_exp(np.full(n, x), NoiseGenerator.seeded("coins", str(x))).sum()
    assert stats.binomtest(int(heads), n, math.exp(-x)).pvalue > 1e-3


def test_improbable_coins_are_made_of_probable_ones():
    # e⁻²⁰ = e⁻¹⁶ · e⁻⁴: heads needs both, and the first draw is the second's condition.
    first, second = (int(math.exp(-x) * 2**64 * 0.999) for x in (16, 4))
    assert flip_exp(np.array([20.0]), Scripted(uint64=[first, second])).tolist() == [True]
    second = int(math.exp(-4) * 2**64 * 1.001)
    assert flip_exp(np.array([20.0]), Scripted(uint64=[first, second])).tolist() == [False]
    assert flip_exp(np.array([20.0]), Scripted(uint64=[2 * first])).tolist() == [False]


def test_uniform_integers_are_even_and_redraw_the_remainder():
    third = 2**64 // 3
    rng = Scripted(uint64=[third - 1, third, 2**64 - 1, 3 * third - 1])
    assert uniform_below(3, 3, rng).tolist() == [0, 1, 2]
    assert uniform_below(1, 4, Scripted()).tolist() == [0] * 4
    counts = np.bincount(uniform_below(7, 700_000, NoiseGenerator.seeded("uniform")).astype(int))
    assert stats.chisquare(counts).pvalue > 1e-3


def test_rounding_brackets_a_probability():
    p = exp_neg(1)
    assert round_up(p) - round_down(p) == 1
    assert round_up(Decimal(1)) == round_down(Decimal(1)) == 2**64
    assert round_up(Decimal("1e-400")) == 1 and round_down(Decimal("1e-400")) == 0
