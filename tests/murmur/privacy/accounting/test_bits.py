import math
from itertools import pairwise, product

import mpmath
import numpy as np
import pytest

from murmur.algorithms.dpfl_bnn import bits as claim
from murmur.privacy.accounting import Threat, View, bits, epsilon, rdp
from murmur.privacy.accounting.calibrate import bits_gamma
from murmur.privacy.accounting.flatten import flatten
from murmur.privacy.accounting.rdp import to_epsilon, to_epsilon_mironov
from murmur.privacy.events import RandomizedBitsEvent, RepeatedEvent
from tests.murmur.privacy.accounting.true_delta import log_delta
from tests.sums import reported

DELTA, BITS, CLIENTS, ROUNDS = 1e-5, 81_958, 100, 100


def by_mironov(event, count):
    leaves = flatten(RepeatedEvent(event, count), View(Threat.SECURE_AGGREGATION))
    return rdp.epsilon(leaves, DELTA, to_epsilon_mironov)


@pytest.mark.parametrize(
    ("gamma", "golden"),
    [
        (0.1, [0.4055, 28.31, 23.65, 7_191, 670_079, 124.6, 7_401]),
        (0.2, [0.8473, 83.34, 63.93, 28_841, 2_788_379, 434.9, 32_627]),
        (0.3, [1.3863, 180.92, 124.21, 69_688, 6_832_304, 1_149.7, 96_079]),
        (0.4, [2.1972, 361.83, 219.25, 145_862, 14_424_508, 3_500.9, 315_001]),
    ],
)
def test_the_table_of_dpfl_bnn(gamma, golden):
    vector = RandomizedBitsEvent(gamma, BITS, BITS)
    summed = reported(vector, CLIENTS)
    one_bit = RepeatedEvent(RandomizedBitsEvent(gamma, 1, 1), ROUNDS)
    computed = [
        bits.epsilon_of_bit(gamma),
        claim.claimed_epsilon(gamma, ROUNDS, DELTA),
        epsilon(one_bit, DELTA).bounds["exact"],
        by_mironov(vector, 1),
        by_mironov(vector, ROUNDS),
        by_mironov(summed, 1),
        by_mironov(summed, ROUNDS),
    ]
    # The specification allows 0.5 %; all but rounding of its last digit is reached.
    assert computed == pytest.approx(golden, rel=5e-4)


def test_gammas_that_meet_eight():
    assert f"{claim.claimed_gamma(8.0, ROUNDS, DELTA):.4f}" == "0.0366"
    local = bits_gamma(8.0, DELTA, BITS, ROUNDS, conversion=to_epsilon_mironov)
    assert f"{local:.3e}" == "1.265e-04"
    summed = bits_gamma(
        8.0, DELTA, BITS, ROUNDS, Threat.SECURE_AGGREGATION, CLIENTS, conversion=to_epsilon_mironov
    )
    assert f"{summed:.3e}" == "1.265e-03"


def test_the_best_bound_allows_a_larger_gamma_and_meets_the_target():
    gamma = bits_gamma(8.0, DELTA, BITS, ROUNDS, Threat.SECURE_AGGREGATION, CLIENTS)
    event = reported(RandomizedBitsEvent(gamma, BITS, BITS), CLIENTS)
    total = epsilon(RepeatedEvent(event, ROUNDS), DELTA, Threat.SECURE_AGGREGATION).epsilon
    assert gamma > 1.265e-3
    assert 8.0 * (1 - 1e-4) < total <= 8.0


@pytest.mark.parametrize(("clients", "golden"), [(100, "27.97"), (1000, "7.03")])
def test_hamming_clipping(clients, golden):
    event = reported(RandomizedBitsEvent(0.1, BITS, 2 * 100), clients)
    assert f"{by_mironov(event, 50):.2f}" == golden


def test_claims_and_their_inverse_agree():
    gamma = claim.claimed_gamma(8.0, ROUNDS, DELTA)
    assert claim.claimed_epsilon(gamma, ROUNDS, DELTA) == pytest.approx(8.0, rel=1e-6)


@pytest.mark.parametrize("gamma", [0.4, 0.1, 1e-3])
@pytest.mark.parametrize("order", [1.001, 2.0, 17.0, 200.0])
def test_summed_divergence_by_enumeration(gamma, order):
    clients = 5
    worst = 0.0
    for others in product((0, 1), repeat=clients - 1):
        sums = []
        for mine in (1, 0):
            masses = np.zeros(clients + 1)
            for reports in product((0, 1), repeat=clients):
                held = (mine, *others)
                masses[sum(reports)] += math.prod(
                    0.5 + gamma if r == h else 0.5 - gamma
                    for r, h in zip(reports, held, strict=True)
                )
            sums.append(masses)
        for p, q in (sums, sums[::-1]):
            # Σ (P^α Q^{1−α} − αP + (α−1)Q) loses fewer digits than Σ P^α Q^{1−α} − 1.
            terms = q * np.exp(order * np.log(p / q)) - order * p + (order - 1) * q
            worst = max(worst, math.log1p(terms.sum()) / (order - 1))
    assert bits.summed_divergence(gamma, clients, order) == pytest.approx(worst, rel=1e-6)


def test_tiny_gammas_keep_their_digits():
    # For γ → 0: χ² of the sum is (2γ)² Σ (B_{s−1} − B_s)²/Q, worst order-free limit α·χ²/2.
    ratios = [bits.summed_divergence(gamma, 100, 2.0) / gamma**2 for gamma in (1e-4, 1e-6, 1e-8)]
    assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-4)


def test_alone_a_sum_is_one_bit():
    summed = bits.summed_divergence(0.2, 1, 3.0)
    assert summed == pytest.approx(rdp.divergence(RandomizedBitsEvent(0.2, 1, 1), 3.0))


@pytest.mark.parametrize("order", [1.01, 4.0, 200.0, 5000.0])
def test_more_honest_clients_only_help(order):
    values = [bits.summed_divergence(0.1, clients, order) for clients in (1, 2, 3, 10, 300, 5000)]
    assert all(a >= b for a, b in pairwise(values))
    assert values[0] <= bits.epsilon_of_bit(0.1)


def test_the_highest_orders_are_bounded_by_one_client_alone():
    exact_order = 0.99 * 500 / bits.epsilon_of_bit(0.4)
    below = bits.summed_divergence(0.4, 5, exact_order)
    above = bits.summed_divergence(0.4, 5, 1.02 * exact_order)
    assert below < above < bits.epsilon_of_bit(0.4) < 1.01 * below


def test_blocks_of_k_cover_all_of_them_from_above(monkeypatch):
    exact = [bits.summed_divergence(0.3, 400, order) for order in (1.01, 3.0, 30.0)]
    bits._pair.cache_clear()
    monkeypatch.setattr(bits, "_ELEMENTS", 1)
    blocked = [bits.summed_divergence(0.3, 400, order) for order in (1.01, 3.0, 30.0)]
    bits._pair.cache_clear()
    for fine, coarse in zip(exact, blocked, strict=True):
        assert fine <= coarse * (1 + 1e-12) <= 1.01 * fine


def test_colluders_and_dropouts_cost():
    def cost(honest):
        event = reported(RandomizedBitsEvent(0.1, BITS, 200), honest)
        return epsilon(RepeatedEvent(event, 50), DELTA, Threat.SECURE_AGGREGATION).epsilon

    assert cost(100) < cost(60) < cost(2)
    local = RepeatedEvent(RandomizedBitsEvent(0.1, BITS, 200), 50)
    assert cost(1) == epsilon(local, DELTA).epsilon


def test_secure_aggregation_does_not_count_against_who_sees_the_vector():
    event = reported(RandomizedBitsEvent(0.1, BITS, 200), 100)
    seen = epsilon(event, DELTA, Threat.LOCAL).epsilon
    assert seen == epsilon(RandomizedBitsEvent(0.1, BITS, 200), DELTA).epsilon
    assert seen > 4 * epsilon(event, DELTA, Threat.SECURE_AGGREGATION).epsilon


GRID = [1 + x / 10 for x in range(1, 100)]  # of orders, as accountants have them


def digits_of_divergence(gamma, clients, order):
    """D_α of one coordinate at k = 0, where it is worst, with 50 digits."""
    with mpmath.workdps(50):
        p, order = mpmath.mpf("0.5") + gamma, mpmath.mpf(order)
        q, others = 1 - p, clients - 1
        alone = [mpmath.binomial(others, s) * q**s * p ** (others - s) for s in range(clients)]
        kept = [p * a + q * b for a, b in zip([0, *alone], [*alone, 0], strict=True)]
        flipped = [q * a + p * b for a, b in zip([0, *alone], [*alone, 0], strict=True)]
        moments = [
            mpmath.fsum(a**order * b ** (1 - order) for a, b in zip(*pair, strict=True))
            for pair in ((kept, flipped), (flipped, kept))
        ]
        return mpmath.log(max(moments)) / (order - 1)


def test_epsilon_of_a_sum_is_the_least_over_real_orders_each_of_which_is_a_bound():
    """A grid of orders gives a larger ε, which is a bound as well, and no truer one."""
    clients, count = 300, 200 * 50
    event = RepeatedEvent(reported(RandomizedBitsEvent(0.1, BITS, 200), clients), 50)
    stated = epsilon(event, DELTA, Threat.SECURE_AGGREGATION).bounds["rdp"]

    def at_order(order):
        divergence = count * digits_of_divergence(mpmath.mpf("0.1"), clients, order)
        return float(to_epsilon(float(divergence), order, DELTA))

    on_grid = min(at_order(order) for order in GRID if abs(order - 2.94) < 0.15)
    least = min(at_order(order) for order in np.linspace(2.92, 2.96, 21))
    assert least * (1 - 1e-9) < stated < least * (1 + 1e-5)
    assert f"{stated:.4f} {on_grid:.4f}" == "13.1392 13.1411"


@pytest.mark.parametrize("failure", [1e-5, 1e-10])
@pytest.mark.parametrize(("gamma", "clients"), [(0.2, 12), (0.05, 40), (0.1, 100)])
def test_epsilon_of_a_sum_is_not_below_the_truth(gamma, clients, failure):
    """Of bits that all differ, with other clients' bits as bad as they can be: k of them kept."""
    bits_of_one, rounds = 40, 5
    event = reported(RandomizedBitsEvent(gamma, BITS, bits_of_one), clients)
    stated = epsilon(RepeatedEvent(event, rounds), failure, Threat.SECURE_AGGREGATION).epsilon
    for k in (0, clients // 2, clients - 1):
        others = np.ones(1)
        for place in range(clients - 1):
            p = 0.5 + gamma if place < k else 0.5 - gamma
            others = np.convolve(others, [1 - p, p])
        one = np.convolve(others, [0.5 - gamma, 0.5 + gamma])
        other = np.convolve(others, [0.5 + gamma, 0.5 - gamma])
        for there, gone in ((one, other), (other, one)):
            loss = np.log(there) - np.log(gone)
            truth = log_delta([(loss, np.log(there), bits_of_one * rounds)], stated)
            assert truth < math.log(failure)
