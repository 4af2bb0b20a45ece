"""What a server asks of one client, read as untrusted input, and what a client must be to answer.

Nothing is converted: an id that is not an integer is refused, because two ids that become one
would let a client answer twice for one charge. Here too stand the two digests of a message (what a
client answers once, and what the clients of a secure sum are asked alike), the words in which
server and nodes speak of each other's failures, and the log in which a machine keeps what it does
not say.
"""

import hashlib
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import Error, Message, RecordDict
from numpy.typing import NDArray

from murmur.files import owner_only, owner_only_folder
from murmur.format import framed, printable
from murmur.learning.array_bytes import MalformedError, array_from_bytes
from murmur.learning.codec import Codec
from murmur.learning.data.examples import LocalData
from murmur.privacy.events import Event
from murmur.privacy.noise import NoiseGenerator

RECORD = "secure_sum"  # the record of a message in which the protocol of secure sums travels
# Beside it in phase REVEAL: phase ADVERTISE of the sum that follows, a message of its own.
AHEAD = "secure_sum_ahead"
RECEIPTS = "receipts"  # the record of a request for receipts (``murmur.round.receipts``)
SIGNED = "signed"  # the record of the server's signatures (``murmur.round.signed``)
# The record of our own that names whom a question is put to: the first of these that is there.
# The second one is a foreign strategy's own where ``murmur.flower.ask`` has put in the first.
_NAMING = ("murmur", "task")
_SENT = (bool, int, float, str, bytes)  # the types of settings on the wire; a bool is an int, too
# What a server hears of a device's refusal, always the same. Why, which row, which value and whose
# entry stand in the device's own log: a text that is chosen by what went wrong would tell of the
# data, of the owner's files and of other federations' runs.
REFUSED = "refused; its own log says why"
_OURS = ("clients", "fl_app", "murmur", "strategies")  # packages of this program
_LAST_ROUND = 2**31
_LONGEST_WORD = 64
_LONGEST_LINE = 300
_MAX_LOG_BYTES = 2**20  # bytes; twice that is kept


class RunError(Exception):
    """A run cannot go on, for a reason that whoever started it can mend: one sentence, no bug."""


class RequestError(Exception):
    """A node cannot read a message, or may not answer it at all; nothing is charged.

    It is about the message as a whole, so the node replies with an error; ``TaskError`` is about
    one client and becomes that one's refusal.
    """


class TaskError(ValueError):
    """The server asks for something that this client cannot or will not do; nothing is charged."""


@dataclass(frozen=True)
class Task:
    """A server's request to one client in one round; everything in it may be hostile.

    Attributes:
        round: Number of the round, from 1 on.
        client: The client's id.
        model: (d,) float32. Flat parameters.
        arrays, settings: What the algorithm's server half sends beside the model.
        purpose: "train", or another stage that the algorithm has ("label", "evaluate"). A client
            answers once for each (run, round, purpose), and each answer is charged by itself.
        message: All that was sent, for foreign code that reads more than a task
            (``murmur.round.host``).
        server: Beside ``message``: the public key, in hex, of the server that has signed the
            question, which was verified; empty where none has.
    """

    round: int
    client: int
    model: NDArray[np.float32]
    arrays: Mapping[str, NDArray]
    settings: Mapping[str, object]
    purpose: str = "train"
    message: RecordDict | None = None
    server: str = ""


@dataclass(frozen=True)
class RunFacts:
    """Facts that all answers of a run have in common, by which the owner's policy judges.

    Attributes:
        algorithm: Its name, as policies and secure sums know it.
        delta: δ for which ε is computed.
        rounds: A budget for the whole run is shared out over so many.
        noise: "os", or "seeded": it follows from the run's seed, for reproductions only.
        settings: All that a client is built from and a server has set, as the client composes it.
    """

    algorithm: str
    delta: float
    rounds: int
    noise: str = "os"
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def seeded(self) -> bool:
        """True if the run's noise can be computed, which voids its statement."""
        return self.noise == "seeded"


class Client(Protocol):
    """Protocol of a client half: an algorithm's, an evaluation's, or anybody's own code.

    One instance serves all clients of a node. ``clients.base.Client`` is the usual base class.

    For each task the host calls ``event``, ``codec`` and ``weight`` before it charges, and
    ``answer`` after. The first three depend on the task alone: what is charged or refused must not
    tell of data.

    Attributes:
        summed: Whether a node sums its clients' releases; else they travel as one row each.
        purposes: Purposes for which it can be asked.
    """

    summed: bool
    purposes: tuple[str, ...]

    def codec(self, task: Task) -> Codec:
        """The form in which the answer travels; TaskError if the task is malformed."""

    def event(self, task: Task) -> Event | None:
        """Returns the event of an answer, by the task alone; None for a report in a simulation.

        It is the event of this client's own message, by itself. That a secure sum hides it is added
        by the host.
        """

    def answer(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray:
        """The release: what local computation on ``data`` leads to, protected.

        Called once for a charged task, and in the form that ``codec(task).pack`` takes; the array
        is then the host's, and nobody writes in it. ``noise``:
        where randomness of the protection must come from. What it raises refuses the client in a
        simulation; a device then asks again with blank records, since it must answer what it has
        charged.
        """

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """Compute what ``answer`` will need for each of ``asked``, together.

        Called only where several clients train at once, after all of them are charged.
        """

    def weight(self, client: int) -> int:
        """How much the release of ``client`` counts in a sum: a public whole number from 1 on."""


def parse_tasks(content: RecordDict, hosted: int) -> list[Task]:
    """One task for each client that a message names, at most ``hosted``, in the message's order.

    The message is as ``murmur.round.question.Question.content`` makes it: a record ``task`` with
    ``round`` (1 to 2^31), ``clients`` (distinct integers) and perhaps ``purpose``, and a record
    ``model`` with an array ``model``. All other settings and arrays go to the algorithm unread.

    RequestError if the message is malformed; its text repeats nothing but the message.
    """
    record = content.config_records.get("task")
    sent = content.array_records.get("model")
    if record is None or sent is None or "model" not in sent:
        raise RequestError(
            "the message must hold a record `task`, and `model` with an array `model`"
        )
    settings = dict(record)
    number = settings.pop("round", None)
    clients = settings.pop("clients", None)
    purpose = settings.pop("purpose", "train")
    if type(number) is not int or not 1 <= number <= _LAST_ROUND:
        raise RequestError(f"round={number!r:.40}: must be an integer in 1..{_LAST_ROUND}")
    if type(purpose) is not str or not purpose or len(purpose) > _LONGEST_WORD:
        raise RequestError(f"purpose={purpose!r:.40}: must be a word")
    if type(clients) is not list or not 1 <= len(clients) <= hosted:
        found = len(clients) if isinstance(clients, list) else type(clients).__name__
        raise RequestError(f"clients: {found}; must be a list of those that live here")
    ids = [client for client in clients if type(client) is int]
    if len(set(ids)) != len(clients):
        raise RequestError("clients: must be distinct integers")
    try:
        arrays = {name: array_from_bytes(array.data) for name, array in sent.items()}
    except MalformedError as error:
        raise RequestError(f"model: {error}") from error
    model = arrays.pop("model")
    return [Task(number, client, model, arrays, settings, purpose) for client in ids]


def request_digest(run: str, algorithm: str, noise: str, content: RecordDict) -> str:
    """A hash of everything that a message of ``run`` asks for, the same for the same request.

    By it a ledger finds the reply that it has stored. Two runs with the same settings and seed ask
    the same under two names: two requests, of which each is charged. What the owner's policy judges
    by and no event says, the algorithm and the kind of noise, are part of it: what was answered
    under one of them is not given again under another. The server's signatures are no part of it:
    they are the same for the same question. In hexadecimal.
    """
    return _hash(_parts(content), (run, algorithm, noise)).hex()


def question(content: RecordDict, kind: str, started: str) -> bytes:
    """A digest of what all clients of a sum are asked in phase MASK, whichever node they are on.

    Model, arrays, settings and metrics, without who is asked; pairwise masks are bound to it, so
    that masks of clients that were asked different things do not cancel. 32 bytes.

    ``kind``: Flower's type of the message, whose suffix may choose among an app's functions.
    ``started``: digest of the configuration that the run's clients were started with.
    """
    return question_digest(opened_question(content, kind, started))


def opened_question(content: RecordDict, kind: str, started: str) -> dict[str, Any]:
    """The parts that ``question`` digests, as JSON has them; arrays by their digests."""
    return {"kind": kind, "started": started, **_parts(content, alike=True)}


def question_digest(opened: Mapping[str, Any]) -> bytes:
    """The digest of an ``opened_question``, 32 bytes."""
    return _hash(opened, ("question to a sum", opened["kind"], opened["started"]))


def started_with(run_config: Mapping[str, object]) -> str:
    """A digest of Flower's run-config, the same on every machine, in hexadecimal."""
    each = [framed(key.encode(), _as_sent(value)) for key, value in sorted(run_config.items())]
    return hashlib.sha256(framed(b"run-config", *each)).hexdigest()


def _hash(parts: Mapping[str, Any], about: Iterable[str]) -> bytes:
    """SHA-256 of ``about`` and the ``_parts`` of a message."""
    state = hashlib.sha256(framed(*(word.encode() for word in about)))
    for name, arrays in parts["arrays"]:
        state.update(framed(b"arrays", name.encode()))
        for key, dtype, shape, values in arrays:
            about_it = key.encode(), dtype.encode(), repr(tuple(shape)).encode()
            state.update(framed(b"array", *about_it, bytes.fromhex(values)))
    for kind, each in ((b"settings", b"setting"), (b"metrics", b"metric")):
        for name, texts in parts[kind.decode()]:
            state.update(framed(kind, name.encode()))
            for key, text in texts:
                state.update(framed(each, key.encode(), text.encode()))
    return state.digest()


def _parts(content: RecordDict, alike: bool = False) -> dict[str, list[Any]]:
    """All of a message in order, as JSON has it; ``alike``: what is the same for all its clients.

    ``arrays``: [record, [[key, dtype, shape, SHA-256 of the bytes], ...]]; ``settings`` and
    ``metrics``: [record, [[key, text], ...]].
    """
    naming = next((name for name in _NAMING if name in content.config_records), None)
    arrays = []
    for name, record in sorted(content.array_records.items()):
        found = []
        for key, array in sorted(record.items()):
            values = hashlib.sha256(array.data).hexdigest()
            found.append([key, array.dtype, list(array.shape), values])
        arrays.append([name, found])
    settings = []
    for name, config in sorted(content.config_records.items()):
        if name == SIGNED or (alike and name == RECORD):
            continue
        without = "clients" if alike and name == naming else None
        settings.append([name, _texts(config, without)])
    metrics = [[name, _texts(each)] for name, each in sorted(content.metric_records.items())]
    return {"arrays": arrays, "settings": settings, "metrics": metrics}


def _texts(record: Mapping[str, Any], without: str | None = None) -> list[list[str]]:
    """The record's values as they are sent, by key, but for the key ``without``."""
    return [
        [key, _as_sent(value).decode()] for key, value in sorted(record.items()) if key != without
    ]


def _as_sent(value: object) -> bytes:
    """A setting or metric as both ends write it, whatever subclass of a plain type one of them has.

    NumPy's numbers and the members of an Enum arrive as plain ones, and a list as one of the first
    entry's type.
    """
    if isinstance(value, list):
        text = ", ".join([_plain(each, value[0]) for each in value])
        return f"[{text}]".encode()
    return _plain(value, value).encode()


def _plain(value: object, like: object) -> str:
    """The text of ``value`` as of the plain type that ``like`` has."""
    kind = next(kind for kind in _SENT if isinstance(like, kind))
    return kind.__repr__(value)  # type: ignore[arg-type]


def reply_to(message: Message, answer: RecordDict | Error) -> Message:
    """The reply to ``message``, dated as that is: Flower says to the microsecond when it was made.

    How long training took tells how many records there are.
    """
    reply: Message = Message(answer, reply_to=message)  # type: ignore[call-overload]
    reply.metadata.created_at = message.metadata.created_at
    reply.metadata.ttl = message.metadata.ttl
    return reply


def printable_line(reason: object) -> str:
    """One short line of printable text, whatever ``reason``, a stranger's word, holds.

    Ray's reasons are whole tracebacks, of which the last line says what happened.
    """
    lines = str(reason or "").strip().splitlines() or ["no reason given"]
    text = printable(lines[-1].strip())
    if len(text) > _LONGEST_LINE:
        return f"{text[:_LONGEST_LINE]}..."
    return text


def read_report(
    report: Mapping[str, object], clients: Sequence[int]
) -> tuple[list[int], dict[int, str]]:
    """Which of ``clients`` answered by a node's own ``report``, and who refused and why.

    Reasons become one printable line each. MalformedError or KeyError where it does not speak of
    each of ``clients`` exactly once.
    """
    answered = _ids(report["clients"])
    refused = _ids(report["refused"])
    reasons = report["reasons"]
    if sorted(answered + refused) != sorted(clients):
        raise MalformedError("it answers for other clients than it was asked for")
    if not isinstance(reasons, list) or len(reasons) != len(refused):
        raise MalformedError("every refusal needs its reason")
    return answered, {c: printable_line(why) for c, why in zip(refused, reasons, strict=True)}


def _ids(value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise MalformedError(f"client ids must be a list of integers, got {value!r:.60}")
    return value


def in_words(error: BaseException) -> str:
    """Its type and message; the type alone where the message itself fails, as foreign ones may.

    What this program says in words of its own stands without a type.
    """
    name = type(error).__name__
    with suppress(BaseException):
        if type(error).__module__.partition(".")[0] in _OURS and str(error):
            return str(error)
        return f"{name}: {error}"
    return name


def error_log(folder: Path) -> Path:
    """Where ``log_error`` writes; what was there before lies in errors.old.log beside it."""
    return folder / "errors.log"


def log_error(folder: Path, about: str, error: BaseException) -> None:
    """Write an error with its traceback to this machine's own log, ``errors.log`` in ``folder``.

    Errors repeat what a server has sent: nothing of it may move the reader's cursor. From 1 MiB on
    the log becomes errors.old.log, in place of the one before. Where it cannot be written (the disk
    is full) this process's own output has it, an error of ours in one line. Nothing is raised,
    whatever ``error`` does where it is asked for its words: what leaves a device must not depend on
    whether there was an error.

    ``about``: which message and client it was, as the line's beginning.
    """
    said = printable(f"{about}: {in_words(error)}") + "\n"
    text = said
    with suppress(BaseException):
        text += printable("".join(traceback.format_exception(error)), keep="\n") + "\n"
    path = error_log(folder)
    try:
        owner_only_folder(folder)
        if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
            os.replace(path, folder / "errors.old.log")  # a server must not fill a device's disk
        with open(path, "a", encoding="utf-8", opener=owner_only) as file:
            file.write(text)
    except OSError as failed:
        if type(error).__module__.partition(".")[0] not in _OURS:
            said = text  # a bug, which nobody finds without its traceback
        with suppress(OSError, ValueError):  # it may lead to the same disk, or be closed
            print(f"{path}: {failed}\n{said}", file=sys.stderr, flush=True)
