"""NbAFL's convergence bound: how far a run is from the optimum, for its rounds and its noise.

Wei et al., IEEE TIFS 15 (2020), arXiv 1911.00222, theorem 2. After T rounds the expected loss
is above the least one F* by at most

    h(T) = P^T Θ + (1 − P^T)/(1 − P) · (λ₁ β E‖n‖ + λ₀ E‖n‖²)

    λ₀ = ρ/2,  λ₁ = 1 + ρB/μ,  λ₂ = −1/μ + ρB/μ² + ρB²/(2μ²),  P = 1 + 2lλ₂

with n the noise in the broadcast model, of standard deviation s in each of d coordinates. The
paper treats n as one number: E‖n‖ = s√(2/π), E‖n‖² = s². For a vector they are at most s√d and
d·s². It needs λ₂ < 0, that is μ > ρB + ρB²/2.

``murmur.papers.nbafl.estimated_constants`` estimates the constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from murmur.common import require_positive


@dataclass(frozen=True)
class Constants:
    """What the bound needs to know of the problem.

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

    smoothness: float
    lipschitz: float
    pl: float
    dissimilarity: float
    gap: float
    proximal_mu: float

    def __post_init__(self) -> None:
        for name in ("smoothness", "lipschitz", "pl", "dissimilarity", "gap"):
            require_positive(name, getattr(self, name))
        if not (self.proximal_mu >= 0 and math.isfinite(self.proximal_mu)):
            raise ValueError(f"proximal_mu={self.proximal_mu}: must be finite and at least 0")

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
        mu, drift = self.proximal_mu, self.smoothness * self.dissimilarity
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
    def of(cls, constants: Constants, dimension: int | None = None) -> Curve:
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
        """The bound h after ``rounds`` rounds, each broadcast with noise of ``sigma``."""
        if self.dimension is None:
            mean, square = sigma * math.sqrt(2 / math.pi), sigma**2
        else:
            mean, square = sigma * math.sqrt(self.dimension), sigma**2 * self.dimension
        kept = self.contraction if self.retention is None else self.retention
        times = rounds if kept == 1 else (1 - kept**rounds) / (1 - kept)
        each = self.linear * mean + self.quadratic * square
        return self.contraction**rounds * self.gap + times * each
