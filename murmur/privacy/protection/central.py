"""Central protection: a trusted server adds Gaussian noise, to the sum or to each update.

``Central`` is DP-FedAvg (McMahan, Ramage, Talwar, Zhang, ICLR 2018). One round:

1. clients send their clipped updates as they are
2. the server makes (Σ Δ_i + N(0, (z C)² I)) / K public, K = the (expected) size of the cohort

K does not depend on who came, which keeps the sensitivity, to one client that contributes or does
not, at C. How many clients there are is public: cohorts, K and the rate follow from it. Where
cohorts are Poisson samples in secret, sampling amplifies; otherwise a client pays for each round
in which it was asked.

``NoisedRows`` are for aggregations that are no means (a median, a trimmed mean, Krum). What such an
aggregation gives may be one client's update, so nothing averages the noise, and one client's data
move it by as much as its own update moves: 2C, when a clipped update is exchanged for another. Each
row is therefore noised as a release of its own, a Gaussian of sensitivity 2C, and whatever is made
of the noised rows costs nothing more. A client that did not answer counts as one with a zero
update, noised like the others: how many rows there are tells nothing of anybody.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.privacy import events
from murmur.privacy.accounting import Threat
from murmur.privacy.accounting.calibrate import discrete_noise_multiplier, sampled_noise_multiplier
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.events import Adjacency, Event, Unit
from murmur.privacy.guarantee import Exposure, by_participations
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.sampled_gaussian import SampledGaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection.base import Clipped, Integers

MODELS = "anyone who sees every published model"
TRUSTED = "the server is trusted: it adds the noise, and keeps updates to itself"
SECRET_COHORT = events.Assumption(
    "secret_cohort", "nobody who sees the models learns who was asked in which round"
)


class ServerNoise(Clipped):
    """Noise from the server, which sees updates in the clear and publishes noised means.

    Keeps a budget against those who see the models, and none against the server.

    Attributes:
        rounds_published: how many noised means have been made public.
    """

    threats = ("central",)
    adjacency = Adjacency.REPLACE_SPECIAL
    rounds_published = 0

    @property
    def always_published(self) -> bool:
        """With noise: a round that is left out would tell whose data made it so."""
        return self.noise_multiplier > 0

    def release_event(self) -> Event:
        """The update leaves without noise."""
        return events.NonPrivateEvent()

    def divisor(self, weight: int) -> int:
        """The expected cohort, whoever came."""
        return self.cohorts.size

    def state(self) -> dict[str, NDArray]:
        """The clipping norm, and how many models were published."""
        return {**super().state(), "published": np.array([self.rounds_published], np.int64)}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The clipping norm, and how many models were published."""
        super().restore(state)
        self.rounds_published = int(state["published"][0])

    def exposure(self, per_round: Event, clients: Mapping[str, Event]) -> Exposure:
        """Exposure to those who see all models: ``per_round``, and all of each of ``clients``."""
        claimed = None
        if self.budget.is_private:
            claimed = self.budget.epsilon
        return Exposure(
            threat=Threat.CENTRAL,
            adversary=MODELS,
            per_round=per_round,
            clients=clients,
            claimed_total=claimed,
            sizes={"each client": self.cohorts.clients},
            notes=(TRUSTED,),
        )


class Central(ServerNoise):
    """Independent noise in every round.

    Where cohorts are secret Poisson samples it is calibrated and charged with amplification, else
    for the rounds of the client that is asked most often.
    """

    name = "Gaussian noise from the server"
    claim = (
        "all published models together are (ε, δ)-differentially private for a client, where "
        "the server is trusted (McMahan et al. 2018; Andrew et al. 2021)"
    )
    difference = "sampling helps while cohorts stay secret only; a curious server sees updates."

    def calibrate(self) -> float:
        """The smallest z, for secret samples or for the most exposed client's rounds."""
        budget = self.budget
        rate = self.cohorts.rate
        if rate is None or rate == 1:
            return discrete_noise_multiplier(
                budget.epsilon, budget.delta, budget.releases, CLIP_STEPS
            )
        return sampled_noise_multiplier(
            budget.epsilon, budget.delta, rate, budget.releases, CLIP_STEPS
        )

    @cached_property
    def mechanism(self) -> SampledGaussian:
        """The update and the bit together."""
        return SampledGaussian(self.cohorts.rate or 1.0, self.noise_multiplier or 1.0, CLIP_STEPS)

    def mean(
        self, number: int, total: Integers, weight: int, noise: NoiseGenerator
    ) -> NDArray[np.float64]:
        """The noised mean, which is published."""
        mean = super().mean(number, total, weight, noise)
        self.rounds_published += 1
        return mean

    def noised(
        self, number: int, total: Integers, multiplier: float, noise: NoiseGenerator
    ) -> Integers:
        """``total`` with noise of ``multiplier`` × how far one client moves it."""
        if not self.noise_multiplier:
            return total
        moved = self.sensitivity_factor * CLIP_STEPS
        mechanism = DiscreteGaussian(math.ceil(multiplier * moved), moved)
        return mechanism.privatize_integers(total, noise, out=total)

    def round_event(self) -> Event:
        """One published model, to whoever does not know the cohort if that is a secret sample.

        The release rests on that secrecy as an assumption, and says what it costs without.
        """
        if not self.noise_multiplier:
            return events.NonPrivateEvent()
        sampled = self.mechanism.event()
        if self.mechanism.rate == 1:
            return events.Release(sampled, Unit.CLIENT, self.adjacency)
        always = replace(self.mechanism, rate=1.0).event()
        return events.Release(sampled, Unit.CLIENT, self.adjacency, (SECRET_COHORT,), always)

    def published(self, participations: Mapping[int, int]) -> list[Exposure]:
        """The models: a secret sample could have held anybody, a known cohort only its clients.

        By known cohorts each client's own rounds count; of secret ones every round does, for all.
        """
        event = self.round_event()
        counts = {"each client": self.rounds_published}
        if self.cohorts.rate is None:
            known = {str(client): count for client, count in sorted(participations.items())}
            counts = known or {"nobody": 0}
        return [self.exposure(event, by_participations(event, counts))]

    def spent(self, participations: Mapping[int, int]) -> Event:
        """All models published so far, for the client that was in the most of them."""
        count = self.rounds_published
        if self.cohorts.rate is None:
            count = max(participations.values(), default=0)
        return events.repeated(self.round_event(), count)

    def planned(self) -> Event:
        """All models, for the client that is in the most of them."""
        return events.RepeatedEvent(self.round_event(), self.budget.releases)


class NoisedRows(Central):
    """Noise of z·2C on every client's row; ValueError where cohorts are secret samples."""

    name = "Gaussian noise from the server on every update"
    adjacency = Adjacency.REPLACE_ONE
    sensitivity_factor = 2
    claim = "all published models together are (ε, δ)-differentially private for a client"
    difference = "a curious server sees updates."

    def __init__(self, budget: Budget, cohorts: Cohorts, **settings: Any) -> None:
        if cohorts.rate not in (None, 1):
            raise ValueError(
                "schedule=poisson: a row would tell who was sampled; set federation.schedule to "
                "random or rotate"
            )
        super().__init__(budget, replace(cohorts, rate=None), **settings)

    @property
    def row_noise(self) -> DiscreteGaussian:
        """Noise of one row in grid steps: z, so that the bit of an adaptive norm is in it."""
        moved = self.sensitivity_factor * CLIP_STEPS
        return DiscreteGaussian(math.ceil(self.noise_multiplier * moved), moved)

    def noised_rows(self, rows: Integers, noise: NoiseGenerator) -> Integers:
        """A noised row for each of the cohort, (cohort, d).

        ``rows``: (answered, d), in grid steps, of whoever answered.
        """
        self.rounds_published += 1
        silent = np.zeros((self.cohorts.size - len(rows), rows.shape[1]), np.int64)
        every = np.concatenate([rows, silent])
        if not self.noise_multiplier:
            return every
        return np.stack([self.row_noise.privatize_integers(row, noise) for row in every])

    def round_event(self) -> Event:
        """One client's row, noised: all that any model of the round says of it."""
        if not self.noise_multiplier:
            return events.NonPrivateEvent()
        return events.Release(self.row_noise.event(), Unit.CLIENT, self.adjacency)
