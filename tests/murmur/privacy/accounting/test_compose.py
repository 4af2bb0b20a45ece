import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.privacy.accounting import PrivacyCost, Threat, View, epsilon
from murmur.privacy.accounting.flatten import flatten
from murmur.privacy.events import (
    Adjacency,
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    Hiding,
    LaplaceEvent,
    NonPrivateEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    ShuffledEvent,
    SummedEvent,
    Unit,
)
from murmur.privacy.search import least_noise
from tests.sums import noised

LABEL = RandomizedResponseEvent(0.5, 10)

leaves = st.one_of(
    st.builds(RandomizedResponseEvent, st.floats(0.05, 3), st.integers(2, 12)),
    st.builds(PureEvent, st.floats(0.05, 3)),
    st.builds(LaplaceEvent, st.floats(0.3, 20), st.sampled_from([None, 0, 1, 6])),
    st.builds(GaussianEvent, st.floats(0.5, 20)),
    st.builds(
        lambda gamma, bits: RandomizedBitsEvent(gamma, bits, bits),
        st.floats(0.001, 0.4),
        st.integers(1, 200),
    ),
)
events = st.builds(
    lambda parts: ComposedEvent(tuple(RepeatedEvent(event, n) for event, n in parts)),
    st.lists(st.tuples(leaves, st.integers(1, 50)), min_size=1, max_size=3),
)


@settings(max_examples=30, derandomize=True)
@given(events, leaves, st.floats(-25, -2))
def test_more_releases_never_cost_less_and_no_bound_is_below_the_answer(event, more, log_delta):
    level = math.exp(log_delta)
    spend = epsilon(event, level)
    assert spend.epsilon == min(spend.bounds.values()) <= spend.bounds["basic"]
    assert spend.epsilon <= epsilon(ComposedEvent((event, more)), level).epsilon * (1 + 1e-6)
    assert spend.epsilon <= epsilon(event, level / 3).epsilon * (1 + 1e-9)


def test_order_and_nesting_do_not_matter():
    flat = ComposedEvent((LABEL, GaussianEvent(2.0), LABEL, LABEL))
    nested = ComposedEvent(
        (RepeatedEvent(LABEL, 2), ComposedEvent((GaussianEvent(2.0),)), RepeatedEvent(LABEL, 1))
    )
    assert epsilon(flat, 1e-5) == epsilon(nested, 1e-5)


def test_splitting_a_count_does_not_matter():
    whole = epsilon(RepeatedEvent(LABEL, 50), 1e-5).epsilon
    halves = ComposedEvent((RepeatedEvent(LABEL, 20), RepeatedEvent(RepeatedEvent(LABEL, 15), 2)))
    assert epsilon(halves, 1e-5).epsilon == whole


@pytest.mark.parametrize("threat", list(Threat))
def test_a_release_without_protection_is_infinite_and_spoils_everything(threat):
    event = ComposedEvent((LABEL, RepeatedEvent(NonPrivateEvent(), 3)))
    spend = epsilon(noised(event, 100), 1e-5, threat)
    assert spend.epsilon == math.inf
    assert spend.method == "no protection"


def test_nothing_released_costs_nothing():
    assert epsilon(ComposedEvent(()), 1e-5).epsilon == 0.0
    assert epsilon(ComposedEvent(()), 0.0).epsilon == 0.0


def test_without_delta_only_pure_releases_are_finite():
    assert epsilon(RepeatedEvent(LABEL, 7), 0.0).epsilon == pytest.approx(3.5)
    assert epsilon(GaussianEvent(1.0), 0.0).epsilon == math.inf
    assert epsilon(DiscreteGaussianEvent(1.0, 1.0, True), 0.0).epsilon == math.inf


@pytest.mark.parametrize("bad", [-1e-9, 1.0, math.nan])
def test_bad_deltas_are_refused(bad):
    with pytest.raises(ValueError, match=r"^delta="):
        epsilon(LABEL, bad)


def test_a_caller_cannot_spoil_the_cache():
    epsilon(LABEL, 1e-5).bounds.clear()
    assert epsilon(LABEL, 1e-5).bounds


def test_names_of_threats_work_as_strings():
    assert epsilon(LABEL, 1e-5, "local") == epsilon(LABEL, 1e-5, Threat.LOCAL)
    assert json.dumps(Threat.SECURE_AGGREGATION) == '"secure_aggregation"'


def test_gaussians_add_up_under_secure_aggregation():
    event = noised(RepeatedEvent(GaussianEvent(2.0), 5), 9)
    summed = flatten(event, View(Threat.SECURE_AGGREGATION))
    assert dict(summed) == {GaussianEvent(6.0): 5}
    assert dict(flatten(event, View(Threat.LOCAL))) == {GaussianEvent(2.0): 5}


def test_a_sum_without_proven_relief_costs_the_release_itself():
    event = DiscreteGaussianEvent(2.0, 1.0)  # too coarse for vectors
    summed = epsilon(noised(event, 50), 1e-5, Threat.SECURE_AGGREGATION)
    assert summed.epsilon == epsilon(event, 1e-5).epsilon
    shuffled = epsilon(ShuffledEvent(GaussianEvent(2.0), 50), 1e-5, Threat.SHUFFLE)
    assert shuffled.epsilon == epsilon(GaussianEvent(2.0), 1e-5).epsilon


def test_sampled_releases_under_a_secure_sum_stay_what_they_are():
    sampled = PoissonSampledEvent(0.1, GaussianEvent(2.0))
    release = Release(sampled, Unit.RECORD, Adjacency.REPLACE_SPECIAL, hiding=Hiding.NOISE)
    summed = flatten(SummedEvent(release, 9), View(Threat.SECURE_AGGREGATION))
    assert dict(summed) == {sampled: 1}


def test_a_ledger_of_many_different_releases_is_accounted_from_above():
    released = ComposedEvent(
        tuple(RandomizedResponseEvent(0.2 + 0.001 * math.sqrt(i), 10) for i in range(300))
    )
    spend = epsilon(released, 1e-5)
    least = epsilon(RepeatedEvent(RandomizedResponseEvent(0.2, 10), 300), 1e-5).epsilon
    most = epsilon(RepeatedEvent(RandomizedResponseEvent(0.2174, 10), 300), 1e-5).epsilon
    assert least < spend.epsilon < most


def test_spends_say_what_they_are():
    spend = epsilon(RepeatedEvent(LABEL, 50), 1e-5, Threat.LOCAL)
    assert isinstance(spend, PrivacyCost)
    assert set(spend.bounds) == {"basic", "rdp", "zcdp", "exact"}


@pytest.mark.parametrize("epsilon0", [1e-12, 1e-3, 600.0, 1e5])
@pytest.mark.parametrize("count", [1, 3, 10**9])
def test_extreme_settings_are_accounted_for(epsilon0, count):
    for event in (
        RandomizedResponseEvent(epsilon0, 10),
        PureEvent(epsilon0),
        LaplaceEvent(1 / epsilon0, 0),
        LaplaceEvent(1 / epsilon0, 10**6),
        GaussianEvent(1 / epsilon0),
    ):
        spend = epsilon(RepeatedEvent(event, count), 1e-5)
        assert 0 <= spend.epsilon <= spend.bounds["basic"] < math.inf


def test_calibration_says_when_a_target_cannot_be_met():
    with pytest.raises(ValueError, match=r"^epsilon=1.0: cannot be met"):
        least_noise(lambda noise: 2.0 + 1 / noise, 1.0, 1e-3, 1e3)
    with pytest.raises(ValueError, match=r"^epsilon=0.0: must be finite"):
        least_noise(lambda noise: 1 / noise, 0.0, 1e-3, 1e3)
    assert least_noise(lambda noise: 1 / noise, 4.0, 1e-3, 1e3) == pytest.approx(0.25)
    assert least_noise(lambda noise: 0.0, 4.0, 1e-3, 1e3) == 1e-3


def test_importing_accounting_loads_nothing_heavy():
    code = (
        "import sys, murmur.privacy.accounting, murmur.privacy.statement;"
        "print([m for m in ('torch', 'dp_accounting', 'opacus', 'flwr') if m in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert loaded.stdout.strip() == "[]"
