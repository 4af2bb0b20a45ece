"""The error shown to the user for an invalid configuration, with suggestions."""

import difflib
from collections.abc import Iterable

MAX_NAMES = 10  # names in one sentence


class ConfigError(Exception):
    """One sentence for the user: the key or file, what is wrong with it, what is allowed.

    Raised wherever settings, files or the environment of a command are at fault, mostly before
    anything is started. The command prints it without a traceback and exits with status 2, or with
    1 where the run had begun.
    """


def nearest(name: object, known: Iterable[str]) -> str:
    """The end of an error's sentence: what ``name`` may have been meant to be.

    A dotted name is also compared by its last part.

    Returns:
        "did you mean A or B?", of three names at most; where none is near, all that are known, or
        of many the ten that are nearest.
    """
    choices = sorted(set(known))
    word = str(name)
    matches = difflib.get_close_matches(word, choices, n=3, cutoff=0.5)
    if not matches:
        last = word.rpartition(".")[2]
        by_last: dict[str, list[str]] = {}
        for choice in choices:
            by_last.setdefault(choice.rpartition(".")[2], []).append(choice)
        ends = difflib.get_close_matches(last, by_last, n=3, cutoff=0.7)
        matches = [choice for end in ends for choice in by_last[end]][:3]
    if matches:
        return f"did you mean {' or '.join(matches)}?"
    if len(choices) <= MAX_NAMES:
        return f"known are {', '.join(choices)}"
    near = difflib.get_close_matches(word, choices, n=MAX_NAMES, cutoff=0)
    return f"nearest are {', '.join(near)}; `murmur --help` lists all"
