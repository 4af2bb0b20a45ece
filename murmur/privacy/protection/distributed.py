"""Distributed protection: every client adds its share of the noise, and nobody sees one message.

Kairouz, Liu, Steinke, ICML 2021 (``mechanisms.distributed_gaussian``). Under secure sums the server
sees the noised sum of at least h honest clients; σ₁ = z C'/√h of each suffices, where C' = 2C is
how far one client's clipped update can move when its data are exchanged. Where nothing is summed
securely (a budget against whoever reads messages), h = 1: every client protects itself alone.

Cohorts are known to the server, so that sampling amplifies nothing: a client pays for each round in
which it is asked.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.accounting.calibrate import discrete_noise_multiplier
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.events import ComposedEvent, Event, NonPrivateEvent
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection.base import Clipped, Integers

_EXCHANGED = 2 * CLIP_STEPS  # L2 distance of two clipped vectors, and of two bits
_MAX_INT32 = 2**31 - 1  # what an entry may be on the wire


class Distributed(Clipped):
    """Noise from the clients, for sums that are taken securely, or for each message alone.

    ValueError where the budget needs noise that 32-bit entries cannot hold. A client's data may be
    exchanged for any other, so sums have distance 2C.
    """

    name = "discrete Gaussian noise from the clients"
    threats = ("local", "secure_aggregation")
    sensitivity_factor = 2
    difference = "nothing is claimed beyond what is proven."

    def __init__(self, budget: Budget, cohorts: Cohorts, **settings: object) -> None:
        super().__init__(budget, cohorts, **settings)  # type: ignore[arg-type]
        self.shared = budget.is_private and budget.honest_clients > 1
        max_abs = 0
        if self.noise_multiplier:
            max_abs = max(share.max_abs for share in self._shares.values())
        if CLIP_STEPS + max_abs > _MAX_INT32:
            raise ValueError(
                f"epsilon={budget.epsilon:g}: needs noise of {self.noise_multiplier:.0f} clipping "
                "norms, which no entry of 32 bits can hold; raise it, or ask clients less often"
            )
        self.bound = CLIP_STEPS + max_abs

    def calibrate(self) -> float:
        """The smallest z (σ of a sum over 2C) for all rounds in which a client is asked."""
        budget = self.budget
        if budget.prerun_fraction:
            return budget.noise_multiplier(1 - budget.prerun_fraction, budget.releases)
        return discrete_noise_multiplier(
            budget.epsilon, budget.delta_of_noise, budget.releases, _EXCHANGED
        )

    @cached_property
    def _shares(self) -> dict[str, DistributedGaussian]:
        """One client's noise on the vector and on the bit, by part of the release.

        Each is what h honest clients must add together, divided by √h.
        """
        multipliers = {"vector": self.update_multiplier}
        if self.clipping.adaptive:
            multipliers["bit"] = self.bit_multiplier
        honest = self.budget.honest_clients
        return {
            name: DistributedGaussian(multiplier * _EXCHANGED, _EXCHANGED, honest)
            for name, multiplier in multipliers.items()
        }

    def release_event(self) -> Event:
        """The vector and the bit, with one client's noise."""
        if not self.noise_multiplier:
            return NonPrivateEvent()
        return ComposedEvent(tuple(share.release() for share in self._shares.values()))

    def release(
        self, vector: NDArray[np.float64], clip: float | None, noise: NoiseGenerator
    ) -> Integers:
        """The clipped vector and the bit, noised."""
        steps = super().release(vector, clip, noise)
        if not self.noise_multiplier:
            return steps
        size = len(vector)
        own = steps[:size]
        noised = self._shares["vector"].privatize_integers(own, noise, out=own)
        if not self.clipping.adaptive:
            return noised
        return np.append(noised, self._shares["bit"].privatize_integers(steps[size:], noise))
