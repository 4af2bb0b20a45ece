"""What a planner says of a run's score from public numbers alone."""

import math
from dataclasses import dataclass

from murmur.privacy.accounting.gaussian import epsilon_of_mu
from murmur.privacy.budget import Budget

# MNIST and Fashion-MNIST, with the same public numbers, keep 0.93 and 0.79 (research/owners).
_SPREAD = (
    "how much is kept depends on how the classes lie in the features, which nothing public says"
)


@dataclass(frozen=True)
class Foretold:
    """The share of the same algorithm's score without noise, or what would help, foretold.

    Attributes:
        ratio: signal to noise, above 0; it grows with units and with μ(ε), and falls with classes.
        share: what is kept; None: no rule tells it from public numbers.
        budget: private.
        units: of what the sum is over.
        unit: what these are, "owners" or "records".
        classes: C; the ratio falls as the root of C.
        least: the ratio below which noise drowns what the units say.
        wanted: the ratio at which 0.9 is kept; None: no rule tells.
    """

    ratio: float
    share: float | None
    budget: Budget
    units: int
    unit: str
    classes: int
    least: float
    wanted: float | None = None

    def text(self) -> str:
        """One sentence, and where more would help a second one: how much of what."""
        return "; ".join([f"signal-to-noise ratio {self.ratio:.2g}", self.kept(), *self.helps()])

    def kept(self) -> str:
        """The share of the score that noise leaves, in words."""
        if self.is_drowned:
            return (
                f"not at this budget: at ε = {self.budget.epsilon:g} the noise drowns what "
                f"{self.units} {self.unit} say together"
            )
        if self.share is None:
            return f"no share is foretold: {_SPREAD}"
        return (
            f"about {self.share:.2f} of the score without noise, if length and shrinkage suit the "
            "budget"
        )

    def helps(self) -> list[str]:
        """How much of what would help; nothing where none is needed."""
        if self.ratio >= self._aim:
            return []
        found = [f"{self.more_units()} {self.unit}", f"ε = {self.larger_epsilon():.2g}"]
        if self.fewer_classes() >= 2:
            found.append(f"{self.fewer_classes()} classes")
        aim = "to stand above the noise" if self.wanted is None else "for 0.9 of it"
        return [f"{aim}: {', or '.join(found)}"]

    @property
    def is_drowned(self) -> bool:
        """True if the noise drowns the signal of the units."""
        return self.ratio < self.least

    @property
    def _aim(self) -> float:
        """The ratio that what would help is reckoned for."""
        return self.least if self.wanted is None else self.wanted

    def more_units(self) -> int:
        """How many units would do, all else as it is."""
        return math.ceil(self.units * self._aim / self.ratio)

    def larger_epsilon(self) -> float:
        """The ε that would."""
        mu = self._aim / self.ratio / self.budget.noise_multiplier(1.0)
        return epsilon_of_mu(mu, self.budget.delta_of_noise)

    def fewer_classes(self) -> int:
        """How many classes would; below 2: no number of them."""
        return math.floor(self.classes * (self.ratio / self._aim) ** 2)
