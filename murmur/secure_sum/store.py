"""Clients' states between two phases, on the disk of the place where they live.

On a device every message is answered by a fresh process, so nothing can wait in memory. States
hold secrets: only their owner may read them, and when the sum is over (or a client gives up) they
are gone. Which sums were joined stays, in any run (``JoinedSums``): none is joined twice.

The last answers stay too. A server that was killed asks again, and the same request gets the same
bytes; anything else in a phase that is done gets nothing.
"""

import hashlib
import os
import secrets
import sqlite3
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from murmur.files import locked, replace_durably, sync_folder
from murmur.format import framed, unframed
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.keys import KEY_BYTES
from murmur.secure_sum.shares import SHARE_BYTES
from murmur.secure_sum.terms import SecureSumError, SumTerms, join, join_ids, part, part_ids

STATES = ".states"  # ends the names of their files
# Runs whose last sum a place remembers, at most, in some 80 bytes for each client. A run's server
# has one name for trainings and one for evaluations, and others each time that it is started.
MAX_RUNS = 2**16
_WAIT_SECONDS = 30.0  # for another process that notes a sum
_TABLE = """CREATE TABLE IF NOT EXISTS joined
    (run BLOB, client INTEGER, round INTEGER, PRIMARY KEY (run, client)) WITHOUT ROWID"""
_ID_BYTES = 8
# Of a state: whose it is, its four secrets, how many phases are done, places of what is alike.
_FIXED = struct.Struct(f">Q{4 * f'{KEY_BYTES}s'}B5I")


class SumStates:
    """State of the clients that one message names, for the sum that it is about.

    Whoever answers a message loads each client, lets it answer, puts it back, and calls ``keep``
    before any answer leaves: a state whose secrets were used is never used again. Clients that
    joined by one message lie in one file, so that each phase is one durable write for all of them.

    Args:
        folder: of the states of one run, in which a client is in one sum at a time.
        names: where it stands which sums were joined, in all runs (``JoinedSums``).
        run, round: the sum, as its terms name it.
        clients: whom the message names, by the ids under which this place knows them.
        beside: run and round of the sum that ends with the same message: its last answers stay.
    """

    def __init__(
        self,
        folder: Path,
        names: Path,
        run: str,
        round: int,
        clients: Collection[int],
        beside: tuple[str, int] | None = None,
    ) -> None:
        self.folder = folder
        self.known = JoinedSums(names)
        self.run = run
        self.round = round
        self.sum = _sum_of(run, round)
        self._kept = {self.sum}
        if beside is not None:
            self._kept.add(_sum_of(*beside))
        self._joining: set[int] = set()
        self._changed: dict[int, tuple[SecureClient, str | None, bytes]] = {}
        self._file_of: dict[int, _File] = {}
        self._derived: dict[bytes, bytes] = {}
        self._find(clients)

    def join(self, client: int, party: SecureClient) -> None:
        """Begin with a new sum; what was left of older ones is lost once this is kept.

        SecureSumError for a sum that was joined before, or is older than one that was.
        """
        _require_later(self._had_joined.get(client), self.round)
        self._joining.add(client)
        self.put(client, party)

    def load(self, client: int) -> SecureClient:
        """The state of ``client``.

        SecureSumError if there is none: not joined, finished, given up, or the file is damaged.
        """
        if client not in self._file_of:
            raise SecureSumError(f"this client has not joined round {self.round} of that run")
        party = self._file_of[client].state(client, self.round)
        party.derived = self._derived
        return party

    def answered(self, client: int, request: str) -> bytes | None:
        """Answer to the last request of ``client``, if that was ``request`` (a digest).

        None for any other request: it is answered by the state, or not at all.
        """
        if client not in self._file_of:
            return None
        return self._file_of[client].answer(client, request)

    def put(
        self, client: int, party: SecureClient, request: str | None = None, answer: bytes = b""
    ) -> None:
        """Replace the state of ``client`` when this is kept; of a finished sum no secret is.

        ``request``: digest of what ``answer`` answers; None: nothing can be answered again.
        """
        self._changed[client] = (party, request, answer)

    def keep(self) -> None:
        """Everything that was put is on disk when this returns.

        SecureSumError where another message for one of the clients was answered meanwhile: then
        nothing of what this one was answered with may leave.
        """
        if not self._changed:
            return
        if self._joining:
            self._keep_names()
        changed: dict[Path, list[int]] = {}
        for client in self._changed:
            path = self._own
            if client in self._file_of:
                path = self._file_of[client].path
            changed.setdefault(path, []).append(client)
        with locked(self.folder):
            files = [self._merged(path, clients) for path, clients in changed.items()]
            for file in files:
                file.write()
            sync_folder(self.folder)

    # Helpers --------------------------------------------------------------------------------

    def _find(self, clients: Collection[int]) -> None:
        """Read the files in which ``clients`` lie: one, unless nodes were given other clients."""
        self._own = self.folder / f"{self.sum}.{min(clients, default=0)}{STATES}"
        left = set(clients)
        self._look(self._own, left)
        if any(self._had_joined.get(client) == self.round for client in left):
            for path in sorted(self.folder.glob(f"{self.sum}.*{STATES}")):
                self._look(path, left)

    def _look(self, path: Path, left: set[int]) -> None:
        """Take up those of ``left`` that lie in the file ``path``."""
        file = _File.read(path)
        here = left & file.entries.keys()
        self._file_of |= dict.fromkeys(here, file)
        left -= here

    def _merged(self, path: Path, clients: Iterable[int]) -> "_File":
        """The file as it is now, with what was put of ``clients``."""
        file = _File.read(path).copy()
        for client in clients:
            before = None
            if client in self._file_of:
                before = self._file_of[client].entries[client]
            if file.entries.get(client) != before:
                raise SecureSumError("another message to this client was answered meanwhile")
            file.put(client, *self._changed[client])
        return file

    @cached_property
    def _had_joined(self) -> dict[int, int]:
        """The last round of this run that clients had joined when the message came."""
        return self.known.last(self.run, self.round)

    def _keep_names(self) -> None:
        """Note who joins, and drop what is left of other sums of the run."""
        self.known.add(self._joining, self.run, self.round)
        for path in self.folder.glob(f"*{STATES}"):
            if path.name.partition(".")[0] not in self._kept:
                path.unlink(missing_ok=True)


class JoinedSums:
    """Which sums the clients of one place have joined, in all runs and for good.

    Rounds of a run have ascending numbers. So of each run a client's last round is enough: that one
    and all below it are refused. Nothing is ever forgotten. A place that remembers ``most`` runs
    joins sums of no other one.

    Args:
        names: names the file, ``names`` and ".sqlite". At ``names`` itself may lie what earlier
            versions wrote: a sum in each line, which is read and never grows.
        most: see above.
    """

    def __init__(self, names: Path, most: int = MAX_RUNS) -> None:
        self.path = names.with_name(f"{names.name}.sqlite")
        self.older = names
        self.most = most

    def last(self, run: str, round: int) -> dict[int, int]:
        """The last round of ``run`` that each client has joined, or ``round`` if it has that one.

        SecureSumError where the file is damaged.
        """
        found = self._of_older(run, round)
        if self.path.exists():
            with self._opened() as file:
                found |= _last(file, run)
        return found

    def add(self, clients: Iterable[int], run: str, round: int) -> None:
        """That ``clients`` join this sum is on disk when this returns.

        SecureSumError, and none of them does, where one has joined it or a later one of its run,
        where it is of a run too many, and where the file is damaged or cannot be written.
        """
        joining = sorted(clients)
        older = self._of_older(run, round)
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            sync_folder(self.path.parent)
        with self._opened() as file:
            file.execute("BEGIN IMMEDIATE")  # another message may be joining
            known = _last(file, run)
            for client in joining:
                _require_later((older | known).get(client), round)
            [[count]] = file.execute("SELECT COUNT(DISTINCT run) FROM joined")
            if not known and count >= self.most:
                raise SecureSumError(
                    f"sums of {count} runs were joined here, and of no more it can be remembered"
                )
            file.executemany(
                "INSERT OR REPLACE INTO joined VALUES (?, ?, ?)",
                [(_name_of(run), client, round) for client in joining],
            )
            file.execute("COMMIT")

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """The file; what was not committed when this ends is undone."""
        try:
            connection = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
            with closing(connection) as file:
                file.execute("PRAGMA synchronous = FULL")
                file.execute(_TABLE)
                yield file
        except sqlite3.Error as error:
            raise SecureSumError(f"{self.path.name}, the sums that were joined: {error}") from error

    def _of_older(self, run: str, round: int) -> dict[int, int]:
        """``round`` for each client that has joined this sum by the older file."""
        try:
            lines = self.older.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return {}
        name = _sum_of(run, round)
        mine = (line.split()[1:] for line in lines if line.startswith(name))
        return {int(client): round for clients in mine for client in clients}


def _last(file: sqlite3.Connection, run: str) -> dict[int, int]:
    """The last round of ``run`` by client."""
    return dict(file.execute("SELECT client, round FROM joined WHERE run = ?", (_name_of(run),)))


def _require_later(joined: int | None, round: int) -> None:
    """SecureSumError where a client that had ``joined`` a round may not join ``round``."""
    if joined == round:
        raise SecureSumError(f"round {round} of this run was joined before")
    if joined is not None and joined > round:
        raise SecureSumError(f"round {round} of this run is older than one that was joined")


def _name_of(run: str) -> bytes:
    return hashlib.sha256(framed(b"run", run.encode())).digest()


def _sum_of(run: str, round: int) -> str:
    return hashlib.sha256(framed(run.encode(), str(round).encode())).hexdigest()


_TOKEN_BYTES = 16  # random, first in each file of states: no two writings of one have the same
_Version = tuple[Path, bytes, int, int]  # path, token, time of the last change, size


def _version(path: Path) -> _Version | None:
    """Facts that tell what lies at ``path`` from all that lay there before; None: nothing does.

    Times are too coarse for two writings of one moment, so each has its token.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(framed(bytes(_TOKEN_BYTES))))
            found = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    return path, head, found.st_mtime_ns, found.st_size


def _keep(version: _Version, file: "_File") -> None:
    """Remember ``file`` instead of the one before."""
    _read.clear()
    _read[version] = file


@dataclass
class _File:
    """One file of states: an entry for each client, behind what several of them know.

    Attributes:
        path: where it lies.
        shared: what clients were sent alike (terms, advertisements, lists), by its place.
        entries: by client, as they stand in the file: its id, then digest of the request, the
            answer and the state, framed; the first of these is empty where nothing can be answered
            again, the last where no state is left.
    """

    path: Path
    shared: dict[bytes, int] = field(default_factory=dict)
    entries: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "_File":
        """The file at ``path``, empty where there is none; SecureSumError if it is damaged.

        Whoever changes it changes a copy: where clients are asked one by one, a process reads the
        file that it has just written again and again.
        """
        version = _version(path)
        if version is None:
            return cls(path)
        file = _read.get(version)
        if file is None:
            file = cls._parsed(path)
            _keep(version, file)
        return file

    @classmethod
    def _parsed(cls, path: Path) -> "_File":
        file = cls(path)
        try:
            _, first, *rest = unframed(path.read_bytes())
            file.shared = {each: place for place, each in enumerate(unframed(first))}
        except FileNotFoundError:
            return file
        except ValueError as error:
            raise file.damaged from error
        for each in rest:
            file.entries[int.from_bytes(each[:_ID_BYTES], "big")] = framed(each)
        return file

    def copy(self) -> "_File":
        """Another one with the same entries."""
        return _File(self.path, dict(self.shared), dict(self.entries))

    def write(self) -> None:
        """Replace what lies at ``path``: the inverse of ``read``."""
        shared = framed(secrets.token_bytes(_TOKEN_BYTES), framed(*self.shared))
        replace_durably(self.path, b"".join([shared, *self.entries.values()]))
        version = _version(self.path)
        if version is not None:
            _keep(version, self)

    def state(self, client: int, round: int) -> SecureClient:
        """State of ``client``; SecureSumError where its sum is over, or the file is damaged."""
        _, _, state = self._parts(client)
        if not state:
            raise SecureSumError(f"this client has finished, or dropped out of, round {round}")
        try:
            return restored(state, self._by_place)
        except (ValueError, LookupError, struct.error, SecureSumError) as error:
            raise self.damaged from error

    def answer(self, client: int, request: str) -> bytes | None:
        """Answer of ``client`` to ``request``; None where its last request was another one."""
        found, answer, _ = self._parts(client)
        if found != request.encode("ascii"):
            return None
        return answer

    def put(self, client: int, party: SecureClient, request: str | None, answer: bytes) -> None:
        """Replace the entry of ``client``."""
        state = b""
        if not party.is_finished:
            state = stored(party, self.shared)
        entry = framed((request or "").encode("ascii"), answer, state)
        self.entries[client] = framed(client.to_bytes(_ID_BYTES, "big") + entry)

    @cached_property
    def _by_place(self) -> list[bytes]:
        """Shared facts, from a file that was read and is not changed."""
        return list(self.shared)

    @property
    def damaged(self) -> SecureSumError:
        """The error for a file that cannot be read."""
        return SecureSumError(f"the state file {self.path.name} is damaged")

    def _parts(self, client: int) -> list[bytes]:
        try:
            [entry] = unframed(self.entries[client])
            found = unframed(entry[_ID_BYTES:])
        except ValueError as error:
            raise self.damaged from error
        if len(found) != 3:
            raise self.damaged
        return found


_read: dict[_Version, _File] = {}  # the file that this process has read or written last


def stored(party: SecureClient, shared: dict[bytes, int]) -> bytes:
    """The whole state, secrets included, for the client's own disk.

    ``shared``: gets what others were sent alike, by its place, which stands in the state for it.
    """

    def place(content: bytes) -> int:
        return shared.setdefault(content, len(shared))

    neighbours = party.terms.neighbours_of(party.me)
    own = (party.identity, party.channel, party.mask, party.seed)
    alike = (party.terms.sent, party.advertised, party.asked, party.included, party.survivors)
    public = [party.public[v] for v in neighbours if v in party.public]
    return framed(
        _FIXED.pack(party.me, *own, party.done, *map(place, alike)),
        join_ids(party.public, neighbours),
        struct.pack(f">{len(public)}I", *map(place, public)),
        join(party.boxes, neighbours),
        join(party.shares, party.terms.holders_of(party.me)),
    )


def restored(state: bytes, shared: list[bytes]) -> SecureClient:
    """The inverse of ``stored``; the client goes on with the phase that was due.

    ValueError, LookupError, struct.error or SecureSumError where it is none.
    """
    fixed, known, places, boxes, shares = unframed(state)
    client, *own, done, sent, advertised, asked, included, survivors = _FIXED.unpack(fixed)
    identity, channel, mask, seed = own
    terms = SumTerms.read(shared[sent])
    neighbours = terms.neighbours_of(client)
    ids = part_ids(known, neighbours)
    public = map(shared.__getitem__, struct.unpack(f">{len(ids)}I", places))
    return SecureClient(
        terms=terms,
        me=client,
        identity=identity,
        channel=channel,
        mask=mask,
        seed=seed,
        done=done,
        advertised=shared[advertised],
        public=dict(zip(ids, public, strict=True)),
        boxes=part(boxes, KEY_BYTES, neighbours),
        shares=part(shares, SHARE_BYTES, terms.holders_of(client)),
        asked=shared[asked],
        included=shared[included],
        survivors=shared[survivors],
    )
