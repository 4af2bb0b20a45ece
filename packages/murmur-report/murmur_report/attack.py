"""The attack: telling two neighbours apart by one score of what is seen.

It does so as well as somebody who knows both can. Every vector of a view becomes one score, its
part along the direction in which the neighbours differ; for noise of one scale that is the
likelihood ratio's. ``murmur.privacy.audit`` turns the scores of both into a lower bound on ε.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.audit import (
    Interval,
    Success,
    empirical_profile,
    gaussian_fit,
    normal_fit,
    success,
)
from murmur.privacy.events import Event, is_gaussian
from murmur.privacy.noise import NoiseGenerator
from murmur_report.neighbours import NeighbourPair
from murmur_report.views import View

_KEY_BYTES = 32
TRIED = 64  # releases of each neighbour that show how well a pair is told apart
_ADDED = 1e-3  # by how much less than this the neighbours' distance may vary with added noise


@dataclass(frozen=True)
class AttackResult:
    """Result of an attack: bounds on ε, an estimate of it, and success.

    Attributes:
        neighbours: the pair, in words.
        runs: how often each of the two was seen.
        counted: a lower bound on ε that rests on nothing but the runs.
        profile: lower bounds by δ, the claim's own and others; all of them together rest on nothing
            but the runs.
        estimate: the ε of normal outputs of one variance where ``is_normal``, else of a Gaussian
            trade-off; None where the noise is far from Gaussian.
        is_normal: outputs are known to be normal, if the code adds the noise that it says.
        success: of somebody who guesses which neighbour it was, by the same scores.
    """

    neighbours: str
    runs: int
    counted: float
    profile: dict[float, float]
    estimate: Interval | None
    is_normal: bool
    success: Success

    @property
    def likely(self) -> float:
        """The largest ε at least, if outputs are normal where they are known to be: no proof."""
        if self.is_normal and self.estimate is not None:
            return max(self.counted, self.estimate.low)
        return self.counted


@dataclass(frozen=True)
class _Aim:
    """How a pair is attacked.

    Attributes:
        direction: (d,), along which releases of the two differ.
        distance: by how much, on average.
        is_added: noise only adds to what is seen of the data, so their distance is always the same.
    """

    pair: NeighbourPair
    direction: NDArray[np.float64]
    distance: float
    is_added: bool


def attack(
    view: View, pairs: Sequence[NeighbourPair], delta: float, runs: int, scouts: int, event: Event
) -> AttackResult:
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
    estimate = None
    if is_normal:
        estimate = normal_fit(one, other, delta, shared=True)
    elif is_gaussian(event):
        estimate = gaussian_fit(one, other, delta)
    profile = empirical_profile(one, other, delta)
    return AttackResult(
        aim.pair.name,
        runs,
        counted=profile[delta],
        profile=profile,
        estimate=estimate,
        is_normal=is_normal,
        success=max(success(one, other), success(other, one), key=lambda found: found.auc),
    )


def _aim(view: View, pair: NeighbourPair, scouts: int) -> _Aim:
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
    one, other = _both(view, aim, TRIED)
    gap = abs(float(one.mean() - other.mean()))
    # Where cohorts are samples, the spread of those without the client is that of the noise.
    spread = float(min(one.std(), other.std()))
    if spread > 0:
        return gap / spread
    if gap > 0:
        return math.inf
    return 0.0


def _both(view: View, aim: _Aim, runs: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores of both neighbours, (runs,) each.

    The i-th of both come from the same fresh noise stream, which changes neither's law and makes
    the distance of their means known at once where noise is added.
    """
    keys = NoiseGenerator.from_os()
    scores = np.empty((runs, 2))
    for row in scores:
        key = keys.uint8(_KEY_BYTES).tobytes()
        for place, source in enumerate((aim.pair.one, aim.pair.other)):
            row[place] = view(source, NoiseGenerator(key, is_seeded=False)) @ aim.direction
    return scores[:, 0], scores[:, 1]
