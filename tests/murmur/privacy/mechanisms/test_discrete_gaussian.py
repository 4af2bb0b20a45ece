import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from scipy import stats

from murmur.privacy.events import DiscreteGaussianEvent
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian, DiscreteGaussianSampler
from murmur.privacy.mechanisms.exact_sampling import exp_neg, round_down
from murmur.privacy.noise import NoiseGenerator


def gaussian_probabilities(sampler, sigma, xs):
    """P(X = x) that the cells' integer weights imply, the tails summed to 60 digits."""
    width, starts = sampler._width, sampler._start
    twice = 2 * Decimal(sigma) ** 2
    weights = [Decimal(w) for w in sampler._cells.weights]
    mass, implied = Decimal(0), dict.fromkeys(xs, Decimal(0))
    for weight, start, sign, tail in zip(
        weights, starts.tolist(), sampler._sign.tolist(), sampler._is_tail, strict=True
    ):
        if sign == 0:
            candidates = [(0, Decimal(1))]
        elif tail:
            # Proposals r^y(1 − r), accepted with e^(−y²/2σ²).
            ratio = (-2 * start / twice).exp()
            candidates = [
                (sign * (start + y), (1 - ratio) * ratio**y * (-(y * y) / twice).exp())
                for y in range(int(14 * sigma) + 30)
            ]
        else:
            candidates = [
                (sign * (start + f), (-(f * f + 2 * start * f) / twice).exp() / width)
                for f in range(width)
            ]
        for x, p in candidates:
            mass += weight * p
            if x in implied:
                implied[x] += weight * p
    return {x: p / mass for x, p in implied.items()}


@pytest.mark.parametrize("sigma", [0.0625, 0.3, 1.0, 5.5, 31.9, 32.0, 100.0])
def test_discrete_gaussian_probabilities_are_within_2_to_the_minus_64(sigma):
    with localcontext() as context:
        context.prec = 60
        sampler = DiscreteGaussianSampler(Fraction(sigma))
        xs = sorted({s * int(m * sigma) for s in (-1, 1) for m in (0, 0.05, 0.5, 1, 2, 4, 5, 7)})
        implied = gaussian_probabilities(sampler, sigma, xs)
        twice = 2 * Decimal(sigma) ** 2
        total = 1 + 2 * sum((-(x * x) / twice).exp() for x in range(1, int(30 * sigma) + 30))
        for x, p in implied.items():
            assert abs(p - (-(x * x) / twice).exp() / total) < Decimal(2) ** -110


@pytest.mark.parametrize("sigma", [0.4, 1.0, 20.0, 33.0, 90.0])
def test_discrete_gaussian_draws_follow_the_closed_form(sigma):
    n = 1_000_000
    draws = DiscreteGaussianSampler(Fraction(sigma)).sample(
        n, NoiseGenerator.seeded("gaussian", str(sigma))
    )
    ends = int(4.3 * sigma) + 1  # the cells end at 4.5σ; what is beyond is tested below
    x = np.arange(-40 * ends, 40 * ends + 1)
    p = np.exp(-(x**2) / (2 * sigma**2))
    p /= p.sum()
    inside = np.abs(x) <= ends
    expected = n * np.array([p[x < -ends].sum(), *p[inside], p[x > ends].sum()])
    counts = np.bincount(np.clip(draws, -ends - 1, ends + 1) + ends + 1, minlength=2 * ends + 3)
    enough = expected >= 5
    rest = [counts[~enough].sum(), expected[~enough].sum()]
    observed = np.append(counts[enough], rest[0])
    wanted = np.append(expected[enough], rest[1])
    assert stats.chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue > 1e-3


@pytest.mark.parametrize("sigma", [3.0, 100.0, 1e6])
def test_prefixes_that_accept_at_once_would_be_accepted_at_every_offset(sigma):
    sampler = DiscreteGaussianSampler(Fraction(sigma))
    for sure, start, tail in zip(sampler._sure, sampler._start, sampler._is_tail, strict=True):
        last = float(start) + sampler._width - 1
        least = math.exp((float(start) ** 2 - last**2) / (2 * sigma**2)) if start else 1.0
        assert sure == (0 if tail else math.floor(least * 2**16 + 1e-9))


def test_acceptance_is_decided_by_128_bits_of_which_the_prefix_is_the_first():
    sampler, cell, offset = DiscreteGaussianSampler(Fraction(100)), 20, 3
    start = int(sampler._start[cell])
    exponent = Fraction(offset * (offset + 2 * start), 2 * 100**2)
    threshold = round_down(exp_neg(exponent), 128)
    high, low = threshold >> 64, threshold & (2**64 - 1)
    prefix = np.array([high >> 48], dtype=np.uint16)
    assert offset < sampler._width and prefix[0] >= sampler._sure[cell]
    for last, rejected in ((low - 1, []), (low, [0])):
        rng = Scripted((high & (2**48 - 1)) << 16, last)
        found = sampler._decide(
            np.array([start + offset]), np.array([cell]), prefix, np.array([0]), rng
        )
        assert found.tolist() == rejected and not rng.draws


@pytest.mark.parametrize("sigma", [3.0, 1000.0])
def test_discrete_gaussian_tail_has_the_gaussian_shape(sigma):
    sampler = DiscreteGaussianSampler(Fraction(sigma))
    beyond = np.flatnonzero(sampler._is_tail)
    n = 100_000
    cell = np.full(n, beyond[0])
    value, lanes = sampler._start[cell], np.arange(n)
    rng = NoiseGenerator.seeded("tail", int(sigma))
    prefix = rng.uint16(n)
    rejected = sampler._decide(value, cell, prefix, lanes, rng)
    kept = np.delete(value, rejected)
    start = int(sampler._start[beyond[0]])
    x = np.arange(start, start + int(10 * sigma))
    cdf = np.cumsum(np.exp(-(x.astype(float) ** 2 - start**2) / (2 * sigma**2)))
    cdf /= cdf[-1]
    observed = np.searchsorted(np.sort(kept), x, side="right") / kept.size
    # Kolmogorov–Smirnov, conservative on integers, at a significance of 10⁻³.
    assert np.abs(observed - cdf).max() < 1.95 / math.sqrt(kept.size)


@pytest.mark.parametrize("sigma", [1e4, 1e6, 2.0**40])
def test_wide_discrete_gaussians_are_gaussian(sigma):
    draws = DiscreteGaussianSampler(Fraction(sigma)).sample(
        1_000_000, NoiseGenerator.seeded("wide", int(sigma))
    )
    assert stats.kstest(draws, stats.norm(scale=sigma).cdf).pvalue > 1e-3
    # Low bits within a cell, which a KS test does not see.
    assert stats.chisquare(np.bincount(draws % 64, minlength=64)).pvalue > 1e-3


@pytest.mark.parametrize("sigma", [Fraction(1, 17), Fraction(2**40 + 1)])
def test_sigmas_out_of_range_are_refused(sigma):
    with pytest.raises(ValueError, match=r"^sigma="):
        DiscreteGaussianSampler(sigma)


def test_agrees_with_opendp():
    dp.enable_features("contrib")
    for sigma in (0.7, 12.0, 5e4):
        n = 10_000
        space = dp.vector_domain(dp.atom_domain(T=int), size=n), dp.l2_distance(T=int)
        theirs = np.array(dp.m.make_gaussian(*space, scale=sigma)([0] * n))
        ours = DiscreteGaussian(sigma, 1.0).privatize_integers(
            np.zeros(n, dtype=np.int64), NoiseGenerator.seeded("opendp", int(sigma))
        )
        # OpenDP cannot be seeded: one in a million runs fails by chance.
        assert stats.ks_2samp(ours, theirs).pvalue > 1e-6
        near = np.abs(np.concatenate([ours, theirs])) <= 2 * sigma
        values, codes = np.unique(np.concatenate([ours, theirs])[near], return_inverse=True)
        if values.size < 60:
            table = np.array(
                [
                    np.bincount(codes[: near[:n].sum()], minlength=values.size),
                    np.bincount(codes[near[:n].sum() :], minlength=values.size),
                ]
            )
            assert stats.chi2_contingency(table).pvalue > 1e-6


def test_real_vectors_come_back_as_noisy_multiples_of_the_grid():
    mechanism = DiscreteGaussian(sigma=0.5, sensitivity=2.0, grid=2.0**-10, dimension=4)
    x = np.tile([0.1, -3.7, 1e-9, 12.0], (100_000, 1))
    before = x.copy()
    released = mechanism.privatize(x, NoiseGenerator.seeded("grid"))
    assert released.shape == x.shape and np.array_equal(x, before)
    assert np.array_equal(released, np.rint(released * 2**10) / 2**10)
    assert np.abs(released.mean(axis=0) - x[0]).max() < 2.0**-11 + 4 * 0.5 / math.sqrt(len(x))
    assert released.std(axis=0) == pytest.approx(0.5, rel=0.02)


def test_integers_stay_integers_so_that_sums_are_exact():
    mechanism = DiscreteGaussian(sigma=3.0, sensitivity=1.0)
    k = np.arange(12, dtype=np.int32).reshape(3, 4)
    released = mechanism.privatize_integers(k, NoiseGenerator.seeded("integers"))
    again = mechanism.privatize(k, NoiseGenerator.seeded("integers"))
    assert released.dtype == np.int64 and released.shape == (3, 4)
    assert np.array_equal(released, again) and np.array_equal(k, np.arange(12).reshape(3, 4))


def test_noise_can_be_added_in_place_to_the_same_bits():
    mechanism = DiscreteGaussian(sigma=3.0, sensitivity=1.0)
    k = np.arange(2**16).reshape(256, 256)
    released = mechanism.privatize_integers(k, NoiseGenerator.seeded("integers"))
    own = mechanism.privatize_integers(k, NoiseGenerator.seeded("integers"), out=k)
    assert own is k and np.array_equal(k, released)


def test_rounding_adds_the_root_of_the_dimension_to_the_sensitivity():
    on_grid = DiscreteGaussian(sigma=1.0, sensitivity=2.0, grid=0.25)
    assert on_grid.event() == DiscreteGaussianEvent(sigma=4.0, sensitivity=8.0)
    rounded = DiscreteGaussian(sigma=1.0, sensitivity=2.0, grid=0.25, dimension=9)
    assert rounded.event() == DiscreteGaussianEvent(sigma=4.0, sensitivity=11.0)
    scalar = DiscreteGaussian(sigma=1.0, sensitivity=2.1, grid=0.25, dimension=1)
    assert scalar.event() == DiscreteGaussianEvent(sigma=4.0, sensitivity=10.0, scalar=True)


def test_rounded_neighbours_are_no_further_apart_than_stated():
    rng = np.random.default_rng(4)
    mechanism = DiscreteGaussian(sigma=1.0, sensitivity=0.7, grid=0.125, dimension=6)
    x = rng.normal(size=(100_000, 6))
    step = rng.normal(size=x.shape)
    neighbour = x + 0.7 * step / np.linalg.norm(step, axis=1, keepdims=True)
    silent = Silent()
    moved = mechanism.privatize(x, silent) - mechanism.privatize(neighbour, silent)
    furthest = np.linalg.norm(moved, axis=1).max() / 0.125
    assert 0.7 / 0.125 < furthest <= mechanism.sensitivity_steps


class Scripted:
    """A generator that gives the numbers that a test wants."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def uint16(self, n):
        assert n == 0
        return np.zeros(0, dtype=np.uint16)

    def uint64(self, n):
        given, self.draws = self.draws[:n], self.draws[n:]
        return np.array(given, dtype=np.uint64)


class Silent:
    """A generator whose noise is 0: the middle cell of the table starts at 0."""

    def uint16(self, n):
        return np.zeros(n, dtype=np.uint16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 0.0}, r"^sigma=0.0: "),
        ({"sigma": math.inf}, r"^sigma=inf: "),
        ({"sigma": 0.01}, r"^sigma=0.01: .* finer grid"),
        ({"sigma": 2.0**41}, r"^sigma=.* coarser grid"),
        ({"sensitivity": -1.0}, r"^sensitivity=-1.0: "),
        ({"grid": 0.1}, r"^grid=0.1: must be a power of two.*0\.125"),
        ({"grid": 0.0}, r"^grid=0.0: "),
        ({"dimension": 0}, r"^dimension=0: "),
    ],
)
def test_bad_settings_are_refused_at_construction(change, message):
    with pytest.raises(ValueError, match=message):
        DiscreteGaussian(**{"sigma": 1.0, "sensitivity": 1.0, "grid": 1.0} | change)


@pytest.mark.parametrize(
    ("dimension", "x", "message"),
    [
        (3, np.zeros(4), r"^dimension=3: "),
        (None, np.array([0.5]), r"^grid=1.0: x does not lie on it"),
        (1, np.array([math.nan]), r"^x: holds NaN"),
        (1, np.array([math.inf]), r"^x: holds NaN"),
        (1, np.array([2.0**53]), r"^grid=1.0: x exceeds"),
    ],
)
def test_bad_vectors_are_refused(dimension, x, message):
    mechanism = DiscreteGaussian(1.0, 1.0, dimension=dimension)
    with pytest.raises(ValueError, match=message):
        mechanism.privatize(x, NoiseGenerator.seeded(0))


@pytest.mark.parametrize("k", [np.array([0.0]), np.array([2**61]), np.array([-(2**61)])])
def test_bad_integers_are_refused(k):
    with pytest.raises(ValueError, match=r"^k"):
        DiscreteGaussian(1.0, 1.0).privatize_integers(k, NoiseGenerator.seeded(0))


def test_millions_of_draws_are_finite_and_near():
    for sigma in (0.5, 1e6):
        draws = DiscreteGaussian(sigma, 1.0).privatize(
            np.zeros(3_000_000), NoiseGenerator.seeded("finite", int(sigma))
        )
        assert np.isfinite(draws).all() and np.abs(draws).max() < 8 * max(sigma, 1)
