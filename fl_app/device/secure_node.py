"""A node's part in secure sums: its clients run the protocol, it forwards their messages.

Every phase except MASK is independent of clients' data and is answered here. MASK comes with the
request to train and is handled like every release: policy, charge, training, mechanism, mask,
stored reply. In simulation a node hosts many clients; as on a device, each has its own state and
long-term key and masks its own contribution.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from clients.base import TaskError
from fl_app.device.collector import Collector, PlainSum, Planned
from fl_app.device.node_settings import NodeSettings
from murmur.learning.codec import Codec
from murmur.privacy.events import Event, SummedEvent
from murmur.round.task import RECORD, RequestError, question
from murmur.secure_sum import (
    Peers,
    Phase,
    SecureClient,
    SecureSumError,
    SecureSumSettings,
    SeenPeers,
    StateFile,
    Terms,
    identity_in,
    release_digest,
)


def secure_folder(folder: Path) -> Path:
    """Where the states of a node's clients are."""
    return folder / "clients" / "secure_sum"


def identity_file(folder: Path, client: int) -> Path:
    """Where the long-term key of ``client`` lies."""
    return secure_folder(folder) / f"{client}.key"


class SecureNode:
    """The secure sums of the clients that ``hosts`` says are here, on the node ``own``."""

    def __init__(
        self, settings: SecureSumSettings, own: NodeSettings, hosts: Callable[[int], bool]
    ) -> None:
        self.settings, self.own, self.hosts = settings, own, hosts
        self.rules = own.sum_rules(settings)

    def answers(self, content: RecordDict) -> bool:
        """Whether a message belongs to a phase that needs nothing but this class."""
        record = content.config_records.get(RECORD)
        return record is not None and record.get("phase") != Phase.MASK.value

    def answer(self, content: RecordDict) -> RecordDict:
        """The reply to such a message, for all the clients that it names."""
        request = _request(content.config_records[RECORD])
        answered: dict[int, bytes] = {}
        refused: dict[int, str] = {}
        for client, message in request.messages.items():
            try:
                answered[client] = self._answer(request, client, message)
            except (SecureSumError, ValueError) as error:
                about = f"secure sum, {request.phase.value}, client {client}"
                refused[client] = self.own.refusal_for_server(about, error)
        record: dict[str, Any] = {
            "clients": list(answered),
            "messages": list(answered.values()),
            "refused": list(refused),
            "reasons": list(refused.values()),
        }
        return RecordDict({RECORD: ConfigRecord(record)})

    def collector(self, content: RecordDict) -> Collector:
        """What takes the releases that a message asks for."""
        record = content.config_records.get(RECORD)
        if self.settings.is_on:
            return UnchargedSum() if record is None else MaskedVectors(self, content)
        if record is not None:
            raise RequestError("secure_aggregation=on: the server has it on, this client has not")
        return PlainSum()

    def state(self, client: int) -> StateFile:
        """What ``client`` remembers from phase to phase."""
        if not self.hosts(client):
            raise SecureSumError(f"client {client} is not hosted here")
        return StateFile(secure_folder(self.own.folder) / f"{client}.json")

    def _peers(self, client: int) -> Peers:
        """Whose keys ``client`` believes."""
        seen = SeenPeers(secure_folder(self.own.folder) / f"{client}.peers")
        return self.rules.peers or seen

    def _answer(self, request: Request, client: int, message: bytes) -> bytes:
        if not self.settings.is_on:
            raise SecureSumError("secure aggregation is off at this client")
        file, asked = self.state(client), request.digest(message)
        if (again := file.answered(request.run, request.round, asked)) is not None:
            return again
        if request.phase is Phase.ADVERTISE:
            terms, message = request.terms(message), b""
            self.rules.accept(terms)
            party = SecureClient.join(
                terms, client, identity_in(identity_file(self.own.folder, client))
            )
            file.begin(party)
        else:
            party = file.load(request.run, request.round)
        try:
            answer = party.answer(request.phase, message, self._peers(client))
        except Exception:
            file.save(party)  # it takes no further part
            raise
        file.save(party, asked, answer)  # before it leaves: no phase has two answers
        return answer


class Request:
    """One message of the protocol as it arrived; ValueError if it is malformed."""

    def __init__(self, record: ConfigRecord) -> None:
        fields: dict[str, Any] = dict(record)
        clients, messages = fields["clients"], fields["messages"]
        if not isinstance(clients, list) or not isinstance(messages, list):
            raise ValueError("clients, messages: must be lists")
        if len(set(clients)) != len(clients) or not all(type(c) is int for c in clients):
            raise ValueError("clients: must be distinct integers")
        if not all(isinstance(message, bytes) for message in messages):
            raise ValueError("messages: must be bytes")
        self.messages: dict[int, bytes] = dict(zip(clients, messages, strict=True))
        self.phase = Phase(fields["phase"])
        self.run, self.round = fields["run"], fields["round"]
        if type(self.run) is not str or type(self.round) is not int:
            raise ValueError("run, round: must be a name and an integer")

    def terms(self, message: bytes) -> Terms:
        """The terms that the server proposes, which are its message in phase ADVERTISE."""
        try:
            plain = json.loads(message)
        except (ValueError, RecursionError) as error:
            raise ValueError("terms: they are not JSON") from error
        if not isinstance(plain, dict):
            raise ValueError("terms: they are no mapping")
        terms = Terms.from_dict(plain)
        if (terms.run, terms.round) != (self.run, self.round):
            raise ValueError("terms: they are those of another sum")
        return terms

    def digest(self, message: bytes) -> str:
        """A digest of what one client is asked, the same for the same request."""
        return hashlib.sha256(repr((self.phase.value, message)).encode()).hexdigest()


def _request(record: ConfigRecord) -> Request:
    """The request in ``record``; RequestError if it is malformed."""
    try:
        return Request(record)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{RECORD}: {type(error).__name__}: {error!s:.80}") from error


class UnchargedSum(PlainSum):
    """What a server gets that asks for no mask: reports that cost nothing, and no release."""

    def event(self, client: int, planned: Planned) -> Event:
        """Refused: whatever has to be charged leaves masked only."""
        raise TaskError(
            "secure_aggregation=on: this client releases nothing but masked contributions"
        )


class MaskedVectors:
    """The masked contributions of one message's clients, side by side; nothing is summed here."""

    def __init__(self, node: SecureNode, content: RecordDict) -> None:
        self.node, self.request = node, _request(content.config_records[RECORD])
        self.asked = question(content)
        self._rows: dict[int, bytes] = {}

    def event(self, client: int, planned: Planned) -> Event:
        """Its event, hidden among the fewest honest clients whose sum this client lets out.

        TaskError where the sum's terms are for another release; nothing is charged then.
        """
        party = self._load(client)
        terms = party.terms
        party.included_in(self.request.messages[client])  # before it is charged
        weights = terms.least_weight, terms.greatest_weight
        if not weights[0] <= planned.weight <= weights[1]:
            raise TaskError(
                f"weight={planned.weight}: the sum's terms are for weights of {weights[0]} to "
                f"{weights[1]}"
            )
        made = planned.algorithm, planned.purpose, planned.codec, planned.event
        release = release_digest(*made, *weights, planned.seeded)
        if planned.purpose != terms.purpose or release != terms.release:
            raise TaskError("the sum's terms are for another release than this client would make")
        return SummedEvent(
            planned.event, terms.honest, planned.weight, *weights, terms.release, terms.failure
        )

    def add(self, client: int, codec: Codec, packed: NDArray, weight: int) -> None:
        """Mask one client's integers and its weight."""
        request, party = self.request, self._load(client)
        integers = codec.expand(packed, weight).reshape(-1)
        vector = np.append(integers, np.int64(weight))
        try:
            self._rows[client] = party.add_masks(vector, request.messages[client], self.asked)
        finally:
            self.node.state(client).save(party)

    @property
    def clients(self) -> list[int]:
        """Whose masked contributions these are."""
        return list(self._rows)

    def report(self) -> dict[str, Any]:
        """Nothing: weights are masked too."""
        return {}

    def arrays(self) -> ArrayRecord:
        """One row of bytes (clients, bytes) for each client."""
        rows = [np.frombuffer(row, np.uint8) for row in self._rows.values()]
        return ArrayRecord({"masked": Array(np.stack(rows))})

    def _load(self, client: int) -> SecureClient:
        if client not in self.request.messages:
            raise TaskError(f"client {client} is asked to train, but not to mask what it learns")
        party = self.node.state(client).load(self.request.run, self.request.round)
        party.require_due(Phase.MASK)
        return party
