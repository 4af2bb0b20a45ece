"""Binary weights as one release: Hamming clipping, a public mask, randomised bits.

Liu, Zhang, Song, Letaief, arXiv 2308.03320 (2023), algorithm 1: the sign of every weight, kept with
probability ½ + γ. Beyond the paper, to make the guarantee mean something:

* *Hamming clipping*: before the noise the bits may differ from a public reference in at most k
  places, so those of two neighbours differ in at most 2k.
* *Public mask*: only a public random share of the coordinates is uploaded in a round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.budget import Budget
from murmur.privacy.events import (
    Adjacency,
    Event,
    Hiding,
    NonPrivateEvent,
    RandomizedBitsEvent,
    Release,
    Unit,
)
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse, StochasticBits
from murmur.privacy.noise import NoiseGenerator

COORDINATES = "uploaded coordinates"
"""Purpose of the public experiment stream from which both ends draw a round's coordinates."""

Floats = NDArray[np.floating]
_CALIBRATIONS = ("proven", "claimed")


@dataclass(frozen=True)
class WeightBits:
    """How a vector of real weights in [−1, 1] is released, one bit for each.

    Attributes:
        weights: d, length of the vector.
        gamma: γ in (0, ½); None: without noise, and so without protection.
        upload: ``sign``, the bit of W^b = sign(W̄) with 0 → 1; or ``stochastic``, 1 with
            probability (1 + w)/2, which with the noise makes P(1) = ½ + γ·w.
        hamming: k, at most so many bits differ from the reference; None: any number.
        mask: share of the coordinates that are uploaded, in (0, 1].

    Raises:
        ValueError: a setting is out of range, or Hamming clipping is set for stochastic bits.
    """

    weights: int
    gamma: float | None
    upload: str = "sign"
    hamming: int | None = None
    mask: float = 1.0

    def __post_init__(self) -> None:
        if self.gamma is not None:
            BinaryRandomizedResponse(self.gamma)  # its check
        if self.upload not in ("sign", "stochastic"):
            raise ValueError(f"upload={self.upload!r}: must be 'sign' or 'stochastic'")
        if not 0 < self.mask <= 1:
            raise ValueError(f"mask={self.mask}: must lie in (0, 1], a share of the weights")
        if self.hamming is None:
            return
        if not 1 <= self.hamming <= self.weights:
            raise ValueError(
                f"hamming={self.hamming}: must lie in 1..{self.weights}, the number of bits"
            )
        if self.upload == "stochastic":
            raise ValueError(
                f"hamming={self.hamming}: needs upload=sign; stochastic bits differ from any "
                "reference in about half their places"
            )

    @property
    def uploaded(self) -> int:
        """Bits of one release."""
        return math.ceil(self.mask * self.weights)

    @property
    def sensitivity(self) -> int:
        """In how many bits two neighbours can differ."""
        return self.uploaded if self.hamming is None else min(2 * self.hamming, self.uploaded)

    def event(self) -> Event:
        """What one release does."""
        if self.gamma is None:
            return NonPrivateEvent()
        bits = RandomizedBitsEvent(self.gamma, self.uploaded, self.sensitivity)
        # All clients of a sum upload the same coordinates.
        return Release(bits, Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=Hiding.REPORTS)

    def coordinates(self, rng: np.random.Generator) -> NDArray[np.int64] | None:
        """Public coordinates drawn from ``rng``, ascending, (uploaded,); None for all."""
        if self.uploaded == self.weights:
            return None
        return np.sort(rng.choice(self.weights, self.uploaded, replace=False))

    def privatize(
        self, weights: Floats, reference: Floats, noise: NoiseGenerator
    ) -> NDArray[np.uint8]:
        """The bits that may leave.

        Args:
            weights: (uploaded,), in [−1, 1].
            reference: (uploaded,), public; its signs are what Hamming clipping refers to.
            noise: of the mechanism, and of the stochastic bits.

        Returns:
            0 and 1, (uploaded,).
        """
        if self.upload == "stochastic":
            # Without noise the last bit is the stochastic rounding itself, which is γ = ½.
            if self.gamma is not None:
                return StochasticBits(self.gamma).privatize(weights, noise)
            above = np.rint((np.asarray(weights, np.float64) + 1) * 2.0**31)
            return (noise.uint32(above.size) < above).astype(np.uint8)
        bits = (weights >= 0).astype(np.uint8)
        if self.hamming is not None:
            bits = hamming_clip(bits, (reference >= 0).astype(np.uint8), weights, self.hamming)
        if self.gamma is None:
            return bits
        packed = np.packbits(bits)
        mechanism = BinaryRandomizedResponse(self.gamma)
        return np.unpackbits(mechanism.privatize_packed(packed, noise, bits.size), count=bits.size)


def hamming_clip(
    bits: NDArray[np.uint8], reference: NDArray[np.uint8], weights: Floats, most: int
) -> NDArray[np.uint8]:
    """``reference`` with at most ``most`` of the places changed in which ``bits`` differs.

    Those with the largest absolute ``weights`` are; among equal ones, the first. Any rule that
    looks at one client's own data only gives the same guarantee.
    """
    places = np.flatnonzero(bits != reference)
    if len(places) > most:
        strength = np.abs(weights[places])
        places = places[np.argsort(-strength, kind="stable")[:most]]
    clipped = reference.copy()
    clipped[places] = bits[places]
    return clipped


def plan(
    weights: int,
    budget: Budget,
    *,
    gamma: float | None,
    upload: str,
    noise: bool,
    calibration: str,
    hamming: int | None,
    mask: float,
) -> WeightBits:
    """The release that both ends of DPFL-BNN's settings describe (``conf/strategy/dpfl_bnn``).

    Args:
        weights: d.
        budget: of one client; where it is finite, γ follows from it and must not be given.
        gamma: γ, or None for the largest that keeps ``budget``; None and an infinite budget
            mean no noise.
        upload: see ``WeightBits``.
        noise: False for a control without noise; γ is then a mere number.
        calibration: of γ: ``proven``, against the budget's threat; or ``claimed``, by the paper's
            theorem 1, which counts one bit only.
        hamming: see ``WeightBits``.
        mask: see ``WeightBits``.

    Raises:
        ValueError: a setting is out of range, or contradicts another.
    """
    if gamma is not None and budget.is_private:
        raise ValueError(
            f"gamma={gamma}: fixes the noise, so the budget privacy.epsilon={budget.epsilon:g} "
            "might not be kept; set privacy=fixed, or gamma=null to have it calibrated"
        )
    if budget.is_private and not noise:
        raise ValueError(
            f"noise=False: keeps no budget, and privacy.epsilon={budget.epsilon:g} promises one; "
            "set privacy=fixed"
        )
    if calibration not in _CALIBRATIONS:
        raise ValueError(f"calibration={calibration!r}: must be one of {', '.join(_CALIBRATIONS)}")
    bits = WeightBits(weights, gamma if noise else None, upload, hamming, mask)
    if not budget.is_private:
        return bits
    return replace(bits, gamma=_calibrated(budget, bits, calibration))


@lru_cache(maxsize=16)
def _calibrated(budget: Budget, bits: WeightBits, calibration: str) -> float:
    """The largest γ that keeps ``budget``; server and clients of one process share the search."""
    from murmur.papers.dpfl_bnn.claim import claimed_gamma
    from murmur.privacy.accounting import Threat
    from murmur.privacy.accounting.calibrate import bits_gamma

    releases = budget.releases
    if calibration == "claimed":
        return claimed_gamma(budget.epsilon, releases, budget.delta)
    return bits_gamma(
        budget.epsilon,
        budget.delta_of_noise,
        bits.uploaded,
        releases,
        Threat(budget.threat),
        budget.honest_clients,
        bits.sensitivity,
    )
