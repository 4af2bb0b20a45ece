"""Words of a data card: numbers, names and lists that fit on a few lines."""

from bisect import bisect_left
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from murmur.format import printable

_MAX_NAME = 40  # cells of a name that are shown
_EXPONENT_FROM = 1e7

Spread = tuple[int, int]
"""The fewest and the most."""


def between(spread: Spread, one: str, more: str) -> str:
    """The fewest and the most of something, in words."""
    low, high = spread
    if low == high:
        return f"{low:,} {one if low == 1 else more}"
    return f"{low:,} to {high:,} {more}"


def number(value: float) -> str:
    """A bound for people."""
    if value.is_integer() and abs(value) < _EXPONENT_FROM:
        return f"{value:,.0f}"
    return f"{value:g}"


def short(name: str, most: int = _MAX_NAME) -> str:
    """A name of somebody's on one line, its middle left out where it is long."""
    name = printable(name)
    if cell_len(name) <= most:
        return name
    end = name[-(most // 2) :]
    while cell_len(end) > most // 2:
        end = end[1:]
    return f"{set_cell_size(name, max(most - 1 - cell_len(end), 0))}…{end}"


def fitted(
    items: Sequence[Sequence[str]], room: int, most: int, head: str = "", mark: str = ","
) -> list[str]:
    """Items, each of words, in at most ``most`` lines of ``room`` cells.

    Where not all fit, the first ones and how many there are besides; where none does, the first
    words.

    Args:
        items: no line ends within a word, but where one is wider than a line.
        room: of a line.
        most: lines.
        head: words before all items.
        mark: behind each but the last.
    """

    def filled(shown: int) -> list[str]:
        words = head.split()
        for place, item in enumerate(items[:shown], start=1):
            words += [*item[:-1], item[-1] + mark * (place < len(items))]
        if shown < len(items):
            words.append(f"and {len(items) - shown:,} more")
        return _filled(words, room)

    if len(items) <= most * room and len(whole := filled(len(items))) <= most:
        return whole
    some = range(1, min(len(items), most * room))
    shown = bisect_left(some, True, key=lambda count: len(filled(count)) > most)
    lines = filled(shown if head else max(shown, 1))
    if len(lines) > most:
        lines[most - 1] = f"{set_cell_size(lines[most - 1], room - 2).rstrip()} …"
    return lines[:most]


def _filled(words: Sequence[str], room: int) -> list[str]:
    """``words`` in lines of at most ``room`` cells, as many as it takes."""
    lines = [""]
    for word in words:
        word = short(word, room)
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > room:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
