"""Releases that the example policy is asked about, and the refusals that it gives."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from murmur.privacy.events import (
    Adjacency,
    ComposedEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    Unit,
)
from murmur.privacy.policy import Refusal

EXAMPLE = Path(__file__).parents[4] / "deploy" / "policy.example.yaml"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
LABELS = RepeatedEvent(RandomizedResponseEvent(2.5, 10), 2)


def client(event, *assumptions):
    """``event`` as what protects all of a client's data."""
    return Release(event, Unit.CLIENT, Adjacency.REPLACE_ONE, assumptions)


def ask(policy, **changes):
    """Check a release that the example policy allows, but for ``changes``."""
    release = {
        "algorithm": "privatekt",
        "event": LABELS,
        "spent": ComposedEvent(()),
        "delta": 1e-5,
        "seeded_noise": False,
        "now": NOW,
    }
    policy.check(**{**release, **changes})


def refusal(policy, **changes):
    with pytest.raises(Refusal) as caught:
        ask(policy, **changes)
    assert str(caught.value) == caught.value.reason
    return caught.value
