"""The host: what answers a server's message for the clients that live in one place.

One message asks for any number of clients, and the file reads in the order in which it is answered:

1. *parse*: the message, which may be hostile, becomes one ``Task`` for each client it names.
2. *admit*: the owner's policy says whether a client may answer, its data are opened, and what the
   answer costs is charged in the ledger, durably.
3. *train* and *privatize*: local computation, whose result never leaves, and the mechanism.
4. *collect*: the releases are summed, put side by side, or masked for a secure sum.
5. *seal*: the reply is stored in the ledger, and only what is stored leaves. The same message gets
   the same bytes again, and nothing is trained or charged twice.

A client that refuses or fails is reported by id and reason, and costs the round nothing else. On a
device a charge is followed by an answer, whatever the data do to the training: a refusal never
follows from what lies in a file.

The host is given values and builds nothing. ``fl_app.run.hosts`` and ``fl_app.device.hosts`` build
it from a configuration; a device and a simulation differ in their ``Home`` and ``Data``.

**Anybody's own code** can stand in place of an algorithm's client half:

* ``client``: a value with the methods of ``murmur.round.task.Client``, which says what an answer
  costs (``event``), how it travels (``codec``) and how it counts (``weight``), by the task alone.
  Its ``answer`` is called once for each charged task and gives the release, already protected, for
  ``codec.pack``. It must answer on a device whatever its own code does, so it catches what that
  raises and releases a protected zero (``murmur.flower.client``).
* ``train``: called as ``train(client, task, data, noise)`` in place of ``client.answer``. An audit
  releases by it what its attack draws.
* ``parse``: gives the tasks of a message that is no question of ``murmur.round.phase``; the
  message's other records reach ``train`` as ``task.message``.
* ``data``: anything; the host only hands it on.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from numpy.typing import NDArray

from murmur.common import framed
from murmur.learning.codec import Codec
from murmur.learning.data.examples import LocalData
from murmur.learning.sums import SumAccumulator
from murmur.privacy.events import (
    ComposedEvent,
    Event,
    NonPrivateEvent,
    SummedEvent,
    Unit,
    releases,
)
from murmur.privacy.ledger import Charge, Ledger, LedgerError, Reply
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.policy import Policy, Refusal
from murmur.round.task import (
    RECORD,
    REFUSED,
    Client,
    RequestError,
    Task,
    TaskError,
    digest,
    in_words,
    log_error,
    parse_tasks,
    question,
)
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.identity import MOST_PEERS, SeenPeers, identity_in, identity_of
from murmur.secure_sum.settings import OwnerRules
from murmur.secure_sum.store import STATES, SumStates
from murmur.secure_sum.terms import Phase, SecureSumError, Terms, release_digest

Train = Callable[[Client, Task, LocalData, NoiseGenerator], NDArray]
"""What trains: the release of one client, protected and as its codec packs it."""

Noise = Callable[[Task], NoiseGenerator]
"""Where the noise of one client's release comes from."""

Account = Callable[[int], int]
"""Under which id the ledger counts what a client releases."""

Parse = Callable[[RecordDict, int], list[Task]]
"""A message's tasks, for at most so many clients; raises RequestError if it is malformed."""

_SUMS = "secure_sum"  # the folder of what a secure sum needs
_TOGETHER = 2**20  # bytes of releases that are collected together
_FORGET_SECONDS = 24 * 3600.0  # after which nobody goes on with a sum


# Where clients live ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Home(ABC):
    """Where clients live, and what leaves it beside their releases.

    Attributes
    ----------
    folder : Path
        Of the ledger, the clients' state and the log of errors.
    run : str
        The run's name in the ledger.
    policy : Policy
        What the owner lets out.
    free_reports : bool
        Whether a report that costs nothing may leave, as to the researcher of a simulation.
    in_blocks : bool
        Whether the ledger has one entry for many clients that are charged alike, and the policy is
        asked once for all of them that have spent the same.
    """

    folder: Path
    run: str
    policy: Policy
    free_reports: bool = field(default=False, kw_only=True)
    in_blocks: ClassVar[bool] = False

    @property
    @abstractmethod
    def memory(self) -> Path:
        """The folder of what clients remember from round to round, of this run only."""

    @abstractmethod
    def reason(self, about: str, error: Exception) -> str:
        """What the server hears of a refusal; why is written to this machine's own log.

        ``about``: which round and client it was, for the log.
        """

    @abstractmethod
    def identity(self, client: int) -> bytes:
        """The long-term private key of ``client`` in secure sums, made where there is none."""


@dataclass(frozen=True)
class SimulatedHome(Home):
    """Virtual clients of one run in its folder: its server is the researcher's, who is told why.

    Attributes
    ----------
    policy : Policy
        What a trial is held to; without one all is allowed, and counted all the same.
    free_reports : bool
        True unless the trial is to behave as a device with this policy.
    """

    free_reports: bool = field(default=True, kw_only=True)
    in_blocks: ClassVar[bool] = True

    @classmethod
    def of(cls, folder: Path, policy: str | None = None, run: str | None = None) -> SimulatedHome:
        """That of the run in ``folder``.

        ``policy``: a file, as if a device had this one; None allows all. ``run``: the name in the
        ledger, by default the folder's.
        """
        rules = Policy.simulation()
        if policy is not None:
            rules = Policy.load(policy)
        return cls(folder, run or folder.name, rules, free_reports=policy is None)

    @property
    def memory(self) -> Path:
        """The folder is one run's already."""
        return self.folder / "clients"

    def reason(self, about: str, error: Exception) -> str:
        """The error itself."""
        log_error(self.folder, about, error)
        return in_words(error)

    def identity(self, client: int) -> bytes:
        """From the one key of all that live here."""
        return identity_of(self._identity, client)

    @cached_property
    def _identity(self) -> bytes:
        """That key."""
        return identity_in(secure_folder(self.folder) / "identity.key")


@dataclass(frozen=True)
class DeviceHome(Home):
    """A device: its server hears one sentence of whatever goes wrong, and no report is free.

    Attributes
    ----------
    folder : Path
        The device's own, for all runs together: one ledger counts a client's whole life.
    run : str
        The run's name, in a server's words.
    policy : Policy
        The owner's. One that is missing or cannot be read refuses everything.
    """

    @property
    def memory(self) -> Path:
        """By a hash, so that the name which a server gave to its run leads nowhere else."""
        return self.folder / "clients" / hashlib.sha256(self.run.encode()).hexdigest()

    def reason(self, about: str, error: Exception) -> str:
        """Always the same words: others would tell of data, or of the owner's files."""
        log_error(self.folder, about, error)
        return REFUSED

    def identity(self, client: int) -> bytes:
        """Its own file, whose public half others may have pinned."""
        return identity_in(identity_file(self.folder, client))


class Data(Protocol):
    """The data of the clients that live here.

    On a device opened once an owner's policy has admitted a release and before it is charged. In a
    simulation they are open.
    """

    def of(self, client: int) -> LocalData:
        """Those of ``client``. Any error refuses it: on a device none may follow from the data.

        There a record that cannot be read is a blank one, and all are where nothing can be.
        """

    def blank(self, client: int) -> LocalData | None:
        """With what a charged client answers where its own data cannot be trained on.

        Whether a device answers must not depend on its data. None: it is refused then, which only a
        simulation may do.
        """


@dataclass(frozen=True)
class RunTerms:
    """What all answers of a run have in common, and the owner's policy judges by.

    Attributes
    ----------
    algorithm : str
        Its name, as policies and secure sums know it.
    delta : float
        For which ε is computed.
    rounds : int
        A budget for the whole run is shared out over so many.
    noise : str
        "os", or "seeded": it follows from the run's seed, for reproductions only.
    """

    algorithm: str
    delta: float
    rounds: int
    noise: str = "os"

    @property
    def seeded(self) -> bool:
        """Whether the run's statement is void, since its noise can be computed."""
        return self.noise == "seeded"


# Noise -----------------------------------------------------------------------------------------

_local = threading.local()


def noise_of_this_thread(task: Task) -> NoiseGenerator:
    """The operating system's, through a cryptographic generator; one for each thread."""
    if not hasattr(_local, "noise"):
        _local.noise = NoiseGenerator.from_os()
    return _local.noise


@dataclass(frozen=True)
class SeededNoise:
    """Noise that follows from the run's ``seed``, of its own for each client, round and purpose.

    Whoever knows the seed can take it off again: the run's statement is void, and a device's policy
    refuses it unless its owner allows it.
    """

    seed: int

    def __call__(self, task: Task) -> NoiseGenerator:
        """That of one release."""
        parts = (self.seed, task.purpose, task.round, task.client)
        return NoiseGenerator.seeded("client noise", *parts)


# The host --------------------------------------------------------------------------------------


class _Released(NamedTuple):
    """What one client releases for a task, packed by its codec, before it is collected."""

    task: Task
    codec: Codec
    packed: NDArray


@dataclass
class Host:
    """Everything that lives once per process and thread, and serves every client asked for.

    Attributes
    ----------
    home : Home
        Where clients live.
    hosted : collection of int
        Who lives here.
    terms : RunTerms
        What all answers of the run have in common.
    client : Client
        The algorithm's client half.
    data : Data
        Of the clients.
    ledger : Ledger
        In which every release is charged before it leaves.
    secure : SecureParties
        The clients' part in secure sums, with their secrets.
    evaluator : Client or None
        Answers the purposes of an evaluation, which the client half does not have.
    noise : callable
        Where each release's noise comes from.
    train : callable or None
        What trains in place of the client half; see the head of this file.
    parse : callable
        Gives a message's tasks.
    account : callable
        Under which id the ledger counts what a client releases, where messages name clients by
        their places in a cohort.
    stack : int
        How many clients may train at once.
    """

    home: Home
    hosted: Collection[int]
    terms: RunTerms
    client: Client
    data: Data
    ledger: Ledger
    secure: SecureParties
    evaluator: Client | None = None
    noise: Noise = noise_of_this_thread
    train: Train | None = None
    parse: Parse = parse_tasks
    account: Account = int
    stack: int = 1

    def answer(self, content: RecordDict, kind: str = "") -> RecordDict:
        """The reply to one message, for all the clients that it names.

        What returns is what the ledger has stored: no byte leaves that is not committed. Refusals
        and failures of single clients are in the reply. An invalid policy or a ledger that cannot
        be trusted refuses all of them. ``kind``: Flower's type of the message, to which a secure
        sum is bound.

        RequestError where the message is malformed: there is nobody to answer for then.
        """
        if self.secure.answers(content):
            return self.secure.answer(content)
        terms = self.terms
        try:
            self.home.policy.require_valid(datetime.now(UTC))
            request = digest(self.home.run, terms.algorithm, terms.noise, content)
            stored = self.ledger.reply(request, self._allow)
            if stored is None:
                tasks = self._tasks(content)
                collector = self._collector(content, kind, self._half(tasks[0]), request)
                refused: dict[int, str] = {}
                admitted = self._charged(tasks, request, collector, refused)
                self._release_all(admitted, collector, refused)
                collector.keep()
                reply = sealed(collector, refused)
                return unsealed(self.ledger.store_reply(request, reply, self._allow))
            return unsealed(stored)
        except (Refusal, LedgerError, SecureSumError) as refusal:
            # An invalid policy, a ledger that cannot be trusted, or a sum's state that another
            # message has changed: nothing at all may leave.
            reason = self.home.reason("everything", refusal)
            everybody = {task.client: reason for task in self._tasks(content)}
            return unsealed(sealed(PlainSum(), everybody))

    # Parse

    def _tasks(self, content: RecordDict) -> list[Task]:
        return self.parse(content, len(self.hosted))

    def _half(self, task: Task) -> Client:
        """What answers: the algorithm's client half, or the evaluation's."""
        if self.evaluator is not None and task.purpose in self.evaluator.purposes:
            return self.evaluator
        return self.client

    def _collector(self, content: RecordDict, kind: str, half: Client, request: str) -> Collector:
        """What takes this message's releases: a plain sum, rows, or masked vectors.

        Under secure aggregation rows stay refused, for each would be one client's own.
        """
        is_charged = partial(self.ledger.is_charged, request)
        collector = self.secure.collector(content, kind, self.terms, is_charged)
        # Under secure aggregation, unmasked contributions are rejected.
        if not half.summed and type(collector) is PlainSum:
            return SideBySide()
        return collector

    # Admit: policy, data, charge

    def _charged(
        self, tasks: list[Task], request: str, collector: Collector, refused: dict[int, str]
    ) -> list[Task]:
        """Those of ``tasks`` that may be computed, all paid for in one durable commit.

        ``request``: the message's digest, under which they are charged. ``refused`` gets the
        others, by client. Charged before and never answered counts as paid: it is computed again.
        """
        charges: dict[int, Charge] = {}
        admitted = set()
        for task in tasks:
            try:
                charge = self._charge(task, request, collector)
            except Exception as error:
                refused[task.client] = self._reason(task, error)
                continue
            if charge is None:
                admitted.add(task.client)
            else:
                charges[task.client] = charge
        admit = self._admit
        if self.home.in_blocks:
            admit = self._allow  # a simulation's data are open
        asked = list(charges.values())
        outcomes = self.ledger.charge(asked, admit, blocks=self.home.in_blocks)
        for (client, charge), outcome in zip(charges.items(), outcomes, strict=True):
            if outcome.may_compute:
                admitted.add(client)
            else:
                about = f"round {charge.round}, client {client}"
                why = Refusal(outcome.reason, outcome.code)
                refused[client] = self.home.reason(about, why)
        return [task for task in tasks if task.client in admitted]

    def _charge(self, task: Task, request: str, collector: Collector) -> Charge | None:
        """What answering costs; None for what a simulation only shows to its researcher.

        TaskError, or whatever the client half raises, where the task may not be answered: nothing
        of it depends on data.
        """
        half = self._half(task)
        terms = self.terms
        if task.purpose not in half.purposes:
            raise TaskError(f"purpose={task.purpose}: must be one of {', '.join(half.purposes)}")
        if task.round > terms.rounds:
            # A budget for the whole run is shared out over so many rounds.
            raise TaskError(f"round={task.round}: this run has {terms.rounds} rounds")
        if task.client not in self.hosted:
            raise TaskError(f"client={task.client}: is not hosted here")
        event = half.event(task)
        if event is None:
            if not self.home.free_reports:
                raise TaskError("reports without a charge exist in simulations only")
            return None
        event = collector.event(task, half.codec(task), event, half.weight(task.client))
        account = self.account(task.client)
        return Charge(account, self.home.run, task.round, task.purpose, request, event)

    def _admit(self, charge: Charge, spent: ComposedEvent) -> None:
        """Asked under the ledger's lock: the owner's policy, then the data; raises Refusal."""
        self._allow(charge, spent)
        try:
            self.data.of(int(charge.client))  # opened after the policy's word, before the charge
        except Exception as error:
            log_error(self.home.folder, f"the data of client {charge.client}", error)
            raise Refusal(REFUSED, "refused") from error

    def _allow(self, charge: Charge, spent: ComposedEvent) -> None:
        """What the owner's policy says now, of new and of stored answers; raises Refusal."""
        self.home.policy.check(
            algorithm=self.terms.algorithm,
            event=charge.event,
            spent=spent,
            delta=self.terms.delta,
            seeded_noise=self.terms.seeded and not isinstance(charge.event, NonPrivateEvent),
            now=datetime.now(UTC),
        )

    # Train, privatize, collect

    def _release_all(
        self, tasks: Sequence[Task], collector: Collector, refused: dict[int, str]
    ) -> None:
        """Let every client of ``tasks`` train and add its release to ``collector``."""
        for start in range(0, len(tasks), self.stack):
            group = tasks[start : start + self.stack]
            opened = self._train_ahead(group)
            waiting: list[_Released] = []
            size = 0
            for task in group:
                try:
                    self._release(task, waiting, opened.get(task.client))
                    size += waiting[-1].packed.nbytes
                except Exception as error:
                    refused[task.client] = self._reason(task, error)
                # Small ones are added together: what masks take of the processor's cache, training
                # would fetch anew for each client.
                if task is not group[-1] and size <= _TOGETHER:
                    continue
                for one, codec, packed in waiting:
                    try:
                        collector.add(one.client, codec, packed, self._half(one).weight(one.client))
                    except Exception as error:
                        refused[one.client] = self._reason(one, error)
                    del packed  # else it is kept while the next client trains
                waiting.clear()
                size = 0

    def _train_ahead(self, group: Sequence[Task]) -> dict[int, LocalData]:
        """Let all of ``group`` train together, where they can; the data that were opened for it.

        Whoever cannot is told so when it trains by itself, and costs the others nothing.
        """
        if self.stack == 1 or self.train is not None:
            return {}
        try:
            asked = [(task, self.data.of(task.client)) for task in group]
            self._half(group[0]).train_ahead(asked)
        except Exception as error:
            about = f"round {group[0].round}, {len(group)} clients together"
            log_error(self.home.folder, about, error)
            return {}
        return {task.client: data for task, data in asked}

    def _release(self, task: Task, waiting: list[_Released], opened: LocalData | None) -> None:
        """Let one client train, and add its release to those ``waiting``.

        ``opened``: its data, where they were opened before. Where a device's own data cannot be
        trained on, the release is that of blank records: it was charged, and whether a client
        answers must not depend on its data. That is one answer for all records at once, which a
        client's unit covers and a record's does not: no record may bring it about where records are
        protected (``Client.units``), and the owner is told if anything has.
        """
        half = self._half(task)
        codec = half.codec(task)
        train = half.answer
        if self.train is not None:
            train = partial(self.train, half)
        try:
            data = self.data.of(task.client) if opened is None else opened
            release = train(task, data, self.noise(task))
        except Exception as error:
            blank = self.data.blank(task.client)
            if blank is None:
                raise
            about = f"round {task.round}, client {task.client}, answered with blank records"
            event = half.event(task)
            if event is not None and any(each.unit is Unit.RECORD for each in releases(event)):
                about += ", which is not covered if a record has brought it about"
            log_error(self.home.folder, about, error)
            release = train(task, blank, self.noise(task))
        packed = codec.pack(release)
        del release  # before what is made of it: a model may have 10⁷ parameters
        # It is not summed yet: a client that used its memory again would change what it released.
        if isinstance(packed.base, np.ndarray):
            packed = packed.copy()
        packed.flags.writeable = False
        waiting.append(_Released(task, codec, packed))

    def _reason(self, task: Task, error: Exception) -> str:
        return self.home.reason(f"round {task.round}, client {task.client}", error)


# Seal ------------------------------------------------------------------------------------------


# Plain numbers by the names that safetensors has for them: a codec of one's own may pack any.
_CODES = {
    **{"BOOL": "?", "U8": "u1", "U16": "u2", "U32": "u4", "U64": "u8"},
    **{"I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8", "F16": "f2", "F32": "f4", "F64": "f8"},
}
_KINDS = {name: np.dtype(code) for name, code in _CODES.items()}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def sealed(collector: Collector, refused: dict[int, str]) -> Reply:
    """A reply as the ledger stores it: bytes that need no unpickling, in pieces.

    Who answered, who refused and why is the record ``report``, as JSON in the metadata of
    safetensors; they hold the arrays of ``contribution``, which is that of those who answered. The
    pieces are their header, and then the collector's own memory.
    """
    report: dict[str, Any] = {
        "clients": collector.clients,
        "refused": list(refused),
        "reasons": list(refused.values()),
        **collector.report(),
    }
    header: dict[str, Any] = {"__metadata__": {"report": json.dumps(report)}}
    pieces: list[memoryview] = []
    end = 0
    for name, contribution in collector.arrays.items():
        if isinstance(contribution, list):
            rows, shape = contribution, (len(contribution), *contribution[0].shape)
        else:
            rows, shape = [contribution], contribution.shape
        begin = end
        end += sum(row.nbytes for row in rows)
        kind = _NAMES[rows[0].dtype]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
        pieces += [np.ascontiguousarray(row).reshape(-1).view(np.uint8).data for row in rows]
    text = json.dumps(header).encode()
    return [memoryview(len(text).to_bytes(8, "little") + text), *pieces]


def unsealed(stored: Reply) -> RecordDict:
    """The reply to send, from what this device has stored itself."""
    pieces = [memoryview(stored)] if isinstance(stored, bytes) else stored
    start = 8 + int.from_bytes(pieces[0][:8], "little")
    header = json.loads(bytes(pieces[0][8:start]))
    report = json.loads(header.pop("__metadata__")["report"])
    content = RecordDict({"report": ConfigRecord(report)})
    places = list(accumulate(map(len, pieces), initial=-start))  # where each piece begins
    arrays = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        values = (
            piece[max(begin - place, 0) : max(end - place, 0)]
            for place, piece in zip(places, pieces, strict=False)
        )
        # As Flower's ``Array(array)`` has it, but that the values are copied once.
        kind, shape = _KINDS[about["dtype"]], tuple(about["shape"])
        start_of = {"descr": kind.str, "fortran_order": False, "shape": shape}
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, start_of)
        data = b"".join([file.getvalue(), *values])
        arrays[name] = Array(str(kind), shape, SType.NUMPY, data)
    if arrays:
        content["contribution"] = ArrayRecord(arrays)
    return content


# Collect: the node halves of ``murmur.round.summation`` -----------------------------------------


class Collector:
    """Takes the releases of one message's clients and gives the node's contribution.

    The node half of a summation; one is made for each message. ``event`` is asked before the
    charge, ``add`` after it, and the rest once all have been added.

    Attributes
    ----------
    clients : list of int
        Whose releases are in it, in order.
    arrays : mapping
        The contribution by name of array; none where nobody has answered. A list is the rows of an
        array, which need not lie side by side in memory.
    """

    clients: list[int]
    arrays: Mapping[str, NDArray | list[NDArray]]

    def event(self, task: Task, codec: Codec, event: Event, weight: int) -> Event:
        """What ``event`` is once the answer to ``task`` leaves this way; TaskError if it may not.

        What it returns is charged, so it claims no more than this way hides: nothing, where the
        server may read what a single client gave. ``codec``, ``weight``: of the answer.
        """
        return event

    def add(self, client: int, codec: Codec, packed: NDArray, weight: int) -> None:
        """Take one client's packed release; raises if it cannot, and then holds nothing of it.

        ``packed``: as ``codec.pack`` gives it. ``weight``: the client's.
        """

    def keep(self) -> None:
        """Put on disk what must be there before the contribution leaves; once, after all of it."""

    def report(self) -> dict[str, Any]:
        """What the server must know to read the contribution."""
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


class SideBySide(Collector):
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


class UnchargedSum(PlainSum):
    """What a server gets that asks for no mask: reports that cost nothing, and no release."""

    def event(self, task: Task, codec: Codec, event: Event, weight: int) -> Event:
        """Refused: whatever has to be charged leaves masked only."""
        raise TaskError(
            "secure_aggregation=on: this client releases nothing but masked contributions"
        )


class MaskedVectors(SideBySide):
    """The ``masked`` contributions of one message's clients, a row of bytes for each.

    A masked vector is random to whoever does not know the masks. The server learns the sum over
    enough clients or nothing, so that a release whose mechanism says so costs less in it.

    Parameters
    ----------
    parties : SecureParties
        The clients with their secrets, and their state from the phases before.
    content : RecordDict
        The message: what is asked, and phase MASK of the protocol. RequestError where that is
        malformed.
    kind : str
        Flower's type of the message.
    run : RunTerms
        What all releases of the run have in common.
    charged : bool
        Whether the ledger knows this message; nothing has left then, since one that has an answer
        is not collected again. A ledger that does not know it, though these clients have masked
        for it, is an older one put in its place.
    """

    name = "masked"

    def __init__(
        self,
        parties: SecureParties,
        content: RecordDict,
        kind: str,
        run: RunTerms,
        charged: bool,
    ) -> None:
        super().__init__()
        self.parties = parties
        self.run = run
        self.request = _request(content.config_records[RECORD])
        self.asked = question(content, kind, parties.started)
        self.charged = charged
        self._states = parties.states(self.request)

    def event(self, task: Task, codec: Codec, event: Event, weight: int) -> Event:
        """Its event, hidden among the fewest honest clients whose sum this client lets out.

        ``terms.honest``: the terms' minimum less the colluders that they reckon with. The chance
        that its share holders were drawn badly is in the event, and is added to δ. TaskError where
        the sum's terms are for another release, SecureSumError where the server's list leaves the
        client out; nothing is charged then.
        """
        party = self._load(task.client)
        terms = party.terms
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

    def keep(self) -> None:
        """That these clients have masked; SecureSumError where another message came before."""
        self._states.keep()

    def _load(self, client: int) -> SecureClient:
        if client not in self.request.messages:
            raise TaskError(f"client {client} is asked to train, but not to mask what it learns")
        party = self._states.load(self.parties.resident(client))
        if self.charged:
            party.mask_again(self.request.messages[client], self.asked)
        party.require_due(Phase.MASK)
        return party


# Secure sums -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SecureParties:
    """The clients that live here as parties of secure sums, each with its own state and secrets.

    All phases but MASK are independent of clients' data and are answered here, without a charge.
    MASK comes with the request to train, and the host answers it like every release. What a message
    changes is on disk, for all of its clients by one write of each file, before any answer leaves.
    A subclass may know its one party under another id (``murmur.flower.client``).

    Attributes
    ----------
    home : Home
        Whose folder holds the secrets.
    hosted : collection of int
        Who lives here.
    rules : OwnerRules
        What terms the clients accept.
    is_on : bool
        Whether this run's clients mask what they release.
    started : str
        Digest of the configuration that they were started with (``SumSetup.started``).
    """

    home: Home
    hosted: Collection[int]
    rules: OwnerRules
    is_on: bool
    started: str = field(default="", kw_only=True)

    def answers(self, content: RecordDict) -> bool:
        """Whether a message belongs to a phase that needs nothing but this class."""
        record = content.config_records.get(RECORD)
        return record is not None and record.get("phase") != Phase.MASK.value

    def answer(self, content: RecordDict) -> RecordDict:
        """The reply to such a message, for all the clients that it names.

        A record ``secure_sum`` with ``clients`` and their ``messages``, ``refused`` and
        ``reasons``. The same message gets the same answer, from the client's disk. RequestError
        where it is malformed.
        """
        request = _request(content.config_records[RECORD])
        if request.phase is Phase.ADVERTISE:
            forget_old_sums(self.home.folder)
        answered: dict[int, bytes] = {}
        refused: dict[int, str] = {}
        about = f"secure sum, {request.phase.value}"
        try:
            states = self.states(request)
            most = MOST_PEERS + len(self.hosted)
            seen = SeenPeers(secure_folder(self.home.folder) / "seen.peers", most)
            for client in request.messages:
                try:
                    answered[client] = self._answer(request, client, states, seen)
                except (SecureSumError, ValueError) as error:
                    refused[client] = self.home.reason(f"{about}, client {client}", error)
            seen.keep()
            states.keep()
        except (SecureSumError, ValueError) as error:
            answered = {}
            refused = dict.fromkeys(request.messages, self.home.reason(about, error))
        record: dict[str, Any] = {
            "clients": list(answered),
            "messages": list(answered.values()),
            "refused": list(refused),
            "reasons": list(refused.values()),
        }
        return RecordDict({RECORD: ConfigRecord(record)})

    def collector(
        self, content: RecordDict, kind: str, run: RunTerms, is_charged: Callable[[], bool]
    ) -> Collector:
        """What takes the releases that a message asks for.

        Where the run masks, a message without phase MASK gets nothing that costs anything.
        RequestError where the server wants masks and the run has none. ``kind``: Flower's type of
        the message. ``run``: what all its releases have in common. ``is_charged``: whether the
        ledger knows the message.
        """
        record = content.config_records.get(RECORD)
        if not self.is_on:
            if record is not None:
                raise RequestError(
                    "secure_aggregation=on: the server has it on, this client has not"
                )
            return PlainSum()
        if record is None:
            return UnchargedSum()
        return MaskedVectors(self, content, kind, run, is_charged())

    def resident(self, client: int) -> int:
        """Under which id this place remembers ``client``; SecureSumError if it lives elsewhere."""
        if client not in self.hosted:
            raise SecureSumError(f"client {client} is not hosted here")
        return client

    def identity(self, client: int) -> bytes:
        """The long-term private key of ``client``, which is made where there is none."""
        return self.home.identity(client)

    @property
    def names(self) -> Path:
        """Where it stands which sums those who live here have joined (``JoinedSums``)."""
        return secure_folder(self.home.folder) / "joined"

    def states(self, request: Request) -> SumStates:
        """What the clients of ``request`` remember of its sum.

        In a folder of this run's own: a device may be in sums of two runs at once.
        """
        residents = [self.resident(c) for c in request.messages if c in self.hosted]
        folder = self.home.memory / _SUMS
        return SumStates(folder, self.names, request.run, request.round, residents)

    def _answer(
        self,
        request: Request,
        client: int,
        states: SumStates,
        seen: SeenPeers,
    ) -> bytes:
        """One client's part of a phase, to be kept before it leaves: no phase has two answers."""
        if not self.is_on:
            raise SecureSumError("secure aggregation is off at this client")
        resident = self.resident(client)
        message = request.messages[client]
        asked = request.digest(message)
        again = states.answered(resident, asked)
        if again is not None:
            return again
        if request.phase is Phase.ADVERTISE:
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
        return answer


def secure_folder(folder: Path) -> Path:
    """Where the long-term keys of a home's clients are, and which sums these have joined."""
    return folder / "clients" / _SUMS


def forget_old_sums(folder: Path) -> None:
    """Remove what a device's sums have left that nobody has gone on with for a day: secrets.

    ``folder``: the device's. Which sums were joined stays known.
    """
    for path in folder.glob(f"clients/*/{_SUMS}/*{STATES}"):
        with suppress(FileNotFoundError):  # another process has removed it
            if path.stat().st_mtime < time.time() - _FORGET_SECONDS:
                path.unlink()


def identity_file(folder: Path, client: int) -> Path:
    """Where the long-term key of ``client`` lies."""
    return secure_folder(folder) / f"{client}.key"


class Request:
    """One message of the protocol as it arrived.

    KeyError, TypeError or ValueError if it is malformed, which ``_request`` makes a RequestError.

    Attributes
    ----------
    run, round : str, int
        Which sum it is about, in the server's words.
    phase : Phase
        Which phase of it.
    messages : dict
        What each client is sent, in bytes.
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
        self.phase = Phase(fields["phase"])
        self.run = fields["run"]
        self.round = fields["round"]
        if type(self.run) is not str or type(self.round) is not int:
            raise ValueError("run, round: must be a name and an integer")

    def terms(self, message: bytes) -> Terms:
        """The terms that the server proposes, which are its message in phase ADVERTISE.

        ValueError where they are none, or those of another run or round.
        """
        terms = Terms.read(message)
        if (terms.run, terms.round) != (self.run, self.round):
            raise ValueError("terms: they are those of another sum")
        return terms

    def digest(self, message: bytes) -> str:
        """A digest of what one client is asked, the same for the same request."""
        return hashlib.sha256(framed(self.phase.value.encode(), message)).hexdigest()


def _request(record: ConfigRecord) -> Request:
    """The request in ``record``; RequestError if it is malformed."""
    try:
        return Request(record)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{RECORD}: {in_words(error):.120}") from error
