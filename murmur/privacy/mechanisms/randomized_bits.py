"""Binary randomised response on bit vectors, and the stochastic bits that feed it.

Every bit is kept with probability ½ + γ and flipped with ½ − γ (Liu et al. 2023, "binary
federated learning with client-level differential privacy"). Summed over clients this is the
Poisson-binomial mechanism with m = 1, θ = γ (Chen, Özgür and Kairouz 2022).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.checks import require_finite, require_positive
from murmur.privacy.events import RandomizedBitsEvent
from murmur.privacy.mechanisms.exact_sampling import round_up, to_decimal
from murmur.privacy.noise import NoiseGenerator

_BLOCK_BITS = 1 << 16  # bits per pass


@dataclass(frozen=True)
class BinaryRandomizedResponse:
    """Keeps each bit with probability ½ + ``gamma``, in exact integer arithmetic.

    The flipping probability is ½ − γ in units of 2⁻⁶⁴, rounded up: within 2⁻⁶⁴ of the ideal,
    and what is drawn is never less private than stated. Eight random bits settle most bits; the
    one in 256 that they leave open takes 56 more.

    Attributes:
        gamma: γ, in (0, ½).
    """

    gamma: float

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 0.5:
            raise ValueError(
                f"gamma={self.gamma}: must lie in (0, 0.5); the larger, the less noise"
            )

    @classmethod
    def calibrated(cls, epsilon: float) -> "BinaryRandomizedResponse":
        """The mechanism with privacy ``epsilon`` per bit: γ = tanh(ε/2)/2.

        Raises:
            ValueError: ``epsilon`` is not finite and above 0, or so large that γ rounds to ½.
        """
        require_positive("epsilon", epsilon)
        return cls(gamma=math.tanh(epsilon / 2) / 2)

    @property
    def epsilon(self) -> float:
        """Pure ε of one bit: ε₀ = ln((½+γ)/(½−γ))."""
        # The Fraction keeps the digits of ½ − γ when γ is close to ½.
        return math.log1p(2 * self.gamma / (Fraction(1, 2) - Fraction(self.gamma)))

    def event(self, bits: int, sensitivity_bits: int | None = None) -> RandomizedBitsEvent:
        """Event of randomising a vector of ``bits`` bits.

        Args:
            bits: length of the vector.
            sensitivity_bits: in how many bits two neighbours can differ; all, if not given.
        """
        if sensitivity_bits is None:
            sensitivity_bits = bits
        return RandomizedBitsEvent(gamma=self.gamma, bits=bits, sensitivity_bits=sensitivity_bits)

    def privatize(self, bits: NDArray[Any], rng: NoiseGenerator) -> NDArray[Any]:
        """Randomise every bit by itself.

        Args:
            bits: bool, or uint8 holding 0 and 1; any shape; left as they are.
            rng: the noise stream.

        Returns:
            Bits of the same shape and dtype.

        Raises:
            ValueError: another dtype, or a value other than 0 and 1.
        """
        bits = np.asarray(bits)
        if bits.dtype not in (np.bool_, np.uint8):
            raise ValueError(f"bits of dtype {bits.dtype}: must be bool or uint8")
        if bits.dtype == np.uint8 and bits.max(initial=0) > 1:
            raise ValueError("bits: must hold 0 and 1, not packed")
        truth = bits.reshape(-1)
        out = np.empty(truth.size, dtype=bits.dtype)
        for start in range(0, truth.size, _BLOCK_BITS):
            block = slice(start, start + _BLOCK_BITS)
            np.bitwise_xor(truth[block], self._flips(truth[block].size, rng), out=out[block])
        return out.reshape(bits.shape)

    def _flips(self, n: int, rng: NoiseGenerator) -> NDArray[np.bool_]:
        threshold = _flip_threshold(self.gamma)
        first = threshold >> 56
        rest = threshold & ((1 << 56) - 1)
        draws = rng.uint8(n)
        flips = draws < first
        undecided = np.flatnonzero(draws == first)
        flips[undecided] = rng.uint64(undecided.size) >> np.uint64(8) < np.uint64(rest)
        return flips


def stochastic_bits(w: ArrayLike, rng: NoiseGenerator) -> NDArray[np.uint8]:
    """One bit per number w in [−1, 1]: 1 with probability (1 + w)/2, to within 2⁻³².

    Through ``BinaryRandomizedResponse`` it is the Poisson-binomial encoding: P(1) = ½ + γw, so that
    (2·bit − 1)/(2γ) is an unbiased estimate of w. By itself it is no protection.

    Args:
        w: numbers in [−1, 1], any shape.
        rng: the noise stream.

    Returns:
        Bits 0 and 1 of the same shape.

    Raises:
        ValueError: a number is NaN or outside [−1, 1].
    """
    values = np.asarray(w, dtype=np.float64)
    require_finite("w", values)
    if values.size and np.abs(values).max() > 1:
        raise ValueError("w: every entry must lie in [-1, 1]; clip first")
    flat = values.reshape(-1)
    bits = np.empty(flat.size, dtype=np.uint8)
    for start in range(0, flat.size, _BLOCK_BITS):
        block = slice(start, start + _BLOCK_BITS)
        above = np.rint((flat[block] + 1) * 2.0**31)  # w = 1 gives 2³², above every draw
        bits[block] = rng.uint32(above.size) < above
    return bits.reshape(values.shape)


@lru_cache(maxsize=256)
def _flip_threshold(gamma: float) -> int:
    """½ − γ in units of 2⁻⁶⁴, rounded up."""
    return round_up(to_decimal(Fraction(1, 2) - Fraction(gamma)))
