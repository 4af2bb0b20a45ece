"""``conf/privacy``: whether contributions are summed securely, and how strictly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType

from privacy.checks import require_count
from privacy.secure_aggregation.terms import Terms

MODES = ("off", "simulated", "on")
_KINDS: dict[str, tuple[type, ...]] = {
    "threshold": (float, int),
    "minimum": (float, int, NoneType),
    "neighbours": (int, NoneType),
    "colluders": (int,),
    "max_weight": (int, NoneType),
    "groups": (int,),
    "liars": (float, int),
}


@dataclass(frozen=True)
class SecureSumSettings:
    """How a cohort sums securely.

    ``mode``: "on", "off", or "simulated" (the sum is taken directly and only the statement speaks
    of secure aggregation). ``threshold``: share of a client's share holders that must survive, in
    [0.5, 1). ``minimum``: share of the cohort that must be in a sum, in (0, 1]; None: as
    ``threshold``. ``neighbours``: see ``Terms``; None: all. ``colluders``: clients that may side
    with the server; their noise is not counted. ``max_weight``: the largest weight of one client
    where the server does not know the clients' sizes. ``groups``: into how many a cohort is
    divided anew each round, with a sum each. ``liars``: share of the federation's clients that may
    lie, on which naming one by group testing rests; 0: only proofs count.
    """

    mode: str = "off"
    threshold: float = 0.67
    minimum: float | None = None
    neighbours: int | None = None
    colluders: int = 0
    max_weight: int | None = None
    groups: int = 1
    liars: float = 0.1

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}: must be one of {', '.join(MODES)}")
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds):
                words = " or ".join("null" if k is NoneType else k.__name__ for k in kinds)
                raise ValueError(f"{name}={value!r}: must be {words}")
        if not 0.5 <= self.threshold < 1:
            raise ValueError(f"threshold={self.threshold}: must lie in [0.5, 1)")
        if self.minimum is not None and not 0 < self.minimum <= 1:
            raise ValueError(f"minimum={self.minimum}: must lie in (0, 1], or be null")
        if self.neighbours is not None and (self.neighbours < 2 or self.neighbours % 2):
            raise ValueError(
                f"neighbours={self.neighbours}: must be even and at least 2, or null for all"
            )
        if self.colluders < 0:
            raise ValueError(f"colluders={self.colluders}: must be at least 0")
        if self.max_weight is not None and self.max_weight < 1:
            raise ValueError(f"max_weight={self.max_weight}: must be at least 1, or null")
        require_count("groups", self.groups)
        if not 0 <= self.liars < 0.5:
            raise ValueError(f"liars={self.liars}: must lie in [0, 0.5)")

    @property
    def is_on(self) -> bool:
        """Whether the protocol runs."""
        return self.mode == "on"

    def least_survivors(self, cohort: int) -> int:
        """The fewest clients of a cohort of that size whose sum is revealed."""
        return self._minimum(max(cohort // self.groups, 1))

    def terms(
        self,
        run: str,
        round: int,
        clients: Sequence[int],
        length: int,
        bits: int,
        least: int = 2,
    ) -> Terms:
        """The terms of one sum over ``clients``, all of a group; ``least``: as a floor of minimum.

        ValueError when so few clients cannot meet the settings.
        """
        cohort = tuple(sorted(clients))
        neighbours = None if self._is_complete(len(cohort)) else self.neighbours
        holders = len(cohort) if neighbours is None else neighbours + 1
        return Terms(
            run=run,
            round=round,
            clients=cohort,
            length=length,
            bits=bits,
            threshold=self._threshold(holders),
            minimum=max(least, self._minimum(len(cohort))),
            neighbours=neighbours,
            colluders=self.colluders,
        )

    def accept(self, terms: Terms) -> None:
        """What a client checks before it joins: ValueError for terms laxer than its own."""
        own = self.terms(terms.run, terms.round, terms.clients, terms.length, terms.bits)
        for name in ("threshold", "minimum", "colluders"):
            if getattr(terms, name) < getattr(own, name):
                raise ValueError(
                    f"{name}={getattr(terms, name)}: this client takes part from "
                    f"{getattr(own, name)} on"
                )
        if terms.neighbours != own.neighbours:
            raise ValueError(
                f"neighbours={terms.neighbours}: this client takes part with {own.neighbours} only"
            )

    def _minimum(self, cohort: int) -> int:
        share = self.threshold if self.minimum is None else self.minimum
        least = max(2, self.colluders + 2, math.ceil(share * cohort))
        return max(least, self._threshold(cohort)) if self._is_complete(cohort) else least

    def _is_complete(self, cohort: int) -> bool:
        return self.neighbours is None or self.neighbours >= cohort

    def _threshold(self, holders: int) -> int:
        return math.floor(self.threshold * holders) + 1
