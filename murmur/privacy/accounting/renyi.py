"""Rényi divergences of finite pairs of distributions, without cancellation or overflow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from murmur.privacy.accounting.lattice import Floats

# Below this a sum of differences of numbers near 1 is worth computing without the differences.
_FEW_DIGITS = 1e-4


@dataclass(frozen=True, eq=False)
class Pair:
    """Distributions P and Q, or one pair per row: ``log_base`` = ln Q, ``log_ratio`` = ln P/Q.

    Shape (..., outcomes); outcomes of probability 0 have ``log_base`` −inf and a finite ratio.
    """

    log_base: Floats
    log_ratio: Floats

    @cached_property
    def _moments(self) -> tuple[Floats, Floats, Floats]:
        """Q, x = P/Q − 1 and P − Q."""
        base = np.exp(self.log_base)
        with np.errstate(over="ignore"):
            excess = np.expm1(self.log_ratio)
        # Not base * excess, which may be 0 · inf far out.
        return base, excess, np.exp(self.log_base + self.log_ratio) - base

    def divergence(self, order: float) -> Floats:
        """D_α(P‖Q) for ``order`` α > 1, shape (...).

        Near 0 it is ln(1 + Σ Q φ(x)) / (α − 1) with φ(x) = (1 + x)^α − 1 − αx ≥ 0, which equals
        the definition because Σ Q x = 0, and keeps its digits when P and Q nearly agree.
        """
        log_terms = self.log_base + order * self.log_ratio
        top = float(log_terms.max())
        if top > 600:
            with np.errstate(divide="ignore"):
                log_moment = np.log(np.sum(np.exp(log_terms - top), axis=-1)) + top
            return np.asarray(log_moment / (order - 1))
        base, excess, change = self._moments
        gain = np.exp(log_terms) - base - order * change
        if np.min(np.sum(gain, axis=-1)) < _FEW_DIGITS:
            with np.errstate(over="ignore", invalid="ignore"):
                cubic = (order - 2) * excess / 3 * (1 + (order - 3) * excess / 4)
                series = order * (order - 1) / 2 * base * excess**2 * (1 + cubic)
            gain = np.where(np.abs(excess) * (order + 3) < 1e-3, series, gain)
        return np.asarray(np.log1p(np.sum(gain, axis=-1)) / (order - 1))
