"""The ledger's header: its identity and public key; the hash chain begins with its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from murmur.privacy.ledger.entry import LedgerError

FORMAT = 2


@dataclass(frozen=True)
class Header:
    """``text``: a JSON object with ``format``, ``created``, ``key`` and perhaps ``continues``.

    ``key`` is the public key that signs, in hex; ``continues`` names an earlier ledger whose
    entries this one took over: its id, or of format 1 its number of entries and last seal.
    """

    text: str

    @classmethod
    def of(cls, created: str, key: str, continues: dict[str, Any] | None = None) -> Header:
        """The header of a new ledger."""
        values: dict[str, Any] = {"format": FORMAT, "created": created, "key": key}
        if continues is not None:
            values["continues"] = continues
        return cls(json.dumps(values, separators=(",", ":"), sort_keys=True))

    @property
    def digest(self) -> bytes:
        """What the first entry follows: SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).digest()

    @property
    def id(self) -> str:
        """The ledger's name: 32 hex digits, which stand for its key and its beginning."""
        return self.digest.hex()[:32]

    @property
    def key(self) -> str:
        """The public key, in hex; LedgerError for a header that has none."""
        return self._value("key")

    @property
    def created(self) -> str:
        """When the ledger was begun, in UTC."""
        return self._value("created")

    def _value(self, name: str) -> str:
        try:
            return str(json.loads(self.text)[name])
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError("the ledger's header was altered") from error
