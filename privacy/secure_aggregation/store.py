"""A client's state between two phases, on its own disk.

On a device every message is answered by a fresh process, so nothing can wait in memory. The state
holds secrets: only its owner may read it, and when the sum is over (or the client gives up) they
are gone, and only the name of the sum stays, so that it is never joined again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from privacy.secure_aggregation.client import SecureClient
from privacy.secure_aggregation.terms import SecureSumError


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
        return SecureClient.from_bytes(last["state"].encode())

    def save(self, client: SecureClient) -> None:
        """Replace the state, on disk when this returns; of a finished sum only the name is kept."""
        state = None if client.is_finished else client.to_bytes().decode()
        terms = client.terms
        content = json.dumps({"run": terms.run, "round": terms.round, "state": state})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(self.path.name + ".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.path)

    def _last(self) -> dict | None:
        try:
            return json.loads(self.path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SecureSumError(f"the state file {self.path.name} is damaged") from error
