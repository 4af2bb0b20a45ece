"""Where clients are: anywhere in a simulation, on the nodes of their owners on devices.

In a simulation the server hands any client to any node. On devices every node hosts the clients
that its owner has named in its node-config; the server asks each node once which these are, and
is told their ids and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

RECORD = "hosted"  # names the question in a message, and its answer
POLL_SECONDS = 3.0  # Flower's own interval between two looks
ANSWER_SECONDS = 60.0  # for a node to say whom it hosts


@dataclass(frozen=True)
class Placement:
    """``asked``: {node: client ids}; ``away``: {client: why nobody can ask it now}."""

    asked: dict[int, list[int]]
    away: dict[int, str] = field(default_factory=dict)


class Hosts(Protocol):
    """Says which node to ask for which client."""

    def place(self, grid: Grid, clients: Sequence[int]) -> Placement:
        """Where ``clients`` are now."""

    def forget(self, node: int) -> None:
        """``node`` has failed; what it hosts may be different when it is back."""


class VirtualHosts:
    """A simulation's nodes: each takes an even share of whoever is asked."""

    def place(self, grid: Grid, clients: Sequence[int]) -> Placement:
        """An even split over all nodes."""
        nodes = sorted(grid.get_node_ids())
        shares = zip(nodes, np.array_split(np.asarray(clients), len(nodes)), strict=True)
        return Placement({node: share.tolist() for node, share in shares if len(share)})

    def forget(self, node: int) -> None:
        """Nothing: no client belongs to a node."""


class DeviceHosts:
    """Devices: whoever is hosted by a node that is online, once the quorum is there.

    ``quorum``: share of the asked that must be online, else nobody is asked and nobody pays.
    ``timeout``: seconds to wait for them.
    """

    def __init__(self, quorum: float, timeout: float) -> None:
        self.quorum, self.timeout = quorum, timeout
        self._hosted: dict[int, list[int]] = {}  # node: clients

    def place(self, grid: Grid, clients: Sequence[int]) -> Placement:
        """The nodes of ``clients``; empty where too few are online before the deadline."""
        wanted = [int(client) for client in clients]
        least = math.ceil(self.quorum * len(wanted))
        deadline = time.monotonic() + self.timeout
        while True:
            self._look(grid)
            placement = self._split(wanted)
            if len(wanted) - len(placement.away) >= least:
                return placement
            if time.monotonic() >= deadline:
                too_few = f"not asked: fewer than {least} of {len(wanted)} clients are online"
                return Placement({}, {**dict.fromkeys(wanted, too_few), **placement.away})
            time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))

    def forget(self, node: int) -> None:
        """Ask ``node`` again whom it hosts before it is asked for anything else."""
        self._hosted.pop(node, None)

    def _look(self, grid: Grid) -> None:
        """Forget the nodes that are gone, and ask those that are new."""
        online = set(grid.get_node_ids())
        self._hosted = {n: clients for n, clients in self._hosted.items() if n in online}
        questions = [
            Message(
                RecordDict({RECORD: ConfigRecord()}),
                dst_node_id=node,
                message_type="query",
                group_id=RECORD,
            )
            for node in sorted(online - self._hosted.keys())
        ]
        if not questions:
            return
        patience = min(self.timeout, ANSWER_SECONDS)
        for reply in grid.send_and_receive(questions, timeout=patience):
            if (clients := hosted_clients(reply)) is not None:
                self._hosted[reply.metadata.src_node_id] = clients

    def _split(self, wanted: Iterable[int]) -> Placement:
        homes: dict[int, list[int]] = {}
        for node, clients in sorted(self._hosted.items()):
            for client in clients:
                homes.setdefault(client, []).append(node)
        asked: dict[int, list[int]] = {}
        away: dict[int, str] = {}
        for client in wanted:
            nodes = homes.get(client, [])
            if len(nodes) == 1:
                asked.setdefault(nodes[0], []).append(client)
            elif nodes:
                claims = " and ".join(str(node) for node in nodes)
                away[client] = f"not asked: nodes {claims} both say that they host it; correct one"
            else:
                away[client] = "not asked: no node that hosts it is online"
        return Placement(dict(sorted(asked.items())), away)


def hosted_clients(reply: Message) -> list[int] | None:
    """The ids in a node's answer; None where it is none."""
    if reply.has_error():
        return None
    record = reply.content.config_records.get(RECORD)
    clients = None if record is None else record.get("clients")
    if not isinstance(clients, list):
        return None
    ids = {client for client in clients if type(client) is int}
    return sorted(ids) if len(ids) == len(clients) else None
