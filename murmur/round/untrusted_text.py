"""One line of what others say."""

from __future__ import annotations

from murmur.common import printable

_LONGEST = 300


def said(reason: object) -> str:
    """One short line of printable text, whatever ``reason`` holds.

    Ray's reasons are whole tracebacks, of which the last line says what happened.
    """
    lines = str(reason or "").strip().splitlines() or ["no reason given"]
    text = printable(lines[-1].strip())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
