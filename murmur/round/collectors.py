"""Collectors: the node half of a summation, which takes the releases of one message's clients.

``murmur.round.summation`` and ``murmur.round.secure_summation`` have the server halves, and a table
of what travels between the two. ``collector_for`` chooses.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import RecordDict
from numpy.typing import NDArray

from murmur.learning.codec import Codec
from murmur.learning.sums import SumAccumulator
from murmur.privacy.events import Event, SummedEvent
from murmur.privacy.ledger import JoinedSum
from murmur.round.secure_party import SecureParties, parse_request
from murmur.round.signed import NO_SUM
from murmur.round.task import RECORD, RequestError, RunFacts, Task, TaskError, question
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.terms import Stage, SumTerms, release_digest


class Collector:
    """Takes the releases of one message's clients and gives the node's contribution.

    The node half of a summation; one is made for each message. ``event`` is asked before the
    charge, ``add`` after it, and the rest once all have been added.

    Attributes:
        clients: The clients whose releases are in it, in order.
        arrays: The contribution by name of array; none where nobody has answered. A list is the
            rows of an array, which need not lie side by side in memory.
    """

    clients: list[int]
    arrays: Mapping[str, NDArray | list[NDArray]]

    def event(self, task: Task, codec: Codec, event: Event, weight: int) -> Event:
        """Returns ``event`` as charged if the answer leaves this way; TaskError if it may not.

        It claims no more than this way hides: nothing, where the server may read a single client's
        release. ``codec``, ``weight``: of the answer.
        """
        return event

    def add(self, client: int, codec: Codec, packed: NDArray, weight: int) -> None:
        """Take one client's packed release; raises if it cannot, and then holds nothing of it.

        ``packed``: as ``codec.pack`` gives it. ``weight``: the client's.
        """

    def terms(self, clients: Iterable[int]) -> set[bytes]:
        """Digests of the terms of the secure sums that ``clients`` are in; ``NO_SUM`` is none."""
        return {NO_SUM}

    def sums(self, clients: Mapping[int, int | str]) -> tuple[JoinedSum, ...]:
        """The secure sums that clients are in; ``clients``: their names in the ledger by id."""
        return ()

    def keep(self) -> None:
        """Put on disk what must be there before the contribution leaves; once, after all of it."""

    def report(self) -> dict[str, Any]:
        """Returns the facts that the server needs to read the contribution."""
        return {}


class PlainSum(Collector):
    """The node's sum (int64); the release of a single client stays in its compact form.

    ``sum`` is of the codec's shape, or that release. A server reads it: it hides no client from
    whoever reads messages, and is charged so.
    """

    def __init__(self) -> None:
        self.clients = []
        self.arrays: dict[str, NDArray] = {}
        self._sum: SumAccumulator | None = None

    def add(self, client: int, codec: Codec, packed: NDArray, weight: int) -> None:
        """Add to the sum."""
        if self._sum is None:
            self._sum = SumAccumulator(codec)
        self._sum.add(client, packed, weight)
        self.clients = self._sum.clients
        self.arrays = {"sum": packed}
        if self._sum.alone is None:
            self.arrays = {"sum": self._sum.total}

    def report(self) -> dict[str, Any]:
        """The sum's weight, and whether it is one client's packed release."""
        weight = 0
        if self._sum is not None:
            weight = self._sum.weight
        return {"weight": weight, "packed": len(self.clients) == 1}


class PerClientRows(Collector):
    """The releases of one message's clients as ``rows`` (clients, ...); nothing is summed.

    Each is as its codec packs it. The server sees every client's row: nothing is hidden.
    """

    name = "rows"

    def __init__(self) -> None:
        self.clients = []
        self.arrays: dict[str, list[NDArray]] = {}

    def add(self, client: int, codec: Codec, packed: NDArray, weight: int) -> None:
        """One more row."""
        codec.check(packed)
        self._append(client, packed)

    def _append(self, client: int, row: NDArray) -> None:
        self.clients.append(client)
        self.arrays.setdefault(self.name, []).append(row)


class ReportsOnly(PlainSum):
    """Contribution to a server that asks for no masks: reports without a charge, no release."""

    def event(self, task: Task, codec: Codec, event: Event, weight: int) -> Event:
        """Raises TaskError: whatever has to be charged leaves masked only."""
        raise TaskError(
            "secure_aggregation=on: this client releases nothing but masked contributions"
        )


class MaskedSum(PerClientRows):
    """The ``masked`` contributions of one message's clients, a row of bytes for each.

    A masked vector is random to whoever does not know the masks. The server learns the sum over
    enough clients or nothing, so that a release whose mechanism says so costs less in it.

    Args:
        parties: The clients with their secrets, and their state from the phases before.
        content: The message: what is asked, and phase MASK of the protocol. RequestError where
            that is malformed.
        kind: Flower's type of the message.
        run: What all releases of the run have in common.
        charged: Whether the ledger knows this message; nothing has left then, since one that has
            an answer is not collected again. A ledger that does not know it, though these clients
            have masked for it, is an older one put in its place.
    """

    name = "masked"

    def __init__(
        self,
        parties: SecureParties,
        content: RecordDict,
        kind: str,
        run: RunFacts,
        charged: bool,
    ) -> None:
        super().__init__()
        self.parties = parties
        self.run = run
        self.request = parse_request(content.config_records[RECORD])
        self.asked = question(content, kind, parties.started)
        self.charged = charged
        self._states = parties.states(self.request)
        self._terms: dict[int, SumTerms] = {}

    def event(self, task: Task, codec: Codec, event: Event, weight: int) -> Event:
        """Its event, hidden among the fewest honest clients whose sum this client lets out.

        ``terms.honest``: the terms' minimum less the colluders that they reckon with. The chance
        that its share holders were drawn badly is in the event, and is added to δ. TaskError where
        the sum's terms are for another release, SecureSumError where the server's list leaves the
        client out; nothing is charged then.
        """
        party = self._load(task.client)
        terms = party.terms
        self.parties.rules.require_server(terms)
        party.included_in(self.request.messages[task.client])  # before it is charged
        weights = terms.least_weight, terms.greatest_weight
        if not weights[0] <= weight <= weights[1]:
            raise TaskError(
                f"weight={weight}: the sum's terms are for weights of {weights[0]} to {weights[1]}"
            )
        made = self.run.algorithm, task.purpose, codec, event
        release = release_digest(*made, *weights, self.run.seeded)
        if task.purpose != terms.purpose or release != terms.release:
            raise TaskError("the sum's terms are for another release than this client would make")
        length = math.prod(codec.shape) + 1  # and its weight
        if terms.length != length:
            raise TaskError(f"length={terms.length}: this client would release {length} integers")
        self._terms[task.client] = terms
        return SummedEvent(event, terms.honest, weight, *weights, terms.release, terms.failure)

    def add(self, client: int, codec: Codec, packed: NDArray, weight: int) -> None:
        """Mask one client's integers and its weight.

        One masked vector of it leaves at most: where it masks again it was killed before the ledger
        had an answer, and a failure is its last word in this sum.
        """
        party = self._load(client)
        vector = codec.summand(packed, weight)
        try:
            message = self.request.messages[client]
            self._append(client, party.add_masks(vector, message, self.asked))
        finally:
            self._states.put(self.parties.resident(client), party)

    def terms(self, clients: Iterable[int]) -> set[bytes]:
        """Those that the clients have accepted before."""
        return {self._load(client).terms.terms_digest for client in clients}

    def sums(self, clients: Mapping[int, int | str]) -> tuple[JoinedSum, ...]:
        """Those whose events were asked for, in the order of their first clients."""
        joined: dict[SumTerms, dict[str, int]] = {}
        for client, name in clients.items():
            terms = self._terms[client]
            joined.setdefault(terms, {})[str(name)] = bisect_left(terms.clients, client)
        return tuple(
            JoinedSum(terms.terms_digest.hex(), terms.minimum, terms.colluders, places)
            for terms, places in joined.items()
        )

    def keep(self) -> None:
        """That these clients have masked; SecureSumError where another message came before."""
        self._states.keep()

    def _load(self, client: int) -> SecureClient:
        if client not in self.request.messages:
            raise TaskError(f"client {client} is asked to train, but not to mask what it learns")
        party = self._states.load(self.parties.resident(client))
        if self.charged:
            party.mask_again(self.request.messages[client], self.asked)
        party.require_due(Stage.MASK)
        return party


def no_contribution() -> Collector:
    """Returns an empty sum, for a reply in which nobody answers."""
    return PlainSum()


def collector_for(
    parties: SecureParties,
    content: RecordDict,
    kind: str,
    run: RunFacts,
    is_charged: Callable[[], bool],
    summed: bool = True,
) -> Collector:
    """Returns the collector for the releases that a message asks for.

    Where the run masks, unmasked contributions are rejected, rows included: each would be one
    client's own.

    Args:
        parties: The clients that live here.
        content: The message.
        kind: Flower's type of the message.
        run: What all its releases have in common.
        is_charged: Whether the ledger knows the message.
        summed: Whether contributions are sums; else each client's is a row.

    Raises:
        RequestError: The server wants masks and the run has none.
    """
    record = content.config_records.get(RECORD)
    if not parties.is_on:
        if record is not None:
            raise RequestError("secure_aggregation=on: the server has it on, this client has not")
        return PlainSum() if summed else PerClientRows()
    if record is None:
        return ReportsOnly()
    return MaskedSum(parties, content, kind, run, is_charged())
