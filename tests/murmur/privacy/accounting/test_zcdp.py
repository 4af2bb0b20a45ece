import math

import numpy as np
import pytest

from murmur.privacy.accounting import gaussian, rdp


def delta_of_rho(rho, epsilon):
    return math.exp(min(0.0, rdp.log_delta_of_rho(rho, epsilon)))


def test_zcdp_conversion_agrees_with_a_scan_over_orders():
    for rho, epsilon in ((0.03, 1.0), (0.5, 4.0), (1e-4, 0.1), (10.0, 30.0)):
        alpha = 1 + np.logspace(-3, 5, 200_001)
        log_delta = (alpha - 1) * (alpha * rho - epsilon) + alpha * np.log1p(-1 / alpha)
        scan = np.exp((log_delta - np.log(alpha - 1)).min())
        assert delta_of_rho(rho, epsilon) == pytest.approx(min(1.0, scan), rel=1e-6)


def test_zcdp_conversion_is_never_below_the_exact_gaussian():
    for sigma in (0.5, 1.0, 4.0, 30.0):
        for epsilon in (0.01, 0.5, 3.0):
            exact = math.exp(gaussian.log_delta(epsilon, 1 / sigma))
            assert delta_of_rho(1 / (2 * sigma**2), epsilon) >= exact


@pytest.mark.parametrize("epsilon", [1e-4, 1.0, 500.0])
@pytest.mark.parametrize("delta", [0.9, 1e-5, 1e-300])
def test_the_inverse_is_the_largest_rho(epsilon, delta):
    rho = rdp.largest_rho(epsilon, delta)
    assert delta_of_rho(rho, epsilon) <= delta < delta_of_rho(rho * (1 + 1e-9), epsilon)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 1.0)]
)
def test_targets_out_of_range_are_refused(epsilon, delta):
    with pytest.raises(ValueError, match=r"^(epsilon|delta)="):
        rdp.largest_rho(epsilon, delta)
