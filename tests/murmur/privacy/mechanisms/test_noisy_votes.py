"""PATE's noise: calibration, statistics, refusals."""

import numpy as np
import pytest

from murmur.privacy.accounting import epsilon
from murmur.privacy.mechanisms.noisy_votes import NoisyVotes
from murmur.privacy.noise import NoiseGenerator


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("target", [0.5, 6.0])
def test_calibrated_noise_just_meets_the_budget(noise, target):
    votes = NoisyVotes.calibrated(noise, target, 1e-5, 200)
    assert 0.999 * target < epsilon(votes.event(), 1e-5).epsilon <= target * (1 + 1e-9)


@pytest.mark.parametrize(("sigma", "golden"), [(40.0, "5.99"), (100.0, "2.25")])
def test_the_specification_s_values_by_concentrated_dp(sigma, golden):
    spent = epsilon(NoisyVotes("gaussian", sigma, 1000).event(), 1e-5)
    assert f"{spent.bounds['zcdp']:.2f}" == golden
    assert spent.epsilon < float(golden)


@pytest.mark.parametrize(("noise", "deviation"), [("gaussian", 20.0), ("laplace", 20 * 2**0.5)])
def test_noise_has_the_stated_scale(noise, deviation):
    votes = np.full((1000, 10), 50, np.int64)
    out = NoisyVotes(noise, 20.0, 1000).privatize(votes, NoiseGenerator.seeded("votes"))
    assert out.dtype == np.int64
    assert abs((out - 50).mean()) < 4 * deviation / 100
    assert (out - 50).std() == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("uniform", 1.0, 1), "^noise='uniform': "),
        (("gaussian", 0.0, 1), r"^scale=0\.0: "),
        (("laplace", 1.0, 0), "^queries=0: "),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        NoisyVotes(*arguments)


def test_votes_for_other_queries_are_refused():
    with pytest.raises(ValueError, match=r"^votes of shape"):
        NoisyVotes("gaussian", 1.0, 3).privatize(
            np.zeros((2, 4), np.int64), NoiseGenerator.seeded(1)
        )
