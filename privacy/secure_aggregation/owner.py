"""A device owner's minimum requirements for every secure sum."""

from __future__ import annotations

from dataclasses import dataclass

from privacy.secure_aggregation.terms import Terms


@dataclass(frozen=True)
class OwnerRules:
    """``colluders``: how many of a sum's other clients the owner takes to side with the server.

    ``honest_clients``: how many that do not, this one included, a sum must be over at least.
    ``peers``: the long-term public keys of all devices beside which this one takes part; None:
    whoever the server names.
    """

    colluders: int = 0
    honest_clients: int = 1
    peers: frozenset[bytes] | None = None

    def __post_init__(self) -> None:
        if self.colluders < 0 or self.honest_clients < 1:
            raise ValueError(
                f"colluders={self.colluders}, honest_clients={self.honest_clients}: must be at "
                "least 0 and 1"
            )

    def accept(self, terms: Terms) -> None:
        """What is checked before a client joins: ValueError for less than the owner asks."""
        if terms.colluders < self.colluders:
            raise ValueError(
                f"colluders={terms.colluders}: this device's owner reckons with {self.colluders}"
            )
        honest = terms.minimum - terms.colluders
        if honest < self.honest_clients:
            raise ValueError(
                f"a sum over {honest} honest clients: this device takes part from "
                f"{self.honest_clients} on"
            )
