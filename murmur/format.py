"""Values as text for people and files, and as bytes that can be told apart."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def pluralize(number: int, noun: str) -> str:
    """A number of things in words: 1 client, 2 clients."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def format_number(value: float, up: bool = True) -> str:
    """A number for people, of three digits; a whole number from 1,000 on; "nan" and "inf" as such.

    Rounded up, since an ε is at most what is printed of it; what differs from three digits by less
    than a billionth is arithmetic's error. ``up`` false: down, for what is at least so much.
    """
    if not math.isfinite(value):
        return str(value)
    rounding = ROUND_FLOOR
    if up:
        rounding = ROUND_CEILING
    exact = Decimal(f"{value:.9g}")
    rounded = Context(prec=3, rounding=rounding).plus(exact)
    if abs(rounded) < 1000:
        return f"{float(rounded):.3g}"
    return f"{exact.to_integral_value(rounding):,}"


def framed(*fields: bytes) -> bytes:
    """``fields``, each preceded by its length: no two lists of fields give the same bytes.

    For what is hashed, signed or derived from several values. Fields that are only put one after
    the other, or separated by a character that they may hold, can be cut in more than one way.
    """
    return b"".join([len(field).to_bytes(8, "big") + field for field in fields])


def unframed(joined: bytes) -> list[bytes]:
    """The inverse of ``framed``; ValueError for bytes that it cannot have made."""
    fields = []
    end = 0
    while end < len(joined):
        start = end + 8
        end = start + int.from_bytes(joined[end:start], "big")
        fields.append(joined[start:end])
    if end > len(joined):
        raise ValueError("the last of these fields is cut off")
    return fields


def printable(text: object, keep: str = "") -> str:
    """``text`` from outside, with a question mark for each character that a terminal may obey.

    Control codes, and characters that turn the direction of writing; not those in ``keep``.
    """
    return "".join(c if c.isprintable() or c in keep else "?" for c in str(text))


def csv_cell(value: object) -> object:
    """``value`` for a CSV file: numbers as they are, no text that a spreadsheet computes.

    Such text is put behind an apostrophe, and so is text that begins with one: what stands behind
    the apostrophe of a cell is always the text itself.
    """
    formulas = ("=", "+", "-", "@", "\t", "\r")
    if isinstance(value, str) and value.startswith((*formulas, "'")):
        return "'" + value
    return value
