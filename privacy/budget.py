"""A privacy budget as its owner states it, and what it leaves for one round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from privacy.events import Event, RepeatedEvent


@dataclass(frozen=True)
class Budget:
    """(``epsilon``, ``delta``) for one client, spent anew each round or once in the whole run.

    ``per="round"``: every participation may cost ``epsilon``. ``per="run"``: all ``rounds``
    participations together may cost ``epsilon`` at ``delta``, as the accountant proves it.
    ``epsilon=inf`` means no protection.
    """

    epsilon: float
    delta: float
    per: str = "round"
    rounds: int = 1

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon <= 0:
            raise ValueError(
                f"epsilon={self.epsilon}: must be above 0; `inf` switches protection off"
            )
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta={self.delta}: must lie in [0, 1)")
        if self.per not in ("round", "run"):
            raise ValueError(f"per={self.per!r}: must be 'round' or 'run'")
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds}: must be at least 1")

    @property
    def is_private(self) -> bool:
        """Whether there is any protection at all."""
        return math.isfinite(self.epsilon)

    def per_round(self, event: Callable[[float], Event]) -> float:
        """The ε of one participation, where ``event(ε)`` is what a participation at ε releases.

        For ``per="run"`` this is the largest ε (to a relative 1e-6, rounded down) whose
        ``rounds``-fold composition stays within the budget.
        """
        if self.per == "round" or not self.is_private:
            return self.epsilon
        from privacy.accounting import epsilon as composed_epsilon

        # Basic composition is a valid start from below; a whole budget in one round ends above.
        low, high = self.epsilon / self.rounds, self.epsilon
        while high - low > 1e-6 * low:
            middle = (low + high) / 2
            spend = composed_epsilon(RepeatedEvent(event(middle), self.rounds), self.delta)
            low, high = (middle, high) if spend.epsilon <= self.epsilon else (low, middle)
        return low
