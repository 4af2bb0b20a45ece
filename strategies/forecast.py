"""Forecast of what noise leaves of a run's score, from public settings alone.

No promise about accuracy: how far what clients agree on stands above the noise follows from public
numbers, and what a model makes of that does not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from murmur.privacy.accounting.gaussian import epsilon_of_mu
from murmur.privacy.budget import Budget
from murmur.round.setup import ServerSetup

FEWER_NUMBERS = "fewer numbers to release (a smaller model, fewer features)"
ONE_RELEASE = "strategy=class_statistics"

_HALF_RATIO = 0.59  # at which half of the gain over chance is kept
# MNIST and Fashion-MNIST, with the same public numbers, keep 0.93 and 0.79 (research/owners).
_NO_SHARE = (
    "no share is foretold: how much is kept depends on how the classes lie in the features, which "
    "nothing public says"
)
_SUITED = ", if length and shrinkage suit the budget"
_OWN_DATA = (
    "about what each client's model learns from its own data, which is not noised; what comes of "
    "the others' is seen beside strategy=local_only"
)


@dataclass(frozen=True)
class Rule:
    """Signal-to-noise ratios from which on a score stands above the noise.

    Attributes:
        min_ratio: Below it nothing is learnt.
        help_below: The ratio below which a forecast names what would help.
        aim: The ratio that this help is computed for.
    """

    min_ratio: float
    help_below: float
    aim: float


GAIN = Rule(min_ratio=0.5, help_below=1.5, aim=3.0)
"""A share of the gain over chance is kept."""
SCORE = Rule(min_ratio=1.0, help_below=2.0, aim=2.0)
"""A share of the score itself is kept; the aim keeps 0.9 of it."""
THRESHOLD = Rule(min_ratio=8.0, help_below=8.0, aim=8.0)
"""No share follows from public numbers; below it nothing is kept (digits, PneumoniaMNIST)."""


def kept_share(ratio: float, rule: Rule) -> float | None:
    """Returns the share that noise leaves at a signal-to-noise ratio; None: no rule tells it.

    ``GAIN``: a curve through single runs on digits, 0.45 at 0.53, 0.88 at 1.2, 0.92 at 1.8.
    ``SCORE``: 1 − 0.2/R, found on MNIST and Fashion-MNIST without a pool and checked on others
    (``python -m research.planner.owners``). Where it is little, it is none.
    """
    if ratio < rule.min_ratio:
        return 0.0
    if rule is GAIN:
        return ratio**3 / (ratio**3 + _HALF_RATIO**3)
    if rule is SCORE:
        return 1 - 0.2 / ratio
    return None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What noise leaves of the score that the same algorithm has without noise.

    Attributes:
        ratio: Signal-to-noise ratio over the whole run, above 0: of what a cohort says if all
            agree, so the most that can be hoped for. None: models learn from clients' own data
            without noise, whatever a sum says.
        budget: Of the run.
        units: Number of clients, or of owners or records that a sum is over.
        unit: What these are, in the plural.
        strategy: Name in the configuration.
        rule: How the kept share follows from the ratio.
        classes: C, where a sum over fewer classes has less noise; 0: it has not.
        helps: Changes of the algorithm's own that would raise the ratio.
        noise: The noise of a round's sum, by name, for `murmur advise`.
        chance: Score of guessing; None: not known yet.
        clean: Score without noise, estimated; None: not known.
        score: Name of the score before its value, with a space; empty for the accuracy.
    """

    ratio: float | None
    budget: Budget
    units: int
    unit: str = "clients"
    strategy: str = ""
    rule: Rule = GAIN
    classes: int = 0
    helps: tuple[str, ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)
    chance: float | None = None
    clean: float | None = None
    score: str = ""

    @classmethod
    def of(
        cls,
        setup: ServerSetup,
        ratio: float | None,
        helps: tuple[str, ...] = (FEWER_NUMBERS, ONE_RELEASE),
        noise: Mapping[str, float] | None = None,
    ) -> Self:
        """Returns the forecast of a run in which clients of ``setup`` agree at ``ratio``."""
        return cls(
            ratio=ratio,
            budget=setup.budget,
            units=setup.num_clients,
            strategy=setup.strategy,
            helps=helps,
            noise=noise or {},
        )

    @property
    def share(self) -> float | None:
        """The share that is kept: of the gain over chance, or of the score; None: not known."""
        if self.ratio is None:
            return None
        return kept_share(self.ratio, self.rule)

    @property
    def is_drowned(self) -> bool:
        """True if the noise drowns what is released."""
        return self.ratio is not None and self.ratio < self.rule.min_ratio

    @property
    def noised(self) -> float | None:
        """Score that is expected with noise; None: not known."""
        if self.share is None or self.clean is None or self.chance is None:
            return None
        base = self.chance if self.rule is GAIN else 0.0
        return base + self.share * (self.clean - base)

    def text(self) -> str:
        """Returns one sentence, and where something would help a second one."""
        if self.ratio is None:
            return _OWN_DATA
        parts = [f"signal-to-noise ratio {self.ratio:.2g}", self._kept()]
        if self.ratio < self.rule.help_below:
            parts.append(self._help())
        return "; ".join(parts)

    def _kept(self) -> str:
        """What is left of the score, in words."""
        if self.is_drowned:
            return self._nothing()
        share, chance = self.share, self.chance
        if share is None:
            return _NO_SHARE
        of = "what it gains over chance" if self.rule is GAIN else "its score"
        suited = _SUITED if self.rule is SCORE else ""
        if chance is None:
            of = "the gain over chance" if self.rule is GAIN else "the score"
            said = f"about {share:.2f} of {of} without noise"
        elif self.clean is not None:
            reached = f"{self.score}{self.noised:.2f}"
            said = f"expect about {reached} (without noise {self.clean:.2f}; chance {chance:.2f})"
        elif self.rule is GAIN:
            said = f"expect about {share:.0%} of {of} ({chance:.2f}) without noise"
        else:
            said = f"expect about {share:.0%} of {of} without noise (chance {chance:.2f})"
        return said + suited

    def _nothing(self) -> str:
        """Says that the noise drowns what is released."""
        if self.chance is not None:
            return f"expect no better than chance ({self.score}{self.chance:.2f})"
        return (
            f"not at this budget: at ε = {self.budget.epsilon:g} the noise drowns what "
            f"{self.units} {self.unit} say together"
        )

    def _help(self) -> str:
        """What would bring the ratio to the rule's aim, in words."""
        if self.rule is GAIN:
            parts = [f"about {self.more_units():,} {self.unit} instead of {self.units}"]
            if self.budget.rounds > 1:
                parts.append(f"fewer rounds than {self.budget.rounds}")
            return (
                f"what would help: {', '.join([*parts, *self.helps])}; `murmur advise settings "
                f"strategy={self.strategy}` scores settings on public data"
            )
        found = [f"{self.more_units()} {self.unit}", f"ε = {self.larger_epsilon():.2g}"]
        if self.fewer_classes() >= 2:
            found.append(f"{self.fewer_classes()} classes")
        aim = "for 0.9 of it" if self.rule is SCORE else "to stand above the noise"
        return f"{aim}: {', or '.join(found)}"

    def more_units(self) -> int:
        """Returns how many units would reach the rule's aim, all else as it is."""
        factor = self._missing()
        if self.rule is GAIN and self.budget.threat == "local":
            factor = factor**2  # noise of n clients grows as √n, where nobody's hides another's
        return math.ceil(self.units * factor)

    def larger_epsilon(self) -> float:
        """Returns the ε that would reach the rule's aim."""
        mu = self._missing() / self.budget.noise_multiplier(1.0)
        return epsilon_of_mu(mu, self.budget.delta_of_noise)

    def fewer_classes(self) -> int:
        """Returns how many classes would reach the rule's aim; below 2: no number of them."""
        return math.floor(self.classes / self._missing() ** 2)

    def _missing(self) -> float:
        """The factor from the ratio to the rule's aim."""
        assert self.ratio is not None
        return self.rule.aim / self.ratio
