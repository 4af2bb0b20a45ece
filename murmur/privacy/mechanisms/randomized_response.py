"""Randomised response on labels with k categories, in exact integer arithmetic.

Keep the label with probability β, else report a uniform one of the C categories, the true one
included: β = (e^ε − 1)/(e^ε − 1 + C) (Qi et al. 2023, eq. 2 and 6; Kairouz et al. 2016). The
same mechanism, said otherwise: report the truth with p = β + (1−β)/C, and each other category
with q = (1−β)/C, so that p/q = e^ε.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.privacy import events
from murmur.privacy.mechanisms import exact_sampling as sampling
from murmur.privacy.noise import NoiseGenerator

_BLOCK_LABELS = 1 << 15  # labels per pass: the working arrays stay in the second-level cache


@dataclass(frozen=True)
class RandomizedResponse:
    """ε-DP randomised response for one label among ``categories`` values.

    Each label costs one 64-bit draw u. With W the probability of lying in units of 2⁻⁶⁴,
    rounded up, u < W decides to lie and u // (W // (C−1)) which of the other categories to
    report; the fewer than C−1 values of u that would make the choice uneven are drawn again. So
    the lying probability is within 2⁻⁶⁴ of the ideal, the other categories are exactly equally
    likely, and what is drawn is never less private than ``epsilon``.

    Above ε ≈ 44.4 a wrong label's probability falls below 2⁻⁶⁴ and stays there: a larger ε
    changes nothing.

    Attributes:
        epsilon: the privacy of one label, replace-one; finite and above 0.
        categories: number of categories C, 2 to 256.
    """

    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ValueError(
                f"epsilon={self.epsilon}: must be finite and above 0; to send labels without "
                "noise, mark the run non-private instead of using a mechanism"
            )
        if not 2 <= self.categories <= 256:
            raise ValueError(
                f"categories={self.categories}: must lie in [2, 256], so that a label fits a byte"
            )

    @property
    def keep(self) -> float:
        """β, the probability of keeping the label before uniform replacement."""
        # (e^ε − 1)/(e^ε − 1 + C) with both sides multiplied by e^−ε, which cannot overflow.
        kept = -math.expm1(-self.epsilon)
        return kept / (kept + self.categories * math.exp(-self.epsilon))

    @property
    def truth_probability(self) -> float:
        """β + (1−β)/C, written p: the probability that the reported label is the true one."""
        return 1 / (1 + (self.categories - 1) * math.exp(-self.epsilon))

    def event(self) -> events.RandomizedResponseEvent:
        """Event of one randomised label; a vector of n labels is n of these."""
        return events.RandomizedResponseEvent(epsilon=self.epsilon, categories=self.categories)

    def release(self, count: int, hiding: events.Hiding = events.Hiding.NOT) -> events.Release:
        """``count`` labels of one client: whatever its data, any other label was possible.

        ``hiding``: ``REPORTS`` where all clients of a sum answer the same ``count`` questions.
        """
        labels = events.RepeatedEvent(self.event(), count)
        return events.Release(
            labels, events.Unit.CLIENT, events.Adjacency.REPLACE_ONE, hiding=hiding
        )

    def privatize(self, labels: NDArray[Any], rng: NoiseGenerator) -> NDArray[np.uint8]:
        """Randomise every label by itself.

        Args:
            labels: integers in [0, categories), any shape; left as they are.
            rng: the noise stream.

        Returns:
            Labels of the same shape, dtype uint8.

        Raises:
            ValueError: the labels are not integers or out of range.
        """
        labels = np.asarray(labels)
        truth = _as_bytes(labels, self.categories)
        out = np.empty(truth.size, dtype=np.uint8)
        lie = _lie_threshold(self.epsilon, self.categories)
        for start in range(0, truth.size, _BLOCK_LABELS):
            block = slice(start, start + _BLOCK_LABELS)
            _randomize(truth[block], out[block], lie, self.categories, rng)
        return out.reshape(labels.shape)

    def debias(self, counts: ArrayLike, n: ArrayLike) -> NDArray[np.float64]:
        """Unbiased label frequencies from counts of randomised labels (Qi et al., eq. 3).

        Args:
            counts: how often each category was reported, shape (…, C).
            n: number of reports behind each row, a number or shape (…).

        Returns:
            (counts/n − (1−β)/C)/β, shape (…, C); a row sums to 1 and can leave [0, 1].

        Raises:
            ValueError: the last axis is not C, or a row has no report.
        """
        counts = np.asarray(counts, dtype=np.float64)
        n = np.asarray(n, dtype=np.float64)
        if counts.shape[-1:] != (self.categories,):
            raise ValueError(
                f"counts of shape {counts.shape}: the last axis must have {self.categories} entries"
            )
        if not np.all(n > 0):
            raise ValueError("n: every row needs at least one report")
        return debiased(counts / n[..., np.newaxis], self.keep)


def debiased(frequencies: NDArray[np.float64], keep: float) -> NDArray[np.float64]:
    """Unbiased frequencies (…, C) from those of randomised labels (Qi et al., eq. 3).

    Args:
        frequencies: of each category among the reports, shape (…, C).
        keep: β; of reports with different ones their mean.

    Returns:
        (frequencies − (1−β)/C)/β.
    """
    return (frequencies - (1 - keep) / frequencies.shape[-1]) / keep


@lru_cache(maxsize=1024)
def _lie_threshold(epsilon: float, categories: int) -> int:
    """W: the probability of a wrong label in units of 2⁻⁶⁴, rounded up, at least C−1 units."""
    others = sampling.CONTEXT.multiply(sampling.exp_neg(epsilon), categories - 1)
    lie = sampling.CONTEXT.divide(others, sampling.CONTEXT.add(others, 1))
    return max(sampling.round_up(lie), categories - 1)


def _as_bytes(labels: NDArray[Any], categories: int) -> NDArray[np.uint8]:
    """The labels as a flat byte array, not copied where they already are one."""
    if labels.dtype.kind not in "iu":
        raise ValueError(f"labels of dtype {labels.dtype}: must be integers")
    if labels.size:
        low = int(labels.min())
        high = int(labels.max())
        if low < 0 or high >= categories:
            raise ValueError(
                f"labels in [{low}, {high}]: must lie in [0, {categories - 1}] for "
                f"categories={categories}"
            )
    return labels.reshape(-1).astype(np.uint8, copy=False)


def _randomize(
    truth: NDArray[np.uint8], out: NDArray[np.uint8], lie: int, categories: int, rng: NoiseGenerator
) -> None:
    """Write a randomised copy of ``truth``, one block long, into ``out``."""
    others = categories - 1
    per_category = lie // others
    uneven_from = others * per_category
    draws = rng.uint64(truth.size)
    if uneven_from < lie:
        uneven = np.flatnonzero(draws - np.uint64(uneven_from) < np.uint64(lie - uneven_from))
        # These have decided to lie: only which label to report is drawn again.
        draws[uneven] = sampling.uniform_below(others, uneven.size, rng) * np.uint64(per_category)
    # The truth is shift C, hence the same label again modulo C.
    shift = np.minimum(draws // np.uint64(per_category), np.uint64(others)).astype(np.uint16)
    shift += truth
    shift += 1
    np.subtract(shift, categories, out=shift, where=shift >= categories)
    out[:] = shift
