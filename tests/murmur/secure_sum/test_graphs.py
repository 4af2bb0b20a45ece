"""What a ring of neighbours must hold, against whom: the specification's golden table."""

import math
from fractions import Fraction

import pytest

from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.terms import (
    HONEST,
    LYING,
    gap_log2,
    least_threshold,
    most_marked,
    ring_for,
)

# Clients, share of dropouts, server, bits of privacy and availability: k, t, c*, d*; at 5%
# colluders.
GOLDEN = [
    (200, 0.1, HONEST, 40, 40, (32, 13, 10, 17)),
    (200, 0.33, HONEST, 40, 40, (60, 13, 10, 44)),
    (1000, 0.1, HONEST, 40, 40, (46, 20, 19, 25)),
    (1000, 0.33, HONEST, 40, 40, (92, 26, 25, 66)),
    (10_000, 0.1, HONEST, 40, 40, (52, 23, 22, 29)),
    (10_000, 0.33, HONEST, 40, 40, (112, 33, 32, 79)),
    (200, 0.1, LYING, 40, 40, (84, 64, 10, 20)),
    (1000, 0.1, LYING, 40, 40, (274, 211, 40, 63)),
    (10_000, 0.1, LYING, 40, 40, (444, 342, 67, 102)),
    (200, 0.1, LYING, 104, 20, (82, 63, 10, 19)),
    (1000, 0.1, LYING, 104, 20, (264, 211, 50, 53)),
    (10_000, 0.1, LYING, 104, 20, (476, 384, 98, 92)),
]


@pytest.mark.parametrize(("n", "silent", "server", "bits", "available", "expected"), GOLDEN)
def test_the_least_ring_is_that_of_the_golden_table(n, silent, server, bits, available, expected):
    colluders, dropouts = n // 20, math.floor(silent * n)
    k, t = ring_for(server, n, colluders, dropouts, bits, available)
    among = most_marked(n, colluders, k, bits)
    silent_among = most_marked(n, dropouts, k, available)
    assert (k, t, among, silent_among) == expected
    assert least_threshold(server, n, k, colluders, bits) <= t <= k - silent_among


@pytest.mark.parametrize("n", [200, 1000])
def test_against_a_lying_server_a_third_of_dropouts_leaves_the_complete_graph_only(n):
    assert ring_for(LYING, n, n // 20, n // 3, 40) is None
    settings = SecureSumSettings("on", threshold=0.55, colluders=n // 20, dropouts=0.33)
    assert settings.terms("r", 1, range(n), 1, 10).neighbours is None


@pytest.mark.parametrize(
    ("n", "marked", "k", "bits"), [(60, 9, 12, 10), (40, 20, 7, 5), (9, 0, 4, 40)]
)
def test_tails_are_those_of_exact_arithmetic(n, marked, k, bits):
    whole = math.comb(n - 1, k)

    def above(x):
        counts = range(x + 1, min(marked, k) + 1)
        ways = sum(math.comb(marked, c) * math.comb(n - 1 - marked, k - c) for c in counts)
        return n * Fraction(ways, whole)

    expected = next(x for x in range(k + 1) if above(x) <= Fraction(1, 2**bits))
    assert most_marked(n, marked, k, bits) == expected


def test_a_gap_of_missing_clients_is_bounded_by_their_runs():
    exact = math.log2(20 * (6 * 5 * 4) / (20 * 19 * 18))
    assert gap_log2(20, 6, 6) == pytest.approx(exact)
    assert gap_log2(20, 2, 6) == -math.inf


def test_the_ring_of_20_that_let_a_server_read_the_sum_of_22_of_80_is_refused():
    # k = 20, t = 11: a gap of ten on both sides can be unmasked at its edge, without a colluder.
    with pytest.raises(ValueError, match="threshold=11: must be at least 15 with 20 neighbours"):
        SecureSumSettings("on", threshold=0.5, neighbours=20).terms("r", 1, range(80), 1, 8)
    ring = SecureSumSettings("on", threshold=0.7, neighbours=20).terms("r", 1, range(80), 1, 8)
    assert ring.threshold == 15


def test_the_default_is_a_ring_only_for_a_server_that_follows_the_protocol():
    lying, honest = (SecureSumSettings("on", colluders=50, server=s) for s in (LYING, HONEST))
    assert lying.terms("r", 1, range(1000), 1, 10).neighbours is None
    terms = honest.terms("r", 1, range(1000), 1, 10)
    assert (terms.neighbours, terms.threshold, terms.server) == (46, 20, HONEST)
    assert honest.terms("r", 1, range(199), 1, 10).neighbours is None
    assert (lying.failure_probability(1000), honest.failure_probability(1000)) == (0, 2**-40)
    assert "follows the protocol" in honest.graph_assumption(1000)
    ring = SecureSumSettings("on", threshold=0.8, neighbours=264, colluders=50)
    assert ring.failure_probability(1000) == 2**-104 and "may lie" in ring.graph_assumption(1000)


def test_a_complete_graph_keeps_its_minimum_above_the_threshold():
    terms = SecureSumSettings("on", minimum=0.2, colluders=3).terms("r", 1, range(20), 1, 8)
    assert terms.threshold == terms.minimum == 14 and terms.honest == 11
