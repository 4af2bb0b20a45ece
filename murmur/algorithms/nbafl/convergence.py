"""NbAFL's convergence bound, and a short run without noise that estimates its constants.

Wei et al., IEEE TIFS 15 (2020), arXiv 1911.00222, theorem 2. After T rounds the expected loss
is above the least one F* by at most

    h(T) = P^T Θ + (1 − P^T)/(1 − P) · (λ₁ β E‖n‖ + λ₀ E‖n‖²)

    λ₀ = ρ/2,  λ₁ = 1 + ρB/μ,  λ₂ = −1/μ + ρB/μ² + ρB²/(2μ²),  P = 1 + 2lλ₂

with n the noise in the broadcast model, of standard deviation s in each of d coordinates. The
paper treats n as one number: E‖n‖ = s√(2/π), E‖n‖² = s². For a vector they are at most s√d and
d·s². It needs λ₂ < 0, that is μ > ρB + ρB²/2 (``Constants``, ``Curve``).

In the run (``EstimatedConstants``) every constant is the worst one seen along the path. That is an
estimate: nothing bounds it elsewhere. What a bound leaves out, the run measures as well: by how
much a round really shrinks the loss, by how much noise of a given size really raises it, and how
much of that the next round leaves. The mean noise is zero, so without a bound's caution its
first-order effect vanishes: E F(w + n) − F(w) ≈ ½ c E‖n‖², with c the mean curvature over all
directions (the bound takes the largest, ρ, and β‖n‖ besides). ``murmur advise rounds`` reads both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.examples import LocalData
from murmur.learning.training.trainer import Trainer
from murmur.settings import NotNegative, Positive, settings

Parameters = NDArray[np.float32]
Local = Callable[[int, int, Parameters], Parameters]
"""Local training: (round, client, global parameters) to the client's parameters."""

# Noise is raised until it costs this share of the loss: well above rounding, still local.
_NOTICEABLE = 0.1
_DIRECTIONS = 4


@settings
class Constants:
    """Constants of the problem that the bound depends on.

    Attributes:
        smoothness: ρ, Lipschitz constant of the global loss's gradient.
        lipschitz: β, Lipschitz constant of the global loss.
        pl: l of the Polyak-Łojasiewicz inequality ‖∇F‖² ≥ 2l (F − F*).
        dissimilarity: B, E‖∇F_i‖² ≤ B²‖∇F‖².
        gap: Θ, F − F* before the first round.
        proximal_mu: μ; 0 for no proximal term, with which the bound does not hold.

    Raises:
        ValueError: a constant is not finite and above 0 (μ: at least 0).
    """

    smoothness: Positive
    lipschitz: Positive
    pl: Positive
    dissimilarity: Positive
    gap: Positive
    proximal_mu: NotNegative

    @property
    def lambda0(self) -> float:
        """λ₀."""
        return self.smoothness / 2

    @property
    def lambda1(self) -> float:
        """λ₁; infinite without a proximal term."""
        if self.proximal_mu == 0:
            return math.inf
        return 1 + self.smoothness * self.dissimilarity / self.proximal_mu

    @property
    def lambda2(self) -> float:
        """λ₂; below 0 where a round without noise makes progress for certain."""
        mu = self.proximal_mu
        drift = self.smoothness * self.dissimilarity
        if mu == 0:
            return math.inf
        return -1 / mu + drift / mu**2 + drift * self.dissimilarity / (2 * mu**2)

    @property
    def contraction(self) -> float:
        """P."""
        return 1 + 2 * self.pl * self.lambda2

    @property
    def least_mu(self) -> float:
        """ρB + ρB²/2: the bound needs a μ above it."""
        drift = self.smoothness * self.dissimilarity
        return drift + drift * self.dissimilarity / 2

    def failure(self) -> str | None:
        """Why the bound says nothing for these constants; None if it does."""
        if self.lambda2 >= 0:
            return (
                f"λ₂={self.lambda2:.4g} is not below 0: the paper assumes a proximal term "
                f"μ > ρB + ρB²/2 = {self.least_mu:.4g}, and here μ={self.proximal_mu:g}, so that "
                "no contraction P < 1 of a round follows"
            )
        if self.contraction <= 0:
            return (
                f"P={self.contraction:.4g} is not above 0: l={self.pl:g} is too large for "
                f"μ={self.proximal_mu:g}; no loss is both {self.smoothness:g}-smooth and of "
                "this l"
            )
        return None


@dataclass(frozen=True)
class Curve:
    """The bound with everything but T and the noise fixed.

    Attributes:
        contraction: P, what a round leaves of the distance to the optimum.
        gap: Θ.
        linear: λ₁β, on E‖n‖.
        quadratic: λ₀, on E‖n‖².
        dimension: d for noise taken as a vector; None for the paper's, which takes it as a number.
        retention: what a round leaves of what earlier noise has cost; P in the bound.
    """

    contraction: float
    gap: float
    linear: float
    quadratic: float
    dimension: int | None = None
    retention: float | None = None

    @classmethod
    def of(cls, constants: Constants, dimension: int | None = None) -> "Curve":
        """The paper's bound; ValueError where its assumption fails."""
        failure = constants.failure()
        if failure is not None:
            raise ValueError(f"proximal_mu={constants.proximal_mu}: {failure}")
        return cls(
            constants.contraction,
            constants.gap,
            constants.lambda1 * constants.lipschitz,
            constants.lambda0,
            dimension,
        )

    def value(self, rounds: int, sigma: float) -> float:
        """The bound h on the loss above F*, after T rounds.

        Args:
            rounds: T, at least 0.
            sigma: standard deviation of the noise on a coordinate of the broadcast model.
        """
        mean = sigma * math.sqrt(2 / math.pi)
        square = sigma**2
        if self.dimension is not None:
            mean = sigma * math.sqrt(self.dimension)
            square = sigma**2 * self.dimension
        if self.retention is None:
            kept = self.contraction
        else:
            kept = self.retention
        times = float(rounds)
        if kept != 1:
            times = (1 - kept**rounds) / (1 - kept)
        each = self.linear * mean + self.quadratic * square
        return self.contraction**rounds * self.gap + times * each


@dataclass(frozen=True)
class EstimatedConstants:
    """Constants as a run showed them; the first five as in ``Constants``.

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
        data: Sequence[LocalData],
        parameters: Parameters,
        local: Local,
        rounds: int,
        rng: np.random.Generator,
    ) -> "EstimatedConstants":
        """Average ``rounds`` times over all clients from ``parameters`` (d,) on, and look.

        F is the mean of the clients' losses; F* counts as 0, below which no cross-entropy goes. The
        trainer's present parameters are overwritten. Nothing is noised for privacy: the figures are
        for whoever holds the data.

        Args:
            trainer: its model and loss.
            data: each client's examples.
            parameters: (d,), where the run begins.
            local: trains one client, without noise.
            rounds: how many, at least 1; one more is trained to see what a round leaves of noise.
            rng: draws the directions of the noise that is tried.

        Raises:
            ValueError: ``rounds`` is below 1, or training diverges or stands still.
        """
        if rounds < 1:
            raise ValueError(f"estimate={rounds}: must be at least 1 round")
        weights = parameters
        looks = []
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
    def at(cls, trainer: Trainer, data: Sequence[LocalData], weights: Parameters) -> "_Look":
        squares = []
        total = np.zeros(len(weights))
        for one in data:
            trainer.load(weights)
            # One step of length 1 on all examples: the difference is the gradient.
            trainer.train(
                one.images,
                one.labels,
                indices=one.indices,
                rng=np.random.default_rng(0),
                batch_size=len(one),
                steps=1,
                lr=1.0,
            )
            gradient = weights.astype(np.float64) - trainer.parameters()
            squares.append(float(gradient @ gradient))
            total += gradient
        spread = math.sqrt(float(np.mean(squares)))
        return cls(weights, _loss(trainer, data, weights), total / len(data), spread)

    @property
    def steepness(self) -> float:
        return float(np.linalg.norm(self.gradient))

    def turn(self, other: "_Look") -> float:
        return float(np.linalg.norm(other.gradient - self.gradient))

    def distance(self, other: "_Look") -> float:
        return float(np.linalg.norm(other.weights.astype(np.float64) - self.weights))


def _loss(trainer: Trainer, data: Sequence[LocalData], weights: Parameters) -> float:
    trainer.load(weights)
    shards = ((one.images[one.indices], one.labels[one.indices]) for one in data)
    return float(np.mean([trainer.evaluate(images, labels).loss for images, labels in shards]))


def _average(
    data: Sequence[LocalData], local: Local, number: int, weights: Parameters
) -> Parameters:
    """The mean of all clients' parameters after local training from ``weights``."""
    clients = range(len(data))
    total = sum(local(number, client, weights).astype(np.float64) for client in clients)
    return np.asarray(total / len(data), np.float32)


def _noise(
    trainer: Trainer,
    data: Sequence[LocalData],
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
