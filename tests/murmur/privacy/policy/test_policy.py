"""What a device's owner allows, and that nothing else ever leaves."""

import math
from datetime import UTC, datetime

import pytest

import murmur.privacy.accounting
from murmur.privacy.events import (
    Adjacency,
    Assumption,
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    ShuffledEvent,
    Unit,
    UnknownEvent,
)
from murmur.privacy.policy import Policy, Refusal
from murmur.privacy.policy_terms import MECHANISMS
from tests.murmur.privacy.policy.policy_cases import EXAMPLE, LABELS, ask, client, refusal
from tests.sums import noised, reported

COIN = Assumption("fair_coin", "the coin is fair")


def test_the_example_policy_allows_what_it_says():
    policy = Policy.load(EXAMPLE)
    assert policy.defect is None
    ask(policy)
    ask(policy, algorithm="nbafl", event=client(DiscreteGaussianEvent(768.0, 1024.0)), delta=0.0)
    ask(policy, spent=RandomizedResponseEvent(2.5, 10))
    ask(policy, now=datetime(2027, 12, 31, 23, 59, tzinfo=UTC))


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"algorithm": "kd_dpfl"}, "algorithms", ["kd_dpfl", "nbafl, privatekt", "`algorithms`"]),
        (
            {"event": RepeatedEvent(RandomizedResponseEvent(2.6, 10), 1)},
            "mechanisms",
            ["epsilon=2.6", "at most 2.5", "`mechanisms.randomized_response.max_epsilon`"],
        ),
        (
            {
                "event": client(PoissonSampledEvent(0.01, DiscreteGaussianEvent(410.0, 1024.0))),
                "algorithm": "nbafl",
            },
            "mechanisms",
            ["noise_multiplier=0.4", "at least 0.5", "`mechanisms.discrete_gaussian.min_noise"],
        ),
        (
            {"event": client(LaplaceEvent(1e6))},
            "mechanisms",
            ["mechanism=laplace", "randomized_response"],
        ),
        ({"event": ShuffledEvent(LABELS, 10**6)}, "mechanisms", ["mechanism=ShuffledEvent"]),
        (
            {"event": ComposedEvent((LABELS, client(RepeatedEvent(PureEvent(0.01), 2))))},
            "mechanisms",
            ["mechanism=pure"],
        ),
        ({"event": NonPrivateEvent()}, "allow-non-private", ["none", "`allow_non_private`"]),
        (
            {"event": ComposedEvent((LABELS, NonPrivateEvent()))},
            "allow-non-private",
            ["protected releases only"],
        ),
        (
            {"event": RepeatedEvent(RandomizedResponseEvent(2.5, 10), 3)},
            "epsilon-per-release",
            ["epsilon of one release=7.5", "at most 5 at delta=1e-05 (local)"],
        ),
        (
            {"event": RepeatedEvent(RandomizedResponseEvent(2.5, 10), 10**6)},
            "epsilon-per-release",
            ["at most 5"],
        ),
        (
            {"spent": RepeatedEvent(LABELS, 400)},
            "epsilon-per-lifetime",
            ["epsilon of this client's life=", "at most 8.5", "`epsilon_per_lifetime`"],
        ),
        ({"spent": NonPrivateEvent()}, "epsilon-per-lifetime", ["life=inf"]),
        ({"delta": 1e-4}, "delta", ["delta=0.0001", "0 to 1e-05", "`delta`"]),
        ({"delta": -1e-9}, "delta", ["delta=-1e-09"]),
        ({"delta": math.nan}, "delta", ["delta=nan"]),
        ({"seeded_noise": True}, "allow-seeded-noise", ["seeded", "`allow_seeded_noise`"]),
        (
            {"event": reported(LABELS, 19)},
            "minimum-surviving-clients",
            ["honest_clients=19", "at least 20 clients"],
        ),
        (
            {"now": datetime(2028, 1, 1, tzinfo=UTC)},
            "policy-expired",
            ["expires=2027-12-31 23:59 UTC", "everything is refused", "renew"],
        ),
    ],
)
def test_a_refusal_names_what_was_asked_what_is_allowed_and_what_to_change(changes, code, words):
    refused = refusal(Policy.load(EXAMPLE), **changes)
    assert refused.code == code
    assert all(word in refused.reason for word in [*words, "the device's owner", str(EXAMPLE)])


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.RECORD])
def test_a_release_for_records_is_refused_where_clients_are_to_be_protected(load, plain, unit):
    policy = load({**plain, "unit": unit.value})
    ask(policy, event=client(RandomizedResponseEvent(2.5, 10)))
    event = Release(RandomizedResponseEvent(2.5, 10), Unit.RECORD, Adjacency.REPLACE_ONE)
    if unit is Unit.RECORD:
        ask(policy, event=event)
    else:
        refused = refusal(policy, event=event)
        assert refused.code == "unit"
        assert "unit=record" in refused.reason and "a whole client" in refused.reason


def test_what_protected_records_only_leaves_a_clients_life_without_a_limit():
    spent = Release(PureEvent(0.1), Unit.RECORD, Adjacency.REPLACE_ONE)
    assert "life=inf" in refusal(Policy.load(EXAMPLE), spent=spent).reason


def test_an_assumption_that_the_owner_does_not_name_is_refused(load, plain):
    event = client(RandomizedResponseEvent(2.5, 10), COIN)
    refused = refusal(load(plain), event=event)
    assert refused.code == "assumptions"
    assert "assumption=fair_coin" in refused.reason and COIN.sentence in refused.reason
    named = load({**plain, "assumptions": ["fair_coin"]})
    ask(named, event=event)
    assert "life=inf" in refusal(load(plain), spent=event).reason


def test_neighbours_that_the_owner_does_not_mean_are_refused(load, plain):
    nulled = Release(RandomizedResponseEvent(1.0, 10), Unit.CLIENT, Adjacency.REPLACE_SPECIAL)
    ask(load(plain), event=nulled)
    ask(load({**plain, "adjacency": "replace_special"}), event=client(nulled.event))
    strict = load({**plain, "adjacency": "replace_one"})
    refused = refusal(strict, event=nulled)
    assert refused.code == "adjacency"
    assert "adjacency=replace_special (of a client)" in refused.reason
    assert "allows replace_one (of a client)" in refused.reason


def test_what_was_released_for_a_null_unit_counts_twice_where_any_may_take_its_place(load, plain):
    spent = Release(PureEvent(3.0), Unit.CLIENT, Adjacency.REPLACE_SPECIAL)
    event = client(RandomizedResponseEvent(1.0, 10))
    assert load(plain).spend(ComposedEvent((spent, event))) == pytest.approx(4, rel=1e-3)
    strict = load({**plain, "adjacency": "replace_one"})
    assert strict.spend(ComposedEvent((spent, event))) == pytest.approx(7, rel=1e-3)
    ask(strict, event=event, spent=spent)
    tighter = load({**plain, "adjacency": "replace_one", "epsilon_per_lifetime": 6.9})
    assert refusal(tighter, event=event, spent=spent).code == "epsilon-per-lifetime"


def test_lifetimes_of_different_neighbours_are_counted_for_those_that_all_cover(load, plain):
    """``as_stated``: one more or less, then an exchange, which is two steps of the first."""
    added = Release(RandomizedResponseEvent(1.0, 10), Unit.CLIENT, Adjacency.ADD_REMOVE)
    event = client(RandomizedResponseEvent(1.0, 10))
    policy = load(plain)
    assert policy.spend(added) == pytest.approx(1, rel=1e-3)
    assert policy.spend(ComposedEvent((added, event))) == pytest.approx(3, rel=1e-3)
    ask(load({**plain, "epsilon_per_lifetime": 3.0}), event=event, spent=added)
    tight = load({**plain, "epsilon_per_lifetime": 2.9})
    assert refusal(tight, event=event, spent=added).code == "epsilon-per-lifetime"


def test_a_policy_for_records_counts_a_null_client_twice_and_null_records_once(load, plain):
    policy = load({**plain, "unit": "record"})
    noise = DiscreteGaussianEvent(2.0**22, 2.0**20)
    whole = Release(noise, Unit.CLIENT, Adjacency.REPLACE_SPECIAL)
    parts = Release(noise, Unit.CLIENT, Adjacency.REPLACE_SPECIAL, in_part=True)
    exactly = load({**plain, "unit": "record", "adjacency": "replace_special"})
    assert exactly.spend(parts) == policy.spend(parts) < policy.spend(whole)
    assert policy.spend(whole) == exactly.spend(whole)
    assert refusal(exactly, algorithm="nbafl", event=whole).code == "adjacency"
    ask(exactly, algorithm="nbafl", event=parts)


def test_entries_that_state_no_unit_are_read_as_what_they_were(load, plain):
    for_records = load({**plain, "unit": "record"})
    ask(Policy.load(EXAMPLE), spent=RandomizedResponseEvent(2.5, 10))
    for spent in (LaplaceEvent(9.0), PoissonSampledEvent(0.1, GaussianEvent(9.0))):
        ask(for_records, spent=spent)
        assert "life=inf" in refusal(Policy.load(EXAMPLE), spent=spent).reason
    on_a_vector = DiscreteGaussianEvent(100.0, 1.0)
    assert "life=inf" in refusal(for_records, spent=on_a_vector).reason
    ask(load({**plain, "unit": "record", "assumptions": ["unrecorded"]}), spent=on_a_vector)


def test_a_limit_for_each_algorithm_or_one_for_all(load, plain):
    policy = load({**plain, "epsilon_per_release": "4.9"})
    assert refusal(policy).code == "epsilon-per-release"
    ask(policy, event=RandomizedResponseEvent(2.5, 10))
    assert refusal(Policy.load(EXAMPLE), algorithm="kd_dpfl").code == "algorithms"


def test_rounding_in_the_accountant_does_not_refuse_an_exact_budget(load, plain):
    policy = load({**plain, "epsilon_per_lifetime": "5.0"})
    for labels in range(2, 40):
        ask(policy, event=RepeatedEvent(RandomizedResponseEvent(5 / labels, 10), labels))


def test_a_secure_sum_counts_only_where_the_owner_says_so(load, plain):
    event = noised(DiscreteGaussianEvent(2.0**19, 2.0**20), 400)
    assert refusal(load(plain), algorithm="nbafl", event=event).code == "epsilon-per-release"
    ask(load({**plain, "threat": "secure_aggregation"}), algorithm="nbafl", event=event)


def test_what_cannot_be_accounted_for_is_refused(monkeypatch):
    def failing(*_, **__):
        raise ValueError("no accountant for this")

    monkeypatch.setattr(murmur.privacy.accounting, "epsilon", failing)
    refused = refusal(Policy.load(EXAMPLE))
    assert refused.code == "unaccountable" and "no accountant for this" in refused.reason


def test_a_life_with_an_event_of_another_version_refuses_everything_in_words():
    newer = UnknownEvent('{"kind":"NewerEvent","strength":3}')
    refused = refusal(Policy.load(EXAMPLE), spent=newer)
    assert refused.code == "unaccountable" and "kind=NewerEvent" in refused.reason
    with pytest.raises(Refusal, match="what cannot be charged is not released"):
        ask(Policy.simulation(), event=newer)


def test_an_epsilon_that_is_not_a_number_is_refused(monkeypatch):
    spend = murmur.privacy.accounting.epsilon(PureEvent(1.0), 0.0)
    object.__setattr__(spend, "epsilon", math.nan)
    monkeypatch.setattr(murmur.privacy.accounting, "epsilon", lambda *_, **__: spend)
    assert refusal(Policy.load(EXAMPLE)).code == "epsilon-per-release"


def test_a_kind_of_event_that_no_policy_knows_is_refused():
    class NewEvent(Event):
        pass

    Event._kinds.pop("NewEvent")
    assert refusal(Policy.load(EXAMPLE), event=NewEvent()).code == "unaccountable"


@pytest.mark.parametrize(
    ("name", "strong", "weak"),
    [
        ("randomized_response", RandomizedResponseEvent(1.0, 10), RandomizedResponseEvent(2.0, 10)),
        ("randomized_bits", RandomizedBitsEvent(1.0e-3, 9, 1), RandomizedBitsEvent(0.3, 9, 1)),
        ("gaussian", GaussianEvent(2.0), GaussianEvent(1.0)),
        ("discrete_gaussian", DiscreteGaussianEvent(20, 10), DiscreteGaussianEvent(20, 20)),
        ("laplace", LaplaceEvent(2.0), LaplaceEvent(1.0)),
        ("pure", PureEvent(1.0), PureEvent(2.0)),
    ],
)
def test_every_mechanism_has_a_weakest_setting(load, plain, name, strong, weak):
    key = MECHANISMS[name].limit
    limit = MECHANISMS[name].strength(strong)
    loose = {**plain, "epsilon_per_release": "1000", "epsilon_per_lifetime": "1000"}
    policy = load({**loose, "mechanisms": {name: {key: str(limit)}}})
    ask(policy, event=client(strong))
    assert f"mechanisms.{name}.{key}" in refusal(policy, event=client(weak)).reason
    other = next(other for other in MECHANISMS if other != name)
    policy = load({**loose, "mechanisms": {other: {MECHANISMS[other].limit: "0.1"}}})
    assert refusal(policy, event=client(strong)).code == "mechanisms"


def test_a_policy_without_arguments_allows_nothing():
    for event in (LABELS, PureEvent(1e-9)):
        with pytest.raises(Refusal):
            ask(Policy("nothing was said"), event=event, delta=0.0)


def test_simulation_allows_everything_says_so_and_needs_no_accounting(monkeypatch):
    monkeypatch.setattr(murmur.privacy.accounting, "epsilon", None)
    policy = Policy.simulation()
    assert "simulation" in policy.source and policy.epsilon_per_lifetime == math.inf
    ask(policy, algorithm="x", event=NonPrivateEvent(), delta=0.5, seeded_noise=True)
    ask(policy, event=RepeatedEvent(ShuffledEvent(PureEvent(1e6), 2), 10**6))
