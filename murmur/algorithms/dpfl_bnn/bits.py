"""DPFL-BNN's release: binary weights as randomised bits, and what the paper claims of them.

Liu, Zhang, Song, Letaief, "Binary federated learning with client-level differential privacy",
arXiv 2308.03320 (2023), algorithm 1: the sign of every weight, kept with probability ½ + γ;
theorem 1 is ``claimed_epsilon``. Beyond the paper, to make the guarantee mean something:

* *Hamming clipping*: before the noise the bits may differ from a public reference in at most k
  places, so those of two neighbours differ in at most 2k.
* *Public mask*: only a public random share of the coordinates is uploaded in a round.

Both halves of the algorithm get their ``WeightBits`` from one ``ReleaseSettings``.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from murmur.privacy import events
from murmur.privacy.accounting import Threat
from murmur.privacy.accounting.bits import epsilon_of_bit, log_moment
from murmur.privacy.accounting.calibrate import bits_gamma
from murmur.privacy.budget import Budget
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse, stochastic_bits
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.search import decreasing_root
from murmur.random import experiment_rng
from murmur.settings import Count, settings

Floats = NDArray[np.floating]


@settings
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

    weights: Count
    gamma: float | None
    upload: Literal["sign", "stochastic"] = "sign"
    hamming: int | None = None
    mask: Annotated[float, Field(gt=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        if self.gamma is not None:
            BinaryRandomizedResponse(self.gamma)  # its check
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
        """In how many bits two neighbours can differ: all, or 2k with Hamming clipping."""
        if self.hamming is None:
            return self.uploaded
        return min(2 * self.hamming, self.uploaded)

    def event(self) -> events.Event:
        """Event of one release, as its reader sees it.

        In a sum the other clients' bits hide it as well, since all upload the same coordinates.
        """
        if self.gamma is None:
            return events.NonPrivateEvent()
        bits = events.RandomizedBitsEvent(self.gamma, self.uploaded, self.sensitivity)
        # All clients of a sum upload the same coordinates.
        return events.Release(
            bits, events.Unit.CLIENT, events.Adjacency.REPLACE_ONE, hiding=events.Hiding.REPORTS
        )

    def coordinates(self, seed: int, number: int) -> NDArray[np.int64] | None:
        """The public coordinates of round ``number``, ascending, (uploaded,); None for all.

        Both ends draw them from the experiment stream of ``seed``.
        """
        if self.uploaded == self.weights:
            return None
        rng = experiment_rng(seed, "uploaded coordinates", number)
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
            bits = stochastic_bits(weights, noise)
        else:
            bits = (weights >= 0).astype(np.uint8)
        if self.hamming is not None:
            bits = hamming_clip(bits, (reference >= 0).astype(np.uint8), weights, self.hamming)
        if self.gamma is None:
            return bits
        return BinaryRandomizedResponse(self.gamma).privatize(bits, noise)


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


@settings
class Calibration:
    """Limit on the loss by which a budget allows a larger γ.

    Attributes:
        hamming: k of ``WeightBits``; None: any number of bits may differ.
        mask: share of the coordinates that are uploaded, in (0, 1].
    """

    hamming: int | None
    mask: float


@settings
class ReleaseSettings:
    """The release as a user writes it (``conf/strategy/dpfl_bnn``).

    Attributes:
        gamma: γ; None for the largest that keeps a finite budget, where it must not be given; None
            and an infinite budget mean no noise.
        upload: see ``WeightBits``.
        noise: False for a control without.
        flip: ``bit`` as in the paper, or ``tensor``, one coin for a whole tensor as in the authors'
            code, which protects nothing and is recorded as such.
        budget: what limits the loss.
    """

    gamma: float | None
    upload: Literal["sign", "stochastic"]
    noise: bool
    flip: Literal["bit", "tensor"]
    budget: Calibration

    def plan(self, weights: int, budget: Budget) -> WeightBits:
        """The release of ``weights`` numbers under the ``budget`` of one client.

        Raises:
            ValueError: a setting is out of range, or contradicts another.
        """
        if self.flip == "tensor" and budget.is_private:
            raise ValueError(
                "flip='tensor': protects nothing, so no budget can be kept; set privacy.epsilon=inf"
            )
        if self.gamma is not None and budget.is_private:
            raise ValueError(
                f"gamma={self.gamma}: fixes the noise, so the budget privacy.epsilon="
                f"{budget.epsilon:g} might not be kept; set privacy.epsilon=inf, or gamma=null to "
                "have it calibrated"
            )
        if budget.is_private and not self.noise:
            raise ValueError(
                f"noise=False: keeps no budget, and privacy.epsilon={budget.epsilon:g} promises "
                "one; set privacy.epsilon=inf"
            )
        if self.noise:
            gamma = self.gamma
        else:
            gamma = None
        bits = WeightBits(weights, gamma, self.upload, self.budget.hamming, self.budget.mask)
        if self.flip == "tensor" and (bits.sensitivity < weights or self.upload != "sign"):
            raise ValueError(
                "flip='tensor': reproduces the authors' code, which uploads the signs of all "
                "weights; set upload=sign, budget.hamming=null and budget.mask=1"
            )
        if not budget.is_private:
            return bits
        return replace(bits, gamma=_calibrated(budget, bits))


@lru_cache(maxsize=16)
def _calibrated(budget: Budget, bits: WeightBits) -> float:
    """The largest γ that keeps ``budget``; server and clients of one process share the search.

    A paper's budget is kept by the paper's own theorem 1, which counts one bit only.
    """
    if budget.paper_semantics:
        return claimed_gamma(budget.epsilon, budget.releases, budget.delta)
    return bits_gamma(
        budget.epsilon,
        budget.delta_of_noise,
        bits.uploaded,
        budget.releases,
        Threat(budget.threat),
        budget.honest_clients,
        bits.sensitivity,
    )


def claimed_epsilon(gamma: float, rounds: int, delta: float) -> float:
    """ε of the paper's theorem 1, which counts one bit of one client and T rounds.

    T·g(γ) = ln(1/δ) with g(γ) = ln(p^α q^{1−α} + q^α p^{1−α}) and α = 1 + 2 ln(1/δ)/ε. A claim,
    for the statement's comparison; what is proven counts all bits.

    Args:
        gamma: γ in (0, ½).
        rounds: T, at least 1.
        delta: δ in (0, 1).
    """
    log_delta = -math.log(delta)

    def excess(epsilon: float) -> float:
        return rounds * log_moment(gamma, 2 * log_delta / epsilon) - log_delta

    return decreasing_root(excess, 1e-9, 10 * rounds * epsilon_of_bit(gamma) + 10 * log_delta)


def claimed_gamma(epsilon: float, rounds: int, delta: float) -> float:
    """The largest γ that theorem 1 allows for ``epsilon``: γ ≤ g⁻¹(ln(1/δ)/T)."""
    log_delta = -math.log(delta)

    # Searched as ½ − γ, which falls towards the bound from above.
    def excess(below_half: float) -> float:
        return rounds * log_moment(0.5 - below_half, 2 * log_delta / epsilon) - log_delta

    return 0.5 - decreasing_root(excess, 1e-12, 0.5)
