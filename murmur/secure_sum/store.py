"""A client's state between two phases, on its own disk.

On a device every message is answered by a fresh process, so nothing can wait in memory. The state
holds secrets: only its owner may read it, and when the sum is over (or the client gives up) they
are gone. The names of all sums that were joined, in any run, stay in a file: none is joined twice.

The last answer stays too. A server that was killed asks again, and the same request gets the same
bytes; anything else in a phase that is done gets nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from murmur.common import framed, locked, replace_durably
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.terms import SecureSumError, Terms


class StateFile:
    """The file ``path`` of one client, for the sum that it takes part in; one at a time in a run.

    ``names``: the file of all sums that the client has joined, which its runs share.

    Whoever answers a message loads the client, lets it answer, saves it, and only then lets the
    answer leave: a state whose secrets were used is never used again.
    """

    def __init__(self, path: Path, names: Path) -> None:
        self.path = path
        self.names = names

    def begin(self, client: SecureClient) -> None:
        """Keep the state of a new sum; what was left of an older one is lost.

        SecureSumError for a sum that was joined before.
        """
        terms = client.terms
        name = hashlib.sha256(framed(terms.run.encode(), str(terms.round).encode())).hexdigest()
        with locked(self.names.parent):  # another run may be joining
            joined = self._joined()
            if name in joined:
                raise SecureSumError(f"round {terms.round} of this run was joined before")
            content = "".join(f"{n}\n" for n in [*joined, name])
            replace_durably(self.names, content.encode("ascii"))
        self.save(client)

    def load(self, run: str, round: int) -> SecureClient:
        """The state of that sum.

        SecureSumError if there is none: not joined, finished, given up, or the file is damaged.
        """
        last = self._last()
        if last is None or (last["run"], last["round"]) != (run, round):
            raise SecureSumError(f"this client has not joined round {round} of that run")
        if last["state"] is None:
            raise SecureSumError(f"this client has finished, or dropped out of, round {round}")
        return restored(last["state"].encode())

    def answered(self, run: str, round: int, request: str) -> bytes | None:
        """What that sum's last request was answered with, if it was ``request`` (a digest).

        None for any other request: it is answered by the state, or not at all.
        """
        last = self._last()
        if last is None or (last["run"], last["round"], last.get("request")) != (
            run,
            round,
            request,
        ):
            return None
        return bytes.fromhex(last["answer"])

    def save(self, client: SecureClient, request: str | None = None, answer: bytes = b"") -> None:
        """Replace the state, on disk when this returns; of a finished sum no secret is kept.

        ``request``: digest of what ``answer`` answers; None: nothing can be answered again.
        """
        state = None
        if not client.is_finished:
            state = state_bytes(client).decode()
        content = json.dumps(
            {
                "run": client.terms.run,
                "round": client.terms.round,
                "state": state,
                "request": request,
                "answer": answer.hex(),
            }
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self.path, content.encode("ascii"))

    def _joined(self) -> list[str]:
        """Digests of the names of all sums that were joined."""
        try:
            return self.names.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return []

    def _last(self) -> dict | None:
        try:
            return json.loads(self.path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SecureSumError(f"the state file {self.path.name} is damaged") from error


def state_bytes(client: SecureClient) -> bytes:
    """The whole state as JSON, secrets included, for the client's own disk.

    Written to a file of mode 600, and replaced without secrets when the sum is over.
    """
    names = [field.name for field in fields(client)]
    return json.dumps({name: _plain(getattr(client, name)) for name in names}).encode()


def restored(stored: bytes) -> SecureClient:
    """The inverse of ``state_bytes``; the client goes on with the phase that was due."""
    plain = json.loads(stored)
    secrets = {name: bytes.fromhex(plain[name]) for name in ("identity", "channel", "mask", "seed")}
    return SecureClient(
        terms=Terms.read(plain["terms"]),
        me=plain["me"],
        **secrets,
        done=plain["done"],
        advertised=bytes.fromhex(plain["advertised"]),
        public={int(k): bytes.fromhex(v) for k, v in plain["public"].items()},
        shares={int(k): bytes.fromhex(v) for k, v in plain["shares"].items()},
        asked=bytes.fromhex(plain["asked"]),
        included=tuple(plain["included"]),
        survivors=tuple(plain["survivors"]),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Terms):
        return value.text
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return value
