import math

import numpy as np
import pytest
from scipy import integrate, stats

from privacy.events import GaussianEvent, LaplaceEvent
from privacy.mechanisms import Gaussian, Laplace, analytic_gaussian_delta, analytic_gaussian_sigma
from privacy.noise import NoiseGenerator


class Extreme:
    """The most extreme numbers a generator can give."""

    def uint64(self, n):
        return np.resize(np.array([0, 2**64 - 1, 2**63, 2**63 - 1], dtype=np.uint64), n)


def test_analytic_sigma_is_the_golden_value():
    # NbAFL's specification; the classical constant would be 4.84481.
    assert analytic_gaussian_sigma(1.0, 1e-5) == pytest.approx(3.73063, abs=5e-6)
    assert analytic_gaussian_sigma(1.0, 1e-5, 2.5) == pytest.approx(2.5 * 3.73063, abs=2e-5)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 50.0, 1000.0])
@pytest.mark.parametrize("delta", [0.5, 0.01, 1e-5, 1e-100])
def test_analytic_sigma_is_the_smallest_that_meets_delta(epsilon, delta):
    sigma = analytic_gaussian_sigma(epsilon, delta)
    assert analytic_gaussian_delta(sigma, epsilon) <= delta
    assert analytic_gaussian_delta(sigma * (1 - 1e-9), epsilon) > delta


@pytest.mark.parametrize(("sigma", "epsilon"), [(0.5, 1.0), (1.0, 0.3), (3.0, 0.0), (4.0, 1.0)])
def test_analytic_delta_is_the_hockey_stick_integral(sigma, epsilon):
    first, second = stats.norm(0, sigma).pdf, stats.norm(1, sigma).pdf
    crossing = 0.5 - epsilon * sigma**2  # where the likelihood ratio is e^ε
    integral = integrate.quad(
        lambda x: first(x) - math.exp(epsilon) * second(x), crossing - 30 * sigma, crossing
    )[0]
    assert analytic_gaussian_delta(sigma, epsilon) == pytest.approx(integral, rel=1e-8)


@pytest.mark.parametrize(("sigma", "sensitivity"), [(1.0, 1.0), (37.0, 2.0)])
def test_analytic_delta_agrees_with_dp_accounting(sigma, sensitivity):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    theirs = pld.from_gaussian_mechanism(
        sigma, sensitivity=sensitivity, value_discretization_interval=1e-4
    )
    for epsilon in (0.01, 0.5, 2.0):
        ours = analytic_gaussian_delta(sigma, epsilon, sensitivity)
        assert theirs.get_delta_for_epsilon(epsilon) == pytest.approx(ours, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf])
def test_epsilons_out_of_range_are_refused(epsilon):
    for refuses in (
        lambda: analytic_gaussian_delta(1.0, epsilon),
        lambda: analytic_gaussian_sigma(epsilon, 1e-5),
        lambda: Laplace.calibrated(epsilon, 1.0, idealized=True),
        lambda: Gaussian.calibrated(epsilon, 1e-5, 1.0, idealized=True),
    ):
        with pytest.raises(ValueError, match=f"^epsilon={epsilon}: "):
            refuses()


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_deltas_out_of_range_are_refused(delta):
    with pytest.raises(ValueError, match=f"^delta={delta}: "):
        analytic_gaussian_sigma(1.0, delta)


@pytest.mark.parametrize(("mechanism", "instead"), [(Gaussian, "Discrete"), (Laplace, "Discrete")])
def test_floating_point_noise_must_be_asked_for(mechanism, instead):
    with pytest.raises(ValueError, match=rf"^idealized=False: .*use {instead}{mechanism.__name__}"):
        mechanism(1.0, 1.0)
    assert mechanism(1.0, 1.0, idealized=True).idealized


@pytest.mark.parametrize(
    ("mechanism", "distribution"), [(Gaussian, stats.norm), (Laplace, stats.laplace)]
)
def test_noise_has_its_distribution(mechanism, distribution):
    x = np.full((500, 1000), 7.0)
    released = mechanism(3.0, 1.0, idealized=True).privatize(x, NoiseGenerator.seeded("continuous"))
    assert released.shape == x.shape and np.all(x == 7.0)
    assert stats.kstest(released.ravel(), distribution(7.0, 3.0).cdf).pvalue > 1e-3


@pytest.mark.parametrize("mechanism", [Gaussian, Laplace])
def test_no_draw_is_infinite(mechanism):
    noise = mechanism(1.0, 1.0, idealized=True).privatize(np.zeros(4), Extreme())
    assert np.isfinite(noise).all() and np.unique(noise).size >= 3
    assert noise.min() < -8 and noise.max() > 8


@pytest.mark.parametrize("mechanism", [Gaussian, Laplace])
@pytest.mark.parametrize("x", [math.nan, math.inf])
def test_vectors_that_are_not_finite_are_refused(mechanism, x):
    with pytest.raises(ValueError, match=r"^x: "):
        mechanism(1.0, 1.0, idealized=True).privatize([0.0, x], NoiseGenerator.seeded(0))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_bad_settings_are_refused_at_construction(value):
    for mechanism, name in ((Gaussian, "sigma"), (Laplace, "scale")):
        with pytest.raises(ValueError, match=f"^{name}={value}: "):
            mechanism(value, 1.0, idealized=True)
        with pytest.raises(ValueError, match=f"^sensitivity={value}: "):
            mechanism(1.0, value, idealized=True)


def test_events_carry_the_noise_multiplier():
    assert Gaussian(3.0, 1.5, idealized=True).event() == GaussianEvent(2.0)
    assert Laplace(3.0, 1.5, idealized=True).event() == LaplaceEvent(2.0, sensitivity_steps=0)


def test_calibrated_laplace_never_exceeds_its_target():
    for epsilon in (0.1, 0.7, 3.3):
        for sensitivity in (0.3, 1 / 3, 2.0):
            mechanism = Laplace.calibrated(epsilon, sensitivity, idealized=True)
            assert epsilon * (1 - 1e-12) < mechanism.epsilon <= epsilon


def test_calibrated_gaussian_is_the_analytic_one():
    mechanism = Gaussian.calibrated(1.0, 1e-5, 2.0, idealized=True)
    assert mechanism.sigma == analytic_gaussian_sigma(1.0, 1e-5, 2.0)
