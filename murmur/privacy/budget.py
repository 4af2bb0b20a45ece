"""A privacy budget as its owner states it, and what it leaves for one round.

The settings under ``privacy`` become one ``Budget``; strategies and clients take from it what one
participation may cost, and what it costs then is derived from events, never from the budget.
``Cohorts`` are the public facts about a run to which noise is calibrated beside it.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from murmur.checks import require_count
from murmur.privacy.events import Event, RepeatedEvent, SummedEvent, Unit
from murmur.privacy.search import least_noise

_MAX_BUDGET_FACTOR = 64.0  # how many times the budget one participation may name

THREATS = ("local", "secure_aggregation", "central")
"""The adversaries that a budget can be meant for."""

UNITS = ("client", "record")
"""Whose data a budget can be meant for."""


@dataclass(frozen=True)
class Budget:
    """(``epsilon``, ``delta``) of one unit for the whole run, against one adversary.

    All that a run releases of a unit may cost ``epsilon`` at ``delta`` together, as the accountant
    proves it; ``epsilon=inf`` means no protection.

    Attributes:
        epsilon, delta: of the whole run.
        rounds: of the run.
        threat: against whom (``accounting.Threat``).
        honest_clients: how many clients' noise a sum is sure to hold, where the threat is one that
            sees sums only; else 1.
        participations: rounds in which one client is asked at most; None: all.
        failure: how likely one sum hides nothing, at most.
        prerun_fraction: fraction of μ² reserved for the release before round 1; 0: none.
        unit: whose data it protects, everything that a client holds or one record.
        paper_semantics: whether ``epsilon`` is meant in the terms of the algorithm's paper.
    """

    epsilon: float
    delta: float
    rounds: int = 1
    threat: str = "local"
    honest_clients: int = 1
    participations: int | None = None
    failure: float = 0.0
    prerun_fraction: float = 0.0
    unit: str = "client"
    paper_semantics: bool = False

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon <= 0:
            raise ValueError(
                f"epsilon={self.epsilon}: must be above 0; `inf` switches protection off"
            )
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta={self.delta}: must lie in [0, 1)")
        require_count("rounds", self.rounds)
        if self.participations is not None and not 1 <= self.participations <= self.rounds:
            raise ValueError(
                f"participations={self.participations}: must lie in 1..{self.rounds}, or be None"
            )
        if not 0 <= self.prerun_fraction < 1:
            raise ValueError(f"prerun_fraction={self.prerun_fraction}: must lie in [0, 1)")
        if self.threat not in THREATS:
            raise ValueError(f"threat={self.threat!r}: must be one of {', '.join(THREATS)}")
        if self.unit not in UNITS:
            raise ValueError(f"unit={self.unit!r}: must be one of {', '.join(UNITS)}")

    def require_threat(self, who: str, threats: Collection[str]) -> None:
        """ValueError unless ``who``, which supports ``threats``, supports this budget's."""
        if self.is_private and self.threat not in threats:
            raise ValueError(
                f"threat={self.threat}: {who} supports "
                f"{' or '.join(threats) or 'nobody'}; set privacy.threat to that, or choose another"
            )

    def require_unit(self, who: str, units: Collection[str]) -> None:
        """ValueError unless ``who``, which can protect ``units``, can protect this budget's.

        A paper says itself whom it protects.
        """
        if self.is_private and not self.paper_semantics and self.unit not in units:
            raise ValueError(
                f"unit={self.unit}: {who} protects {' or '.join(f'a {unit}' for unit in units)}; "
                "set privacy.unit to that, or choose another strategy"
            )

    def require_paper(self, who: str, has_one: bool) -> None:
        """ValueError where this is a paper's budget and ``who`` has no paper that states one."""
        if self.paper_semantics and self.is_private and not has_one:
            raise ValueError(
                f"paper=true: {who} has no paper with a budget of its own; leave out privacy=paper"
            )

    @property
    def is_private(self) -> bool:
        """True if there is any protection at all."""
        return math.isfinite(self.epsilon)

    @property
    def protected(self) -> Unit:
        """The unit that the budget protects, as the accountant names it."""
        return Unit(self.unit)

    @property
    def record_unit(self) -> Unit:
        """Unit of algorithms that can protect records: a paper means those."""
        return Unit.RECORD if self.paper_semantics else self.protected

    @property
    def releases(self) -> int:
        """How many participations of one client must keep ``epsilon`` together."""
        if self.participations is None:
            return self.rounds
        return self.participations

    @property
    def delta_of_noise(self) -> float:
        """δ for the noise alone, less the probability that sums have hidden nothing."""
        return max(0.0, self.delta - self._in_all * self.failure)

    @property
    def _in_all(self) -> int:
        """All releases of one client: those of the rounds, and the one before them."""
        return self.releases + (self.prerun_fraction > 0)

    def noise_multiplier(self, part: float, releases: int = 1) -> float:
        """σ/Δ of each of ``releases`` that have ``part`` of the budget together.

        Noise is Gaussian, discrete on a fine grid, in sums where the budget is for these. Parts
        add up, since μ² = Σ(Δ/σ)² does: with releases of parts that sum to 1 the budget is spent.
        """
        from murmur.privacy.accounting.calibrate import discrete_noise_multiplier  # loads SciPy

        every = discrete_noise_multiplier(self.epsilon, self.delta_of_noise, self._in_all)
        return every * math.sqrt(releases / (part * self._in_all))

    def per_round(self, event: Callable[[float], Event]) -> float:
        """The ε of one participation, where ``event(ε)`` is what a participation at ε releases.

        This is the largest ε (to a relative 1e-7, rounded down) with which all of ``releases``
        stay within the budget, as ``threat`` sees them. A paper that calls this has its ε for one
        participation.
        """
        if not self.is_private or self.paper_semantics:
            return self.epsilon
        alone = self.honest_clients == 1
        from murmur.privacy import accounting  # loads SciPy

        def cost(epsilon: float) -> float:
            seen = event(epsilon)
            if not alone:
                seen = SummedEvent(seen, self.honest_clients)
            together = RepeatedEvent(seen, self.releases)
            threat = accounting.Threat(self.threat)
            return accounting.epsilon(together, self.delta_of_noise, threat).epsilon

        # Basic composition allows ε/releases, but for rounding, where ``event`` means what it says.
        most = self.releases / self.epsilon * (1 + 1e-9)
        while cost(1 / most) > self.epsilon and most < _MAX_BUDGET_FACTOR * self.releases:
            most *= 2
        # Many answers of a small ε compose to less than their sum: a participation may name more.
        least = min(most, 1 / (_MAX_BUDGET_FACTOR * self.epsilon))
        return 1 / least_noise(lambda noise: cost(1 / noise), self.epsilon, least, most)


def _once() -> Collection[tuple[int, ...]]:
    return [(1,)]


def _anybody(client: int, number: int) -> bool:
    return True


@dataclass(frozen=True)
class Cohorts:
    """Who takes part when, as an accountant sees it.

    ``clients``: of the federation. ``size``: clients asked in a round (or expected).
    ``rate``: probability with which every client joins each round by itself and in secret; None
    where cohorts can be known, from which nothing is gained. ``patterns``: for known cohorts, the
    rounds (1, 2, …) in which each client is asked; equal ones once. ``includes``: whether a client
    (first) is asked in a round (second); what is drawn in secret may include anybody.
    """

    clients: int = 1
    size: int = 1
    rate: float | None = None
    patterns: Callable[[], Collection[tuple[int, ...]]] = _once
    includes: Callable[[int, int], bool] = _anybody
