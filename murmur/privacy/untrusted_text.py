"""Text from outside, made harmless for terminals, logs and spreadsheets."""

from __future__ import annotations

# What a spreadsheet takes for the beginning of a formula, and the sign that says that it is none.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_PLAIN = "'"


def printable(text: object, keep: str = "") -> str:
    """``text`` with a question mark for each character that a terminal may obey.

    Control codes, and characters that turn the direction of writing; not those in ``keep``.
    """
    return "".join(c if c.isprintable() or c in keep else "?" for c in str(text))


def csv_cell(value: object) -> object:
    """``value`` for a CSV file: numbers as they are, no text that a spreadsheet computes.

    Such text is put behind an apostrophe, and so is text that begins with one: what stands behind
    the apostrophe of a cell is always the text itself.
    """
    if isinstance(value, str) and value.startswith((*_FORMULA, _PLAIN)):
        return _PLAIN + value
    return value
