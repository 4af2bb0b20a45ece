"""Reed-Solomon decoding: restores a secret although some of the shares are wrong.

A dealer and a holder that work together can agree on a share that lies off the dealer's
polynomial: its hash fits, and no honest holder sees it. Gao, "A new algorithm for decoding
Reed-Solomon codes", 2003: of m shares up to (m − threshold) / 2 may be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from murmur.secure_sum.keys import ORDER, public_key, to_bytes
from murmur.secure_sum.shares import combine, value_at
from murmur.secure_sum.terms import SecureSumError

_Polynomial = list[int]  # coefficients, the constant one first; [] is 0


def restore(
    shares: Mapping[int, bytes], threshold: int, public: bytes
) -> tuple[bytes, frozenset[int]]:
    """The secret behind ``public``, and which holders' shares are wrong.

    Wrong shares beyond the first ``threshold`` are not looked for where those suffice.
    SecureSumError where too many are wrong.
    """
    secret = combine(shares, threshold)
    if secret.strip(b"\0") and public_key(secret) == public:
        return secret, frozenset()
    found = _decode({i + 1: int.from_bytes(s, "big") for i, s in shares.items()}, threshold)
    if found is None or not found[0] or public_key(secret := to_bytes(found[0])) != public:
        raise SecureSumError("too many of its shares are wrong")
    wrong = {i for i, s in shares.items() if value_at(found, i + 1) != int.from_bytes(s, "big")}
    return secret, frozenset(wrong)


def _decode(points: Mapping[int, int], threshold: int) -> _Polynomial | None:
    """The polynomial of degree below ``threshold`` through most of ``points``, if there is one."""
    above: _Polynomial = [1]
    through: _Polynomial = []
    for x, y in points.items():  # Newton's interpolation
        step = (y - value_at(through, x)) * pow(value_at(above, x), -1, ORDER) % ORDER
        through = _minus(through, [-step * c for c in above])
        above = _minus([0, *above], [x * c for c in above])
    old, new = above, through
    old_factor: _Polynomial = []
    new_factor: _Polynomial = [1]
    while 2 * (len(new) - 1) >= len(points) + threshold:
        quotient, rest = _divide(old, new)
        old, new = new, rest
        old_factor, new_factor = new_factor, _minus(old_factor, _times(quotient, new_factor))
    found, rest = _divide(new, new_factor)
    return found if found and not rest and len(found) <= threshold else None


def _minus(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    length = max(len(one), len(other))
    padded = (p + [0] * (length - len(p)) for p in (one, other))
    return _trimmed([(a - b) % ORDER for a, b in zip(*padded, strict=True)])


def _times(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    product = [0] * (len(one) + len(other))
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            product[i + j] = (product[i + j] + a * b) % ORDER
    return _trimmed(product)


def _divide(one: _Polynomial, other: _Polynomial) -> tuple[_Polynomial, _Polynomial]:
    quotient, rest = [0] * max(len(one) - len(other) + 1, 0), list(one)
    inverse = pow(other[-1], -1, ORDER)
    for place in reversed(range(len(quotient))):
        factor = quotient[place] = rest[place + len(other) - 1] * inverse % ORDER
        for i, c in enumerate(other):
            rest[place + i] = (rest[place + i] - factor * c) % ORDER
    return _trimmed(quotient), _trimmed(rest)


def _trimmed(polynomial: _Polynomial) -> _Polynomial:
    while polynomial and not polynomial[-1]:
        polynomial.pop()
    return polynomial
