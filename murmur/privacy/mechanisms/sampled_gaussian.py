"""The private half of DP-SGD: secret Poisson lots and discrete Gaussian noise on their sums.

Abadi et al., CCS 2016; accounted for as Gaussian noise
(``murmur.privacy.accounting.gaussian``). Both the lots and the noise come from the noise
stream: amplification by sampling holds only against those who cannot know the sample, and
everybody knows the experiment's seed.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.checks import require_count, require_positive
from murmur.privacy import events
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.record_choice import poisson_sample


@dataclass(frozen=True)
class SampledGaussian:
    """Sums of integer vectors over Poisson samples, with noise.

    Attributes:
        rate: q, the probability with which each record joins a sample, in (0, 1].
        noise_multiplier: σ / sensitivity.
        sensitivity: L2 norm of one record's integer vector at most. Where σ is 2¹⁶ steps or more,
            the noise counts as the Gaussian, below at integer Rényi orders only.
    """

    rate: float
    noise_multiplier: float
    sensitivity: int

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate={self.rate}: must lie in (0, 1]")
        require_positive("noise_multiplier", self.noise_multiplier)
        require_positive("sensitivity", self.sensitivity)
        self._noise()  # what cannot be drawn is refused before anything is charged

    @property
    def sigma(self) -> int:
        """Standard deviation σ of the noise, in whole grid steps, rounded up."""
        return math.ceil(self.noise_multiplier * self.sensitivity)

    def event(self, steps: int = 1) -> events.Event:
        """``steps`` sums."""
        noise = events.DiscreteGaussianEvent(float(self.sigma), float(self.sensitivity))
        return events.RepeatedEvent(events.PoissonSampledEvent(self.rate, noise), steps)

    def sample(self, count: int, rng: NoiseGenerator) -> NDArray[np.bool_]:
        """Which of ``count`` records are in the next sample, (count,)."""
        return poisson_sample(self.rate, count, rng)

    def perturb(self, total: NDArray[np.int64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """``total`` (d,) plus noise."""
        return self._noise().privatize_integers(total, rng)

    def _noise(self) -> DiscreteGaussian:
        """Noise of each step; ValueError where it is too little or too large to be drawn."""
        return DiscreteGaussian(float(self.sigma), float(self.sensitivity))


@dataclass(frozen=True)
class LotSchedule:
    """How often DP-SGD looks at each record: from sizes to steps and their noise.

    Attributes:
        lot_size: expected records in a step, L.
        epochs: passes over the data in one round.
        sensitivity: of one step's sum, in grid steps.
        rounds: how often in all; the budget is for all of them.
        unit: what a budget protects: one record, or all of them. A sum moves by as much as all
            records of its lot together, and that all may be in it gains nothing from sampling.
    """

    lot_size: int
    epochs: int
    sensitivity: int
    rounds: int = 1
    unit: events.Unit = events.Unit.RECORD

    def __post_init__(self) -> None:
        for name in ("lot_size", "epochs", "rounds"):
            require_count(name, getattr(self, name))

    def rate(self, size: int) -> float:
        """Sampling rate q = L/n, at most 1."""
        return min(1.0, self.lot_size / size)

    def steps(self, size: int) -> int:
        """Steps of one round, in which ``epochs`` · n records are expected."""
        return max(1, math.ceil(self.epochs * size / self.lot_size))

    def mechanism(self, epsilon: float, delta: float, size: int) -> SampledGaussian:
        """The least noise with which all rounds on ``size`` records meet the budget.

        Raises:
            ValueError: it is more than can be drawn.
        """
        # Loads SciPy, which those who only add noise of a known size do without.
        from murmur.privacy.accounting import calibrate

        steps = self.rounds * self.steps(size)
        rate = self.rate(size)
        if self.unit is events.Unit.RECORD:
            multiplier = calibrate.sampled_noise_multiplier(
                epsilon, delta, rate, steps, self.sensitivity
            )
        else:
            moved = size * self.sensitivity
            multiplier = size * calibrate.discrete_noise_multiplier(epsilon, delta, steps, moved)
        try:
            return SampledGaussian(rate, multiplier, self.sensitivity)
        except ValueError as error:
            raise ValueError(
                f"epsilon={epsilon:g}: needs noise of {multiplier:,.0f} clipping norms in each "
                "step, more than can be drawn; raise it, or train for fewer steps"
            ) from error

    def event(self, epsilon: float, delta: float, size: int) -> events.Event:
        """One round at that noise: a unit is in a step or, as its null neighbour is, not."""
        mechanism = self.mechanism(epsilon, delta, size)
        steps = self.steps(size)
        if self.unit is events.Unit.RECORD:
            return events.Release(
                mechanism.event(steps), events.Unit.RECORD, events.Adjacency.REPLACE_SPECIAL
            )
        # Whichever of its records are in a lot, ``size`` of them at most are: by convexity the
        # mixture over lots costs no more than the largest lot.
        noise = events.DiscreteGaussianEvent(float(mechanism.sigma), float(size * self.sensitivity))
        # So do fewer that are nulled.
        return events.Release(
            events.RepeatedEvent(noise, steps),
            events.Unit.CLIENT,
            events.Adjacency.REPLACE_SPECIAL,
            in_part=True,
        )

    def describe(self, epsilon: float, delta: float, size: int) -> str:
        """The noise of all rounds, in a few words."""
        multiplier = self.mechanism(epsilon, delta, size).noise_multiplier
        steps = self.rounds * self.steps(size)
        return f"DP-SGD, noise multiplier {multiplier:.3f}, {steps} steps"
