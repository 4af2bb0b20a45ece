"""Clients as parties of secure sums: their secrets, their state, and the phases beside MASK."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from murmur.format import framed
from murmur.privacy.ledger import Confirmed, Ledger, LedgerError
from murmur.privacy.policy import Refusal
from murmur.round.site import SUMS, Site, secure_folder
from murmur.round.task import AHEAD, RECORD, RequestError, in_words
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.identity import MAX_PEERS, SeenPeers
from murmur.secure_sum.settings import OwnerRules
from murmur.secure_sum.store import STATES, SumStates
from murmur.secure_sum.terms import SecureSumError, Stage, SumTerms

_FORGET_SECONDS = 24 * 3600.0  # after which nobody goes on with a sum


@dataclass(frozen=True)
class SecureParties:
    """The clients that live here as parties of secure sums, each with its own state and secrets.

    All phases but MASK are independent of clients' data and are answered here, without a charge.
    MASK comes with the request to train, and the host answers it like every release. What a message
    changes is on disk, for all of its clients by one write of each file, before any answer leaves.
    A subclass may know its one party under another id (``murmur.flower.client``).

    Attributes:
        site: The site whose folder holds the secrets.
        client_ids: The clients that live here.
        rules: The terms that the clients accept.
        is_on: Whether this run's clients mask what they release.
        started: Digest of the configuration that they were started with (``SumSetup.started``).
    """

    site: Site
    client_ids: Collection[int]
    rules: OwnerRules
    is_on: bool
    started: str = field(default="", kw_only=True)

    def answers(self, content: RecordDict) -> bool:
        """Returns True if a message is of a phase that this class answers by itself."""
        record = content.config_records.get(RECORD)
        return record is not None and record.get("phase") != Stage.MASK.value

    def answer(self, content: RecordDict) -> RecordDict:
        """The reply to such a message, for all the clients that it names.

        A record ``secure_sum`` with ``clients`` and their ``messages``, ``refused`` and
        ``reasons``. The same message gets the same answer, from the client's disk. A request to
        advertise for the sum that follows (``AHEAD``) is answered after it, as it would be in a
        message of its own. RequestError where either is malformed.
        """
        request = parse_request(content.config_records[RECORD])
        if AHEAD not in content.config_records:
            return RecordDict({RECORD: self._reply(request)})
        ahead = parse_request(content.config_records[AHEAD])
        if ahead.phase is not Stage.ADVERTISE:
            raise RequestError(f"{AHEAD}: phase {ahead.phase} comes in a message of its own")
        parties = self.placed(ahead)
        answered = self._reply(request)  # first: then this sum is over here
        return RecordDict({RECORD: answered, AHEAD: parties._reply(ahead, beside=request)})

    def placed(self, request: Request) -> SecureParties:
        """The parties that ``request`` names, where a sum may know them under other ids."""
        return self

    def _reply(self, request: Request, beside: Request | None = None) -> ConfigRecord:
        """The reply to one request; ``beside``: the sum whose last answer must be kept."""
        if request.phase is Stage.ADVERTISE:
            forget_old_sums(self.site.folder)
        answered: dict[int, bytes] = {}
        refused: dict[int, str] = {}
        confirmed: dict[int, SecureClient] = {}
        about = f"secure sum, {request.phase.value}"
        try:
            states = self.states(request, beside)
            most = MAX_PEERS + len(self.client_ids)
            seen = SeenPeers(secure_folder(self.site.folder) / "seen.peers", most)
            for client in request.messages:
                try:
                    answered[client] = self._answer(request, client, states, seen, confirmed)
                except (SecureSumError, ValueError) as error:
                    refused[client] = self.site.reason(f"{about}, client {client}", error)
            seen.keep()
            self._keep_confirmed(confirmed)
            states.keep()
        except (SecureSumError, LedgerError, Refusal, ValueError) as error:
            answered = {}
            refused = dict.fromkeys(request.messages, self.site.reason(about, error))
        record: dict[str, Any] = {
            "clients": list(answered),
            "messages": list(answered.values()),
            "refused": list(refused),
            "reasons": list(refused.values()),
        }
        return ConfigRecord(record)

    def resident(self, client: int) -> int:
        """Under which id this place remembers ``client``; SecureSumError if it lives elsewhere."""
        if client not in self.client_ids:
            raise SecureSumError(f"client {client} is not hosted here")
        return client

    def identity(self, client: int) -> bytes:
        """The long-term private key of ``client``, which is made where there is none."""
        return self.site.identity(client)

    @property
    def names(self) -> Path:
        """Where it stands which sums those who live here have joined (``JoinedSums``)."""
        return secure_folder(self.site.folder) / "joined"

    def states(self, request: Request, beside: Request | None = None) -> SumStates:
        """Returns the states of the clients of ``request`` in its sum.

        They lie in a folder of this run's own: a device may be in sums of two runs at once.
        ``beside``: of another sum, whose last answers stay when this one is joined.
        """
        residents = [self.resident(c) for c in request.messages if c in self.client_ids]
        folder = self.site.state_dir / SUMS
        other = None if beside is None else (beside.run, beside.round)
        return SumStates(folder, self.names, request.run, request.round, residents, other)

    def _answer(
        self,
        request: Request,
        client: int,
        states: SumStates,
        seen: SeenPeers,
        confirmed: dict[int, SecureClient],
    ) -> bytes:
        """One client's part of a phase, to be kept before it leaves: no phase has two answers.

        ``confirmed`` gets the party where it confirms a sum's survivors for the first time.
        """
        if not self.is_on:
            raise SecureSumError("secure aggregation is off at this client")
        resident = self.resident(client)
        message = request.messages[client]
        asked = request.request_digest(message)
        again = states.answered(resident, asked)
        if again is not None:
            return again
        if request.phase is Stage.ADVERTISE:
            terms = request.terms(message)
            message = b""
            self.rules.accept(terms)
            party = SecureClient.join(terms, client, self.identity(client))
            states.join(resident, party)
        else:
            party = states.load(resident)
        try:
            answer = party.answer(request.phase, message, self.rules.peers or seen)
        except Exception:
            if party.is_finished:  # it takes no further part; who was asked out of turn goes on
                states.put(resident, party)
            raise
        states.put(resident, party, asked, answer)
        if request.phase is Stage.CONFIRM:
            confirmed[client] = party
        return answer

    def _keep_confirmed(self, parties: Mapping[int, SecureClient]) -> None:
        """Write into the ledger what ``parties`` confirm: once for those that confirm the same."""
        alike: dict[tuple[SumTerms, bytes, bytes], list[int]] = {}
        for client, party in parties.items():
            lists = party.terms, party.included, party.survivors
            alike.setdefault(lists, []).append(client)
        if not alike:
            return
        found = [
            Confirmed(
                run=self.site.run,
                round=terms.round,
                purpose=terms.purpose,
                terms=terms.terms_digest.hex(),
                clients=clients,
                survivors=len(terms.parted(survivors)),
                lists=hashlib.sha256(framed(included, survivors)).hexdigest(),
            )
            for (terms, included, survivors), clients in alike.items()
        ]
        path = self.site.folder / "ledger.sqlite"
        with Ledger(path, create=False, expected=self.site.policy.ledger) as ledger:
            ledger.confirm(found)


def forget_old_sums(folder: Path) -> None:
    """Remove what a device's sums have left that nobody has gone on with for a day: secrets.

    ``folder``: the device's. Which sums were joined stays known.
    """
    for path in folder.glob(f"clients/*/{SUMS}/*{STATES}"):
        with suppress(FileNotFoundError):  # another process has removed it
            if path.stat().st_mtime < time.time() - _FORGET_SECONDS:
                path.unlink()


class Request:
    """One message of the protocol as it arrived.

    KeyError, TypeError or ValueError if it is malformed; ``parse_request`` makes that a
    RequestError.

    Attributes:
        run, round: Which sum it is about, in the server's words.
        phase: Which phase of it.
        messages: What each client is sent, in bytes.
    """

    def __init__(self, record: ConfigRecord) -> None:
        fields: dict[str, Any] = dict(record)
        clients = fields["clients"]
        messages = fields["messages"]
        if not isinstance(clients, list) or not isinstance(messages, list):
            raise ValueError("clients, messages: must be lists")
        if len(set(clients)) != len(clients) or not all(type(c) is int for c in clients):
            raise ValueError("clients: must be distinct integers")
        if not all(isinstance(message, bytes) for message in messages):
            raise ValueError("messages: must be bytes")
        which = fields["which"]
        if not isinstance(which, list) or not set(which) <= set(range(len(messages))):
            raise ValueError("which: must be places in messages")
        sent = [messages[place] for place in which]
        self.messages: dict[int, bytes] = dict(zip(clients, sent, strict=True))
        self.phase = Stage(fields["phase"])
        self.run = fields["run"]
        self.round = fields["round"]
        if type(self.run) is not str or type(self.round) is not int:
            raise ValueError("run, round: must be a name and an integer")

    def terms(self, message: bytes) -> SumTerms:
        """The terms that the server proposes, which are its message in phase ADVERTISE.

        ValueError where they are none, or those of another run or round.
        """
        terms = SumTerms.read(message)
        if (terms.run, terms.round) != (self.run, self.round):
            raise ValueError("terms: they are those of another sum")
        return terms

    def request_digest(self, message: bytes) -> str:
        """A digest of what one client is asked, the same for the same request."""
        return hashlib.sha256(framed(self.phase.value.encode(), message)).hexdigest()


def parse_request(record: ConfigRecord) -> Request:
    """The request in ``record``; RequestError if it is malformed."""
    try:
        return Request(record)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{RECORD}: {in_words(error):.120}") from error
