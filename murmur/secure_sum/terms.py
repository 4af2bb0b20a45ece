"""What all parties of one secure sum must agree on, and what everything in it is bound to.

``SumTerms`` names the sum: who takes part, for what, how many survivors and share holders it needs,
and a digest of what every client is about to release. ``context`` binds each key, mask, signature
and share to all of it, so that nothing of one sum can be used in another.

Terms that protect nobody cannot be made. What that takes depends on the graph of who shares
secrets with whom: all of the cohort, or a ring that joins each client with the k/2 next ones on
both sides, in an order drawn by lot (Bell et al., CCS 2020). What a ring's clients cannot see of
each other is left to chance, which is computed here: c* is the most colluders among any one
client's neighbours, d* the most dropouts, each but for a probability 2^-a over all clients. Tails
of the hypergeometric distribution, exact in log space.
"""

import hashlib
import json
import math
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from itertools import accumulate, compress, pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from murmur.format import framed
from murmur.privacy.events import Event, Hiding
from murmur.settings import Count, settings

Server = Literal["honest", "lying"]
HONEST: Server = "honest"  # a server that follows the protocol
LYING: Server = "lying"  # one that does not
# A server that lies may try 2^64 names for a ring until one suits it.
PRIVACY_BITS = {HONEST: 40, LYING: 104}
AVAILABILITY_BITS = 40
_MAX_ID_BYTES = 2**20  # bytes of ids, inflated: those of half a million clients at most

_NotNegative = Annotated[int, Field(ge=0)]
_ClientId = Annotated[int, Field(ge=0, lt=2**63)]


class Stage(StrEnum):
    """The phases of a sum, in order; clients pay in MASK, and what one can spoil fails before.

    A server that follows the protocol needs no CHECK and no CONFIRM (``SumTerms.stages``).
    """

    ADVERTISE = "advertise"  # public keys
    SHARE = "share"  # encrypted shares of the two secrets
    CHECK = "check"  # whose shares have come
    MASK = "mask"  # the masked vector
    CONFIRM = "confirm"  # agreement on who survived
    REVEAL = "reveal"  # the shares that remove the masks


class SecureSumError(Exception):
    """A party refuses to go on: what it received is not what an honest run would send."""


def list_size(among: Sequence[int]) -> int:
    """Bytes of ``join_ids``, whoever is in it."""
    return (len(among) + 7) // 8


def join_ids(ids: Iterable[int], among: Sequence[int]) -> bytes:
    """Some of the clients ``among`` as a string of bytes: a bit for each says who is in it.

    Both ends know ``among``, in the same order. ValueError for an id that is not in it.
    """
    chosen = set(ids)
    bits = bytes(map(chosen.__contains__, among))
    if bits.count(1) != len(chosen):
        raise ValueError("messages of clients that cannot be in a list of these")
    return np.packbits(np.frombuffer(bits, bool)).tobytes()


def part_ids(joined: bytes, among: Sequence[int]) -> tuple[int, ...]:
    """The inverse of ``join_ids``, in the order of ``among``.

    SecureSumError for bytes of another length, and for a bit that is nobody's.
    """
    damaged = "a list of messages is damaged: it does not say from whom they are"
    if len(joined) != list_size(among):
        raise SecureSumError(damaged)
    there = np.unpackbits(np.frombuffer(joined, np.uint8)).tolist()
    if any(there[len(among) :]):
        raise SecureSumError(damaged)
    return tuple(compress(among, there))


def join(items: Mapping[int, bytes], among: Sequence[int]) -> bytes:
    """Equally long messages by client as one string of bytes.

    ``among``: who could be in it, which both ends know: a bit for each says who is. ValueError for
    messages of different lengths, or of clients that cannot be in it.
    """
    if len(set(map(len, items.values()))) > 1:
        raise ValueError("messages of different lengths cannot be joined")
    there = join_ids(items, among)
    return there + b"".join([items[client] for client in among if client in items])


def part(joined: bytes, size: int, among: Sequence[int]) -> dict[int, bytes]:
    """The inverse of ``join`` for messages of ``size`` bytes; SecureSumError for anything else."""
    head = list_size(among)
    ids = part_ids(joined[:head], among)
    if len(joined) != head + size * len(ids):
        raise SecureSumError(f"a list of messages is damaged: {size} bytes each were expected")
    messages = struct.unpack_from(f"{size}s" * len(ids), joined, head)
    return dict(zip(ids, messages, strict=True))


@lru_cache(maxsize=1024)
def most_marked(clients: int, marked: int, neighbours: int, bits: int) -> int:
    """The least x with clients · P[Hyp(clients − 1, marked, neighbours) > x] ≤ 2^-bits.

    How many of the ``marked`` clients any one client can have among its ``neighbours``, but for
    that probability: c* where colluders are marked, d* where dropouts are.
    """
    others = clients - 1
    least = max(0, neighbours - (others - marked))
    counts = np.arange(least, min(marked, neighbours) + 1)
    logs = _log_choose(marked, counts) + _log_choose(others - marked, neighbours - counts)
    logs -= _log_choose(others, [neighbours])
    allowed = -bits * math.log(2) - math.log(clients)
    above = np.logaddexp.accumulate(logs[::-1])[::-1]  # log P[at least the count at hand]
    too_likely = counts[above > allowed]
    if not len(too_likely):
        return max(least - 1, 0)
    return int(too_likely[-1])


def gap_log2(clients: int, missing: int, neighbours: int) -> float:
    """log2 of a bound on: somewhere k/2 in a row are all among the ``missing``.

    Such a row on both sides cuts a ring in two. n · Π_{i<k/2} (missing − i) / (n − i); −inf where
    so many are not missing at all.
    """
    row = np.arange(neighbours // 2)
    if missing < len(row):
        return -math.inf
    return float(math.log2(clients) + np.log2((missing - row) / (clients - row)).sum())


def least_threshold(
    server: Server, clients: int, neighbours: int, colluders: int, bits: int
) -> int:
    """The least threshold of a ring that ``server`` with ``colluders`` cannot get around.

    ``bits``: the probability that it fails is at most 2^-bits. For a server that follows the
    protocol more shares are needed than colluders can hold. Against one that lies:

    * two lists about one client, with t signers each, share an honest signer: 2t > k + 1 + c*
    * no gap in the ring can be unmasked at its edge: t ≥ k/2 + 2 + c*
    * there is one list for the whole ring: 3t ≥ 2(k + 1 + c*) + 2
    """
    among = most_marked(clients, colluders, neighbours, bits)
    if server == HONEST:
        return among + 1
    one_word = (neighbours + 1 + among) // 2 + 1
    no_gap = neighbours // 2 + 2 + among
    one_list = math.ceil((2 * (neighbours + 1 + among) + 2) / 3)
    return max(one_word, no_gap, one_list)


@lru_cache(maxsize=256)
def ring_for(
    server: Server,
    clients: int,
    colluders: int,
    dropouts: int,
    bits: int | None = None,
    available: int = AVAILABILITY_BITS,
) -> tuple[int, int] | None:
    """The least even k, and a threshold, of a ring that is safe and stays available.

    Args:
        server: against whom it must be safe, HONEST or LYING.
        clients: in the ring.
        colluders: how many of them side with the server.
        dropouts: how many of them may fall silent.
        bits: it fails to protect with probability 2^-bits at most; None for what ``server`` asks.
        available: with probability 2^-available at most somebody's share holders become too few.

    Returns:
        k and t; None where no ring of these clients will do.
    """
    if bits is None:
        bits = PRIVACY_BITS[server]
    missing = min(clients, colluders + dropouts)
    for neighbours in range(2, clients - 1, 2):
        if server == HONEST and gap_log2(clients, missing, neighbours) > -bits:
            continue
        least = least_threshold(server, clients, neighbours, colluders, bits)
        greatest = neighbours - most_marked(clients, dropouts, neighbours, available)
        if least > greatest:
            continue
        if server == HONEST:
            return neighbours, (least + greatest) // 2
        return neighbours, least
    return None


def _log_choose(many: int, some: Iterable[int]) -> NDArray[np.float64]:
    """Ln of the binomial coefficients of ``many`` over each of ``some``."""
    whole = math.lgamma(many + 1)
    found = [whole - math.lgamma(count + 1) - math.lgamma(many - count + 1) for count in some]
    return np.array(found)


@settings
class SumTerms:
    """One secure sum; every key, mask and message is bound to all of it.

    Attributes:
        run, round: name the sum, and are never used twice.
        clients: ids of the cohort, at least 2, in increasing order.
        length, bits: so many integers are summed modulo 2^bits.
        threshold: how many shares of a secret restore it.
        minimum: the fewest clients whose sum may be revealed.
        neighbours: how many others each client exchanges keys and shares with, an even number
            (SecAgg+, Bell et al. 2020). None: all (Bonawitz et al. 2017).
        colluders: how many clients may side with the server without it learning more than the
            sum.
        server: whether the sum is meant for a server that follows the protocol ("honest") or for
            one that lies.
        purpose, group: what the sum is for, and which of its round.
        release: digest of what each client releases (``release_digest``).
        least_weight, greatest_weight: within which a client's weight lies.
        keys: digest of every client's id and long-term key, where these are known beforehand
            (``identity.keys_digest``); else empty.

    Raises:
        ValueError: a value is of another type, out of its range, or lets a coalition that the
            terms reckon with learn more than the sum. Terms come from a server, so this is
            checked whoever makes them.
    """

    run: Annotated[str, Field(min_length=1)]
    round: _NotNegative
    clients: tuple[_ClientId, ...]
    length: Count
    bits: Annotated[int, Field(ge=1, le=64)]
    threshold: int
    minimum: int
    neighbours: int | None = None
    colluders: _NotNegative = 0
    server: Server = LYING
    purpose: str = "train"
    group: _NotNegative = 0
    release: str = ""
    least_weight: Count = 1
    greatest_weight: Count = 1
    keys: str = ""

    def __post_init__(self) -> None:
        n = len(self.clients)
        if n < 2 or list(self.clients) != sorted(set(self.clients)):
            raise ValueError(
                f"clients: {n} ids; must be at least 2, all different and in increasing order"
            )
        if self.least_weight > self.greatest_weight:
            raise ValueError(
                f"least_weight={self.least_weight}, greatest_weight={self.greatest_weight}: must "
                "be in this order"
            )
        k = self.neighbours
        if k is not None and not (2 <= k < n and k % 2 == 0):
            raise ValueError(
                f"neighbours={k}: must be even and lie in 2..{n - 1}, or be null for all of the "
                "cohort"
            )
        if self.colluders >= n:
            raise ValueError(f"colluders={self.colluders}: must lie in 0..{n - 1}")
        self._require_safe_threshold()
        least = self.colluders + 2
        if k is None:
            least = max(least, self.threshold)  # no list of fewer is ever confirmed
        if not least <= self.minimum <= n:
            raise ValueError(
                f"minimum={self.minimum}: must lie in {least}..{n}: a sum must hide an honest "
                "client among at least one other, and of all of a cohort at least the threshold"
            )

    def __eq__(self, other: object) -> bool:
        """By the digests, each computed once: ids are too many to compare for every neighbour."""
        return isinstance(other, SumTerms) and self.terms_digest == other.terms_digest

    def __hash__(self) -> int:
        return hash(self.terms_digest)

    def _require_safe_threshold(self) -> None:
        """ValueError where a coalition that the terms reckon with could get both secrets.

        In a complete graph 2t > n + C; in a ring ``least_threshold``. And no more shares can be
        asked for than there are holders.
        """
        if self.neighbours is None:
            # Two groups of `threshold` holders that tell the server different things would give
            # it both secrets of one client; with this, any two groups share an honest holder.
            least = (self.holders + self.colluders) // 2 + 1
            why = f"above half of {self.holders} share holders and {self.colluders} colluders"
        else:
            known = (len(self.clients), self.neighbours, self.colluders)
            least = least_threshold(self.server, *known, PRIVACY_BITS[self.server])
            why = f"at least {least} with {self.neighbours} neighbours and {self.server} server"
        if not least <= self.threshold <= self.holders:
            raise ValueError(
                f"threshold={self.threshold}: must be {why}, and at most {self.holders}"
            )

    @property
    def honest(self) -> int:
        """The fewest honest clients in any sum that is revealed under these terms."""
        return self.minimum - self.colluders

    @property
    def failure(self) -> float:
        """How likely, at most, the lot gave a client neighbours that do not hide it.

        0 in a complete graph. It is added to δ for each round.
        """
        if self.neighbours is None:
            return 0.0
        return 2.0 ** -PRIVACY_BITS[self.server]

    @property
    def holders(self) -> int:
        """How many clients hold shares of one client's secrets, itself included."""
        if self.neighbours is None:
            return len(self.clients)
        return self.neighbours + 1

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The phases of this sum, in order.

        CHECK and CONFIRM find out what a server that follows the protocol does not do: tell clients
        different things. Without CHECK, MASK brings the sealed shares.
        """
        if self.server == HONEST:
            return tuple(stage for stage in Stage if stage not in (Stage.CHECK, Stage.CONFIRM))
        return tuple(Stage)

    def names(self, client: int) -> bool:
        """True if ``client`` is in the cohort."""
        return client in self._everybody

    @cached_property
    def holders_of(self) -> Callable[[int], tuple[int, ...]]:
        """Who holds shares of a client's secrets: itself and its neighbours, in order.

        All of the cohort, or those near in the ring (a Harary graph), which are worked out for the
        clients that are asked for: a device needs its own.
        """
        if self.neighbours is None:
            return lambda client: self.clients
        half = self.neighbours // 2
        ring = self.ring
        places = {client: place for place, client in enumerate(ring)}

        @cache
        def near(client: int) -> tuple[int, ...]:
            steps = range(places[client] - half, places[client] + half + 1)
            return tuple(sorted(ring[step % len(ring)] for step in steps))

        return near

    @cached_property
    def neighbours_of(self) -> Callable[[int], tuple[int, ...]]:
        """With whom a client exchanges keys, shares and masks, in order."""
        return cache(lambda client: tuple(v for v in self.holders_of(client) if v != client))

    def place_of(self, client: int, holder: int) -> int:
        """Which of the holders of ``client``'s secrets ``holder`` is, from 0."""
        return bisect_left(self.holders_of(client), holder)

    @cached_property
    def parted(self) -> Callable[[bytes], frozenset[int]]:
        """Who is in a list of the sum's clients (``join_ids``), as a server sends it to all.

        Parted once for all clients of a process. SecureSumError for what is no such list.
        """
        return lru_cache(maxsize=8)(lambda joined: frozenset(part_ids(joined, self.clients)))

    @cached_property
    def terms_digest(self) -> bytes:
        """SHA-256 of all of the terms, 32 bytes: what ``context`` begins with."""
        plain = self.text.encode()
        return hashlib.sha256(framed(b"murmur secure sum, version 4", plain)).digest()

    @cached_property
    def begun(self) -> Callable[[str], bytes]:
        """Prefix of all that is bound to these terms, by its use (``context``)."""
        return cache(lambda use: framed(self.terms_digest, use.encode()))

    @cached_property
    def text(self) -> str:
        """All of the terms as JSON, always the same for the same terms."""
        return _canonical(self.to_dict()).decode()

    @cached_property
    def sent(self) -> bytes:
        """As they travel, and are kept; ``read`` is the inverse.

        ``text`` without the ids in one line; then, compressed, each id as its distance from the one
        before: of ten thousand ids that is what a device is mostly sent. Nothing random is
        compressed, so that the same run always sends as many bytes.
        """
        rest = self.to_dict()
        ids = rest.pop("clients")
        gaps = [ids[0], *(b - a for a, b in pairwise(ids))]
        return _canonical(rest) + b"\n" + zlib.compress(json.dumps(gaps).encode())

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """The cohort in an order that the digest decides."""
        begun = hashlib.sha256(context(self, "place in the ring"))

        def place(client: int) -> bytes:
            found = begun.copy()
            found.update(framed(client.to_bytes(8, "big")))
            return found.digest()

        return tuple(sorted(self.clients, key=place))

    @cached_property
    def _everybody(self) -> frozenset[int]:
        return frozenset(self.clients)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe mapping."""
        return {**asdict(self), "clients": list(self.clients)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "SumTerms":
        """The inverse of ``to_dict``; ValueError for anything else."""
        try:
            return cls(**{**plain, "clients": tuple(plain["clients"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the terms of a secure sum: {error}") from error

    @staticmethod
    def read(sent: bytes) -> "SumTerms":
        """From what was ``sent``; ValueError for anything else.

        All clients of a process share what was read from the same bytes, and what follows from it:
        the digest of ten thousand ids is computed once.
        """
        return _read(sent)


def context(terms: SumTerms, use: str, *fields: bytes | int) -> bytes:
    """Context of one sum, to which all that is signed, sealed, derived or hashed in it is bound.

    All of the terms, the ``use`` (a different word for each), and ``fields``, integers as 8 bytes;
    each is preceded by its length, so that no two lists of fields give the same bytes.
    """
    found = [field.to_bytes(8, "big") if isinstance(field, int) else field for field in fields]
    return terms.begun(use) + framed(*found)


@lru_cache(maxsize=16)
def _read(sent: bytes) -> SumTerms:
    line, _, packed = sent.partition(b"\n")
    inflating = zlib.decompressobj()
    try:
        rest = json.loads(line)
        gaps = json.loads(inflating.decompress(packed, _MAX_ID_BYTES))
    except (zlib.error, ValueError, RecursionError) as error:
        raise ValueError("terms: they are not JSON") from error
    if not isinstance(rest, dict) or "clients" in rest:
        raise ValueError("terms: they are no mapping")
    if not inflating.eof or inflating.unused_data:
        raise ValueError("terms: clients are too many, or end too late")
    if not isinstance(gaps, list) or not all(type(gap) is int for gap in gaps):
        raise ValueError("terms: clients are no list of integers")
    return SumTerms.from_dict({**rest, "clients": accumulate(gaps)})


def release_digest(
    algorithm: str,
    purpose: str,
    codec: Any,
    event: Event,
    least_weight: int,
    greatest_weight: int,
    seeded: bool = False,
) -> str:
    """Digest, in hexadecimal, of what every client of a sum releases (``SumTerms.release``).

    A sum hides a release among others only where these come from the same mechanism with the same
    parameters. The server computes the digest from its own half when it makes the terms, a client
    from what it is about to release, and whoever finds another one refuses before it is charged.

    A release that a sum does not hide is charged in full whatever others release. So it counts
    here as no more than that, and may differ between clients (by their sizes, say).

    Args:
        algorithm: its name.
        purpose: what the sum is for ("train", "evaluate", ...).
        codec: how the release is laid out as integers: a dataclass with a ``shape``.
        event: what one release costs its client.
        least_weight: the least weight that a client of the sum may have.
        greatest_weight: the greatest one.
        seeded: whether the noise follows from the run's seed. Whoever asks others for such noise
            knows it, so that it hides nobody.
    """
    plain = event.to_dict()
    if not _is_hidden(plain):
        plain = {"hiding": Hiding.NOT}
    form = {"shape": list(codec.shape), **asdict(codec)}
    fields = (
        *(algorithm.encode(), purpose.encode(), type(codec).__name__.encode()),
        *(_canonical(form), _canonical(plain)),
        *(weight.to_bytes(8, "big") for weight in (least_weight, greatest_weight)),
        bytes([seeded]),
    )
    return hashlib.sha256(framed(b"release in a sum", *fields)).hexdigest()


def _canonical(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def _is_hidden(plain: Any) -> bool:
    """True if a sum hides any release in the JSON of an event."""
    if isinstance(plain, list):
        return any(map(_is_hidden, plain))
    if not isinstance(plain, dict):
        return False
    return plain.get("hiding", Hiding.NOT) != Hiding.NOT or any(map(_is_hidden, plain.values()))
