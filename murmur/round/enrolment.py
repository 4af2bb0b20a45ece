"""The enrolment table: the public keys of enrolled nodes, and the clients that each hosts.

``murmur enrol`` makes the table, a line for each node: its clients' ids and its key as OpenSSH
writes it (``0,3 ecdsa-sha2-nistp384 AAAA...``). Flower's SuperLink, started with
``--enable-supernode-auth``, lets a node speak only with the private half of its key, and tells the
ServerApp every node's key. Nothing that a node claims about itself is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)
from flwr.proto.node_pb2 import NodeInfo


@dataclass(frozen=True)
class Enrolment:
    """Which clients each enrolled key hosts; immutable.

    Attributes
    ----------
    clients : mapping
        {public key (PEM): ids}; every key and every id is there once.
    """

    clients: Mapping[bytes, tuple[int, ...]]

    @classmethod
    def load(cls, path: str | Path) -> Enrolment:
        """Read a table; empty lines are passed over.

        ValueError says that the file cannot be read, or names the line that is wrong.
        """
        place = Path(path).expanduser()
        try:
            text = place.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"{place}: cannot be read ({error.strerror}); `murmur enrol` makes it"
            ) from error
        found = cls({})
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                ids, _, key = line.strip().partition(" ")
                try:
                    found = found.with_node(key, parse_ids(ids))
                except ValueError as error:
                    raise ValueError(f"{place}, line {number}: {error}") from error
        return found

    def with_node(self, key: str, clients: Iterable[int]) -> Enrolment:
        """A new table with one node more; ValueError where its key or a client is there already.

        ``key``: as OpenSSH writes it. ``clients``: the ids that it hosts.
        """
        pem = pem_of(key)
        ids = tuple(clients)
        if pem in self.clients:
            hosted = ",".join(map(str, self.clients[pem]))
            raise ValueError(f"this key is enrolled already, for clients {hosted}")
        taken = {client for hosted in self.clients.values() for client in hosted}
        for client in ids:
            if client in taken:
                raise ValueError(f"client {client} is hosted by another key already")
        return Enrolment({**self.clients, pem: ids})

    def hosted(self, nodes: Iterable[NodeInfo]) -> dict[int, tuple[int, ...]]:
        """{node: clients} of those ``nodes`` that are enrolled.

        ``nodes``: as Flower's grid lists them, with the keys that the SuperLink has authenticated.
        """
        known = ((node.node_id, self.clients.get(node.public_key)) for node in nodes)
        return {node: clients for node, clients in known if clients is not None}


def parse_ids(text: str) -> tuple[int, ...]:
    """Client ids such as ``3`` or ``0,3``; ValueError if they are not distinct."""
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ValueError(f"{text!r:.40}: must be clients' ids such as 3 or 0,3")
    ids = tuple(int(word) for word in words)
    if len(set(ids)) != len(ids):
        raise ValueError(f"{text!r:.40}: names a client twice")
    return ids


def pem_of(key: str) -> bytes:
    """An OpenSSH public key in the form in which Flower tells it; ValueError if it is none."""
    try:
        loaded = load_ssh_public_key(key.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{key[:40]!r}: is no public key as OpenSSH writes it") from error
    return loaded.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
