"""Tell two neighbours apart by what an adversary sees, as well as somebody who knows both can."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_app.audit.neighbours import Pair
from fl_app.audit.views import View
from privacy.attacks.success import Success, success
from privacy.audit import Audit, audit
from privacy.noise import NoiseGenerator
from privacy.trade_off import gaussian_fit, normal_fit

_TRIED = 32  # releases of each neighbour that show how well a pair is told apart


@dataclass(frozen=True)
class Finding:
    """What an attack achieved with ``runs`` releases of each neighbour.

    ``counted`` rests on nothing but the runs; ``fitted`` is the ε of normal outputs of one variance
    where ``is_normal`` says that they are, else of a Gaussian trade-off. ``success``: of somebody
    who guesses which neighbour it was, by the same scores.
    """

    neighbours: str
    runs: int
    counted: Audit
    fitted: float
    is_normal: bool
    success: Success

    @property
    def shown(self) -> float:
        """The largest ε that rests on nothing uncertain but the runs."""
        return max(self.counted.epsilon, self.fitted if self.is_normal else 0.0)


def attack(
    view: View, pairs: Sequence[Pair], delta: float, runs: int, scouts: int, is_normal: bool
) -> Finding:
    """Attack with the pair that is told apart best; ``scouts`` releases of each find out how.

    ``is_normal``: what is seen is the data's numbers plus normal noise of one variance. Directions
    come from draws of their own, so the runs that measure stay fresh.
    """
    tried = [(pair, _direction(view, pair, scouts)) for pair in pairs]
    pair, direction = max(tried, key=lambda each: _separation(view, *each))
    one, other = _both(view, pair, direction, runs)
    return Finding(
        pair.name,
        runs,
        counted=audit(one, other, delta),
        fitted=(normal_fit if is_normal else gaussian_fit)(one, other, delta),
        is_normal=is_normal,
        success=max(success(one, other), success(other, one), key=lambda found: found.auc),
    )


def _direction(view: View, pair: Pair, scouts: int) -> NDArray[np.float64]:
    """How releases of the neighbours differ on average, (d,); along one direction, if it is known.

    Both are drawn from the same noise stream, so that noise which is added cancels. For noise of
    one scale this is the likelihood ratio's direction. What may be chance is left out.
    """
    gaps = np.array(
        [
            view(pair.one, NoiseGenerator.seeded("scout", number))
            - view(pair.guide, NoiseGenerator.seeded("scout", number))
            for number in range(scouts)
        ]
    )
    if pair.direction is not None:
        known = pair.direction.ravel() / np.linalg.norm(pair.direction)
        return known * max(0.0, float(gaps.mean(axis=0) @ known))
    mean, error = gaps.mean(axis=0), gaps.std(axis=0) / math.sqrt(scouts)
    return np.where(np.abs(mean) > 3 * error, mean, 0.0)


def _separation(view: View, pair: Pair, direction: NDArray[np.float64]) -> float:
    """Standard deviations of the noise between the neighbours, along ``direction``."""
    gap = float(direction @ direction)
    # Where cohorts are samples, the spread of those without the client is that of the noise.
    spread = min(scores.std() for scores in _both(view, pair, direction, _TRIED))
    if spread > 0:
        return gap / float(spread)
    return math.inf if gap else 0.0


def _both(
    view: View, pair: Pair, direction: NDArray[np.float64], runs: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    noise = NoiseGenerator.from_os()
    one, other = (
        np.array([view(source, noise) @ direction for _ in range(runs)])
        for source in (pair.one, pair.other)
    )
    return one, other
