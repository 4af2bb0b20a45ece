"""What a planner says of a run's score before anybody is asked, from public numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from murmur.privacy.accounting.gaussian import epsilon_of_mu
from murmur.privacy.budget import Budget


@dataclass(frozen=True)
class Foretold:
    """The share of the same algorithm's score without noise, or what would help.

    Attributes:
        ratio: signal to noise, above 0; it grows with units and with μ(ε), and falls with classes.
        share: what is kept; None: nothing can be foretold, the noise is too large.
        budget: private.
        units: of what the sum is over.
        unit: what these are, "owners" or "records".
        classes: C; the ratio falls as C^−``fall``.
        fall: see there.
        wanted: the ratio at which 0.9 is kept.
        how: "about", or "at most about" where features can lose more.
    """

    ratio: float
    share: float | None
    budget: Budget
    units: int
    unit: str
    classes: int
    fall: float
    wanted: float
    how: str = "about"

    def text(self) -> str:
        """One sentence, and where less than 0.9 is kept a second one: what would keep that much."""
        said = (
            f"not at this budget: at ε = {self.budget.epsilon:g} the noise drowns what "
            f"{self.units} {self.unit} say together (signal to noise {self.ratio:.2g})"
        )
        if self.share is not None:
            said = (
                f"{self.how} {self.share:.2f} of the score without noise, if length and shrinkage "
                f"suit the budget (signal to noise {self.ratio:.3g})"
            )
        if self.ratio >= self.wanted:
            return said
        helps = [f"{self.more_units()} {self.unit}", f"ε = {self.larger_epsilon():.2g}"]
        if self.fewer_classes() >= 2:
            helps.append(f"{self.fewer_classes()} classes")
        return f"{said}; for 0.9 of it: {', or '.join(helps)}"

    def more_units(self) -> int:
        """How many units would keep 0.9, all else as it is."""
        return math.ceil(self.units * self.wanted / self.ratio)

    def larger_epsilon(self) -> float:
        """The ε that would."""
        mu = self.wanted / self.ratio / self.budget.noise_multiplier(1.0)
        return epsilon_of_mu(mu, self.budget.delta_of_noise)

    def fewer_classes(self) -> int:
        """How many classes would; below 2: no number of them."""
        return math.floor(self.classes * (self.ratio / self.wanted) ** (1 / self.fall))
