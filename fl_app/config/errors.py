"""The error shown to the user for an invalid configuration, with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """One sentence for the user: the key or file, what is wrong with it, what is allowed.

    Raised wherever settings, files or the environment of a command are at fault, mostly before
    anything is started. The command prints it without a traceback and exits with status 2, or with
    1 where the run had begun.
    """


def nearest(name: object, known: Iterable[str]) -> str:
    """The end of an error's sentence: what ``name`` may have been meant to be.

    Returns:
        "did you mean A or B?", of three names at most; where none is near, all that are known.
    """
    choices = sorted(set(known))
    matches = difflib.get_close_matches(str(name), choices, n=3, cutoff=0.5)
    if matches:
        return f"did you mean {' or '.join(matches)}?"
    return f"known are {', '.join(choices)}"
