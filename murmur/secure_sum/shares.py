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
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from murmur.common import framed
from murmur.secure_sum.keys import (
    KEY_BYTES,
    ORDER,
    POINT_BYTES,
    combination,
    encoded,
    point,
    public_key,
    scalar,
    to_bytes,
)
from murmur.secure_sum.terms import SecureSumError

SHARE_BYTES = 2 * KEY_BYTES  # of one holder: s(i), k(i)
SEED, KEY = 0, 1  # places in a holder's share
CHALLENGE_BYTES = 32
TEST_BYTES = CHALLENGE_BYTES + KEY_BYTES + 32  # both r, p(i), a digest of i's hashes
# Bytes of a share's hash. Shares have 256 bits of entropy, and to reveal another one takes a
# second preimage; a collision, which takes 2^64 attempts, gains what ``decoding`` corrects.
_HASH = 16


@dataclass(frozen=True)
class Dealing:
    """What a dealer publishes of its sharing.

    ``blind``: h(0)·G. ``answer``: p's coefficients. ``hashes``: of each holder's three shares.
    ``about``: what the sharing is bound to: the sum, the dealer, S and K.
    """

    about: bytes
    blind: bytes
    answer: tuple[int, ...]
    hashes: tuple[bytes, ...]

    @classmethod
    def of(
        cls, seed: bytes, key: bytes, threshold: int, holders: int, about: bytes
    ) -> tuple[Dealing, list[bytes]]:
        """A sharing of two secrets, and each holder's share; holder ``i`` is at ``i`` + 1."""
        if not 1 <= threshold <= holders:
            raise ValueError(f"threshold={threshold}: must lie in 1..{holders}")
        secrets = [int.from_bytes(part, "big") for part in (seed, key, scalar())]
        polynomials = [[secret, *_random(threshold - 1)] for secret in secrets]
        values = [
            [to_bytes(value_at(polynomial, i + 1)) for polynomial in polynomials]
            for i in range(holders)
        ]
        blind = public_key(to_bytes(secrets[2]))
        hashes = tuple(_hashes(*numbers) for numbers in values)
        bound = framed(about, public_key(seed), public_key(key))
        r_s, r_k = _numbers(_challenge(bound, blind, hashes))
        answer = tuple(
            (h + r_s * s + r_k * k) % ORDER for s, k, h in zip(*polynomials, strict=True)
        )
        return cls(bound, blind, answer, hashes), [s + k for s, k, _ in values]

    @staticmethod
    def size(threshold: int, holders: int) -> int:
        """Bytes of ``to_bytes``."""
        return POINT_BYTES + KEY_BYTES * threshold + 3 * _HASH * holders

    def to_bytes(self) -> bytes:
        """As it travels; what it is bound to, both ends know."""
        return self.blind + b"".join(map(to_bytes, self.answer)) + b"".join(self.hashes)

    @classmethod
    def read(
        cls, sent: bytes, threshold: int, holders: int, about: bytes, seed: bytes, key: bytes
    ) -> Dealing:
        """A sharing of the secrets behind the public ``seed`` and ``key``.

        SecureSumError if it is not one.
        """
        if len(sent) != cls.size(threshold, holders):
            raise SecureSumError("its sharing is malformed")
        middle = POINT_BYTES + KEY_BYTES * threshold
        answer = tuple(
            int.from_bytes(sent[at : at + KEY_BYTES], "big")
            for at in range(POINT_BYTES, middle, KEY_BYTES)
        )
        step = 3 * _HASH
        hashes = tuple(sent[at : at + step] for at in range(middle, len(sent), step))
        found = cls(framed(about, seed, key), sent[:POINT_BYTES], answer, hashes)
        r_s, r_k = _numbers(found.challenge)
        parts = [(1, point(found.blind)), (r_s, point(seed)), (r_k, point(key))]
        if not 0 < answer[0] < ORDER or encoded(combination(parts)) != public_key(
            to_bytes(answer[0])
        ):
            raise SecureSumError("what it shares are not the secrets behind its public keys")
        return found

    @property
    def challenge(self) -> bytes:
        """Both r, which follow from all that the dealer published before its answer."""
        return _challenge(self.about, self.blind, self.hashes)

    def test(self, holder: int) -> bytes:
        """What holder ``holder`` needs to check its share: ``passes``."""
        value = to_bytes(value_at(self.answer, holder + 1))
        return self.challenge + value + hashlib.sha256(self.hashes[holder]).digest()

    def is_share(self, holder: int, secret: int, share: bytes) -> bool:
        """Whether ``share`` is what ``holder`` was dealt of ``secret`` (SEED or KEY)."""
        return _hash(secret, share) == self.hashes[holder][_HASH * secret : _HASH * (secret + 1)]


def passes(share: bytes, test: bytes) -> bool:
    """Whether a holder's ``share`` is the one that its dealer has published hashes of, and fits."""
    if len(share) != SHARE_BYTES or len(test) != TEST_BYTES:
        return False
    s, k = (int.from_bytes(piece(share, place), "big") for place in (SEED, KEY))
    challenge, answer = test[:CHALLENGE_BYTES], test[CHALLENGE_BYTES : CHALLENGE_BYTES + KEY_BYTES]
    r_s, r_k = _numbers(challenge)
    h = (int.from_bytes(answer, "big") - r_s * s - r_k * k) % ORDER
    found = _hashes(piece(share, SEED), piece(share, KEY), to_bytes(h))
    return hashlib.sha256(found).digest() == test[CHALLENGE_BYTES + KEY_BYTES :]


def piece(share: bytes, place: int) -> bytes:
    """One of the two numbers in a holder's share."""
    return share[KEY_BYTES * place : KEY_BYTES * (place + 1)]


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
    return to_bytes(total % ORDER)


@lru_cache(maxsize=64)
def _lagrange(indices: tuple[int, ...]) -> tuple[int, ...]:
    """For each holder its coefficient at 0: ∏ x_m / (x_m − x_j) over m ≠ j, with x = index + 1."""
    weights = []
    for j in indices:
        above = below = 1
        for m in indices:
            if m != j:
                above = above * (m + 1) % ORDER
                below = below * (m - j) % ORDER
        weights.append(above * pow(below, -1, ORDER) % ORDER)
    return tuple(weights)


def _random(count: int) -> list[int]:
    return [int.from_bytes(scalar(), "big") for _ in range(count)]


def value_at(polynomial: Sequence[int], at: int) -> int:
    """The polynomial's value (coefficients, the constant one first) at ``at``."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * at + coefficient) % ORDER
    return value


def _hash(place: int, number: bytes) -> bytes:
    return hashlib.sha256(b"share" + bytes([place]) + number).digest()[:_HASH]


def _hashes(*numbers: bytes) -> bytes:
    return b"".join(_hash(place, number) for place, number in enumerate(numbers))


def _challenge(about: bytes, blind: bytes, hashes: Sequence[bytes]) -> bytes:
    return hashlib.sha256(framed(b"sharing", about, blind, *hashes)).digest()


def _numbers(challenge: bytes) -> tuple[int, int]:
    half = CHALLENGE_BYTES // 2
    return int.from_bytes(challenge[:half], "big"), int.from_bytes(challenge[half:], "big")
