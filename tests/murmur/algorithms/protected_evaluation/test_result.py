"""Protected results: true sensitivities, nothing sent that should not be, what a server reads."""

import math

import numpy as np
import pytest

from murmur.algorithms.protected_evaluation import (
    PRIVACY,
    ChosenLabel,
    LabelResponse,
    LaplaceResult,
    ProtectedCounts,
    ResultSettings,
    epsilon_for_error,
    project,
)
from murmur.privacy.accounting import epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.events import (
    ComposedEvent,
    LaplaceEvent,
    PureEvent,
    RepeatedEvent,
    SummedEvent,
)
from murmur.privacy.mechanisms.grid import quantize_simplex
from murmur.privacy.noise import NoiseGenerator

K = 10
CORNER = np.eye(K)[3]
ALL = [name for name in PRIVACY if name != "none"]


def protection(privacy, epsilon=10.0, unit="client", records=50, **changed):
    return ResultSettings(privacy, epsilon, unit, records, **changed).protection(K)


@pytest.mark.parametrize("privacy", ALL)
@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("wanted", [0.1, 1.0, 50.0, 230_260.0])
def test_event_costs_what_was_asked_for(privacy, unit, wanted):
    spent = epsilon(protection(privacy, wanted, unit).event(), 0.0).epsilon
    assert wanted * (1 - 1e-6) < spent <= wanted * (1 + 1e-12)


def test_document_takes_half_the_true_sensitivity():
    compat = protection("laplace", 230_260.0, seed_compat=True)
    assert epsilon(compat.event(), 0.0).epsilon == pytest.approx(460_520)
    assert compat.mechanism().scale / compat.total == pytest.approx(1 / 230_260)


@pytest.mark.parametrize(("records", "unit"), [(None, "client"), (7, "record"), (400, "record")])
def test_no_two_neighbours_are_further_apart_than_the_noise_assumes(records, unit):
    it = ResultSettings("laplace", 5.0, unit, records).protection(K)
    rng = np.random.default_rng(1)
    n = records or 1
    worst = 0
    for _ in range(300):
        rest = rng.dirichlet(np.ones(K), n - 1).sum(axis=0) if n > 1 else 0
        corners = np.eye(K)[rng.choice(K, 2, replace=False)]
        a, b = (quantize_simplex((rest + corner) / n, it.total) for corner in corners)
        worst = max(worst, int(np.abs(a - b).sum()))
    allowed = it.mechanism().sensitivity
    assert 0.9 * allowed < worst <= allowed


def test_noise_is_discrete_laplace_of_the_stated_scale():
    it = protection("laplace", 4.0)
    rows = it.privatize_rows(np.tile(CORNER, (4_000, 1)), NoiseGenerator.seeded("scale"))
    noise = (rows - quantize_simplex(CORNER, it.total)) / it.total
    scale = 2 / 4.0
    assert rows.dtype == np.int64
    assert np.abs(noise).mean() == pytest.approx(scale, rel=4 / math.sqrt(noise.size))


def test_krr_keeps_the_label_as_often_as_its_formula_says():
    it, wanted = LabelResponse(2.0, K), math.exp(2) / (math.exp(2) + K - 1)
    rows = it.privatize_rows(np.tile(CORNER, (20_000, 1)), NoiseGenerator.seeded("krr"))
    kept = np.mean(it.decode(rows).labels == 3)
    assert abs(kept - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / 20_000)


@pytest.mark.parametrize("permute", [False, True])
def test_choices_differ_by_e_to_the_epsilon_at_most(permute):
    it = ChosenLabel(1.0, 3, permute=permute)
    count = 40_000
    shares = []
    for place, corner in enumerate(np.eye(3)):
        noise = NoiseGenerator.seeded("choice", place)
        rows = it.privatize_rows(np.tile(corner, (count, 1)), noise)
        shares.append(np.bincount(rows[:, 0], minlength=3) / count)
    ratio = np.max(np.array(shares)[:, None] / np.array(shares)[None])
    assert 1.2 < ratio < math.e * 1.05


def test_split_spends_its_shares_on_label_and_vector():
    it = protection("split", 8.0, label_share=0.25)
    event = it.event()
    assert isinstance(event, ComposedEvent)
    assert [epsilon(part, 0.0).epsilon for part in event.events] == pytest.approx([2.0, 6.0])
    row = it.privatize(CORNER, NoiseGenerator.seeded("split"))
    assert row.shape == (K + 1,)
    assert it.decode(row[None]).labels[0] == row[0]


@pytest.mark.parametrize("privacy", ALL)
@pytest.mark.parametrize(
    "vector",
    [
        CORNER[:-1],
        CORNER[None],
        2 * CORNER,
        CORNER - 0.1,
        np.full(K, np.nan),
        np.where(CORNER > 0, np.inf, 0),
        CORNER.astype(str),
    ],
    ids=["short", "matrix", "sum 2", "negative", "nan", "infinite", "words"],
)
def test_what_is_no_probability_vector_sends_nothing_and_says_why(privacy, vector):
    with pytest.raises(ValueError, match=r"^vector"):
        protection(privacy).privatize(vector, NoiseGenerator.seeded("bad"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epsilon": 0.0}, "epsilon=0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"epsilon": 1e12}, "epsilon="),
        ({"privacy": "gauss"}, "privacy='gauss'"),
        ({"privacy": "none"}, "privacy=none"),
        ({"unit": "house"}, "unit='house'"),
        ({"unit": "record", "records": None}, "records=None"),
        ({"unit": "record", "seed_compat": True}, "seed_compat=true"),
        ({"privacy": "krr", "seed_compat": True}, "seed_compat=true"),
        ({"privacy": "split", "label_share": 1.0}, "label_share=1"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_sent(changed, words):
    with pytest.raises(ValueError, match="^" + words):
        protection(**{"privacy": "laplace", **changed})


def test_records_default_to_the_smallest_public_client():
    assert (
        ResultSettings.of({"privacy": "krr", "epsilon": 1.0, "unit": "record"}, (9, 4)).records == 4
    )
    with pytest.raises(ValueError, match=r"^records=None"):
        ResultSettings.of({"privacy": "krr", "epsilon": 1.0, "unit": "record"}, None)


def test_calibration_is_the_documents_rule_and_keeps_the_error():
    assert epsilon_for_error(1e-5, 0.9, 1.0) == pytest.approx(230_258.5, abs=0.1)
    assert epsilon_for_error(1e-5, 0.9) == pytest.approx(2 * 230_258.5, abs=0.2)
    it = LaplaceResult(epsilon_for_error(0.05, 0.9), K)
    rows = it.privatize_rows(np.tile(CORNER, (2_000, 1)), NoiseGenerator.seeded("calibrated"))
    within = np.mean(np.abs(it.decode(rows).vectors - CORNER) <= 0.05)
    assert abs(within - 0.9) < 0.01


@pytest.mark.parametrize(("each", "specified"), [(0.1, 5.30), (0.5, 36.5), (1.0, 98.0)])
def test_hundred_results_cost_no_more_than_the_specification_allows(each, specified):
    bound = min(100 * each, 50 * each**2 + math.sqrt(200 * each**2 * math.log(1e5)))
    assert bound == pytest.approx(specified, abs=0.06)
    for event in (PureEvent(each), LaplaceEvent(1 / each, 0)):
        assert epsilon(RepeatedEvent(event, 100), 1e-5).epsilon <= bound


@pytest.mark.parametrize("privacy", ALL)
def test_pure_noise_has_a_rows_shape_and_knows_no_label(privacy):
    it = protection(privacy, 1.0)
    rows = it.pure_noise(5_000, NoiseGenerator.seeded("null"))
    assert rows.shape == (5_000, it.width)
    labels = project(it.decode(rows)).labels
    assert np.bincount(labels, minlength=K).min() > 350


def test_counts_cost_what_was_asked_for_and_refuse_what_are_no_counts():
    for unit, changed in (("client", 50), ("record", 1)):
        it = ProtectedCounts(1.0, unit, 50)
        assert epsilon(it.event(), 0.0).epsilon == pytest.approx(1.0, rel=1e-3)
        # Each changed prediction moves both counts; a Laplace variable deviates by √2 scales.
        assert it.deviation(1) == pytest.approx(2**0.5 * 2 * changed, rel=1e-3)
        assert it.privatize(np.array([30, 20]), NoiseGenerator.seeded(1)).shape == (2,)
    with pytest.raises(ValueError, match=r"^epsilon=33"):
        ProtectedCounts(33.0, "record", 50)
    with pytest.raises(ValueError, match=r"^examples=1000000: .*exceed 32 bits"):
        ProtectedCounts(1.0, "record", 1_000_000, noise="gaussian", delta=1e-5)
    for bad in ([30, 21], [-1, 3], [0, 0], [1.0, 2.0], [1, 2, 3]):
        with pytest.raises(ValueError, match=r"^counts"):
            it.privatize(np.array(bad), NoiseGenerator.seeded(1))


@pytest.mark.parametrize(("unit", "change"), [("record", 2**0.5), ("client", 50 * 2**0.5)])
def test_gaussian_counts_keep_their_budget_against_those_who_see_sums(unit, change):
    budget = Budget(1.0, 1e-5, threat="secure_aggregation", honest_clients=40)
    settings = {"epsilon": 2.0, "unit": unit, "examples": 50, "noise": "gaussian"}
    it = ProtectedCounts.of(settings, budget)
    seen = epsilon(SummedEvent(it.event(), 40), 1e-5, "secure_aggregation").epsilon
    assert 1.99 < seen <= 2.0
    # Analytic Gaussian: σ = Δ/μ(2, 1e-5).
    assert it.deviation(40) == pytest.approx(change * 1.9938, rel=0.01)
    released = it.privatize(np.array([30, 20]), NoiseGenerator.seeded(1))
    far = it.codec.mean(released, 1) - [30, 20]
    assert np.abs(far).max() < 6 * it.deviation(40) / 40**0.5
