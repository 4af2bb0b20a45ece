"""Audits of correct mechanisms raise no alarm, and would."""

from dataclasses import replace

import pytest

from research.attacks.false_alarms import HONEST, alarms


@pytest.mark.parametrize("name", HONEST)
def test_a_correct_mechanism_is_not_accused_and_is_measured_closely(name):
    count, most = alarms(name, audits=10, runs=20_000)
    assert count == 0 and 0.5 < most <= 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("randomised response", 1.0),
        ("discrete Gaussian, by its trade-off", 1.9),
        ("discrete Gaussian, by its moments", 1.9),
        ("the same, both with the same noise", 2.1),
    ],
)
def test_a_broken_one_is(monkeypatch, name, told):
    monkeypatch.setitem(HONEST, name, replace(HONEST[name], epsilon=told))
    assert alarms(name, audits=5, runs=20_000)[0] == 5
