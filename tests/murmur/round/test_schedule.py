"""Cohorts: who is asked when, how often at most, and what is secret about it."""

from collections import Counter

import numpy as np
import pytest

from murmur.privacy.noise import NoiseGenerator
from murmur.round.cohorts import Schedule


def no_noise(purpose, number):
    raise AssertionError("drawn from the noise stream")


def counts(schedule):
    rounds = range(1, schedule.rounds + 1)
    return Counter(c for n in rounds for c in schedule.cohort(n, no_noise).tolist())


@pytest.mark.parametrize("kind", ["random", "rotate"])
@pytest.mark.parametrize(("clients", "size", "rounds"), [(10, 4, 7), (6, 6, 3), (23, 5, 4)])
def test_participations_are_those_of_the_run(kind, clients, size, rounds):
    schedule = Schedule(kind, clients, size, rounds, seed=3)
    asked = counts(schedule)
    assert max(asked.values()) == schedule.participations
    assert max(map(len, schedule.patterns)) == schedule.participations
    members = schedule.cohort(2, no_noise).tolist()
    assert [c for c in range(clients) if schedule.includes(c, 2)] == members


def test_rotation_asks_all_equally_often_and_far_apart():
    schedule = Schedule("rotate", 20, 4, 13, seed=1)
    asked = counts(schedule)
    assert set(asked.values()) == {2, 3}
    assert min(np.diff(pattern).min() for pattern in schedule.patterns) == 5


def test_poisson_cohorts_come_from_the_noise_and_may_hold_anybody():
    schedule = Schedule("poisson", 200, 50, 9, seed=1)
    sizes = [
        len(schedule.cohort(n, lambda purpose, number: NoiseGenerator.seeded(number)))
        for n in range(1, 200)
    ]
    assert abs(np.mean(sizes) - 50) < 3
    assert (schedule.participations, schedule.cohorts().rate) == (9, 0.25)
    assert schedule.includes(0, 1)
    assert Schedule("random", 200, 50, 9, seed=1).cohorts().rate is None
