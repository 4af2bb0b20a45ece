"""Tell two neighbours apart by what an adversary sees, as well as somebody who knows both can.

Every output is reduced to one score, its part along the direction in which the neighbours differ;
for noise of one scale that is the likelihood ratio's. ``murmur.privacy.audit`` turns the scores of
both into a lower bound on ε.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_app.audit.neighbours import Pair
from fl_app.audit.views import View
from murmur.privacy.audit import Audit, Success, audit, success
from murmur.privacy.events import Event, is_gaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.trade_off import gaussian_fit, normal_fit

_KEY_BYTES = 32
_TRIED = 64  # releases of each neighbour that show how well a pair is told apart
_ADDED = 1e-3  # by how much less than this the neighbours' distance may vary with added noise

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Finding:
    """What an attack achieved.

    Attributes:
        neighbours: the pair, in words.
        runs: how often each of the two was seen.
        counted: a lower bound on ε that rests on nothing but the runs.
        fitted: the ε of normal outputs of one variance where ``is_normal``, else of a Gaussian
            trade-off; None where the noise is far from Gaussian.
        is_normal: outputs are known to be normal.
        success: of somebody who guesses which neighbour it was, by the same scores.
    """

    neighbours: str
    runs: int
    counted: Audit
    fitted: float | None
    is_normal: bool
    success: Success

    @property
    def shown(self) -> float:
        """The largest ε that rests on nothing uncertain but the runs."""
        if self.is_normal and self.fitted is not None:
            return max(self.counted.epsilon, self.fitted)
        return self.counted.epsilon


@dataclass(frozen=True)
class _Aim:
    """How a pair is attacked.

    Attributes:
        direction: (d,), along which releases of the two differ.
        distance: by how much, on average.
        is_added: noise only adds to what is seen of the data, so their distance is always the same.
    """

    pair: Pair
    direction: Floats
    distance: float
    is_added: bool


def attack(
    view: View, pairs: Sequence[Pair], delta: float, runs: int, scouts: int, event: Event
) -> Finding:
    """Attack with the pair that is told apart best.

    Directions come from draws of their own, so the runs that measure stay fresh.

    Args:
        view: what the adversary sees of one neighbour and a noise stream, (d,).
        pairs: neighbours by the claim that is tested.
        delta: at which ε is stated.
        runs: how often each neighbour of the chosen pair is seen.
        scouts: releases of each neighbour that find the direction.
        event: what is seen costs this; it says whether noise is Gaussian.
    """
    aims = [_aim(view, pair, scouts) for pair in pairs]
    if all(aim.is_added for aim in aims):  # to the same noise
        aim = max(aims, key=lambda aim: aim.distance)
    else:
        aim = max(aims, key=lambda aim: _separation(view, aim))
    one, other = _both(view, aim, runs)
    is_normal = aim.is_added and is_gaussian(event, exactly=True)
    fitted = None
    if is_normal:
        fitted = normal_fit(one, other, delta)
    elif is_gaussian(event):
        fitted = gaussian_fit(one, other, delta)
    return Finding(
        aim.pair.name,
        runs,
        counted=audit(one, other, delta),
        fitted=fitted,
        is_normal=is_normal,
        success=max(success(one, other), success(other, one), key=lambda found: found.auc),
    )


def _aim(view: View, pair: Pair, scouts: int) -> _Aim:
    """How releases of the neighbours differ on average, or along a direction that is known.

    Both are drawn from the same noise stream, so that noise which is added cancels. For noise of
    one scale this is the likelihood ratio's direction. What may be chance is left out.

    ``scouts``: how many releases of each are drawn.
    """
    gaps = np.array(
        [
            view(pair.one, NoiseGenerator.seeded("scout", number))
            - view(pair.other, NoiseGenerator.seeded("scout", number))
            for number in range(scouts)
        ]
    )
    mean = gaps.mean(axis=0)
    deviation = gaps.std(axis=0)
    distance = float(np.linalg.norm(mean))
    is_added = bool(np.linalg.norm(deviation) <= _ADDED * distance)
    if pair.direction is not None:
        direction = pair.direction.ravel().astype(np.float64)
    else:
        direction = np.where(np.abs(mean) > 3 * deviation / math.sqrt(scouts), mean, 0.0)
    return _Aim(pair, direction, distance, is_added)


def _separation(view: View, aim: _Aim) -> float:
    """Standard deviations of the noise between the neighbours, along the direction."""
    one, other = _both(view, aim, _TRIED)
    gap = abs(float(one.mean() - other.mean()))
    # Where cohorts are samples, the spread of those without the client is that of the noise.
    spread = float(min(one.std(), other.std()))
    if spread > 0:
        return gap / spread
    if gap > 0:
        return math.inf
    return 0.0


def _both(view: View, aim: _Aim, runs: int) -> tuple[Floats, Floats]:
    """Scores of both neighbours, (runs,) each.

    The i-th of both come from the same fresh noise stream, which changes neither's law and makes
    the distance of their means known at once where noise is added.
    """
    keys = NoiseGenerator.from_os()
    scores = np.empty((runs, 2))
    for row in scores:
        key = keys.bytes(_KEY_BYTES)
        for place, source in enumerate((aim.pair.one, aim.pair.other)):
            row[place] = view(source, NoiseGenerator(key, is_seeded=False)) @ aim.direction
    return scores[:, 0], scores[:, 1]
