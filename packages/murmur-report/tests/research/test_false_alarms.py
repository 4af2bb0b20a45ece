"""Audits of correct mechanisms raise no alarm, and those with half of the noise do."""

import pytest

from research.attacks.false_alarms import MECHANISMS, RELEASES, Count, strategies


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_correct_mechanism_is_not_accused_and_one_with_half_of_the_noise_is(name):
    mechanism = MECHANISMS[name]
    assert not any(mechanism.is_accused(RELEASES, 1.0, (name, number)) for number in range(5))
    assert all(mechanism.is_accused(RELEASES, 0.5, (name, "twin", number)) for number in range(3))


def test_an_alarm_is_repeated_and_counted_as_staying_where_it_stays():
    count = Count()
    count.add([True, False], lambda: False)
    count.add([False, False], lambda: pytest.fail("nothing to repeat"))
    count.add([True], lambda: True)
    assert (count.audits, count.alarms, count.stayed) == (5, 2, 1)
    assert count.row("x") == "| x | 5 | 2 | 1 |"


def test_every_strategy_is_audited():
    assert {"dpsgd_fedavg", "kd_dpfl", "dp_fedavg", "class_moments"} <= set(strategies())
