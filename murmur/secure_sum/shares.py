"""Verifiable secret sharing: any ``threshold`` of the holders restore a client's two secrets.

Shamir's sharing over the scalars of P-256 (CACM 1979). The dealer shares its seed, its mask key,
and a random blind by polynomials s, k, h of degree threshold − 1. It publishes hashes of all
shares; challenges r follow from these (Fiat and Shamir); it answers with the polynomial
p = h + r_s·s + r_k·k, which says nothing about s and k since h is uniform. Holder i is sent s(i)
and k(i), computes h(i) = p(i) − r_s·s(i) − r_k·k(i), and checks that this is the h(i) of the hash;
that for a random combination all holders' shares lie on one polynomial of low degree proves it for
s and k (but for 2^-120 an attempt). And the server checks
p(0)·G = h(0)·G + r_s·S + r_k·K, a proof of Schnorr's kind that what is shared are the secrets
behind the public S and K. So a dealer that shares anything else is found before anybody depends
on it, and a holder that later reveals another share is found by its hash.

A dealer and a holder that work together can agree on a share that lies off the dealer's
polynomial: its hash fits, and no honest holder sees it. ``restore`` finds the secret nonetheless by
Reed-Solomon decoding (Massey 1969): of m shares up to (m − threshold) / 2 may be wrong.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

from murmur.format import framed
from murmur.secure_sum import keys
from murmur.secure_sum.terms import SecureSumError

SHARE_BYTES = 2 * keys.KEY_BYTES  # of one holder: s(i), k(i)
SEED = 0  # place of s(i) in a holder's share
KEY = 1  # and of k(i)
_BLIND = 2  # and of h(i) among a holder's hashes
CHALLENGE_BYTES = 32
# Bytes of a share's hash. Shares have 256 bits of entropy, and to reveal another one takes a
# second preimage; a collision, which takes 2^64 attempts, gains what ``restore`` corrects.
_HASH_BYTES = 16
HASHES_BYTES = 3 * _HASH_BYTES  # of a holder's three numbers
TEST_BYTES = CHALLENGE_BYTES + keys.KEY_BYTES + HASHES_BYTES  # both r, p(i), i's hashes
_WEIGHT_BYTES = 16
_KINDS = tuple(b"share%c" % place for place in (SEED, KEY, _BLIND))  # what is hashed begins with


@dataclass(frozen=True)
class Dealing:
    """Public part of a dealer's sharing.

    Attributes:
        about: what the sharing is bound to: the sum and the dealer.
        public: S and K, the points behind the secrets.
        blind: h(0)·G.
        answer: p by its differences (``values_of``).
        hashes: of each holder's three shares.
    """

    about: bytes
    public: tuple[bytes, bytes]
    blind: bytes
    answer: tuple[int, ...]
    hashes: tuple[bytes, ...]

    @classmethod
    def of(
        cls,
        seed: bytes,
        key: bytes,
        threshold: int,
        holders: int,
        about: bytes,
        public: tuple[bytes, bytes],
    ) -> "tuple[Dealing, list[bytes]]":
        """A sharing of two secrets, and each holder's share; holder ``i`` is at ``i`` + 1.

        Args:
            seed: the private b_u, 32 bytes.
            key: the private mask key, 32 bytes.
            threshold: so many shares restore a secret, in 1..``holders``; else ValueError.
            holders: how many shares there are.
            about: the sum and the dealer, to which the sharing is bound.
            public: S and K, the public halves of both.
        """
        if not 1 <= threshold <= holders:
            raise ValueError(f"threshold={threshold}: must lie in 1..{holders}")
        secrets = [int.from_bytes(part, "big") for part in (seed, key, keys.scalar())]
        polynomials = [[secret, *_random(threshold - 1)] for secret in secrets]  # differences
        seeds, masks, blinds = (
            list(map(keys.to_bytes, values_of(polynomial, holders))) for polynomial in polynomials
        )
        blind = keys.public_key(keys.to_bytes(secrets[2]))
        hashes = tuple(map(_hashes, seeds, masks, blinds))
        r_s, r_k = _numbers(_challenge(about, public, blind, hashes))
        answer = tuple(
            (h + r_s * s + r_k * k) % keys.ORDER for s, k, h in zip(*polynomials, strict=True)
        )
        shares = [s + k for s, k in zip(seeds, masks, strict=True)]
        return cls(about, public, blind, answer, hashes), shares

    @staticmethod
    def size(threshold: int, holders: int) -> int:
        """Bytes of ``to_bytes``."""
        return keys.POINT_BYTES + keys.KEY_BYTES * threshold + HASHES_BYTES * holders

    def to_bytes(self) -> bytes:
        """As it travels; what it is bound to, both ends know."""
        return self.blind + b"".join(map(keys.to_bytes, self.answer)) + b"".join(self.hashes)

    @classmethod
    def read(
        cls, sent: bytes, threshold: int, holders: int, about: bytes, public: tuple[bytes, bytes]
    ) -> "Dealing":
        """Parse a dealing that was ``sent``; ``public``: S and K, as the dealer advertised them.

        SecureSumError for what is no sharing. That it is one of the secrets behind S and K is for
        ``false_dealings`` to say, and that a share fits for its holder (``passes``).
        """
        if len(sent) != cls.size(threshold, holders):
            raise SecureSumError("its sharing is malformed")
        middle = keys.POINT_BYTES + keys.KEY_BYTES * threshold
        answer = tuple(
            int.from_bytes(sent[at : at + keys.KEY_BYTES], "big")
            for at in range(keys.POINT_BYTES, middle, keys.KEY_BYTES)
        )
        hashes = tuple(
            sent[at : at + HASHES_BYTES] for at in range(middle, len(sent), HASHES_BYTES)
        )
        blind = sent[: keys.POINT_BYTES]
        keys.decoded(blind)  # is it a point?
        if not 0 < answer[0] < keys.ORDER:
            raise SecureSumError("its sharing is malformed")
        return cls(about, public, blind, answer, hashes)

    @cached_property
    def challenge(self) -> bytes:
        """Both r, which follow from all that the dealer published before its answer."""
        return _challenge(self.about, self.public, self.blind, self.hashes)

    @cached_property
    def tests(self) -> list[bytes]:
        """Values with which each holder checks its share by ``passes``.

        ``TEST_BYTES``: both challenges, p at the holder's place, and its three hashes. The server
        sends it beside the box; it says nothing of the secrets.
        """
        values = map(keys.to_bytes, values_of(self.answer, len(self.hashes)))
        both = zip(values, self.hashes, strict=True)
        return [self.challenge + value + hashes for value, hashes in both]

    def is_share(self, holder: int, secret: int, share: bytes) -> bool:
        """True if ``share`` is what ``holder`` was dealt of ``secret`` (SEED or KEY)."""
        return (
            _hash(secret, share)
            == self.hashes[holder][_HASH_BYTES * secret : _HASH_BYTES * (secret + 1)]
        )


def false_dealings(dealings: Mapping[int, Dealing]) -> list[int]:
    """Dealers whose sharing does not fit their public keys; ``dealings``: by dealer.

    All are checked by one equation, a sum of theirs with random weights. It holds for a false one
    with a chance of 2^-128; where it does not hold, each half of them is checked by itself.
    """
    if not dealings or _all_true(dealings.values()):
        return []
    if len(dealings) == 1:
        return list(dealings)
    dealers = list(dealings)
    middle = len(dealers) // 2
    halves = dealers[:middle], dealers[middle:]
    return [c for half in halves for c in false_dealings({c: dealings[c] for c in half})]


def _all_true(dealings: Iterable[Dealing]) -> bool:
    """True if p(0)·G = h(0)·G + r_s·S + r_k·K for each, by a random combination."""
    terms = []
    total = 0
    for each in dealings:
        weight = int.from_bytes(os.urandom(_WEIGHT_BYTES), "big")
        factors = (1, *_numbers(each.challenge))
        points = map(keys.point, (each.blind, *each.public))
        terms += [(weight * r % keys.ORDER, at) for r, at in zip(factors, points, strict=True)]
        total += weight * each.answer[0]
    return keys.encoded(keys.combination(terms)) == keys.public_key(
        keys.to_bytes(total % keys.ORDER)
    )


def passes(share: bytes, test: bytes) -> bool:
    """True if a holder's ``share`` fits the hashes that its dealer has published.

    ``share``: s(i), k(i) as the dealer sealed them. ``test``: ``Dealing.test``, from the server.
    False, whatever is wrong with either.
    """
    if len(share) != SHARE_BYTES or len(test) != TEST_BYTES:
        return False
    pieces = piece(share, SEED), piece(share, KEY)
    s, k = (int.from_bytes(each, "big") for each in pieces)
    if max(s, k) >= keys.ORDER:  # the same number in other bytes, which no honest dealer sends
        return False
    r_s, r_k = _numbers(test[:CHALLENGE_BYTES])
    answer = int.from_bytes(test[CHALLENGE_BYTES:-HASHES_BYTES], "big")
    h = (answer - r_s * s - r_k * k) % keys.ORDER
    return _hashes(*pieces, keys.to_bytes(h)) == test[-HASHES_BYTES:]


def piece(share: bytes, place: int) -> bytes:
    """One of the two numbers in a holder's share."""
    return share[keys.KEY_BYTES * place : keys.KEY_BYTES * (place + 1)]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret behind ``shares`` (by holder's index from 0), of which ``threshold`` are used.

    A wrong share gives a wrong secret and no error. ValueError for too few shares.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares: {threshold} are needed")
    chosen = tuple(sorted(shares))[:threshold]
    weights = _lagrange(chosen)
    values = (int.from_bytes(shares[index], "big") for index in chosen)
    total = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return keys.to_bytes(total % keys.ORDER)


def restore(
    shares: Mapping[int, bytes], threshold: int, public: bytes
) -> tuple[bytes, frozenset[int]]:
    """The secret behind ``public``, and which holders' shares are wrong.

    ``shares``: by holder's index from 0. Wrong shares beyond the first ``threshold`` are not looked
    for where those suffice. SecureSumError where too many are wrong.
    """
    secret = combine(shares, threshold)
    if _is_behind(secret, public):
        return secret, frozenset()
    wrong = _wrong({i + 1: int.from_bytes(s, "big") for i, s in shares.items()}, threshold)
    right = {i: s for i, s in shares.items() if i + 1 not in wrong}
    secret = combine(right, threshold)
    if not _is_behind(secret, public):
        raise SecureSumError("too many of its shares are wrong")
    return secret, frozenset(x - 1 for x in wrong)


def _is_behind(secret: bytes, public: bytes) -> bool:
    """True if ``secret``, which may be 0, is the private half of ``public``."""
    return secret != bytes(keys.KEY_BYTES) and keys.public_key(secret) == public


@lru_cache(maxsize=64)
def _lagrange(indices: tuple[int, ...]) -> tuple[int, ...]:
    """For each holder its coefficient at 0: ∏ x_m / (x_m − x_j) over m ≠ j, with x = index + 1."""
    weights = []
    for j in indices:
        above = below = 1
        for m in indices:
            if m != j:
                above = above * (m + 1) % keys.ORDER
                below = below * (m - j) % keys.ORDER
        weights.append(above * pow(below, -1, keys.ORDER) % keys.ORDER)
    return tuple(weights)


def _random(count: int) -> list[int]:
    return [int.from_bytes(keys.scalar(), "big") for _ in range(count)]


def values_of(differences: Sequence[int], count: int) -> list[int]:
    """A polynomial's values at 1..``count``, modulo ORDER.

    ``differences``: its value at 0, its first difference there, its second and so on, as many as
    determine it: uniform ones are a uniform polynomial. So that values are found by additions.
    """
    row = [0] * count
    for difference in reversed(differences):
        row = list(accumulate(row[:count], initial=difference))
    return [value % keys.ORDER for value in row[1:]]


def value_at(polynomial: Sequence[int], at: int) -> int:
    """The polynomial's value at ``at``, modulo ORDER.

    ``polynomial``: its coefficients, the constant one first.
    """
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * at + coefficient) % keys.ORDER
    return value


def _hash(place: int, number: bytes) -> bytes:
    return hashlib.sha256(_KINDS[place] + number).digest()[:_HASH_BYTES]


def _hashes(s: bytes, k: bytes, h: bytes) -> bytes:
    """Hashes of a holder's three numbers s(i), k(i), h(i), one after the other."""
    return _hash(SEED, s) + _hash(KEY, k) + _hash(_BLIND, h)


def _challenge(
    about: bytes, public: tuple[bytes, bytes], blind: bytes, hashes: Sequence[bytes]
) -> bytes:
    """Challenge to the dealer: a hash of all that it published before (Fiat and Shamir)."""
    bound = framed(about, *public)
    return hashlib.sha256(framed(b"sharing", bound, blind, *hashes)).digest()


def _numbers(challenge: bytes) -> tuple[int, int]:
    """r_s and r_k, 128 bits each."""
    half = CHALLENGE_BYTES // 2
    return int.from_bytes(challenge[:half], "big"), int.from_bytes(challenge[half:], "big")


def _wrong(points: Mapping[int, int], threshold: int) -> set[int]:
    """Those x of ``points`` (y by x) that lie off the one polynomial that goes through most.

    Of degree below ``threshold``. Its points add nothing to a syndrome Σ w_x y x^j, where 1/w_x is
    the product of x − z over all other z (Reed and Solomon's code in Goppa's form), so that
    syndromes follow a recurrence whose roots are the x that are sought. SecureSumError where more
    are wrong than syndromes can tell.
    """
    terms = []
    for x, y in points.items():
        product = 1
        for other in points:
            if other != x:
                product = product * (x - other) % keys.ORDER
        terms.append(y * pow(product, -1, keys.ORDER) % keys.ORDER)
    syndromes = []
    for _ in range(len(points) - threshold):
        syndromes.append(sum(terms) % keys.ORDER)
        terms = [term * x % keys.ORDER for term, x in zip(terms, points, strict=True)]
    recurrence = _recurrence(syndromes)
    wrong = {x for x in points if value_at(recurrence[::-1], x) == 0}
    if len(wrong) != len(recurrence) - 1 or 2 * len(wrong) > len(syndromes):
        raise SecureSumError("too many of its shares are wrong")
    return wrong


def _recurrence(sequence: Sequence[int]) -> list[int]:
    """The shortest c_0 = 1, c_1, ..., c_L with Σ c_k a_(n−k) = 0 from n = L on, modulo ORDER.

    Massey, "Shift-register synthesis and BCH decoding", IEEE Trans. Inf. Theory 1969.
    """
    found = [1]
    before = [1]  # the last one that was shorter, by ``gap`` terms ago, and by how much it failed
    failed = 1
    gap = 1
    length = 0
    for n in range(len(sequence)):
        off = sum(c * sequence[n - k] for k, c in enumerate(found)) % keys.ORDER
        if off:
            factor = off * pow(failed, -1, keys.ORDER)
            mended = found + [0] * (len(before) + gap - len(found))
            for k, c in enumerate(before):
                mended[gap + k] = (mended[gap + k] - factor * c) % keys.ORDER
            if 2 * length <= n:
                before = found
                failed = off
                gap = 0
                length = n + 1 - length
            found = mended
        gap += 1
    return found + [0] * (length + 1 - len(found))
