"""Audits of correct mechanisms raise no alarm, and would."""

from dataclasses import replace

import pytest

from benchmarks import false_alarms
from benchmarks.false_alarms import HONEST, alarms
from privacy.mechanisms import RandomizedResponse


@pytest.mark.parametrize("name", HONEST)
def test_a_correct_mechanism_is_not_accused_and_is_measured_closely(name):
    count, most = alarms(name, audits=10, runs=20_000)
    assert count == 0 and 0.5 < most <= 1


def test_a_broken_one_is(monkeypatch):
    _, delta, inputs, _ = HONEST["randomised response"]
    half = replace(false_alarms._LABELS, epsilon=1.0)
    assert isinstance(half, RandomizedResponse)
    broken = (half.epsilon, delta, inputs, false_alarms._LABELS.privatize)
    monkeypatch.setitem(HONEST, "randomised response", broken)
    assert alarms("randomised response", audits=5, runs=20_000)[0] == 5
