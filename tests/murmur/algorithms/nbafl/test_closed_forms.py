import math

import pytest

from murmur.algorithms.nbafl import noise as closed_forms
from murmur.privacy.accounting.gaussian import classical_constant

N, DELTA = 50, 0.01


def test_upload_noise():
    assert f"{closed_forms.upload_sigma(50, DELTA, 1, 1.0, 1000):.6e}" == "1.243005e-04"


@pytest.mark.parametrize(("rounds", "golden"), [(25, 5.961241e-5), (8, 9.301795e-6), (7, 0.0)])
def test_broadcast_noise(rounds, golden):
    sigma = closed_forms.broadcast_sigma(50, DELTA, rounds, 1, 1.0, 1000, [1 / N] * N)
    assert f"{sigma:.6e}" == f"{golden:.6e}"


def test_unequal_weights_need_more_broadcast_noise():
    equal = closed_forms.broadcast_sigma(50, DELTA, 25, 1, 1.0, 1000, [0.25] * 4)
    unequal = closed_forms.broadcast_sigma(50, DELTA, 25, 1, 1.0, 1000, [0.4, 0.2, 0.2, 0.2])
    upload = closed_forms.upload_sigma(50, DELTA, 1, 1.0, 1000)
    needed = upload / 1 * 25 * 0.4
    assert unequal == pytest.approx(math.sqrt(needed**2 - upload**2 * 0.28))
    assert unequal > equal


@pytest.mark.parametrize(
    ("epsilon", "golden"),
    [
        (5, ["3.01812", "2.20257", "0.348616", "0.521609"]),
        (50, [None, None, "0.000000", "0.854107"]),
    ],
)
def test_k_random_scheduling(epsilon, golden):
    each = [
        closed_forms.scheduling_b(epsilon, 25, N, 20),
        closed_forms.scheduling_b_proven(epsilon, 25, N, 20),
    ]
    unit = 2 * classical_constant(DELTA) / (1000 * epsilon)
    sigmas = [
        closed_forms.broadcast_sigma(epsilon, DELTA, 25, 1, 1.0, 1000, [1 / 20] * 20, b)
        for b in each
    ]
    for value, digits in zip([*each, *(sigma / unit for sigma in sigmas)], golden, strict=True):
        if digits is not None:
            assert f"{value:.{len(digits.partition('.')[2])}f}" == digits


def test_the_logarithm_of_b_may_have_no_value():
    assert closed_forms.scheduling_b(50, 25, N, 20) == math.inf


def test_the_proven_b_is_the_smaller_one():
    for epsilon in (1, 5, 10):
        proven = closed_forms.scheduling_b_proven(epsilon, 25, N, 20)
        assert 1 < proven <= closed_forms.scheduling_b(epsilon, 25, N, 20)
