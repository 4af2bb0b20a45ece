"""Who asks what of a secure sum: a run's settings make its terms, a device's owner bounds them.

``SecureSumSettings`` are ``conf/privacy`` on the server; ``OwnerRules`` are in a device's
node-config, where no server can lower them.
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from murmur.secure_sum.identity import PinnedKeys, PinnedPeers, keys_digest, read_peers
from murmur.secure_sum.terms import HONEST, LYING, PRIVACY_BITS, Server, SumTerms, ring_for
from murmur.settings import Count, settings

_Mode = Literal["off", "simulated", "on"]
MODES: tuple[str, ...] = get_args(_Mode)
_RINGS_FROM = 200  # clients of a cohort from which a ring is cheaper by much


@settings
class SecureSumSettings:
    """How a cohort sums securely (``conf/privacy``).

    Attributes:
        mode: "on", "off", or "simulated" (the sum is taken directly and only the statement speaks
            of secure aggregation).
        threshold: share of a client's share holders that must survive, in [0.5, 1). None: in a
            complete graph the fewest that are safe, half of the holders and colluders together.
        minimum: share of the cohort that must be in a sum, in (0, 1]. None: as ``threshold``.
        neighbours: see ``SumTerms``, even and at least 2. None: all, and from 200 clients on, where
            the server follows the protocol, the least ring that is safe.
        colluders: clients that may side with the server; their noise is not counted.
        groups: into how many a cohort is divided anew each round, with a sum each.
        liars: share of the federation's clients that may lie, on which naming one by group testing
            rests, or as a false dealer's accomplice, in [0, 0.5). 0: nobody is named so.
        dropouts: share of the clients that may fall silent in a sum, in [0, 0.5).
        server: "lying", or "honest": whether what is said of the sums is to hold against a server
            that lies, or for one that follows the protocol, which takes fewer messages.
        peers: file of clients' ids and long-term keys, to which the terms are bound. None: a client
            has the key that it shows.

    Raises:
        ValueError: a value is of another type or outside its range.
    """

    mode: _Mode = "off"
    threshold: Annotated[float, Field(ge=0.5, lt=1)] | None = 0.67
    minimum: Annotated[float, Field(gt=0, le=1)] | None = None
    neighbours: Annotated[int, Field(ge=2, multiple_of=2)] | None = None
    colluders: Annotated[int, Field(ge=0)] = 0
    groups: Count = 1
    liars: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    dropouts: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    server: Server = LYING
    peers: str | None = None

    @property
    def is_on(self) -> bool:
        """True if the protocol runs."""
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
    ) -> SumTerms:
        """The terms of one sum over ``clients``, all of a group.

        ``length`` integers are summed modulo 2^``bits``; ``least`` is a floor of ``minimum``, and
        ``bound`` are purpose, group, release and weights. ValueError when so few clients cannot
        meet the settings, or the peers file lacks one of them.
        """
        cohort = tuple(sorted(clients))
        pinned = self.pinned(cohort)
        keys = ""
        if pinned:
            keys = keys_digest(cohort, pinned)
        neighbours, threshold = self._graph(len(cohort))
        return SumTerms(
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
            keys=keys,
            **bound,
        )

    @property
    def adversary(self) -> str:
        """The server from whom a sum hides its clients, as a statement names it."""
        if self.is_on and self.server == HONEST:
            return "a server that follows the protocol and sees only sums"
        return "a server that sees only sums"

    def conditions(self, cohort: int) -> list[str]:
        """Clauses of a statement: on which the server sees sums only, beside who is honest.

        ``cohort``: how many clients a round asks. The peers file, where one is named, is cited by
        its SHA-256, so that clients can compare it with theirs.
        """
        if not self.is_on:
            return ["it forgot what it summed (simulated: in this run it saw every message)"]
        found = []
        if self.failure_probability(cohort):
            found = [self.graph_assumption(cohort)]
        if self.server == HONEST:
            return [
                *found,
                "it follows the protocol (one that tells clients different things, invents clients "
                "or exchanges their keys reads every message)",
            ]
        if self.peers is None:
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

    def pinned(self, cohort: tuple[int, ...]) -> dict[int, bytes]:
        """The cohort's long-term keys by the peers file, empty where no file names them.

        ValueError where the file cannot be read, or lacks a client.
        """
        if self.peers is None:
            return {}
        try:
            known = read_peers(Path(self.peers))
            return {client: known[client] for client in cohort}
        except (OSError, KeyError) as error:
            raise ValueError(
                f"peers={self.peers}: must be a file with the key of each client ({error})"
            ) from error

    def owner_rules(self) -> "OwnerRules":
        """Rules of simulated clients for a sum: the run's settings, and no more."""
        return OwnerRules(self.colluders, neighbours=2, server=self.server)

    def failure_probability(self, cohort: int) -> float:
        """How likely one sum's ring protects less than it says: at most; 0 without a ring.

        Added to δ for each round.
        """
        neighbours, _ = self._graph(self._group(cohort))
        if neighbours is None:
            return 0.0
        return 2.0 ** -PRIVACY_BITS[self.server]

    def graph_assumption(self, cohort: int) -> str:
        """Assumption of the graph of a sum over such a cohort, as a sentence of a statement."""
        size = self._group(cohort)
        neighbours, threshold = self._graph(size)
        if neighbours is None:
            return (
                f"all {size} clients of a sum share secrets with each other, {threshold} of them "
                f"restore one; at most {self.colluders} side with the server, which may lie"
            )
        whom = "may lie"
        if self.server == HONEST:
            whom = "follows the protocol"
        return (
            f"each of a sum's {size} clients shares secrets with {neighbours} others by lot, "
            f"{threshold} restore one; at most {self.colluders} side with the server, which "
            f"{whom}; but for probability 2^-{PRIVACY_BITS[self.server]} a round, added to delta"
        )

    def _group(self, cohort: int) -> int:
        """Clients in the smallest group of such a cohort."""
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
        """The fewest clients of a sum over ``cohort``, whatever the run's floor.

        In a complete graph at least the threshold: no list of fewer is ever confirmed.
        """
        share = self.minimum or self.threshold or 0.0
        least = max(self.colluders + 2, math.ceil(share * cohort))
        neighbours, threshold = self._graph(cohort)
        if neighbours is None:
            return max(least, threshold)
        return least

    def _threshold(self, holders: int) -> int:
        """More than the set share of so many holders."""
        if self.threshold is None:
            return (holders + self.colluders) // 2 + 1
        return math.floor(self.threshold * holders) + 1


@settings
class OwnerRules:
    """A device owner's minimum requirements for every secure sum, which no server can lower.

    Attributes:
        colluders: how many of a sum's other clients the owner takes to side with the server.
        honest_clients: how many that do not, this one included, a sum must be over at least.
        neighbours: the fewest with whom this device shares its secrets. None: all of the cohort.
        threshold: the least share of them that restores a secret, in [0, 1).
        server: whether a sum may rest on the server's following the protocol ("honest").
        peers: the clients beside which this one takes part, with their long-term keys. None:
            whomever the server names.

    Raises:
        ValueError: a value is of another type or outside its range.
    """

    colluders: Annotated[int, Field(ge=0)] = 0
    honest_clients: Count = 1
    neighbours: Annotated[int, Field(ge=2)] | None = None
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.0
    server: Server = LYING
    peers: PinnedPeers | PinnedKeys | None = None

    @property
    def peers_rule(self) -> str:
        """By which rule others are known, as receipts name it: what is pinned, "any" or "seen"."""
        if self.peers is None:
            return "seen"
        return self.peers.rule

    def accept(self, terms: SumTerms) -> None:
        """Check the terms before a client joins: ValueError for less than the owner asks.

        SecureSumError where the terms name clients or keys that the owner has not pinned.
        """
        if terms.colluders < self.colluders:
            raise ValueError(
                f"colluders={terms.colluders}: this device's owner reckons with {self.colluders}"
            )
        if terms.honest < self.honest_clients:
            raise ValueError(
                f"a sum over {terms.honest} honest clients: this device takes part from "
                f"{self.honest_clients} on"
            )
        self.require_server(terms)
        if terms.neighbours is not None:
            self._accept_ring(terms.neighbours)
        if terms.threshold < self.threshold * terms.holders:
            raise ValueError(
                f"threshold={terms.threshold} of {terms.holders}: this device's owner asks for a "
                f"share of {self.threshold}"
            )
        if self.peers is not None:
            self.peers.require_cohort(terms)

    def require_server(self, terms: SumTerms) -> None:
        """ValueError where the sum rests on a server that the owner does not take for honest."""
        if terms.server == HONEST and self.server == LYING:
            raise ValueError(
                "server=honest: must be lying, a sum that holds against a server that lies; an "
                "owner who takes this one to follow the protocol writes so (server=honest in the "
                "node-config; for a Flower app, assumptions: [honest_server] in the policy)"
            )

    def _accept_ring(self, neighbours: int) -> None:
        """ValueError where a ring of so many neighbours is not enough for the owner."""
        if self.neighbours is None:
            raise ValueError(f"neighbours={neighbours}: this device's owner asks for all")
        if neighbours < self.neighbours:
            raise ValueError(
                f"neighbours={neighbours}: this device's owner asks for {self.neighbours}"
            )
