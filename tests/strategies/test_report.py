"""What a run's rows say of long runs: a little more than was released, never less."""

from murmur.privacy.events import ComposedEvent, GaussianEvent, PoissonSampledEvent, RepeatedEvent
from murmur.privacy.exposure import rounded_up

RELEASE = PoissonSampledEvent(0.01, GaussianEvent(1.0))


def counted(count, most):
    spent = ComposedEvent((RepeatedEvent(RELEASE, count), RepeatedEvent(GaussianEvent(4.0), 3)))
    rounds, evaluation = rounded_up(spent, most).events
    assert rounds.event == RELEASE and evaluation == RepeatedEvent(GaussianEvent(4.0), 3)
    return rounds.count


def test_releases_are_rounded_up_by_less_than_a_thirtysecond():
    for count in range(1, 5000):
        assert count <= counted(count, 10_000) < count * (1 + 1 / 32)


def test_few_releases_and_the_last_ones_are_counted_exactly():
    assert [counted(count, 10_000) for count in (1, 16, 127)] == [1, 16, 127]
    assert [counted(count, 1001) for count in (991, 992, 1001)] == [992, 992, 1001]


def test_never_more_than_is_planned_and_never_less_than_was_released():
    assert counted(990, 991) == 991
    assert counted(990, 500) == 990


def test_many_rounds_share_their_epsilon():
    assert len({counted(count, 10_000) for count in range(1, 5001)}) < 400
