"""Which long-term key belongs to which client: pinned by a device's owner, or kept at first sight.

One device must not play several clients, so a key belongs to one id for good, and an id to one
key. An owner who pins keys believes nobody else; otherwise the first key that a server shows for a
client is remembered, and another one is refused from then on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from murmur.common import framed, replace_durably
from murmur.secure_sum.identity import IDENTITY_BYTES
from murmur.secure_sum.terms import SecureSumError, Terms


class Peers(Protocol):
    """Says whose keys these are."""

    def accept(self, terms: Terms, found: Mapping[int, bytes]) -> None:
        """SecureSumError unless each key in ``found`` can be that client's."""


class PinnedPeers:
    """``keys``: of every client beside which a device takes part, by its owner's word."""

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        require_own_keys(keys)
        self.keys = dict(keys)

    def accept(self, terms: Terms, found: Mapping[int, bytes]) -> None:
        """The whole cohort must be pinned, and each key be the one that is."""
        self.require_cohort(terms)
        if any(self.keys[client] != key for client, key in found.items()):
            raise SecureSumError(
                "a client's key is not the one that this device's owner has pinned for it"
            )

    def require_cohort(self, terms: Terms) -> None:
        """SecureSumError where the terms name somebody who is not pinned, or other keys."""
        strangers = [client for client in terms.clients if client not in self.keys]
        if strangers:
            raise SecureSumError(
                f"client {strangers[0]} is not among the peers that this device's owner has pinned"
            )
        if terms.keys and terms.keys != keys_digest(terms.clients, self.keys):
            raise SecureSumError("the terms are for other keys than this device's owner has pinned")


class SeenPeers:
    """Keys that this device has seen before, kept in the file ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def accept(self, terms: Terms, found: Mapping[int, bytes]) -> None:
        """A client keeps the key that it was first seen with, and nobody else may have it."""
        known = read_peers(self.path) if self.path.exists() else {}
        if any(known.get(client, key) != key for client, key in found.items()):
            raise SecureSumError("a client has another key than when it was first seen")
        both = {**known, **found}
        require_own_keys(both)
        if both != known:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lines = [f"{client} {key.hex()}\n" for client, key in sorted(both.items())]
            replace_durably(self.path, "".join(lines).encode("ascii"))


def require_own_keys(keys: Mapping[int, bytes]) -> None:
    """SecureSumError where two clients have one key."""
    if len(set(keys.values())) < len(keys):
        raise SecureSumError("two clients have one key; no device may be two clients")


def keys_digest(clients: tuple[int, ...], keys: Mapping[int, bytes]) -> str:
    """Of each client's id and key, in hexadecimal; KeyError for a client without one."""
    fields = [client.to_bytes(8, "big") + keys[client] for client in clients]
    return hashlib.sha256(framed(b"keys of a cohort", *fields)).hexdigest()


def read_peers(path: Path) -> dict[int, bytes]:
    """A client's id and its public key in hexadecimal in each line; what follows is a remark.

    ValueError for a file that is anything else, names nobody, or gives a client or key twice.
    """
    lines = [line.split() for line in path.read_text("utf-8").splitlines() if line.strip()]
    peers: dict[int, bytes] = {}
    for words in lines:
        if len(words) < 2 or not (words[0].isascii() and words[0].isdecimal()):
            raise ValueError("peers: a line does not begin with a client's id and its public key")
        client = int(words[0])
        if client in peers:
            raise ValueError(f"peers: client {client} is there twice")
        try:
            peers[client] = bytes.fromhex(words[1])
        except ValueError as error:
            raise ValueError(f"peers: client {client} has no public key") from error
    if not peers or any(len(key) != IDENTITY_BYTES for key in peers.values()):
        raise ValueError(f"peers: public keys have {IDENTITY_BYTES} bytes, one in each line")
    if len(set(peers.values())) < len(peers):
        raise ValueError("peers: two clients have one key; every device has a key of its own")
    return peers
