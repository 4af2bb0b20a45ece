"""Estimators give the bounds of jax_privacy 2.0.0 on the same outputs (one run: test_one_run.py).

Its figures are of ``auditing.CanaryScoreAuditor`` at significance 0.001:
``epsilon_clopper_pearson`` on the half that measures, at the threshold that our audit chose, and
``epsilon_from_gdp`` on the three quarters that measure, which corrects for three thresholds.
"""

import numpy as np
import pytest
from scipy import stats

from murmur.privacy.audit import empirical_epsilon, gaussian_fit

DELTA = 1e-5


def spaced_normals(shift):
    """20,000 outputs of each neighbour at the quantiles of their laws."""
    quantiles = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    return quantiles + shift, quantiles


@pytest.mark.parametrize(("shift", "theirs"), [(1, 1.7666761515), (3, 5.3703226693)])
def test_an_event_that_is_counted(shift, theirs):
    x, other = spaced_normals(shift)
    assert empirical_epsilon(x, other, DELTA) == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(("shift", "theirs"), [(1, 3.9701076434), (3, 15.783629411)])
def test_a_gaussian_trade_off(shift, theirs):
    x, other = ((outputs >= shift / 2 + 0.5) * 1.0 for outputs in spaced_normals(shift))
    # Theirs has two bounds that share the error, ours four.
    found = gaussian_fit(x, other, DELTA, confidence=1 - 2 * 0.001 / 3)
    assert found.low == pytest.approx(theirs, abs=1e-7)
