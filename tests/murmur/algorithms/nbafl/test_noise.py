"""NbAFL's noise for a setting: modes, calibrations, bad settings, what an outsider sees."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.algorithms.nbafl.noise import NbaflNoise, NbaflSettings, seen_by_outsider
from murmur.privacy.accounting import epsilon, gaussian
from murmur.privacy.budget import Budget
from murmur.privacy.events import ComposedEvent, DiscreteGaussianEvent, RepeatedEvent

D = 203_530


def noise(**changed):
    setting = {
        "epsilon": 50.0, "delta": 0.01, "rounds": 25, "exposures": 1, "clients": 50,
        "scheduled": 50, "clip": 1.0, "smallest_dataset": 1000, "dimension": D,
    }  # fmt: skip
    setting |= changed
    setting.setdefault("participations", setting["rounds"])
    return NbaflNoise(**setting)


def equal(count):
    return [1 / count] * count


def test_golden_noise_of_the_specification():
    assert f"{noise().upload_sigma:.6e}" == "1.243005e-04"
    assert f"{noise().broadcast_sigma(equal(50)):.6e}" == "5.961241e-05"
    assert f"{noise(rounds=8).broadcast_sigma(equal(50)):.6e}" == "9.301795e-06"
    assert noise(rounds=7).broadcast_sigma(equal(50)) == 0


@pytest.mark.parametrize(
    ("epsilon", "calibration", "factor"),
    [
        (5.0, "paper", 0.348616),
        (5.0, "proven", 0.521609),
        (50.0, "paper", 0.0),
        (50.0, "proven", 0.854107),
    ],
)
def test_golden_noise_under_scheduling(epsilon, calibration, factor):
    it = noise(epsilon=epsilon, scheduled=20, calibration=calibration)
    unit = 2 * gaussian.classical_constant(0.01) / (1000 * epsilon)
    assert it.broadcast_sigma(equal(20)) / unit == pytest.approx(factor, abs=5e-7)


def test_golden_claimed_against_proven():
    multipliers = [gaussian.classical_constant(0.01) / epsilon for epsilon in (50, 60, 100)]
    proven = [gaussian.epsilon_of_mu(1 / multiplier, 0.01) for multiplier in multipliers]
    assert [round(value, 1) for value in proven] == [165.9, 230.4, 591.7]


def test_one_proven_upload_is_the_analytic_gaussian():
    it = noise(epsilon=1.0, delta=1e-5, rounds=1, calibration="proven")
    assert it.upload_sigma / it.released_sensitivity == pytest.approx(3.73063, rel=1e-4)
    assert it.released_sensitivity < 1.01 * it.upload_sensitivity
    classical = noise(epsilon=1.0, delta=1e-5, rounds=1)
    assert f"{classical.upload_sigma / classical.upload_sensitivity:.5f}" == "4.84481"


def test_sensitivity_modes():
    assert noise().upload_sensitivity == 2e-3
    assert noise(sensitivity="worst").upload_sensitivity == 2.0
    erm = noise(sensitivity="erm", lipschitz=3.0, proximal_mu=2.0)
    assert erm.upload_sensitivity == pytest.approx(2 * 3 / (1000 * 2))
    steep = noise(sensitivity="erm", lipschitz=3e6, proximal_mu=2.0)
    assert steep.upload_sensitivity == 2.0
    inside = noise(sensitivity="dpsgd", calibration="proven")
    assert inside.upload_sigma == inside.broadcast_sigma(equal(50)) == 0


def whole_view(it, weights):
    """What the outsider sees of one client in all of its rounds, at these weights."""
    uplink, most = it.upload_sigma, max(weights)
    sigma = it.broadcast_sigma(weights)
    uploads, stripped, rest = seen_by_outsider(it.exposures, it.participations)
    ratios = (
        (uploads, uplink),
        (stripped, math.hypot(uplink, sigma / most)),
        (rest, math.hypot(uplink * math.hypot(*weights), sigma) / most),
    )
    events = [
        RepeatedEvent(DiscreteGaussianEvent(r / it.grid, it.released_sensitivity / it.grid), count)
        for count, r in ratios
        if count
    ]
    return epsilon(ComposedEvent(tuple(events)), it.delta).epsilon


@settings(max_examples=25)
@given(
    target=st.sampled_from([0.5, 1.0, 8.0, 50.0, 100.0]),
    delta=st.sampled_from([1e-6, 0.01]),
    rounds=st.integers(1, 300),
    share=st.floats(0.01, 1.0),
    taken=st.sampled_from([0.2, 1.0]),
    scheduled=st.integers(1, 50),
    m=st.sampled_from([1, 50, 1000, 10**6]),
)
def test_proven_noise_keeps_the_whole_view_within_the_budget(
    target, delta, rounds, share, taken, scheduled, m
):
    it = noise(
        epsilon=target, delta=delta, rounds=rounds, exposures=max(1, int(share * rounds)),
        participations=max(1, int(taken * rounds)), scheduled=scheduled, smallest_dataset=m,
        calibration="proven",
    )  # fmt: skip
    spent = whole_view(it, equal(scheduled))
    # On a coarse grid (large m) the noise is known by its concentrated DP only.
    assert (0.7 if m == 10**6 else 0.9) * target < spent <= target


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(100, 2000), min_size=1, max_size=20))
def test_proven_noise_holds_for_unequal_weights_and_missing_answers(sizes):
    it = noise(epsilon=5.0, scheduled=20, smallest_dataset=100, calibration="proven")
    weights = [size / sum(sizes) for size in sizes]
    assert whole_view(it, weights) <= 5.0


def test_papers_noise_proves_more_than_it_claims():
    assert whole_view(noise(), equal(50)) > 165.9


def test_an_outsider_sees_uploads_stripped_broadcasts_and_the_rest():
    assert seen_by_outsider(3, 10) == (3, 3, 4)
    assert seen_by_outsider(3, 5) == (3, 2, 0)
    assert seen_by_outsider(3, 2) == (2, 0, 0)


def test_integers_on_the_grid_fit_32_bits_and_resolve_the_noise():
    for it in (noise(), noise(epsilon=0.1, sensitivity="worst"), noise(epsilon=1000.0)):
        assert (it.clip + 16 * it.upload_sigma) / it.grid < 2**31
        assert math.frexp(it.grid)[0] == 0.5
    assert noise().upload_sigma / noise().grid > 2**16


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epsilon": -1.0}, "epsilon=-1.0: must be above 0"),
        ({"delta": 0.0}, "delta=0.0: Gaussian noise needs"),
        ({"exposures": 30}, "exposures=30: must lie in 1..25"),
        ({"exposures": 0}, "exposures=0: must lie in 1..25"),
        ({"scheduled": 51}, "clients_per_round=51: must lie in 1..50"),
        ({"smallest_dataset": 0}, "smallest_dataset=0: every client needs an example"),
        ({"clip": 0.0}, "clip=0.0: must lie in [1e-300, 1e+100]"),
        ({"clip": 1e300}, "clip=1e+300: must lie in [1e-300, 1e+100]"),
        ({"clip": math.nan}, "clip=nan: must lie in [1e-300, 1e+100]"),
        ({"clip": "wide"}, "clip='wide': must be a number in [1e-300, 1e+100]"),
        ({"sensitivity": "none"}, "sensitivity='none': must be one of paper, worst, erm, dpsgd"),
        ({"calibration": "none"}, "calibration='none': must be one of paper, proven"),
        ({"sensitivity": "dpsgd"}, "calibration='paper': the paper has no formula"),
        ({"sensitivity": "erm", "proximal_mu": 1.0}, "lipschitz=None: sensitivity=erm needs"),
        ({"sensitivity": "erm", "lipschitz": 1.0}, "proximal_mu=0.0: sensitivity=erm needs"),
    ],
)
def test_bad_settings_are_refused(changed, words):
    with pytest.raises(ValueError) as caught:
        noise(**changed)
    assert str(caught.value).startswith(words)


def of(budget=None, sizes=(3, 5), **changed):
    setting = {
        "num_clients": 2, "clients_per_round": None, "exposures": None, "smallest_dataset": None,
        "clip": 1.0,
    }  # fmt: skip
    asked = NbaflSettings(**{**setting, **changed})
    return NbaflNoise.of(budget or Budget(1.0, 0.1, 4, paper_semantics=True), sizes, 7, asked)


def test_what_is_left_out_follows_from_the_federation():
    it = of()
    assert (it.smallest_dataset, it.exposures, it.scheduled) == (3, 4, 2)
    assert of(sizes=None, smallest_dataset=2).smallest_dataset == 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"smallest_dataset": 4}, "smallest_dataset=4: the smallest client has 3"),
        ({"sizes": None}, "smallest_dataset=None: clients' sizes are not public"),
        ({"sizes": (0, 5)}, "smallest_dataset=0: every client needs an example"),
        ({"num_clients": 3}, "num_clients=3: there are 2 clients"),
        ({"exposures": 1.5}, "exposures=1.5: must be an integer, or null"),
        ({"smallest_dataset": "few"}, "smallest_dataset='few': must be an integer, or null"),
    ],
)
def test_bad_federations_are_refused(changed, words):
    with pytest.raises(ValueError) as caught:
        of(**changed)
    assert str(caught.value).startswith(words)
