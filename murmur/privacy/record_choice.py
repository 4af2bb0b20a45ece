"""Which records a release looks at, and in what order, so that no record decides for another.

A guarantee for a record compares two sets of records that differ in one. Files, folders and tables
have an order besides, in which one record more, or one of another class, moves the places of many
others. A choice by place would let one record decide which others count. So a release for records
chooses in one of three ways, none of which reads a place:

* ``poisson_sample``: **a secret coin for each record**, anew in each step. Accounting may count on
  it (``PoissonSampledEvent``). DP-SGD's lots.
* ``fixed_sample``: **a secret sample of a fixed size**, anew for each release. Accounting counts on
  nothing of it. Protected counts.
* ``keyed_order`` and ``keyed_shards``: **a hash of each record's content** under a key that a place
  draws once and keeps (``RecordKey``), for what is to be the same in the next round. The shards of
  PATE's teachers, the order in which NbAFL trains.

Contents are bytes, one string for each record: equal records have equal contents. **Copies** of a
record are numbered, and a hash is that of content and number: which copy has which number is all
the same, since they are equal. So a data set is a set of pairs (content, number) of which each has
a hash of its own, and

* to leave out a record, one of k copies or the only one, is to leave out the pair (content, k);
* to exchange it for another, of which there are j, is to put (other, j + 1) in that pair's place;

and every other record keeps its hash, whatever place it has. A hash of 64 bits under a key that
nobody else knows stands for a random number of the pair. Of n records two have the same one with
probability n²/2⁶⁵, and then stand beside each other in the order of places.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from murmur.files import kept_secret
from murmur.privacy.noise import NoiseGenerator

_KEY_BYTES = 32


def poisson_sample(rate: float, count: int, rng: NoiseGenerator) -> NDArray[np.bool_]:
    """Which of ``count`` are in a sample, (count,): a secret coin for each.

    Each by itself, with probability ``rate`` rounded down to a multiple of 2⁻⁶⁴. The coins are
    independent and alike, so the sample of a set has the same distribution in whatever order.
    """
    below = math.floor(Fraction(rate) * 2**64)
    if below == 2**64:
        return np.ones(count, dtype=np.bool_)
    return rng.uint64(count) < np.uint64(below)


def fixed_sample(contents: Iterable[bytes], size: int, rng: NoiseGenerator) -> NDArray[np.int64]:
    """Places of a secret sample of ``size`` records, ascending; of all where there are fewer.

    The records with the lowest hashes under a key of this call's own. **What one record changes**,
    whatever the key and the order, where S is the sample:

    * it is exchanged: S loses one record at most and gains one. Without it, S is the same, or has
      the next lowest in its place; the record that comes instead takes the place of the highest
      then, or does not enter.
    * there is one more, and there were at least ``size``: as if it were exchanged. There were
      fewer: S gains it, and a size that the release shows is one more.

    So a sum over the sample moves by what an exchange of one record moves it, and nothing is gained
    from the secrecy of the key.
    """
    key = rng.uint8(_KEY_BYTES).tobytes()
    return np.sort(keyed_order(contents, key)[:size])


def keyed_order(contents: Iterable[bytes], key: bytes) -> NDArray[np.int64]:
    """Places of all records in an order that depends on their contents and ``key`` alone, (n,).

    Two sets that differ in one record have all others in the same order.
    """
    return np.argsort(_hashes(contents, key), kind="stable")


def keyed_shards(contents: Iterable[bytes], count: int, key: bytes) -> list[NDArray[np.int64]]:
    """Places of the records of each of ``count`` shards, some of which may have none.

    A record's shard follows from its own content and ``key``, and the order within a shard from the
    contents of its records. **What one record changes**, whatever the key, the order and the
    number of records: it is in one shard, so

    * where it is left out (nulled, or removed) that shard changes, and no other;
    * where it is exchanged two shards may change, the one that it leaves and the one that the other
      enters: as much as leaving out two.

    Copies of a record are spread over the shards like others. One of k that is left out leaves the
    shard of the k-th.
    """
    hashes = _hashes(contents, key)
    order = np.argsort(hashes, kind="stable")
    shard = hashes[order] % np.uint64(count)
    return [order[shard == number] for number in range(count)]


def _hashes(contents: Iterable[bytes], key: bytes) -> NDArray[np.uint64]:
    """Of each record's content and its number among its copies, (n,)."""
    copies: Counter[bytes] = Counter()
    found = []
    for content in contents:
        of_content = hashlib.blake2b(content, digest_size=_KEY_BYTES, key=key).digest()
        number = copies[of_content].to_bytes(8, "little")
        copies[of_content] += 1
        found.append(hashlib.blake2b(of_content + number, digest_size=8, key=key).digest())
    return np.frombuffer(b"".join(found), "<u8").astype(np.uint64)


@dataclass(frozen=True)
class RecordKey:
    """The key under which a place hashes its clients' records, drawn once and kept.

    It never leaves the place. One that is lost is drawn anew: shards and orders are others then,
    and what they cost is the same.

    Attributes:
        file: where it is kept, readable by its owner only; made when it is first needed.
        seed: in place of a file, of a run whose noise is seeded: whoever knows it knows the key.
    """

    file: Path
    seed: int | None = None

    def of(self, client: int) -> bytes:
        """The key of one client, 32 bytes.

        Raises:
            OSError, ValueError: the file cannot be made, or holds something else.
        """
        if self.seed is None:
            secret = kept_secret(self.file)
        else:
            secret = hashlib.sha256(f"murmur.record_key.seeded:{self.seed}".encode()).digest()
        about = b"records of client %d" % client
        return hashlib.blake2b(about, digest_size=_KEY_BYTES, key=secret).digest()
