"""JSON from strangers, read so that two readers never disagree about it.

Refused are duplicate keys, NaN and infinities, integers beyond 2^53 (which other readers round),
nesting beyond 20, and more than 1 MB where the caller names no other limit. Whoever signs JSON
signs its bytes; they are verified before they come here.
"""

import json
import math
import re
from typing import Any

MAX_BYTES = 2**20
MAX_DEPTH = 20
_MAX_INTEGER = 2**53
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKET = re.compile(rb"[\[\]{}]")


def read_strictly(content: bytes, limit: int = MAX_BYTES) -> Any:
    """The value that ``content`` holds; ValueError for what is refused (head of this file).

    ``limit``: of its length, in bytes.
    """
    if len(content) > limit:
        raise ValueError(f"longer than {limit} bytes")
    _require_shallow(content)
    return json.loads(
        content.decode("utf-8"),
        object_pairs_hook=_object,
        parse_constant=_no_constant,
        parse_int=_integer,
        parse_float=_finite,
    )


def _require_shallow(content: bytes) -> None:
    """ValueError for brackets within more than ``MAX_DEPTH`` others; text is not looked at."""
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", content)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word}: is no number of JSON")


def _integer(digits: str) -> int:
    if len(digits) > 17 or abs(int(digits)) > _MAX_INTEGER:
        raise ValueError(f"{digits:.20}: is beyond 2^53")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.20}: is no finite number")
    return number
