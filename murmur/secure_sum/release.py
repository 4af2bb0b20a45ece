"""A digest of what every client of a sum releases: what one client's relief rests on.

A sum hides a release among others only where these come from the same mechanism with the same
parameters. The server computes the digest from its own half when it makes the terms, a client from
what it is about to release, and whoever finds another one refuses before it is charged.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from murmur.common import framed
from murmur.privacy.events import Event, Hiding


def release_digest(
    algorithm: str,
    purpose: str,
    codec: Any,
    event: Event,
    least_weight: int,
    greatest_weight: int,
    seeded: bool = False,
) -> str:
    """In hexadecimal. ``codec``: a dataclass with a ``shape``; ``event``: of one release.

    ``seeded``: whether its noise follows from the run's seed. Whoever asks others for such noise
    knows it, so that it hides nobody.

    A release that a sum does not hide is charged in full whatever others release. So it counts
    here as no more than that, and may differ between clients (by their sizes, say).
    """
    plain = event.to_dict()
    released = _canonical(plain if _is_hidden(plain) else {"hiding": Hiding.NOT})
    form = _canonical({"shape": list(codec.shape), **asdict(codec)})
    fields = (
        *(algorithm.encode(), purpose.encode(), type(codec).__name__.encode(), form, released),
        *(weight.to_bytes(8, "big") for weight in (least_weight, greatest_weight)),
        bytes([seeded]),
    )
    return hashlib.sha256(framed(b"release in a sum", *fields)).hexdigest()


def _canonical(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def _is_hidden(plain: Any) -> bool:
    """Whether a sum hides any release in the JSON of an event."""
    if isinstance(plain, list):
        return any(map(_is_hidden, plain))
    if not isinstance(plain, dict):
        return False
    return plain.get("hiding", Hiding.NOT) != Hiding.NOT or any(map(_is_hidden, plain.values()))
