"""Who is who in a secure sum: long-term keys, whose they are, and what is bound to them.

A device has one Ed25519 key, made on it and readable by its owner only, with which it signs what it
says in sums. ``Peers`` says whose key is whose: pinned by the owner, or kept at first sight. An
``Advertisement`` is a client's message in phase ADVERTISE, four public keys under that signature.
Below it stands what each key, share and signature of a sum is derived from or bound to, the same
for client and server.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from murmur.files import kept_secret, locked, replace_durably, sync_folder
from murmur.format import framed
from murmur.secure_sum.keys import MAX_CACHED_KEYS, POINT_BYTES, Entropy, decoded, derive
from murmur.secure_sum.terms import SecureSumError, SumTerms, context

# Clients whose key a place remembers at first sight, at most, beside those that live there. A line
# has 86 bytes at most.
MAX_PEERS = 100_000
IDENTITY_BYTES = 32
SIGNATURE_BYTES = 64
_SIZES = (IDENTITY_BYTES, POINT_BYTES, POINT_BYTES, POINT_BYTES, SIGNATURE_BYTES)
ADVERTISED_BYTES = sum(_SIZES)
_ADVERTISEMENT = "advertisement"

# Long-term keys ---------------------------------------------------------------------------------


def identity_in(path: Path) -> bytes:
    """The private key in the file ``path``, which is made if it is not there (``kept_secret``)."""
    return kept_secret(path)


def identity_of(secret: bytes, client: int) -> bytes:
    """The private key of one of many clients that live in one place, from that place's own."""
    return derive(secret, framed(b"identity of a client", client.to_bytes(8, "big")))


def new_identity(entropy: Entropy = os.urandom) -> bytes:
    """A private key of 32 bytes."""
    return entropy(IDENTITY_BYTES)


def public_identity(identity: bytes) -> bytes:
    """The public half of a private key, 32 bytes, by which peers know the device."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


def sign(identity: bytes, about: bytes) -> bytes:
    """A signature of ``about``, 64 bytes, under the private key ``identity``."""
    return Ed25519PrivateKey.from_private_bytes(identity).sign(about)


@lru_cache(maxsize=MAX_CACHED_KEYS)
def is_signed(public: bytes, signature: bytes, about: bytes) -> bool:
    """True if the owner of ``public`` has signed ``about``; False for what is no key at all."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, about)
    except (InvalidSignature, ValueError):
        return False
    return True


# Whose keys they are ----------------------------------------------------------------------------


class Peers(Protocol):
    """Says whose keys these are.

    One device must not play several clients, so a key belongs to one id for good, and an id to one
    key.
    """

    def accepts(self, client: int, key: bytes) -> bool:
        """True if ``key`` can be that of ``client``; the device takes no part beside others."""


class PinnedPeers:
    """The keys of every client beside which a device takes part, by its owner's word.

    ``keys``: public keys of 32 bytes, by client, of which no two are the same (``read_peers``).
    """

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        self.keys = keys

    def accepts(self, client: int, key: bytes) -> bool:
        """The one that is pinned for it."""
        return self.keys.get(client) == key

    @property
    def rule(self) -> str:
        """SHA-256 of a line for each client, its id and its key, in the order of ids, in hex."""
        lines = (f"{client} {key.hex()}\n" for client, key in sorted(self.keys.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def require_cohort(self, terms: SumTerms) -> None:
        """SecureSumError where the terms name somebody who is not pinned, or other keys."""
        strangers = [client for client in terms.clients if client not in self.keys]
        if strangers:
            raise SecureSumError(
                f"client {strangers[0]} is not among the peers that this device's owner has pinned"
            )
        if terms.keys and terms.keys != keys_digest(terms.clients, self.keys):
            raise SecureSumError("the terms are for other keys than this device's owner has pinned")


class PinnedKeys:
    """Keys of the devices beside which this one takes part, whatever ids a server gives them.

    For sums whose clients are named by their places in a cohort. ``keys``: public keys of 32
    bytes, this device's own among them.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = frozenset(keys)

    @property
    def rule(self) -> str:
        """SHA-256 of a line for each key, in their order, in hex."""
        lines = (f"{key.hex()}\n" for key in sorted(self.keys))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def accepts(self, client: int, key: bytes) -> bool:
        """Any that is pinned; that no two clients have one is asked of all peers."""
        return key in self.keys

    def require_cohort(self, terms: SumTerms) -> None:
        """Places say nothing of who they are."""


class AnyPeers(PinnedKeys):
    """Whatever keys a server shows: it may invent clients, which an owner must have allowed."""

    rule = "any"

    def __init__(self) -> None:
        super().__init__(())

    def accepts(self, client: int, key: bytes) -> bool:
        """Any key."""
        return True


class SeenPeers:
    """Keys that this place has seen before, kept in the file ``path``.

    For a device whose owner has pinned nobody: the first key that a server shows for a client is
    remembered, and another one is not accepted from then on. Made for one message, whose clients
    may be answered once ``keep`` has returned.

    Args:
        path: the file, with a line for each client.
        most: so many clients are remembered; beside others the device takes no part from then on.
    """

    def __init__(self, path: Path, most: int = MAX_PEERS) -> None:
        self.path = path
        self.most = most
        self._new: dict[int, bytes] = {}

    def accepts(self, client: int, key: bytes) -> bool:
        """A client keeps the key that it was first seen with, and nobody else may have it.

        SecureSumError for one more than can be remembered.
        """
        if client in self._seen or key in self._owners:
            return self._seen.get(client) == key
        if len(self._seen) >= self.most:
            raise SecureSumError(
                f"client {client} has not been seen before, and of no more than {self.most} a key "
                "is remembered"
            )
        self._seen[client] = self._new[client] = key
        self._owners[key] = client
        return True

    def keep(self) -> None:
        """Write the accepted keys; they are on disk when this returns.

        SecureSumError where another message has shown other keys meanwhile.
        """
        if not self._new:
            return
        with locked(self.path.parent):  # another message may show others
            latest = SeenPeers(self.path, self.most)
            if not all(latest.accepts(client, key) for client, key in self._new.items()):
                raise SecureSumError("other keys of the same clients were shown meanwhile")
            lines = (f"{client} {key.hex()}\n" for client, key in sorted(latest._seen.items()))
            replace_durably(self.path, "".join(lines).encode("ascii"))
            sync_folder(self.path.parent)

    @cached_property
    def _seen(self) -> dict[int, bytes]:
        return read_peers(self.path) if self.path.exists() else {}

    @cached_property
    def _owners(self) -> dict[bytes, int]:
        return {key: client for client, key in self._seen.items()}


def keys_digest(clients: tuple[int, ...], keys: Mapping[int, bytes]) -> str:
    """Of each client's id and key, in hexadecimal: what ``SumTerms.keys`` holds.

    ``clients``: the cohort, in order. KeyError for a client without a key.
    """
    fields = [client.to_bytes(8, "big") + keys[client] for client in clients]
    return hashlib.sha256(framed(b"keys of a cohort", *fields)).hexdigest()


def read_peers(path: Path) -> dict[int, bytes]:
    """A client's id and its public key in hexadecimal in each line; what follows is a remark.

    So is a line that begins with ``#``, as in a roster. ValueError for a file that is anything
    else, names nobody, or gives a client or key twice.
    """
    text = path.read_text("utf-8")
    lines = [line.split() for line in text.splitlines() if line.strip()]
    lines = [words for words in lines if not words[0].startswith("#")]
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


# What a client shows, and what is bound to it -----------------------------------------------------


@dataclass(frozen=True)
class Advertisement:
    """A client's message in phase ADVERTISE: four public keys and their signature.

    Attributes:
        identity: the device's long-term key, which signs.
        channel: of this sum, for boxes between two clients (``keys``).
        mask: of this sum, for pairwise masks.
        seed: S = b_u·G, the point behind the seed of the client's own mask.
        signature: over the terms, the client's id and the four keys.
    """

    identity: bytes
    channel: bytes
    mask: bytes
    seed: bytes
    signature: bytes

    @classmethod
    def sign(
        cls, identity: bytes, terms: SumTerms, client: int, channel: bytes, mask: bytes, seed: bytes
    ) -> bytes:
        """An advertisement as it travels, ``ADVERTISED_BYTES``; ``identity`` is the private key."""
        signing = Ed25519PrivateKey.from_private_bytes(identity)
        keys = (signing.public_key().public_bytes_raw(), channel, mask, seed)
        signature = signing.sign(context(terms, _ADVERTISEMENT, client, *keys))
        return b"".join((*keys, signature))

    @classmethod
    def of(cls, sent: bytes) -> "Advertisement":
        """The parts of what travelled; SecureSumError for another length. Nothing is checked."""
        if len(sent) != ADVERTISED_BYTES:
            raise SecureSumError("its public keys are malformed")
        ends = accumulate(_SIZES, initial=0)
        return cls(*(sent[start:end] for start, end in pairwise(ends)))

    def require_valid(self) -> None:
        """SecureSumError for what is no point of the curve, and for a key that is there twice."""
        for key in self.keys[1:]:
            decoded(key)
        if len(set(self.keys)) < len(self.keys):
            raise SecureSumError("it advertised the same public key twice")

    @cached_property
    def keys(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Its four public keys."""
        return self.identity, self.channel, self.mask, self.seed


@dataclass(frozen=True)
class Party:
    """A client, and what binds things to it.

    Attributes:
        id: the client's id.
        advertised: its advertisement as it travelled.
    """

    id: int
    advertised: bytes

    @classmethod
    @lru_cache(maxsize=MAX_CACHED_KEYS)
    def of(cls, client: int, advertised: bytes) -> "Party":
        """One object for the same two, with what follows from them."""
        return cls(client, advertised)

    @cached_property
    def shown(self) -> Advertisement:
        """The parts of what it advertised; SecureSumError where it has another length."""
        return Advertisement.of(self.advertised)

    @cached_property
    def framed(self) -> bytes:
        """Its id and what it advertised, as two fields of a ``context``."""
        return framed(self.id.to_bytes(8, "big"), self.advertised)

    def require_signed(self, terms: SumTerms) -> None:
        """SecureSumError where its keys are not signed by its own for a sum of these ``terms``.

        Whether they are points of the curve is for ``Advertisement.require_valid`` to say, or for
        whoever uses them.
        """
        about = terms.begun(_ADVERTISEMENT) + self._signed
        if not is_signed(self.shown.identity, self.shown.signature, about):
            raise SecureSumError("its public keys are not signed by its own device's key")

    @cached_property
    def _signed(self) -> bytes:
        return framed(self.id.to_bytes(8, "big"), *self.shown.keys)


def about_boxes(terms: SumTerms, one: Party, other: Party) -> bytes:
    """Context of the keys of the two messages that a pair seals for each other.

    The same for both, in either order. They are derived from what their channel keys ``agree`` on,
    as one that is twice as long: first that of whoever has the lower id.
    """
    return terms.begun("boxes") + _pair(one, other)


def about_mask(terms: SumTerms, one: Party, other: Party, asked: bytes, included: bytes) -> bytes:
    """Context of the key of the mask that two clients share, the same for both.

    It is derived from what their mask keys ``agree`` on. Clients that were asked different
    questions, or sent different lists, derive different keys, so that their masks do not cancel.

    Args:
        terms: of the sum.
        one: one party.
        other: the other, in either order.
        asked: digest of what the sum's clients were asked.
        included: whose masks are in the sum, joined.
    """
    question = (asked, included)
    return terms.begun("pairwise mask") + _pair(one, other) + _alike(*question)


def self_mask_key(seed: bytes, terms: SumTerms, client: Party) -> bytes:
    """The key of the mask that only ``client`` adds, from its private ``seed`` b_u."""
    return derive(seed, terms.begun("self mask") + client.framed)


def about_dealing(terms: SumTerms, dealer: Party) -> bytes:
    """Context of a dealer's shares: one sum, and the keys that it advertised there."""
    return terms.begun("sharing") + dealer.framed


def word_on(
    included: bytes, survivors: bytes, asked: bytes, terms: SumTerms, signer: Party
) -> bytes:
    """Text that ``signer`` signs in CONFIRM: both lists, joined, and the digest of its question."""
    told = (asked, included, survivors)
    return terms.begun("survivors") + signer.framed + _alike(*told)


@lru_cache(maxsize=64)
def _alike(*fields: bytes) -> bytes:
    """Facts that all clients of a sum are told alike, framed."""
    return framed(*fields)


def _pair(one: Party, other: Party) -> bytes:
    """Four fields of a ``context``: those of both, of the lower id first."""
    if one.id < other.id:
        return one.framed + other.framed
    return other.framed + one.framed
