import json

import pytest

from murmur.privacy.events import (
    Adjacency,
    Assumption,
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
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
    SecurelySummedEvent,
    ShuffledEvent,
    SummedEvent,
    Unit,
    UnknownEvent,
    event_from_dict,
)

EVENTS = [
    RandomizedResponseEvent(2.5, 10),
    RandomizedBitsEvent(0.1, 81_958, 200),
    GaussianEvent(2.0),
    DiscreteGaussianEvent(20.0, 10.0),
    DiscreteGaussianEvent(20.0, 10.0, True),
    LaplaceEvent(2.0),
    LaplaceEvent(2.0, 0),
    LaplaceEvent(2.0, 64),
    PureEvent(1.0),
    NonPrivateEvent(),
    PoissonSampledEvent(0.1, GaussianEvent(2.0)),
    RepeatedEvent(GaussianEvent(2.0), 3),
    ComposedEvent((PureEvent(1.0), RepeatedEvent(GaussianEvent(2.0), 3))),
    SecurelySummedEvent(RandomizedBitsEvent(0.1, 5, 5), 100),
    SummedEvent(PureEvent(1.0), 12, 300, 30, 300, "0a"),
    Release(PureEvent(1.0), Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=Hiding.NOISE),
    ShuffledEvent(RandomizedResponseEvent(2.5, 10), 40),
    Release(PureEvent(1.0), Unit.RECORD, Adjacency.REPLACE_SPECIAL),
    Release(
        PureEvent(1.0),
        Unit.CLIENT,
        Adjacency.REPLACE_ONE,
        (Assumption("fair_coin", "the coin is fair"),),
        Release(PureEvent(9.0), Unit.RECORD, Adjacency.REPLACE_ONE),
    ),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive_json(event):
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event


def test_every_kind_of_event_is_tested():
    # Not those that other tests made up.
    known = {kind for kind in Event.__subclasses__() if kind.__module__ == Event.__module__}
    assert {type(event) for event in EVENTS} == known - {UnknownEvent}


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"kind": "Event"},
        {"kind": "PureEvent"},
        {"kind": "PureEvent", "epsilon": -1.0},
        {"kind": "PureEvent", "epsilon": "much"},
        {"kind": "PureEvent", "epsilon": float("nan")},
        {"kind": "LaplaceEvent", "noise_multiplier": 1.0, "sensitivity_steps": -1},
        {"kind": "RepeatedEvent", "event": 3, "count": 2},
        {"kind": "ComposedEvent", "events": [3]},
        {"kind": "SecurelySummedEvent", "event": {"kind": "NonPrivateEvent"}, "honest_clients": 0},
        {"kind": "SummedEvent", "event": {"kind": "NonPrivateEvent"}, "honest_clients": 0},
        {
            "kind": "SummedEvent",
            "event": {"kind": "NonPrivateEvent"},
            "honest_clients": 2,
            "weight": 3,
            "least_weight": 1,
            "greatest_weight": 2,
        },
        {
            "kind": "Release",
            "event": {"kind": "NonPrivateEvent"},
            "unit": "client",
            "adjacency": "replace_one",
            "hiding": "very well",
        },
        {"kind": "ShuffledEvent", "event": {"kind": "NonPrivateEvent"}, "extra": 1},
        {"kind": "Release", "event": {"kind": "NonPrivateEvent"}, "unit": "planet"},
        {"kind": "PoissonSampledEvent", "rate": 0.0, "event": {"kind": "NonPrivateEvent"}},
    ],
)
def test_anything_else_is_refused(plain):
    with pytest.raises(ValueError):
        event_from_dict(plain)
