"""Client placement: which node is asked for which client, in a simulation and on devices.

In a simulation the server hands any client to any node. On devices every node hosts the clients
for which its key was enrolled, whatever the node claims.

``murmur enrol`` makes the enrolment table, a line for each node: its clients' ids and its key as
OpenSSH writes it (``0,3 ecdsa-sha2-nistp384 AAAA...``). Flower's SuperLink, started with
``--enable-supernode-auth``, lets a node speak only with the private half of its key, and tells the
ServerApp every node's key. Nothing that a node claims about itself is used.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from flwr.serverapp import Grid

from murmur.compat.flower_messages import NodeInfo
from murmur.privacy.ledger import Ledger, LedgerError

POLL_SECONDS = 3.0  # Flower's own interval between two looks


@dataclass(frozen=True)
class Placement:
    """Where the clients of a cohort are at this moment.

    Attributes:
        asked: {node: client ids}.
        unavailable: {client: why nobody can ask it now}.
    """

    asked: dict[int, list[int]]
    unavailable: dict[int, str] = field(default_factory=dict)


class ClientPlacement(Protocol):
    """Says which node to ask for which client."""

    def place(self, grid: Grid, clients: Sequence[int]) -> Placement:
        """Where ``clients`` are now; may wait for them. Each is ``asked`` or ``unavailable``."""

    def released(self, clients: Sequence[int], number: int, purpose: str) -> list[int]:
        """Returns the ``clients`` whose data may have been released in round ``number``.

        Called once their node has ended with an error, or they have refused. Where it cannot know,
        as on devices, whose own ledgers alone could say more, it returns all: an account may hold
        too much, never too little. ``purpose``: the phase's.
        """
        return list(clients)


class SimulatedPlacement(ClientPlacement):
    """A simulation's nodes: each takes an even share of whoever is asked.

    Attributes:
        ledger: The ledger of all its clients, if it can be read here. A charge comes before
            anything leaves, so whoever was not charged has released nothing. None: all count as
            released.
        shares: Into how many, where an interrupted round is asked again: a client answers the same
            message only. None: one for each node.
    """

    def __init__(self) -> None:
        self.ledger: Path | None = None
        self.shares: int | None = None

    def place(self, grid: Grid, clients: Sequence[int]) -> Placement:
        """An even split over the nodes, in the order of their ids; nobody is away."""
        nodes = sorted(grid.get_node_ids())[: self.shares]
        shares = zip(nodes, np.array_split(np.asarray(clients), len(nodes)), strict=True)
        return Placement({node: share.tolist() for node, share in shares if len(share)})

    def released(self, clients: Sequence[int], number: int, purpose: str) -> list[int]:
        """Whoever has a charge for that task; all where the ledger cannot say."""
        if self.ledger is None or not self.ledger.exists():
            return list(clients)
        try:
            with Ledger(self.ledger, create=False) as ledger:
                charged = {
                    client
                    for entry in ledger.entries()
                    if (entry.round, entry.purpose) == (number, purpose)
                    for client in entry.clients
                }
        except LedgerError:
            return list(clients)
        return [client for client in clients if str(client) in charged]


class DevicePlacement(ClientPlacement):
    """Devices: whoever is hosted by a node that is online, once the quorum is there.

    Args:
        enrolment: Which node hosts whom; a node that is not in it is asked for nothing.
        quorum: Share of the asked that must be online, else nobody is asked and nobody pays.
        timeout: Seconds to wait for them.
    """

    def __init__(self, enrolment: "Enrolment", quorum: float, timeout: float) -> None:
        self.enrolment = enrolment
        self.quorum = quorum
        self.timeout = timeout

    def place(self, grid: Grid, clients: Sequence[int]) -> Placement:
        """The nodes of ``clients``; empty where too few are online before the deadline.

        It looks every three seconds, and goes on as soon as the quorum is online, without those who
        are not. Each client that is not asked is in ``unavailable``, with the reason.
        """
        wanted = [int(client) for client in clients]
        least = math.ceil(self.quorum * len(wanted))
        deadline = time.monotonic() + self.timeout
        while True:
            placement = self._split(grid, wanted)
            if len(wanted) - len(placement.unavailable) >= least:
                return placement
            if time.monotonic() >= deadline:
                too_few = f"not asked: fewer than {least} of {len(wanted)} clients are online"
                return Placement({}, {**dict.fromkeys(wanted, too_few), **placement.unavailable})
            time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))

    def _split(self, grid: Grid, wanted: Sequence[int]) -> Placement:
        online = self.enrolment.client_ids(grid.get_nodes())
        homes = {client: node for node, clients in online.items() for client in clients}
        asked: dict[int, list[int]] = {}
        unavailable: dict[int, str] = {}
        for client in wanted:
            if client in homes:
                asked.setdefault(homes[client], []).append(client)
            else:
                unavailable[client] = "not asked: no node that hosts it is online"
        return Placement(dict(sorted(asked.items())), unavailable)


@dataclass(frozen=True)
class Enrolment:
    """The enrolment table: which clients each enrolled key hosts; immutable.

    Attributes:
        clients: {public key (PEM): ids}; every key and every id is there once.
    """

    clients: Mapping[bytes, tuple[int, ...]]

    @classmethod
    def load(cls, path: str | Path) -> "Enrolment":
        """Read a table; empty lines are passed over.

        ValueError says that the file cannot be read, or names the line that is wrong.
        """
        place = Path(path).expanduser()
        try:
            text = place.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"{place}: cannot be read ({error.strerror}); `murmur enrol` makes it"
            ) from error
        found = cls({})
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                ids, _, key = line.strip().partition(" ")
                try:
                    found = found.with_node(key, parse_ids(ids))
                except ValueError as error:
                    raise ValueError(f"{place}, line {number}: {error}") from error
        return found

    def with_node(self, key: str, clients: Iterable[int]) -> "Enrolment":
        """A new table with one node more; ValueError where its key or a client is there already.

        ``key``: as OpenSSH writes it. ``clients``: the ids that it hosts.
        """
        pem = pem_of(key)
        ids = tuple(clients)
        if pem in self.clients:
            hosted = ",".join(map(str, self.clients[pem]))
            raise ValueError(f"this key is enrolled already, for clients {hosted}")
        taken = {client for hosted in self.clients.values() for client in hosted}
        for client in ids:
            if client in taken:
                raise ValueError(f"client {client} is hosted by another key already")
        return Enrolment({**self.clients, pem: ids})

    def client_ids(self, nodes: Iterable[NodeInfo]) -> dict[int, tuple[int, ...]]:
        """{node: clients} of those ``nodes`` that are enrolled.

        ``nodes``: as Flower's grid lists them, with the keys that the SuperLink has authenticated.
        """
        known = ((node.node_id, self.clients.get(node.public_key)) for node in nodes)
        return {node: clients for node, clients in known if clients is not None}


def parse_ids(text: str) -> tuple[int, ...]:
    """Client ids such as ``3`` or ``0,3``; ValueError if they are not distinct."""
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ValueError(f"{text!r:.40}: must be clients' ids such as 3 or 0,3")
    ids = tuple(int(word) for word in words)
    if len(set(ids)) != len(ids):
        raise ValueError(f"{text!r:.40}: names a client twice")
    return ids


def pem_of(key: str) -> bytes:
    """An OpenSSH public key in the form in which Flower tells it; ValueError if it is none."""
    try:
        loaded = serialization.load_ssh_public_key(key.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{key[:40]!r}: is no public key as OpenSSH writes it") from error
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return loaded.public_bytes(serialization.Encoding.PEM, kind)
