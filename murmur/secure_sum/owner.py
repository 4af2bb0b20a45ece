"""A device owner's minimum requirements for every secure sum."""

from __future__ import annotations

from dataclasses import dataclass

from murmur.secure_sum.graphs import HONEST, LYING, SERVERS
from murmur.secure_sum.peers import PinnedPeers
from murmur.secure_sum.terms import Terms


@dataclass(frozen=True)
class OwnerRules:
    """What no server can lower.

    ``colluders``: how many of a sum's other clients the owner takes to side with the server.
    ``honest_clients``: how many that do not, this one included, a sum must be over at least.
    ``neighbours``: the fewest with whom this device shares its secrets; None: all of the cohort.
    ``threshold``: the least share of them that restores a secret. ``server``: whether a graph may
    rest on the server's following the protocol. ``peers``: the clients beside which this one takes
    part, with their long-term keys; None: whomever the server names.
    """

    colluders: int = 0
    honest_clients: int = 1
    neighbours: int | None = None
    threshold: float = 0.0
    server: str = LYING
    peers: PinnedPeers | None = None

    def __post_init__(self) -> None:
        if self.colluders < 0 or self.honest_clients < 1:
            raise ValueError(
                f"colluders={self.colluders}, honest_clients={self.honest_clients}: must be at "
                "least 0 and 1"
            )
        if self.neighbours is not None and self.neighbours < 2:
            raise ValueError(f"neighbours={self.neighbours}: must be at least 2, or all")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold={self.threshold}: must lie in [0, 1)")
        if self.server not in SERVERS:
            raise ValueError(f"server={self.server!r}: must be one of {', '.join(SERVERS)}")

    def accept(self, terms: Terms) -> None:
        """What is checked before a client joins: ValueError for less than the owner asks."""
        if terms.colluders < self.colluders:
            raise ValueError(
                f"colluders={terms.colluders}: this device's owner reckons with {self.colluders}"
            )
        if terms.honest < self.honest_clients:
            raise ValueError(
                f"a sum over {terms.honest} honest clients: this device takes part from "
                f"{self.honest_clients} on"
            )
        if terms.neighbours is not None and terms.neighbours < (
            len(terms.clients) if self.neighbours is None else self.neighbours
        ):
            least = "all" if self.neighbours is None else self.neighbours
            raise ValueError(f"neighbours={terms.neighbours}: this device's owner asks for {least}")
        if terms.threshold < self.threshold * terms.holders:
            raise ValueError(
                f"threshold={terms.threshold} of {terms.holders}: this device's owner asks for a "
                f"share of {self.threshold}"
            )
        if terms.neighbours is not None and terms.server == HONEST and self.server == LYING:
            raise ValueError(
                "server=honest: this device's owner asks for a graph that holds against a server "
                "that lies"
            )
        if self.peers is not None:
            self.peers.require_cohort(terms)
