"""Distributed discrete Gaussian noise: what many clients add a little of under secure sums.

Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for federated learning with
secure aggregation", ICML 2021 (arXiv 2102.06387). Client i sends x_i + Z_i, masked, with Z_i
discrete Gaussian of σ₁ = σ/√h in every coordinate; over at least h honest survivors the sum holds
noise of variance σ² at least, and whoever survives beyond them only adds noise.

h is the fewest survivors of a sum less those who side with the server, who know their own noise.
With h = 1 nothing is shared: every client's noise protects it alone, against whoever reads its
message.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.checks import require_count, require_positive
from murmur.privacy import events
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.grid import in_steps
from murmur.privacy.noise import NoiseGenerator

_MAX_DEVIATIONS = 12  # a coordinate's noise is beyond them with a probability below 4e-33
_ROUNDING_FACTOR = 1 + 1e-12


@dataclass(frozen=True)
class DistributedGaussian:
    """One client's share of the noise on a sum of integer vectors.

    Attributes:
        sigma: σ of the noise of h clients together, in the units of a contribution.
        sensitivity: L2 norm, in the same units, by which one client's contributions to the sum
            can differ between neighbours.
        honest_clients: h, at least 1.
        grid: the step of the integers, a power of two. With σ ≥ 2¹⁶ steps and σ₁ ≥ 4 steps the
            noise counts as the Gaussian; coarser noise needs ``coordinates`` to count for more
            than one client's own.
        coordinates: where neighbours differ in at most so many coordinates, and in each by 0 or by
            ±sensitivity/√coordinates, which is a whole number of steps: their number. The exact
            law of the sum is then accounted for, however coarse the grid is.

    Raises:
        ValueError: a setting is out of its range, or they do not fit together.
    """

    sigma: float
    sensitivity: float
    honest_clients: int = 1
    grid: float = 1.0
    coordinates: int | None = None

    def __post_init__(self) -> None:
        require_positive("sensitivity", self.sensitivity)
        require_count("honest_clients", self.honest_clients)
        in_steps("sigma of one client", self.share * self.grid, self.grid)
        if self.coordinates is not None:
            change = self._change(self.coordinates)
            if self.coordinates < 1 or abs(change - round(change)) > 1e-9 * change:
                raise ValueError(
                    f"coordinates={self.coordinates}: sensitivity/√coordinates must be a whole "
                    f"number of steps, it is {change:g}"
                )

    @classmethod
    def calibrated(
        cls,
        epsilon: float,
        delta: float,
        sensitivity: float,
        *,
        honest_clients: int = 1,
        releases: int = 1,
        grid: float | None = None,
        coordinates: int | None = None,
        coarsest: float = math.inf,
    ) -> "DistributedGaussian":
        """The least noise with which ``releases`` sums are (``epsilon``, ``delta``)-DP together.

        ``grid``: None for the coarsest, up to ``coarsest``, on which the noise counts as the
        Gaussian.

        Raises:
            ValueError: an argument is out of range, or no noise on this grid meets the budget.
        """
        # Loads SciPy, which those who only add noise of a known size do without.
        from murmur.privacy.accounting import Threat
        from murmur.privacy.accounting import epsilon as epsilon_of
        from murmur.privacy.accounting.calibrate import discrete_noise_multiplier, least_noise
        from murmur.privacy.accounting.gaussian import MIN_CLIENT_SIGMA, MIN_CONTINUOUS_SIGMA

        require_positive("sensitivity", sensitivity)
        sigma = discrete_noise_multiplier(epsilon, delta, releases) * sensitivity
        if grid is None:
            largest = sigma / max(
                MIN_CONTINUOUS_SIGMA, MIN_CLIENT_SIGMA * math.sqrt(honest_clients)
            )
            grid = min(coarsest, 2.0 ** math.floor(math.log2(largest)))  # a power of two

        def mechanism(sigma: float) -> DistributedGaussian:
            return cls(sigma, sensitivity, honest_clients, grid, coordinates)

        def cost(sigma: float) -> float:
            event = events.RepeatedEvent(mechanism(sigma).event(), releases)
            return epsilon_of(event, delta, Threat.SECURE_AGGREGATION).epsilon

        if cost(sigma) <= epsilon:
            return mechanism(sigma)
        least = math.sqrt(honest_clients) * grid / 16
        return mechanism(
            least_noise(cost, epsilon, least * _ROUNDING_FACTOR, 100 * max(sigma, least))
        )

    @property
    def share(self) -> float:
        """σ₁ of one client's noise, in grid steps."""
        return self.sigma / math.sqrt(self.honest_clients) / self.grid * _ROUNDING_FACTOR

    @property
    def max_abs(self) -> int:
        """Bound of one client's noise in grid steps, for which a codec must leave room.

        Noise beyond it, of a probability below 4·10⁻³³ for each coordinate, may be cut.
        """
        return math.ceil(_MAX_DEVIATIONS * self.share)

    def deviation(self, clients: float) -> float:
        """The deviation of the noise of ``clients`` together, in the units of a contribution."""
        return self.share * self.grid * math.sqrt(clients)

    def release(self, unit: events.Unit = events.Unit.CLIENT) -> events.Release:
        """One client's message; ``unit``: whose exchange ``sensitivity`` is about."""
        noised: events.Event
        if self.coordinates is None:
            noised = events.DiscreteGaussianEvent(self.share, self.sensitivity / self.grid)
        else:
            change = float(round(self._change(self.coordinates)))
            one = events.DiscreteGaussianEvent(self.share, change, scalar=True)
            noised = events.RepeatedEvent(one, self.coordinates)
        return events.Release(
            noised, unit, events.Adjacency.REPLACE_ONE, hiding=events.Hiding.NOISE
        )

    def event(self) -> events.Event:
        """One sum, to whoever sees sums only."""
        return events.SummedEvent(self.release(), self.honest_clients)

    def privatize_integers(
        self, k: NDArray[Any], rng: NoiseGenerator, out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """``k``, one client's contribution in grid steps, plus that client's share of the noise.

        ``out``: where it goes, C-contiguous, a new array by default; it may be ``k`` itself.

        Raises:
            ValueError: ``k`` does not hold integers, or one is beyond ±2⁶⁰.
        """
        mechanism = DiscreteGaussian(self.share, self.sensitivity / self.grid)
        return mechanism.privatize_integers(k, rng, out)

    def _change(self, coordinates: int) -> float:
        return self.sensitivity / self.grid / math.sqrt(max(1, coordinates))


class NoNoise:
    """Stands for ``DistributedGaussian`` where nothing is private: adds nothing, and says so."""

    grid = 1.0
    max_abs = 0

    def deviation(self, clients: float) -> float:
        """None."""
        return 0.0

    def release(self, unit: events.Unit = events.Unit.CLIENT) -> events.Event:
        """A message as it is."""
        return events.NonPrivateEvent()

    def privatize_integers(self, k: NDArray[np.int64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """``k`` itself; nothing is drawn."""
        return k


SharedNoise = DistributedGaussian | NoNoise
