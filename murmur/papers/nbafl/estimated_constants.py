"""A short run without noise, and what it shows of the constants of NbAFL's convergence bound.

Every constant is the worst one seen along the path. That is an estimate: nothing bounds it
elsewhere. What a bound leaves out, the run measures as well: by how much a round really shrinks
the loss, by how much noise of a given size really raises it, and how much of that the next round
leaves. The mean noise is zero, so without a bound's caution its first-order effect vanishes:
E F(w + n) − F(w) ≈ ½ c E‖n‖², with c the mean curvature over all directions (the bound takes the
largest, ρ, and β‖n‖ besides).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from murmur.learning.training.trainer import Trainer
from murmur.papers.nbafl.convergence import Curve

Parameters = NDArray[np.float32]
Local = Callable[[int, int, Parameters], Parameters]
"""Local training: (round, client, global parameters) to the client's parameters."""

# Noise is raised until it costs this share of the loss: well above rounding, still local.
_NOTICEABLE = 0.1
_DIRECTIONS = 4


@dataclass(frozen=True)
class Shards:
    """All clients' examples: ``rows`` of ``images`` (N, C, H, W) and ``labels`` (N,)."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    rows: Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class EstimatedConstants:
    """What the run showed; the first five as in ``murmur.papers.nbafl.convergence.Constants``.

    Attributes:
        smoothness: ρ.
        lipschitz: β.
        pl: l.
        dissimilarity: B.
        gap: Θ.
        contraction: what one round leaves of the loss, geometric mean over the run.
        curvature: c.
        retention: what one round leaves of the cost of noise, at most 1.
        losses: the global loss after 0, 1, … rounds.
    """

    smoothness: float
    lipschitz: float
    pl: float
    dissimilarity: float
    gap: float
    contraction: float
    curvature: float
    retention: float
    losses: tuple[float, ...]

    def curve(self, dimension: int) -> Curve:
        """The measured counterpart of the bound, of the same form: an estimate, no bound."""
        quadratic = self.curvature / 2
        return Curve(self.contraction, self.gap, 0.0, quadratic, dimension, self.retention)

    @classmethod
    def run(
        cls,
        trainer: Trainer,
        data: Shards,
        parameters: Parameters,
        local: Local,
        rounds: int,
        rng: np.random.Generator,
    ) -> EstimatedConstants:
        """Average ``rounds`` times over all clients from ``parameters`` (d,) on, and look.

        F is the mean of the clients' losses; F* counts as 0, below which no cross-entropy goes.
        The trainer's present parameters are overwritten.

        Raises:
            ValueError: ``rounds`` is below 1, or training diverges or stands still.
        """
        if rounds < 1:
            raise ValueError(f"estimate={rounds}: must be at least 1 round")
        weights, looks = parameters, []
        for number in range(1, rounds + 2):
            look = _Look.at(trainer, data, weights)
            if not math.isfinite(look.loss):
                raise ValueError(f"estimate={rounds}: training diverges; lower the learning rate")
            looks.append(look)
            if number <= rounds:
                weights = _average(data, local, number, weights)
        losses = tuple(look.loss for look in looks)
        if not losses[-1] < losses[0]:
            raise ValueError(
                f"estimate={rounds}: the loss goes from {losses[0]:.4g} to {losses[-1]:.4g}; train "
                "more or with another learning rate"
            )
        return cls(
            smoothness=max(a.turn(b) / a.distance(b) for a, b in pairwise(looks)),
            lipschitz=max(look.steepness for look in looks),
            pl=min(look.steepness**2 / (2 * look.loss) for look in looks),
            dissimilarity=max(1.0, *(look.spread / look.steepness for look in looks)),
            gap=losses[0],
            contraction=(losses[-1] / losses[0]) ** (1 / rounds),
            **_noise(trainer, data, looks[-1], partial(_average, data, local, rounds + 1), rng),
            losses=losses,
        )


@dataclass(frozen=True)
class _Look:
    """F, ∇F and √(mean ‖∇F_i‖²) at ``weights``."""

    weights: Parameters
    loss: float
    gradient: NDArray[np.float64]
    spread: float

    @classmethod
    def at(cls, trainer: Trainer, data: Shards, weights: Parameters) -> _Look:
        squares, total = [], np.zeros(len(weights))
        for rows in data.rows:
            trainer.load(weights)
            # One step of length 1 on all examples: the difference is the gradient.
            trainer.train(
                data.images,
                data.labels,
                indices=rows,
                rng=np.random.default_rng(0),
                batch_size=len(rows),
                steps=1,
                lr=1.0,
            )
            gradient = weights.astype(np.float64) - trainer.parameters()
            squares.append(float(gradient @ gradient))
            total += gradient
        spread = math.sqrt(float(np.mean(squares)))
        return cls(weights, _loss(trainer, data, weights), total / len(data.rows), spread)

    @property
    def steepness(self) -> float:
        return float(np.linalg.norm(self.gradient))

    def turn(self, other: _Look) -> float:
        return float(np.linalg.norm(other.gradient - self.gradient))

    def distance(self, other: _Look) -> float:
        return float(np.linalg.norm(other.weights.astype(np.float64) - self.weights))


def _loss(trainer: Trainer, data: Shards, weights: Parameters) -> float:
    trainer.load(weights)
    shards = ((data.images[rows], data.labels[rows]) for rows in data.rows)
    return float(np.mean([trainer.evaluate(images, labels).loss for images, labels in shards]))


def _average(data: Shards, local: Local, number: int, weights: Parameters) -> Parameters:
    """The mean of all clients' parameters after local training from ``weights``."""
    clients = range(len(data.rows))
    total = sum(local(number, client, weights).astype(np.float64) for client in clients)
    return np.asarray(total / len(data.rows), np.float32)


def _noise(
    trainer: Trainer,
    data: Shards,
    look: _Look,
    average: Callable[[Parameters], Parameters],
    rng: np.random.Generator,
) -> dict[str, float]:
    """The curvature and the retention at ``look``, from noise just large enough to be noticed."""
    size = len(look.weights)
    directions = rng.standard_normal((_DIRECTIONS, size), dtype=np.float32)
    sigma = 1e-4 * float(np.linalg.norm(look.weights)) / math.sqrt(size)
    while True:
        # Both signs, so that the first order cancels.
        noised = [look.weights + sign * sigma * n for n in directions for sign in (1, -1)]
        excess = [_loss(trainer, data, w) - look.loss for w in noised]
        cost = float(np.mean(excess))
        if not cost < _NOTICEABLE * look.loss:
            break
        sigma *= 2
    # One direction tells enough, and a round for each would cost more than the whole run.
    base = _loss(trainer, data, average(look.weights))
    after = [_loss(trainer, data, average(w)) - base for w in noised[:2]]
    kept = float(np.mean(after)) / float(np.mean(excess[:2]))
    return {"curvature": 2 * cost / (sigma**2 * size), "retention": min(1.0, max(0.0, kept))}
