"""DP-SGD's private half: lots, noise, calibration; and its accounting on integers."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from murmur.privacy.accounting import Adjacency, Threat, epsilon, rdp
from murmur.privacy.events import (
    DiscreteGaussianEvent,
    GaussianEvent,
    PoissonSampledEvent,
    RepeatedEvent,
    SummedEvent,
    Unit,
    event_from_dict,
)
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule, SampledGaussian
from murmur.privacy.noise import NoiseGenerator

STEPS = 1 << 16


def test_every_record_joins_a_lot_by_itself_at_the_rate():
    mechanism = SampledGaussian(0.1, 1.0, STEPS)
    rng = NoiseGenerator.seeded("lots")
    lots = np.stack([mechanism.sample(200, rng) for _ in range(500)])
    assert abs(lots.mean() - 0.1) < 4 * math.sqrt(0.09 / lots.size)
    # Poisson sampling: sizes vary as sums of independent coins do.
    spread = np.var(lots.sum(axis=1)) / (200 * 0.09)
    assert 0.8 < spread < 1.2
    assert not np.array_equal(lots[0], lots[1])


def test_rate_one_takes_everybody():
    assert SampledGaussian(1.0, 1.0, STEPS).sample(50, NoiseGenerator.seeded(1)).all()


def test_noise_has_the_stated_deviation_and_stays_on_integers():
    mechanism = SampledGaussian(0.5, 1.5, 1000)
    total = np.full(20_000, 7, np.int64)
    noise = mechanism.perturb(total, NoiseGenerator.seeded("noise")) - 7
    assert noise.dtype == np.int64
    statistic = (noise.astype(float) ** 2).sum() / mechanism.sigma**2
    assert 0.001 < stats.chi2.cdf(statistic, noise.size) < 0.999
    assert mechanism.sigma == 1500


def test_sigma_is_never_below_what_was_calibrated():
    assert SampledGaussian(0.5, 1.23456789, 1000).sigma == 1235


@pytest.mark.parametrize(
    ("size", "lot", "epochs", "rounds", "target", "golden"),
    [
        (500, 50, 1, 30, 3.0, 2.584),
        (5000, 250, 1, 30, 4.5, 1.428),
        (6000, 250, 20, 1, 3.5, 1.362),
    ],
)
def test_noise_multipliers_of_the_specification(size, lot, epochs, rounds, target, golden):
    schedule = LotSchedule(lot, epochs, STEPS, rounds)
    mechanism = schedule.mechanism(target, 1e-5, size)
    assert golden < mechanism.noise_multiplier < 1.003 * golden  # the noise's grid costs the rest
    spent = epsilon(RepeatedEvent(schedule.event(target, 1e-5, size), rounds), 1e-5).epsilon
    assert 0.999 * target < spent <= target * (1 + 1e-9)


def test_budget_for_all_rounds_is_kept_round_by_round():
    schedule = LotSchedule(20, 2, STEPS, 5)
    one = schedule.event(2.0, 1e-5, 100)
    assert one.event.count == 10
    spent = [epsilon(RepeatedEvent(one, n), 1e-5).epsilon for n in (1, 3, 5)]
    assert spent[0] < spent[1] < spent[2] <= 2.0 * (1 + 1e-9)


def test_event_survives_the_ledger():
    event = SampledGaussian(0.25, 1.5, STEPS).event(3)
    assert event_from_dict(event.to_dict()) == event


def test_discrete_noise_costs_what_continuous_noise_costs_at_integer_orders():
    inner = DiscreteGaussianEvent(2.0 * STEPS, float(STEPS))
    for steps in (1, 100):
        discrete = epsilon(RepeatedEvent(PoissonSampledEvent(0.1, inner), steps), 1e-5)
        continuous = RepeatedEvent(PoissonSampledEvent(0.1, GaussianEvent(2.0)), steps)
        smooth = epsilon(continuous, 1e-5)
        assert discrete.bounds["rdp"] == smooth.bounds["rdp"]
        assert smooth.epsilon <= discrete.epsilon <= 1.002 * smooth.epsilon


def test_between_integer_orders_the_next_one_counts():
    at = [rdp.sampled_divergence(0.1, 2.0, order) for order in (2.0, 2.01, 2.99, 3.0)]
    assert at[0] < at[1] == at[2] == at[3]


@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_closed_form_bounds_the_discrete_divergence_in_both_directions(rate, shift):
    """By summing over the integers."""
    sigma, x = 1.3 * shift, np.arange(-200, 201, dtype=float)

    def log_mass(centre):
        weights = -((x - centre) ** 2) / (2 * sigma**2)
        return weights - logsumexp(weights)

    q = log_mass(0)
    p = np.logaddexp(math.log1p(-rate) + q, math.log(rate) + log_mass(shift))
    for order in (2, 5, 20):
        forth = logsumexp(order * p + (1 - order) * q) / (order - 1)
        back = logsumexp(order * q + (1 - order) * p) / (order - 1)
        bound = rdp.sampled_divergence(rate, sigma / shift, order)
        assert max(forth, back) <= bound * (1 + 1e-9) + 1e-12
        assert forth > 0.2 * bound


@pytest.mark.parametrize("lot_size", [10, 50])
def test_a_sum_hides_nothing_of_what_was_noised_within_a_training(lot_size):
    trained = LotSchedule(lot_size, 2, STEPS).event(4.0, 1e-5, 50)
    seen = epsilon(SummedEvent(trained, 100), 1e-5, Threat.SECURE_AGGREGATION)
    assert seen.epsilon == epsilon(trained, 1e-5).epsilon


def test_replacing_a_record_gains_nothing_from_sampling():
    event = RepeatedEvent(PoissonSampledEvent(0.1, DiscreteGaussianEvent(3.0 * STEPS, STEPS)), 2)
    replaced = epsilon(event, 1e-5, adjacency=Adjacency.REPLACE_ONE).epsilon
    assert replaced > 2 * epsilon(event, 1e-5).epsilon


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SampledGaussian(0.0, 1.0, 1), r"^rate=0\.0: "),
        (lambda: SampledGaussian(0.5, -1.0, 1), r"^noise_multiplier=-1\.0: "),
        (lambda: LotSchedule(0, 1, 1), "^lot_size=0: "),
        (lambda: LotSchedule(1, 0, 1), "^epochs=0: "),
        (lambda: LotSchedule(1, 1, 1, 0), "^rounds=0: "),
        (
            lambda: LotSchedule(20, 2, 1 << 20, 5, Unit.CLIENT).event(1e-4, 1e-5, 100),
            r"^epsilon=0\.0001: needs noise of .* more than can be drawn; raise it, ",
        ),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
