"""Privacy losses with finitely many, equally spaced values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Points that a lattice of our own choice spends on 60 standard deviations of the sum, and on
# all parts together: a ledger with a thousand different releases gets a coarser lattice.
_POINTS = 2**19
_POINTS_IN_ALL = 2**24


@dataclass(frozen=True, eq=False)
class LatticeLoss:
    """A privacy loss with values ``step`` · (``lowest``, ``lowest`` + 1, …).

    ``probabilities``: under P, shape (values,), with sum 1; the last one is above 0.
    ``count``: how many independent copies are composed; the methods below are about one.
    """

    step: float
    lowest: int
    probabilities: Floats
    count: int = 1

    @classmethod
    def of(cls, losses: Floats, masses: Floats, step: float, count: int = 1) -> LatticeLoss:
        """A loss on a lattice of ``step`` that is at least as bad as the atoms, and hardly worse.

        Each atom is split between its two neighbours on the lattice so that its mass under P
        and under Q are both kept: δ(ε) becomes its chord between lattice points, which is
        above it because δ is convex in e^ε ("connect the dots", Doroshenko et al. 2022).
        ``losses`` and ``masses`` (under P): shape (atoms,).
        """
        position = losses / step
        below = np.floor(position)
        share = np.expm1((below - position) * step) / math.expm1(-step)
        up = masses * np.clip(share, 0.0, 1.0)
        lowest = int(below.min())
        index = (below - lowest).astype(np.int64)
        probabilities = np.zeros(int(index.max()) + 2)
        np.add.at(probabilities, index, masses - up)
        np.add.at(probabilities, index + 1, up)
        return cls(step, lowest, np.trim_zeros(probabilities, "b"), count)

    def on_step(self, step: float) -> LatticeLoss:
        """The same loss on another lattice (``of``)."""
        if step == self.step:
            return self
        return LatticeLoss.of(self.losses, self.probabilities, step, self.count)

    @property
    def losses(self) -> Floats:
        """The values of the loss, shape (values,)."""
        return self.step * (self.lowest + np.arange(self.probabilities.size, dtype=np.float64))

    @property
    def worst(self) -> float:
        """The largest loss."""
        return self.step * (self.lowest + self.probabilities.size - 1)

    def log_mgf(self, theta: float) -> float:
        """K(θ) = ln E e^{θL}; keeps its digits near θ = 0."""
        exponent = theta * self.losses
        top = float(exponent[-1])
        if top < 0.5:
            return math.log1p(float(self.probabilities @ np.expm1(exponent)))
        return math.log(float(self.probabilities @ np.exp(exponent - top))) + top

    def tilted(self, theta: float) -> Floats:
        """P_θ(l) = P(l) e^{θl − K(θ)}, shape (values,)."""
        with np.errstate(divide="ignore"):
            exponent = np.log(self.probabilities) + theta * self.losses
        weights = np.exp(exponent - exponent.max())
        return np.asarray(weights / weights.sum())

    def moments(self, theta: float = 0.0) -> tuple[float, float]:
        """Mean and variance under the tilt ``theta``."""
        weights, losses = self.tilted(theta), self.losses
        mean = float(weights @ losses)
        return mean, float(weights @ (losses - mean) ** 2)


def common_lattice(parts: Sequence[LatticeLoss]) -> list[LatticeLoss]:
    """``parts`` on one lattice: an exact one where their steps are commensurate.

    Otherwise the lattice divides the step of the part with the most releases, and is so fine
    that the rounding costs about 1e-6 of ε (more from some dozens of different parts on).
    """
    if len({part.step for part in parts}) <= 1:
        return list(parts)
    spread = math.sqrt(sum(part.count * part.moments()[1] for part in parts))
    fine = 60.0 * spread / min(_POINTS, _POINTS_IN_ALL // len(parts))
    step = _commensurate_step([part.step for part in parts])
    if step is None or step < fine / 8:
        main = max(parts, key=lambda part: part.count)
        step = main.step / math.ceil(main.step / fine) if main.step > fine / 8 else fine
    return [part.on_step(step) for part in parts]


def _commensurate_step(steps: Sequence[float]) -> float | None:
    """The largest step that divides all ``steps`` up to rounding, if a simple one exists."""
    smallest = min(steps)
    for divisor in range(1, 65):
        step = smallest / divisor
        ratios = [other / step for other in steps]
        if all(abs(ratio - round(ratio)) < 1e-12 * ratio for ratio in ratios):
            return step
    return None
