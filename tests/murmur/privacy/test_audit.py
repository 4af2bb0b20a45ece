"""The audit finds what mechanisms promise and no more, and catches broken ones."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from murmur.privacy.accounting.calibrate import gaussian_noise_multiplier
from murmur.privacy.audit import clopper_pearson, empirical_epsilon
from murmur.privacy.mechanisms.clipping import clip_l2
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from murmur.privacy.mechanisms.grid import quantize_simplex
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.mechanisms.randomized_bits import stochastic_bits as encode
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.mechanisms.selection import ExponentialMechanism, PermuteAndFlip
from murmur.privacy.noise import NoiseGenerator

RUNS = 400_000
DELTA = 1e-2  # where a Gaussian's ε can be measured with so many runs


@dataclass
class Case:
    """Runs on a worst-case pair, and what was proven about them."""

    epsilon: float
    delta: float
    x: np.ndarray
    x_prime: np.ndarray

    @property
    def found(self):
        return empirical_epsilon(self.x, self.x_prime, self.delta)


def rng(*parts):
    return NoiseGenerator.seeded("audit", *parts)


def labels(epsilon, mechanism=None):
    """One label, 3 or 4."""
    mechanism = mechanism or RandomizedResponse(epsilon, 10)
    x, x_prime = (mechanism.privatize(np.full(RUNS, label), rng(label)) for label in (3, 4))
    return Case(epsilon, 0.0, x, x_prime)


def two_labels(epsilon):
    """Two labels at ε/2 each, both different; their likelihood ratio is what they say."""
    mechanism = RandomizedResponse(epsilon / 2, 10)
    x, x_prime = (
        mechanism.privatize(np.full((RUNS, 2), label), rng("two", label)) for label in (3, 4)
    )
    return Case(epsilon, 0.0, *((d == 3).sum(1) - (d == 4).sum(1) * 1.0 for d in (x, x_prime)))


def bits(gamma, n=4, mechanism=None):
    """n bits, all 1 or all 0; their number is a sufficient statistic."""
    mechanism = mechanism or BinaryRandomizedResponse(gamma)
    x, x_prime = (
        mechanism.privatize(np.full((RUNS, n), bit, dtype=np.uint8), rng("bits", bit)).sum(1)
        for bit in (0, 1)
    )
    return Case(n * BinaryRandomizedResponse(gamma).epsilon, 0.0, x, x_prime)


def stochastic_bits(gamma, n=4, mechanism=None):
    mechanism = mechanism or BinaryRandomizedResponse(gamma)

    def released(w):
        noise = rng("w", int(w))
        return mechanism.privatize(encode(np.full((RUNS, n), w), noise), noise).sum(1)

    x, x_prime = released(-1.0), released(1.0)
    return Case(n * BinaryRandomizedResponse(gamma).epsilon, 0.0, x, x_prime)


def discrete_laplace(epsilon, noise=1.0):
    """A probability vector on the grid, (1, 0) or (0, 1): L1 distance 2."""
    total = 64
    stated = DiscreteLaplace.calibrated(epsilon, 2.0 * total)
    ran = DiscreteLaplace(stated.scale * noise, 2.0 * total)
    vectors = quantize_simplex(np.eye(2), total)
    x, x_prime = (
        ran.privatize_integers(np.tile(v, (RUNS, 1)), rng("laplace", int(v[0]))) for v in vectors
    )
    # The log-likelihood ratio of independent Laplace noises, a clipped difference.
    return Case(stated.epsilon, 0.0, *(laplace_ratio(d, vectors) for d in (x, x_prime)))


def laplace_ratio(outputs, vectors):
    return (np.abs(outputs - vectors[1]) - np.abs(outputs - vectors[0])).sum(axis=1)


def discrete_gaussian(epsilon, noise=1.0, clip=clip_l2):
    """A clipped vector of three entries against none at all, along their difference."""
    bound, raw = 1.0, np.array([30.0, -40.0, 120.0])
    stated = DiscreteGaussian(
        gaussian_noise_multiplier(epsilon, DELTA) * bound, bound, 2.0**-12, dimension=3
    )
    ran = DiscreteGaussian(stated.sigma * noise, bound, 2.0**-12, dimension=3)
    x, x_prime = (
        ran.privatize(np.tile(v, (RUNS, 1)), rng("discrete", int(v[0])))
        for v in (clip(raw, bound), np.zeros(3))
    )
    return Case(epsilon, DELTA, x @ raw, x_prime @ raw)


def selection(mechanism, epsilon, noise=1.0):
    """One candidate ahead of 63, or behind all of them: tight in the limit of many."""
    ran = mechanism(epsilon / noise, sensitivity=1.0)
    ahead = np.array([1.0] + [0.0] * 63)
    x, x_prime = (
        ran.privatize(np.tile(v, (RUNS // 4, 1)), rng("select", int(v[0])))
        for v in (ahead, 1 - ahead)
    )
    return Case(epsilon, 0.0, x == 0, x_prime == 0)


HONEST = {
    "labels at 0.5": lambda: labels(0.5),
    "labels at 2.5": lambda: labels(2.5),
    "two labels": lambda: two_labels(5.0),
    "bits": lambda: bits(0.2),
    "stochastic bits": lambda: stochastic_bits(0.2),
    "discrete Laplace": lambda: discrete_laplace(1.0),
    "discrete Gaussian": lambda: discrete_gaussian(1.0),
    "exponential mechanism": lambda: selection(ExponentialMechanism, 2.0),
    "permute and flip": lambda: selection(PermuteAndFlip, 2.0),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_mechanisms_reach_half_of_their_epsilon_and_never_exceed_it(name):
    case = HONEST[name]()
    assert case.epsilon / 2 < case.found <= case.epsilon


HALF_THE_NOISE = {
    "labels": lambda: labels(1.0, RandomizedResponse(2.0, 10)),
    "bits": lambda: bits(0.2, mechanism=BinaryRandomizedResponse(0.4)),
    "stochastic bits": lambda: stochastic_bits(0.2, mechanism=BinaryRandomizedResponse(0.4)),
    "discrete Laplace": lambda: discrete_laplace(1.0, noise=0.5),
    "discrete Gaussian": lambda: discrete_gaussian(1.0, noise=0.5),
    "exponential mechanism": lambda: selection(ExponentialMechanism, 2.0, noise=0.5),
    "permute and flip": lambda: selection(PermuteAndFlip, 2.0, noise=0.5),
}


@pytest.mark.parametrize("name", HALF_THE_NOISE)
def test_half_the_noise_is_caught(name):
    case = HALF_THE_NOISE[name]()
    assert case.found > case.epsilon


def test_forgotten_clipping_is_caught():
    case = discrete_gaussian(1.0, clip=lambda x, bound: x)
    assert case.found > 5 * case.epsilon


def test_noise_that_clients_share_is_caught_by_their_difference():
    # Two clients, one of them the target (3 or 4): sharing the stream, they lie together.
    mechanism, epsilon = RandomizedResponse(1.0, 10), 1.0
    runs = 4000

    def difference(target, share):
        pairs = []
        for run in range(runs):
            other = NoiseGenerator.seeded(run) if share else NoiseGenerator.seeded(run, "other")
            mine = mechanism.privatize(np.array([target]), NoiseGenerator.seeded(run))
            theirs = mechanism.privatize(np.array([3]), other)
            pairs.append((int(mine[0]) - int(theirs[0])) % 10)
        return pairs

    assert empirical_epsilon(difference(3, False), difference(4, False)) <= epsilon
    assert empirical_epsilon(difference(3, True), difference(4, True)) > 5 * epsilon


def test_noise_that_rounds_share_is_caught_by_their_difference():
    # A seed per client but not per round: what changed between two rounds is sent in clear.
    mechanism = DiscreteLaplace.calibrated(0.5, 1.0)
    proven = 2 * mechanism.epsilon  # two rounds

    def difference(second, share):
        rounds = [
            mechanism.privatize_integers(
                np.full(20_000, value), rng("client") if share else rng("client", number)
            )
            for number, value in enumerate((0, second))
        ]
        return rounds[1] - rounds[0]

    assert empirical_epsilon(difference(0, False), difference(1, False)) <= proven
    assert empirical_epsilon(difference(0, True), difference(1, True)) > 5 * proven


def test_no_mechanism_at_all_is_caught_up_to_what_the_runs_can_show():
    found = empirical_epsilon(np.zeros(RUNS), np.ones(RUNS))
    assert found == pytest.approx(math.log(RUNS / 2 / -math.log(0.0005)), abs=0.01)


def test_equal_inputs_give_nothing():
    x, x_prime = (rng("equal", i).uint64(RUNS).astype(float) for i in range(2))
    assert empirical_epsilon(x, x_prime) == 0.0
    assert empirical_epsilon(np.zeros(100), np.zeros(100)) == 0.0


def test_delta_is_taken_off():
    # (0, 0.1)-DP: one run in ten says everything.
    leak = np.random.default_rng(9).random(RUNS) < 0.1
    assert empirical_epsilon(leak, np.zeros(RUNS)) > 5
    assert empirical_epsilon(leak, np.zeros(RUNS), delta=0.11) == 0.0


def test_the_bound_is_wrong_less_often_than_it_says():
    generator = np.random.default_rng(10)
    # The true ε is ln(0.6/0.4): 90% bounds may exceed it in one audit of ten.
    exceeded = sum(
        empirical_epsilon(generator.random(400) < 0.6, generator.random(400) < 0.4, confidence=0.9)
        > math.log(1.5)
        for _ in range(300)
    )
    assert stats.binomtest(exceeded, 300, 0.1, alternative="greater").pvalue > 1e-3


def test_choosing_the_event_does_not_flatter_the_bound():
    # 256 outputs of ε = ln 3, seen too seldom to tell which side they are on: an event that is
    # measured by the runs that chose it exceeds ε in nine of ten audits.
    generator = np.random.default_rng(11)
    p = np.tile([1.5, 0.5], 128) / 256
    exceeded = sum(
        empirical_epsilon(
            generator.choice(256, 4000, p=p), generator.choice(256, 4000, p=p[::-1]), confidence=0.5
        )
        > math.log(3)
        for _ in range(100)
    )
    assert stats.binomtest(exceeded, 100, 0.5, alternative="greater").pvalue > 1e-3


def test_direction_is_found_whichever_input_comes_first():
    case = labels(2.5)
    forward = empirical_epsilon(case.x, case.x_prime)
    assert forward == pytest.approx(empirical_epsilon(case.x_prime, case.x), abs=0.1)
    rare = empirical_epsilon(np.zeros(2000), np.repeat([0.0, 1.0], [1900, 100]))
    # About 50 of 1,000 that measure against none of 1,000.
    assert math.log(20 / 1000 / (8 / 1000)) < rare < math.log(50 / 1000 / (7 / 1000))


def test_clopper_pearson_is_the_binomial_tests_interval():
    low, high = clopper_pearson(np.array([0, 3, 50, 100]), 100, 0.0005)
    for k, bounds in zip((0, 3, 50, 100), zip(low, high, strict=True), strict=True):
        interval = stats.binomtest(k, 100).proportion_ci(0.999, method="exact")
        assert bounds == pytest.approx((interval.low, interval.high), abs=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), np.zeros(9)), r"^outputs_x of shape \(3,\)"),
        ((np.zeros(9), np.zeros((9, 2))), r"^outputs_x_prime of shape \(9, 2\)"),
        ((np.zeros(9), np.full(9, math.nan)), r"^outputs_x_prime: holds NaN"),
        ((np.zeros(9), np.zeros(9), 1.0), r"^delta=1.0: "),
        ((np.zeros(9), np.zeros(9), -0.1), r"^delta=-0.1: "),
        ((np.zeros(9), np.zeros(9), 0.0, 1.0), r"^confidence=1.0: "),
    ],
)
def test_audits_of_nothing_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        empirical_epsilon(*arguments)
