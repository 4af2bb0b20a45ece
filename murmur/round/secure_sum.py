"""One round's secure sums on the server, one for each group of the cohort.

``CohortStrategy`` calls it where a plain round would sum: ``prepare`` exchanges keys and shares
before the cohort is asked to train, ``collect`` adds up the masked contributions as they come,
``finish`` has the survivors confirm each other and reveal what removes the masks of each sum. A
group that fails costs the round its own part.

The summed vector is a contribution's integers (``Codec.expand``, weight included) and the weight
itself as one more coordinate, modulo 2^b with b just large enough for the whole group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from murmur.learning.codec import Codec, MalformedError, Sum
from murmur.privacy.events import Event
from murmur.round.blame import Blame
from murmur.round.secure_exchange import SecureExchange
from murmur.round.secure_journal import Journal
from murmur.round.secure_question import RECORD, question
from murmur.round.weights import Weights, require_weight
from murmur.secure_sum import (
    Phase,
    SecureServer,
    SecureSumError,
    SecureSumSettings,
    release_digest,
)

if TYPE_CHECKING:
    from murmur.round.setup import Round

Replies = Mapping[int, bytes]


def modulus_bits(codec: Codec, weight: int) -> tuple[int, bool]:
    """Bits that hold every sum of total ``weight`` and the weight; whether it has a sign."""
    least, greatest = codec.limits(weight)
    signed = least < 0
    bits = max(greatest, weight, -least).bit_length() + signed
    if bits > 64:
        raise ValueError(f"weight={weight}: all weights together may be at most {codec.capacity}")
    return bits, signed


@dataclass(frozen=True)
class Summed:
    """What each client of a round releases: ``event``, in the form of ``codec``, weighted.

    ``seeded``: whether its noise follows from the run's seed.
    """

    algorithm: str
    purpose: str
    codec: Codec
    event: Event
    weights: Weights
    seeded: bool = False

    @property
    def digest(self) -> str:
        """What clients compare with the release that they are about to make."""
        least, greatest = self.weights.least, self.weights.greatest
        known = self.algorithm, self.purpose, self.codec, self.event
        return release_digest(*known, least, greatest, self.seeded)


class SecureRound:
    """The secure sums of round ``about``; what happens goes into that round's record.

    ``run`` names the server's run and differs between runs. ``groups``: who sums with whom.
    ``summed``: what clients release. ``blame``: learns whose shares did not arrive. ``timeout``:
    seconds for each phase. ``journal``: what outlives this process. ``least``: clients that every
    sum must hide, however small the cohort has become. ``spoiled``: who was in sums that were
    impossible.
    """

    def __init__(
        self,
        settings: SecureSumSettings,
        run: str,
        about: Round,
        summed: Summed,
        blame: Blame,
        grid: Grid,
        timeout: float,
        journal: Journal,
        groups: Sequence[Sequence[int]],
        least: int,
    ) -> None:
        self.about, self.summed, self.blame, self.journal = about, summed, blame, journal
        codec, weights = summed.codec, summed.weights
        length = int(np.prod(codec.shape)) + 1
        if not journal.terms:
            bound: dict[str, Any] = {
                "purpose": summed.purpose,
                "release": summed.digest,
                "least_weight": weights.least,
                "greatest_weight": weights.greatest,
            }
            for group, clients in enumerate(groups):
                bits, _ = modulus_bits(codec, weights.greatest * len(clients))
                shape = clients, length, bits, least
                terms = settings.terms(run, about.number, *shape, group=group, **bound)
                journal.terms.append(terms)
        self.signed = codec.limits(1)[0] < 0
        self.spoiled: list[tuple[int, ...]] = []
        self.exchange = SecureExchange(journal.terms[0].run, about, grid, timeout, journal)
        self._sums = [
            SecureServer(terms, settings.expected_dropouts(terms)) for terms in journal.terms
        ]
        self._going = list(self._sums)  # those that can still be revealed
        self._sum_of = {c: each for each in self._sums for c in each.terms.clients}
        self._lists: dict[int, bytes] = {}

    def prepare(self) -> dict[int, list[int]]:
        """Phases ADVERTISE, SHARE and CHECK; the clients that may now be asked to train, by node.

        Nobody when too few took part, or when an interrupted server has asked them.
        """
        terms = {
            client: json.dumps(each.terms.to_dict()).encode()
            for each in self._sums
            for client in each.terms.clients
        }
        keys = self._next(SecureServer.keys, self.exchange.ask(Phase.ADVERTISE, terms))
        shares = self._next(SecureServer.shares, self.exchange.ask(Phase.SHARE, keys))
        self._hear(self.exchange.ask(Phase.CHECK, shares))
        self._lists = self._next(lambda each, _: each.lists(self.blame.accused), {})
        if self.journal.masked is not None:
            for each, (clients, total) in zip(self._sums, self.journal.masked, strict=True):
                each.take_up(clients, total, self.journal.asked)
            return {}
        return self.exchange.reachable(self._lists)

    def invite(self, clients: list[int], content: RecordDict) -> None:
        """Add phase MASK of a node's clients to ``content``, the request to train."""
        asked = question(content)
        for each in self._sums:
            each.asked = asked
        content[RECORD] = self.exchange.record(Phase.MASK, {c: self._lists[c] for c in clients})

    def collect(self, clients: list[int], masked: NDArray[np.uint8]) -> None:
        """Add one node's masked contributions (clients, bytes) to the sums."""
        if masked.dtype != np.uint8 or masked.ndim != 2 or len(masked) != len(clients):
            raise MalformedError("masked contributions must be uint8[clients, bytes]")
        for client, row in zip(clients, masked, strict=True):
            self._sum_of[client].add(client, row.tobytes())

    def keep(self, participations: Mapping[int, int]) -> None:
        """Phase MASK is over: what came in it can be asked for once only."""
        self._note()
        if self.journal.masked is None:
            masked, asked = [each.masked for each in self._sums], self._sums[0].asked
            self.journal.keep_masked(masked, asked, participations, self.about)

    def finish(self, total: Sum) -> list[int]:
        """Phases CONFIRM and REVEAL: add every group's sum to ``total``.

        How many clients each sum is over that was revealed.
        """
        lists = self._next(lambda each, _: each.survivors_list(), {})
        confirmed = self.exchange.ask(Phase.CONFIRM, lists)
        words = self._next(SecureServer.confirmations, confirmed)
        revealed = self.exchange.ask(Phase.REVEAL, words)
        sizes = []

        def take(each: SecureServer, replies: Replies) -> dict[int, bytes]:
            vector, clients = each.total(replies, self.signed), each.survivors
            sizes.append(len(clients))
            try:
                weight = require_weight(int(vector[-1]), clients, self.summed.weights.of)
                total.add_total(list(clients), vector[:-1].reshape(self.summed.codec.shape), weight)
            except MalformedError as error:
                self.spoiled.append(clients)
                raise SecureSumError(
                    f"the sum is not possible: {error}. One of its clients has lied, and nothing "
                    "proves which; with privacy.secure_sum.groups above 1 it costs its own group "
                    "only, and is found in time"
                ) from error
            return {}

        self._next(take, revealed)
        return sizes

    # Helpers --------------------------------------------------------------------------------

    def _hear(self, replies: Replies) -> None:
        """Who holds whose shares; of whom that leaves no doubt is named before anybody masks."""

        def hear(each: SecureServer, sent: Replies) -> dict[int, bytes]:
            each.checked(sent)
            return {}

        self._next(hear, replies)
        conflicts = [pair for each in self._sums for pair in each.conflicts]
        self.about.accused |= self.blame.add(self.about.accused, conflicts)

    def _next(
        self, step: Callable[[SecureServer, Replies], dict[int, bytes]], replies: Replies
    ) -> dict[int, bytes]:
        """One step of each sum; one that cannot go on costs its own clients only."""
        requests: dict[int, bytes] = {}
        for each in list(self._going):
            clients = each.terms.clients
            try:
                requests |= step(each, {c: replies[c] for c in clients if c in replies})
            except SecureSumError as error:
                self._going.remove(each)
                self._note()
                for client in set(clients) - self.about.accused.keys():
                    self.about.failed.setdefault(client, f"secure aggregation: {error}")
        self._note()
        return requests

    def _note(self) -> None:
        """Who was found to have lied, and who was left out."""
        for each in self._sums:
            self.about.failed |= each.dropped
            self.about.accused |= each.accused
        for client in self.about.accused:
            self.about.failed.pop(client, None)
