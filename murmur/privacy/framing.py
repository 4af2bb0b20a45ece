"""One string of bytes of several fields, from which the fields can be told again."""

from __future__ import annotations

_LENGTH_BYTES = 8


def framed(*fields: bytes) -> bytes:
    """``fields``, each preceded by its length: no two lists of fields give the same bytes.

    For what is hashed, signed or derived from several values. Fields that are only put one after
    the other, or separated by a character that they may hold, can be cut in more than one way.
    """
    return b"".join(len(field).to_bytes(_LENGTH_BYTES, "big") + field for field in fields)
