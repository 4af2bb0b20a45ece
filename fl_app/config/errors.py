"""The error shown to the user for an invalid configuration, with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """One sentence for the user: the key or file, what is wrong with it, what is allowed."""


def nearest(name: object, known: Iterable[str]) -> str:
    """What ``name`` may have been meant to be, or all that it could be."""
    choices = sorted(set(known))
    matches = difflib.get_close_matches(str(name), choices, n=3, cutoff=0.5)
    if matches:
        return f"did you mean {' or '.join(matches)}?"
    return f"known are {', '.join(choices)}"
