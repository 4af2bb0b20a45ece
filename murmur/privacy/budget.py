"""A privacy budget as its owner states it, and what it leaves for one round.

The settings under ``privacy`` become one ``Budget``; strategies and clients take from it what one
participation may cost, and what it costs then is derived from events, never from the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from murmur.common import require_count
from murmur.privacy.events import Event, RepeatedEvent, SummedEvent
from murmur.privacy.search import least_noise

_MOST = 64.0  # how many times the budget one participation may name

THREATS = ("local", "secure_aggregation", "central")
"""The adversaries that a budget can be meant for."""


@dataclass(frozen=True)
class Budget:
    """(``epsilon``, ``delta``) for one client, spent anew each round or once in the whole run.

    ``per="round"``: every participation may cost ``epsilon``. ``per="run"``: all participations of
    a client together may cost ``epsilon`` at ``delta``, as the accountant proves it. ``rounds``: of
    the run; ``participations``: those in which one client is asked at most, None for all.
    ``threat``: against whom (``accounting.Threat``). ``honest_clients``: how many clients' noise a
    sum is sure to hold, where the threat is one that sees sums only; else 1. ``failure``: how
    likely one sum hides nothing, at most. ``aside``: of the budget as a Gaussian's μ², the part of
    one release before the rounds; 0: there is none. ``epsilon=inf`` means no protection.
    """

    epsilon: float
    delta: float
    per: str = "round"
    rounds: int = 1
    threat: str = "local"
    honest_clients: int = 1
    participations: int | None = None
    failure: float = 0.0
    aside: float = 0.0

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon <= 0:
            raise ValueError(
                f"epsilon={self.epsilon}: must be above 0; `inf` switches protection off"
            )
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta={self.delta}: must lie in [0, 1)")
        if self.per not in ("round", "run"):
            raise ValueError(f"per={self.per!r}: must be 'round' or 'run'")
        require_count("rounds", self.rounds)
        if self.participations is not None and not 1 <= self.participations <= self.rounds:
            raise ValueError(
                f"participations={self.participations}: must lie in 1..{self.rounds}, or be None"
            )
        if not 0 <= self.aside < 1:
            raise ValueError(f"aside={self.aside}: must lie in [0, 1)")
        if self.threat not in THREATS:
            raise ValueError(f"threat={self.threat!r}: must be one of {', '.join(THREATS)}")

    def require_threat(self, who: str, threats: Collection[str]) -> None:
        """ValueError unless ``who``, which supports ``threats``, supports this budget's."""
        if self.is_private and self.threat not in threats:
            raise ValueError(
                f"threat={self.threat}: {who} supports "
                f"{' or '.join(threats) or 'nobody'}; set privacy.threat to that, or choose another"
            )

    @property
    def is_private(self) -> bool:
        """Whether there is any protection at all."""
        return math.isfinite(self.epsilon)

    @property
    def releases(self) -> int:
        """How many participations of one client must keep ``epsilon`` together."""
        if self.per == "round":
            return 1
        if self.participations is None:
            return self.rounds
        return self.participations

    @property
    def delta_of_noise(self) -> float:
        """What of ``delta`` is left for noise, once sums may have hidden nothing."""
        return max(0.0, self.delta - self._in_all * self.failure)

    @property
    def _in_all(self) -> int:
        """All releases of one client: those of the rounds, and the one before them."""
        return self.releases + (self.aside > 0)

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
        stay within the budget, as ``threat`` sees them.
        """
        alone = self.honest_clients == 1
        if not self.is_private or (alone and self.per == "round"):
            return self.epsilon
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
        while cost(1 / most) > self.epsilon and most < _MOST * self.releases:
            most *= 2
        # Many answers of a small ε compose to less than their sum: a participation may name more.
        least = min(most, 1 / (_MOST * self.epsilon))
        return 1 / least_noise(lambda noise: cost(1 / noise), self.epsilon, least, most)
