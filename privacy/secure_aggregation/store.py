"""A client's state between two phases, on its own disk.

On a device every message is answered by a fresh process, so nothing can wait in memory. The state
holds secrets: only its owner may read it, and when the sum is over (or the client gives up) they
are gone, and only the name of the sum stays, so that it is never joined again.

The last answer stays too. A server that was killed asks again, and the same request gets the same
bytes; anything else in a phase that is done gets nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from privacy.durable_file import replace_durably
from privacy.secure_aggregation.client import SecureClient
from privacy.secure_aggregation.terms import SecureSumError, Terms


class StateFile:
    """The file ``path`` of one client, for the sum that it takes part in; one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, client: SecureClient) -> None:
        """Keep the state of a new sum; what was left of an older one is lost.

        SecureSumError for a round that is not after the last one joined in the same run.
        """
        terms, last = client.terms, self._last()
        if last is not None and last["run"] == terms.run and terms.round <= last["round"]:
            raise SecureSumError(f"round {terms.round} of this run was joined before")
        self.save(client)

    def load(self, run: str, round: int) -> SecureClient:
        """The state of that sum; SecureSumError if there is none."""
        last = self._last()
        if last is None or (last["run"], last["round"]) != (run, round):
            raise SecureSumError(f"this client has not joined round {round} of that run")
        if last["state"] is None:
            raise SecureSumError(f"this client has finished, or dropped out of, round {round}")
        return restored(last["state"].encode())

    def answered(self, run: str, round: int, request: str) -> bytes | None:
        """What that sum's last request was answered with, if it was ``request`` (a digest)."""
        last = self._last()
        asked = None if last is None else (last["run"], last["round"], last.get("request"))
        if last is None or asked != (run, round, request):
            return None
        return bytes.fromhex(last["answer"])

    def save(self, client: SecureClient, request: str | None = None, answer: bytes = b"") -> None:
        """Replace the state, on disk when this returns; of a finished sum no secret is kept.

        ``request``: digest of what ``answer`` answers; None: nothing can be answered again.
        """
        state = None if client.is_finished else state_bytes(client).decode()
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

    def _last(self) -> dict | None:
        try:
            return json.loads(self.path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SecureSumError(f"the state file {self.path.name} is damaged") from error


def state_bytes(client: SecureClient) -> bytes:
    """The whole state, secrets included, for the client's own disk."""
    names = [field.name for field in fields(client)]
    return json.dumps({name: _plain(getattr(client, name)) for name in names}).encode()


def restored(stored: bytes) -> SecureClient:
    """The inverse of ``state_bytes``."""
    plain = json.loads(stored)
    secrets = {name: bytes.fromhex(plain[name]) for name in ("identity", "channel", "mask", "seed")}
    return SecureClient(
        terms=Terms.from_dict(plain["terms"]),
        me=plain["me"],
        **secrets,
        done=plain["done"],
        public={int(k): bytes.fromhex(v) for k, v in plain["public"].items()},
        shares={int(k): bytes.fromhex(v) for k, v in plain["shares"].items()},
        included=tuple(plain["included"]),
        survivors=tuple(plain["survivors"]),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Terms):
        return value.to_dict()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
