"""Rows: a trusted server noises each client's update by itself, before it aggregates them.

For aggregations that are no means (a median, a trimmed mean, Krum). What such an aggregation gives
may be one client's update, so nothing averages the noise, and one client's data move it by as much
as its own update moves: 2C, when a clipped update is exchanged for another. Each row is therefore
noised as a release of its own, a Gaussian of sensitivity 2C, and whatever is made of the noised
rows costs nothing more.

A client that did not answer counts as one with a zero update, noised like the others: how many rows
there are tells nothing of anybody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.accounting.calibrate import discrete_noise_multiplier
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.events import Adjacency, Event, NonPrivateEvent, Release, RepeatedEvent, Unit
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection.base import Integers
from murmur.privacy.protection.central import ServerNoise
from murmur.privacy.statement import Exposure, by_participations

_EXCHANGED = 2 * CLIP_STEPS  # how far one client moves its own row, in grid steps


class NoisedRows(ServerNoise):
    """Noise of z·2C on every client's row; ValueError where cohorts are secret samples."""

    name = "Gaussian noise from the server on every update"
    adjacency = Adjacency.REPLACE_ONE
    distance = 2
    claim = "all published models together are (ε, δ)-differentially private for a client"
    difference = "a curious server sees updates."

    def __init__(self, budget: Budget, cohorts: Cohorts, **settings: Any) -> None:
        if cohorts.rate not in (None, 1):
            raise ValueError(
                "schedule=poisson: a row would tell who was sampled; set federation.schedule to "
                "random or rotate"
            )
        super().__init__(budget, cohorts, **settings)

    def calibrate(self) -> float:
        """The smallest z (σ of a row over 2C) for all rounds in which a client is asked."""
        budget = self.budget
        return discrete_noise_multiplier(budget.epsilon, budget.delta, budget.releases)

    @property
    def mechanism(self) -> DiscreteGaussian:
        """What noises one row, in grid steps."""
        sigma = math.ceil(self.update_multiplier * _EXCHANGED)
        return DiscreteGaussian(sigma, _EXCHANGED)

    def noised_rows(self, rows: Integers, noise: NoiseGenerator) -> Integers:
        """A noised row for each of the cohort, (cohort, d).

        ``rows``: (answered, d), in grid steps, of whoever answered.
        """
        self.rounds_published += 1
        silent = np.zeros((self.cohorts.size - len(rows), rows.shape[1]), np.int64)
        every = np.concatenate([rows, silent])
        if not self.noise_multiplier:
            return every
        return np.stack([self.mechanism.privatize_integers(row, noise) for row in every])

    def noised(
        self, number: int, total: Integers, multiplier: float, noise: NoiseGenerator
    ) -> NDArray[Any]:
        """A sum, which one client moves by as much as its own row."""
        self.rounds_published += 1
        if not self.noise_multiplier:
            return total
        mechanism = DiscreteGaussian(math.ceil(multiplier * _EXCHANGED), _EXCHANGED)
        return mechanism.privatize_integers(total, noise)

    def round_event(self) -> Event:
        """One client's row, noised: all that any model of the round says of it."""
        if not self.noise_multiplier:
            return NonPrivateEvent()
        return Release(self.mechanism.event(), Unit.CLIENT, Adjacency.REPLACE_ONE)

    def published(self, participations: Mapping[int, int]) -> list[Exposure]:
        """The models: each client's own rounds count."""
        event = self.round_event()
        counts = {str(client): count for client, count in sorted(participations.items())}
        return [self.exposure(event, by_participations(event, counts or {"nobody": 0}))]

    def spent(self, participations: Mapping[int, int]) -> Event:
        """All models published so far, for the client that was in the most of them."""
        count = max(participations.values(), default=1)
        return RepeatedEvent(self.round_event(), count)

    def planned(self) -> Event:
        """All models, for the client that is in the most of them."""
        return RepeatedEvent(self.round_event(), self.budget.releases)
