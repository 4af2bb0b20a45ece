"""Clients' states between two phases, on the disk of the place where they live.

On a device every message is answered by a fresh process, so nothing can wait in memory. States
hold secrets: only their owner may read them, and when the sum is over (or a client gives up) they
are gone. The names of all sums that were joined, in any run, stay in a file: none is joined twice.

The last answers stay too. A server that was killed asks again, and the same request gets the same
bytes; anything else in a phase that is done gets nothing.
"""

import hashlib
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from murmur.common import framed, locked, replace_durably, sync_folder, unframed
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.keys import KEY_BYTES
from murmur.secure_sum.shares import SHARE_BYTES
from murmur.secure_sum.terms import SecureSumError, Terms, join, join_ids, part, part_ids

STATES = ".states"  # ends the names of their files
_ID_BYTES = 8
# Of a state: whose it is, its four secrets, how many phases are done, places of what is alike.
_FIXED = struct.Struct(f">Q{4 * f'{KEY_BYTES}s'}B5I")


class SumStates:
    """What those that one message names remember of the sum that it is about.

    Whoever answers a message loads each client, lets it answer, puts it back, and calls ``keep``
    before any answer leaves: a state whose secrets were used is never used again. Clients that
    joined by one message lie in one file, so that each phase is one durable write for all of them.

    Args:
        folder: of the states of one run, in which a client is in one sum at a time.
        names: the file of all sums that were joined, which all runs share.
        run, round: the sum, as its terms name it.
        clients: whom the message names, by the ids under which this place knows them.
    """

    def __init__(
        self, folder: Path, names: Path, run: str, round: int, clients: Collection[int]
    ) -> None:
        self.folder = folder
        self.names = names
        self.round = round
        self.sum = hashlib.sha256(framed(run.encode(), str(round).encode())).hexdigest()
        self._joining: set[int] = set()
        self._changed: dict[int, tuple[SecureClient, str | None, bytes]] = {}
        self._file_of: dict[int, _File] = {}
        self._derived: dict[bytes, bytes] = {}
        self._find(clients)

    def join(self, client: int, party: SecureClient) -> None:
        """Begin with a new sum; what was left of an older one is lost once this is kept.

        SecureSumError for a sum that was joined before.
        """
        if client in self._had_joined:
            raise SecureSumError(f"round {self.round} of this run was joined before")
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
        """What the last request of ``client`` was answered with, if it was ``request`` (a digest).

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
                replace_durably(file.path, file.content())
            sync_folder(self.folder)

    # Helpers --------------------------------------------------------------------------------

    def _find(self, clients: Collection[int]) -> None:
        """Read the files in which ``clients`` lie: one, unless nodes were given other clients."""
        self._own = self.folder / f"{self.sum}.{min(clients, default=0)}{STATES}"
        left = set(clients)
        self._look(self._own, left)
        if left & self._had_joined:
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
        file = _File.read(path)
        for client in clients:
            before = None
            if client in self._file_of:
                before = self._file_of[client].entries[client]
            if file.entries.get(client) != before:
                raise SecureSumError("another message to this client was answered meanwhile")
            file.put(client, *self._changed[client])
        return file

    @cached_property
    def _had_joined(self) -> set[int]:
        """Who had joined this sum when the message came: the file has all sums of a long run."""
        return self._joined()

    def _joined(self) -> set[int]:
        """Who has joined this sum by now."""
        try:
            lines = self.names.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return set()
        mine = (line.split()[1:] for line in lines if line.startswith(self.sum))
        return {int(client) for clients in mine for client in clients}

    def _keep_names(self) -> None:
        """Note who joins, and drop what is left of other sums of the run."""
        with locked(self.names.parent):  # another run may be joining
            if self._joining & self._joined():
                raise SecureSumError(f"round {self.round} of this run was joined before")
            before = b""
            if self.names.exists():
                before = self.names.read_bytes()
            clients = " ".join(map(str, sorted(self._joining)))
            replace_durably(self.names, before + f"{self.sum} {clients}\n".encode("ascii"))
            sync_folder(self.names.parent)
        for path in self.folder.glob(f"*{STATES}"):
            if not path.name.startswith(self.sum):
                path.unlink(missing_ok=True)


@dataclass
class _File:
    """One file of states: an entry for each client, behind what several of them know.

    Attributes:
        path: where it lies.
        shared: what clients were sent alike (terms, advertisements, lists), by its place.
        entries: by client: digest of the request, the answer and the state, framed; the first is
            empty where nothing can be answered again, the last where no state is left.
    """

    path: Path
    shared: dict[bytes, int] = field(default_factory=dict)
    entries: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "_File":
        """The file at ``path``, empty where there is none; SecureSumError if it is damaged."""
        file = cls(path)
        try:
            first, *rest = unframed(path.read_bytes())
            file.shared = {each: place for place, each in enumerate(unframed(first))}
        except FileNotFoundError:
            return file
        except ValueError as error:
            raise file.damaged from error
        for each in rest:
            file.entries[int.from_bytes(each[:_ID_BYTES], "big")] = each[_ID_BYTES:]
        return file

    def content(self) -> bytes:
        """The inverse of ``read``."""
        entries = (
            client.to_bytes(_ID_BYTES, "big") + each for client, each in self.entries.items()
        )
        return framed(framed(*self.shared), *entries)

    def state(self, client: int, round: int) -> SecureClient:
        """That of ``client``; SecureSumError where its sum is over, or the file is damaged."""
        _, _, state = self._parts(client)
        if not state:
            raise SecureSumError(f"this client has finished, or dropped out of, round {round}")
        try:
            return restored(state, self._by_place)
        except (ValueError, LookupError, struct.error, SecureSumError) as error:
            raise self.damaged from error

    def answer(self, client: int, request: str) -> bytes | None:
        """That of ``client`` to ``request``; None where its last request was another one."""
        found, answer, _ = self._parts(client)
        if found != request.encode("ascii"):
            return None
        return answer

    def put(self, client: int, party: SecureClient, request: str | None, answer: bytes) -> None:
        """Replace the entry of ``client``."""
        state = b""
        if not party.is_finished:
            state = stored(party, self.shared)
        self.entries[client] = framed((request or "").encode("ascii"), answer, state)

    @cached_property
    def _by_place(self) -> list[bytes]:
        """What is shared, of a file that was read and is not changed."""
        return list(self.shared)

    @property
    def damaged(self) -> SecureSumError:
        """What is raised where it cannot be read."""
        return SecureSumError(f"the state file {self.path.name} is damaged")

    def _parts(self, client: int) -> list[bytes]:
        try:
            found = unframed(self.entries[client])
        except ValueError as error:
            raise self.damaged from error
        if len(found) != 3:
            raise self.damaged
        return found


def stored(party: SecureClient, shared: dict[bytes, int]) -> bytes:
    """The whole state, secrets included, for the client's own disk.

    ``shared``: gets what others were sent alike, by its place, which stands in the state for it.
    """

    def place(content: bytes) -> int:
        return shared.setdefault(content, len(shared))

    neighbours = party.terms.neighbours_of(party.me)
    secrets = (party.identity, party.channel, party.mask, party.seed)
    alike = (party.terms.sent, party.advertised, party.asked, party.included, party.survivors)
    public = [party.public[v] for v in neighbours if v in party.public]
    return framed(
        _FIXED.pack(party.me, *secrets, party.done, *map(place, alike)),
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
    client, *secrets, done, sent, advertised, asked, included, survivors = _FIXED.unpack(fixed)
    identity, channel, mask, seed = secrets
    terms = Terms.read(shared[sent])
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
