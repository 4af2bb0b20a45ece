"""``conf/privacy``: whether contributions are summed securely, and how strictly."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from murmur.common import require_count
from murmur.secure_sum.graphs import HONEST, LYING, PRIVACY_BITS, SERVERS, ring_for
from murmur.secure_sum.owner import OwnerRules
from murmur.secure_sum.peers import keys_digest, read_peers
from murmur.secure_sum.terms import Terms

MODES = ("off", "simulated", "on")
_KINDS: dict[str, tuple[type, ...]] = {
    "threshold": (float, int),
    "minimum": (float, int, NoneType),
    "neighbours": (int, NoneType),
    "colluders": (int,),
    "groups": (int,),
    "liars": (float, int),
    "dropouts": (float, int),
    "server": (str,),
    "peers": (str, NoneType),
}
_RINGS_FROM = 200  # clients of a cohort from which a ring is cheaper by much


@dataclass(frozen=True)
class SecureSumSettings:
    """How a cohort sums securely.

    ``mode``: "on", "off", or "simulated" (the sum is taken directly and only the statement speaks
    of secure aggregation). ``threshold``: share of a client's share holders that must survive, in
    [0.5, 1). ``minimum``: share of the cohort that must be in a sum, in (0, 1]; None: as
    ``threshold``. ``neighbours``: see ``Terms``; None: all, and from 200 clients on, where the
    server follows the protocol, the least ring that is safe. ``colluders``: clients that may side
    with the server; their noise is not counted. ``server``: "lying", or "honest": whether what is
    said of the sums is to hold against a server that lies, or for one that follows the protocol.
    ``dropouts``: share of the clients that may fall silent in a sum. ``groups``: into how many a
    cohort is divided anew each round, with a sum each. ``liars``: share of the federation's
    clients that may lie, on which naming one by group testing rests; 0: nobody is named so.
    ``peers``: file of clients' ids and long-term keys, to which the terms are bound; None: a
    client has the key that it shows.
    """

    mode: str = "off"
    threshold: float = 0.67
    minimum: float | None = None
    neighbours: int | None = None
    colluders: int = 0
    groups: int = 1
    liars: float = 0.1
    dropouts: float = 0.1
    server: str = LYING
    peers: str | None = None

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
        require_count("groups", self.groups)
        if not 0 <= self.liars < 0.5:
            raise ValueError(f"liars={self.liars}: must lie in [0, 0.5)")
        if not 0 <= self.dropouts < 0.5:
            raise ValueError(f"dropouts={self.dropouts}: must lie in [0, 0.5)")
        if self.server not in SERVERS:
            raise ValueError(f"server={self.server!r}: must be one of {', '.join(SERVERS)}")

    @property
    def is_on(self) -> bool:
        """Whether the protocol runs."""
        return self.mode == "on"

    def least_survivors(self, cohort: int) -> int:
        """The fewest clients of a cohort of that size whose sum is revealed."""
        return self._minimum(self._group(cohort))

    def terms(
        self,
        run: str,
        round: int,
        clients: Sequence[int],
        length: int,
        bits: int,
        least: int = 2,
        **bound: Any,
    ) -> Terms:
        """The terms of one sum over ``clients``, all of a group; ``least``: as a floor of minimum.

        ``bound``: purpose, group, release and weights. ValueError when so few clients cannot meet
        the settings.
        """
        cohort = tuple(sorted(clients))
        neighbours, threshold = self._graph(len(cohort))
        return Terms(
            run=run,
            round=round,
            clients=cohort,
            length=length,
            bits=bits,
            threshold=threshold,
            minimum=max(least, self._minimum(len(cohort))),
            neighbours=neighbours,
            colluders=self.colluders,
            server=self.server,
            keys=self._keys(cohort),
            **bound,
        )

    def conditions(self, cohort: int) -> list[str]:
        """Clauses of a statement: on which the server sees sums only, beside who is honest."""
        if not self.is_on:
            return ["it forgot what it summed (simulated: in this run it saw every message)"]
        found = [self.graph_assumption(cohort)] if self.failure_probability(cohort) else []
        if self.server == HONEST or self.peers is None:
            return [
                *found,
                "it follows the protocol (one that invents clients or exchanges their keys reads "
                "every message)",
            ]
        digest = hashlib.sha256(Path(self.peers).read_bytes()).hexdigest()
        return [
            *found,
            f"each key in the peers file (SHA-256 {digest[:16]}) belongs to a different device, "
            "which runs this protocol and has pinned that file",
            "P-256, HKDF-SHA256, AES-256 and Ed25519 hold",
        ]

    def _keys(self, cohort: tuple[int, ...]) -> str:
        if self.peers is None:
            return ""
        try:
            return keys_digest(cohort, read_peers(Path(self.peers)))
        except (OSError, KeyError) as error:
            raise ValueError(
                f"peers={self.peers}: must be a file with the key of each client ({error})"
            ) from error

    def owner_rules(self) -> OwnerRules:
        """What simulated clients ask of a sum: what the run's settings say, and no more."""
        return OwnerRules(self.colluders, neighbours=2, server=self.server)

    def expected_dropouts(self, terms: Terms) -> int:
        """How many share holders of a client are expected to fall silent."""
        return math.floor(self.dropouts * terms.holders)

    def failure_probability(self, cohort: int) -> float:
        """How likely one sum's ring protects less than it says: at most; 0 without a ring.

        Added to δ for each round.
        """
        neighbours, _ = self._graph(self._group(cohort))
        return 0.0 if neighbours is None else 2.0 ** -PRIVACY_BITS[self.server]

    def graph_assumption(self, cohort: int) -> str:
        """What the graph of a sum over such a cohort assumes, as a sentence of a statement."""
        size = self._group(cohort)
        neighbours, threshold = self._graph(size)
        if neighbours is None:
            return (
                f"all {size} clients of a sum share secrets with each other, {threshold} of them "
                f"restore one; at most {self.colluders} side with the server, which may lie"
            )
        whom = "follows the protocol" if self.server == HONEST else "may lie"
        return (
            f"each of a sum's {size} clients shares secrets with {neighbours} others by lot, "
            f"{threshold} restore one; at most {self.colluders} side with the server, which "
            f"{whom}; but for probability 2^-{PRIVACY_BITS[self.server]} a round, added to delta"
        )

    def _group(self, cohort: int) -> int:
        return max(cohort // self.groups, 1)

    def _graph(self, cohort: int) -> tuple[int | None, int]:
        """Neighbours, None for all, and how many of the holders restore a secret."""
        if self.neighbours is None and self.server == HONEST and cohort >= _RINGS_FROM:
            expected = math.floor(self.dropouts * cohort)
            ring = ring_for(self.server, cohort, self.colluders, expected)
            if ring is not None:
                return ring
        if self.neighbours is None or self.neighbours >= cohort:
            return None, self._threshold(cohort)
        return self.neighbours, self._threshold(self.neighbours + 1)

    def _minimum(self, cohort: int) -> int:
        share = self.threshold if self.minimum is None else self.minimum
        least = max(2, self.colluders + 2, math.ceil(share * cohort))
        neighbours, threshold = self._graph(cohort)
        return max(least, threshold) if neighbours is None else least

    def _threshold(self, holders: int) -> int:
        return math.floor(self.threshold * holders) + 1
