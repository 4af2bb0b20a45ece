"""What single cells mean, to every reader: which class a label is, and numbers in 32 bits.

Labels. Text that is a canonical number (``0``, ``0.0``) is that number; ``True`` and ``False`` are
1 and 0 where all labels are booleans or 0 and 1; everything else (``01`` too) is text, in Unicode's
form NFC. The classes are the values that are found, numbers in their order, or those that a user
names. Numbers that are measured, such as prices, are no classes.

Words in YAML files. Without quotes YAML reads yes and no as truth values, 1:30 as 90 and 0x1F as
31, before anybody can tell: what is no plain entry, and what only a word in quotes would match, is
refused with the quotes to add.

Numbers must be right to the last digit that counts. Whatever 32 bits would turn into something else
is refused: whole numbers beyond 2²⁴, which are ids or time stamps more often than measurements, and
real numbers that differ by less than their rounding.

Folders of pictures, arrays and CSV files of pixels need no package for tables, so pandas, which
reads columns in ``tables``, is not used here.
"""

import difflib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.examples import DataError

BOOLEANS = {"True": "1", "TRUE": "1", "true": "1", "False": "0", "FALSE": "0", "false": "0"}
MAX_EXACT_INTEGER = 2**24  # up to which float32 has every whole number
_CANONICAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d{1,2}")
_BITS = {"0", "1", *BOOLEANS}
_MAX_UNNAMED_CLASSES = 1000  # that nobody has named
_MIN_MANY_CLASSES = 50  # beyond which there must be two rows for each
_MAX_SHOWN_WORDS = 10  # words in an error
_UNITS = "$€£¥% "  # around a measurement
_MAX_WORD_CHARACTERS = 40  # of which YAML may have made something else
_READ_AS = {"True": ["yes", "on", "true"], "False": ["no", "off", "false"], "None": ["null", "~"]}
_NOISE = 1e-12  # of a column's largest value: its values are the same
_VISIBLE = 1e-3  # of a column's range: how much rounding may take of it

Places = Callable[[int], str]  # from the number of a row, from 0, to where it is, for errors
Numbered = tuple[NDArray[np.int64], tuple[str, ...]]


def is_missing(value: object) -> bool:
    """True for an empty cell: null, no number (NaN), no time (NaT), or text of spaces alone."""
    if isinstance(value, str):
        return not value.strip()
    if value is None:
        return True
    try:
        return bool(value != value)
    except ValueError:  # of an array
        return False


def nfc(text: str) -> str:
    """Text in Unicode's form NFC: macOS and other systems write the same letters in two forms."""
    return unicodedata.normalize("NFC", text)


def alike(text: str) -> str:
    """Canonical form of a text, for comparison without case, outer space and form of Unicode."""
    known = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    seen = (letter for letter in known if unicodedata.category(letter) != "Cf")
    return " ".join("".join(seen).split())


def require_unlike(ids: Iterable[str], place: str) -> None:
    """DataError where two ids differ by form, case or the space around them only.

    One person would be two owners, with two budgets.
    """
    by_likeness: dict[str, str] = {}
    for owner in sorted(set(ids)):
        other = by_likeness.setdefault(alike(owner), owner)
        if other != owner:
            raise DataError(
                f"{place}: the owners' ids {other!a} and {owner!a} differ only by case, "
                "by the space around them or by Unicode's form; write one owner's id in one way"
            )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that ``name`` may have been meant to be; None: none is near."""
    by_likeness = {alike(choice): choice for choice in known}
    found = difflib.get_close_matches(alike(name), by_likeness, n=1, cutoff=0.5)
    return by_likeness[found[0]] if found else None


def listed(names: Iterable[Any], most: int = _MAX_SHOWN_WORDS) -> str:
    """Names for an error, ``most`` of them at most."""
    found = list(map(str, names))
    more = ""
    if len(found) > most:
        more = f", … ({len(found)} in all)"
    return ", ".join(found[:most]) + more


def number_classes(
    values: Sequence[Any],
    place: Places,
    classes: Sequence[Any] | None,
    blanks: Blanks = STRICT,
) -> Numbered:
    """The number of each label's class, and the classes' names.

    With ``classes`` each label is numbered by itself.

    Args:
        values: the labels, text or typed, of all parts of a data set.
        place: where a row is, for errors.
        classes: the values in the order of their numbers, or names for 0, 1, ... where those are
            the labels; None: the values found, sorted.
        blanks: notes labels without a number, which are 0. Only with ``classes``.

    Returns:
        (N,) in the order of ``values``, and the names in the order of their numbers.

    Raises:
        ValueError: ``classes`` names one twice, or holds what is neither text nor a number.
        DataError: a label is empty, of an unknown kind or not among ``classes``, or nobody has
            named the classes and there are more than 1,000 or they look like a measurement.
    """
    names = label_names(values, place, blanks)
    if classes is None:
        names = _as_bits(names)
        order = _sorted(set(names))
        if len(order) > _MAX_UNNAMED_CLASSES:
            raise DataError(
                f"{place(0)}: the labels have {len(order):,} different values; if all of these are "
                "classes, name them (dataset.classes); if not, name the column that holds them"
            )
        _require_classes(order, len(names), place(0))
    else:
        order, names = _given(classes, names)
    numbers = {name: number for number, name in enumerate(order)}
    found = np.zeros(len(names), np.int64)
    for row, name in enumerate(names):
        if name in numbers:
            found[row] = numbers[name]
        else:
            said = f"{place(row)}: class {name!r} is not among dataset.classes={order}"
            if not blanks.allowed:
                said += _hint(name, order)
            blanks.add(row, DataError(said))
    return found, tuple(order)


def _require_classes(order: Sequence[str], rows: int, place: str) -> None:
    """Refuse what looks like a measurement: fractions, or hardly a value twice.

    Args:
        order: the different labels.
        rows: how many there are of all of them.
        place: of the first row, for the error.
    """
    numbers = [number for number in map(_as_number, order) if math.isfinite(number)]
    fractions = [number for number in numbers if not number.is_integer()]
    seldom = len(order) > _MIN_MANY_CLASSES and 2 * len(order) > rows
    if seldom or (fractions and 2 * len(numbers) >= len(order)):
        raise DataError(
            f"{place}: the label looks like a measurement: {len(order):,} different values in "
            f"{rows:,} rows ({listed(order, 5)}); Murmur reads classes here: learn a "
            "number (task=regression), divide it into classes, name another column, or, if these "
            "are the classes, name them (dataset.classes=[...])"
        )


def _as_number(text: str) -> float:
    """The number that ``text`` writes, as $9.99 or 2,5 % too; NaN where it is none."""
    try:
        return float(text.strip(_UNITS).replace(",", ".", 1))
    except ValueError:
        return math.nan


def _hint(name: str, order: Sequence[str]) -> str:
    """The end of an error about a class that ``order`` lacks."""
    if unquoted(name) in order:
        said = f"; without quotes YAML reads {name} as {unquoted(name)}"
        return f"{said}: write '{name}' with the quotes"
    near = nearest(name, order)
    return f"; did you mean {near!r}?" if near else ""


def unquoted(word: str) -> str:
    """How YAML reads ``word`` where it has no quotes: "True" of yes, "90" of 1:30, "31" of 0x1F."""
    if len(word) > _MAX_WORD_CHARACTERS or word != word.strip():
        return word
    try:
        value = yaml.safe_load(word)
    except (yaml.YAMLError, ValueError):
        return word
    if isinstance(value, bool | int):
        return str(value)
    if _EXPONENT.fullmatch(word):  # which OmegaConf reads as a number, and YAML does not
        return key_of(float(word))
    return word


def key_of(value: Any) -> str:
    """By what a cell of a table and an entry of a list are compared: text in NFC, or a number."""
    text = nfc(str(value))
    return _number(text) if _CANONICAL.fullmatch(text) else text


def require_plain(key: str, entries: Iterable[Any]) -> None:
    """ValueError, which begins with ``key``, unless entries of YAML are text or plain numbers."""
    for entry in entries:
        is_number = isinstance(entry, int | float) and not isinstance(entry, bool)
        if isinstance(entry, str) or (is_number and math.isfinite(entry)):
            continue
        words = _READ_AS.get(str(entry), [str(entry)])
        raise ValueError(
            f"{key}: must hold text and plain numbers, not {entry}, as which YAML reads "
            f"{', '.join(words)} without quotes; write '{words[0]}' with the quotes"
        )


def declared_names(
    values: Sequence[Any], place: Places, declared: Sequence[str], blanks: Blanks = STRICT
) -> list[str]:
    """The name of each of the labels 0, 1, ... of a split that declares names of its own.

    Args:
        values: whole numbers; one that is missing, or that stands for no name, is refused.
        place: where a row is, for errors.
        declared: the name of each number.
        blanks: notes labels that stand for no name.
    """
    names = [nfc(declared[0])] * len(values)
    for row, value in enumerate(values):
        with blanks.of(row):
            if is_missing(value) or not 0 <= int(value) < len(declared):
                said = f"{place(row)}: it has an empty label; add it, or leave the row out"
                raise DataError(said)
            names[row] = nfc(declared[int(value)])
    return names


def number_declared(
    names: Sequence[Any],
    place: Places,
    classes: Sequence[Any] | None,
    declared: Sequence[str],
    blanks: Blanks = STRICT,
) -> Numbered:
    """As ``number_classes``, where the training rows declare names: all of them are classes.

    Args:
        names: the labels by name, of all parts; those that are not declared follow the others.
        place: where a row is, for errors.
        classes: the declared names, or numbers, in the order that is wanted; None: as declared.
        declared: the names in the order of their numbers.
        blanks: notes labels that are not among ``classes``.

    Raises:
        DataError: ``classes`` holds other words.
    """
    known = list(map(nfc, declared))
    order = list(dict.fromkeys([*known, *map(str, names)]))
    numbers = {name: number for number, name in enumerate(order)}
    found = [numbers[str(name)] for name in names]
    if classes is None:
        return np.array(found, np.int64), tuple(order)
    if all(nfc(str(name)) in known for name in classes):
        return number_classes(names, place, classes, blanks)
    if all(_CANONICAL.fullmatch(str(name)) for name in classes):
        return number_classes(found, place, classes, blanks)
    raise DataError(
        f"dataset.classes={list(classes)}: the data declare {list(declared)}; use these"
    )


def require_labels(values: Sequence[Any], part: str) -> None:
    """DataError where every label is -1, which stands for a label that is kept secret."""
    if len(values) and {str(value).strip() for value in values} <= {"-1", "-1.0"}:
        raise DataError(f"{part}: has no labels (all are -1); set dataset.test=validation")


def label_names(values: Sequence[Any], place: Places, blanks: Blanks = STRICT) -> list[str]:
    """The text of each label by the rule above, but for booleans; empty where it is blank."""
    known: dict[tuple[type, str], str] = {}
    names = []
    for row, value in enumerate(values):
        key = (type(value), str(value))
        if key not in known:
            with blanks.of(row):
                known[key] = _name(value, row, place)
        names.append(known.get(key, ""))
    return names


def _name(value: Any, row: int, place: Places) -> str:
    """One label by the rule above.

    Raises:
        DataError: it is missing, or none of text, a finite number and a boolean.
    """
    if is_missing(value):
        raise DataError(f"{place(row)}: it has an empty label; add it, or leave the row out")
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(value)
    if isinstance(value, float | np.floating | Decimal) and np.isfinite(float(value)):
        return _number(format(Decimal(str(value)), "f"))
    if not isinstance(value, str):
        raise DataError(
            f"{place(row)}: a label is text, a number or a boolean, not {value} "
            f"({type(value).__name__}); turn it into text"
        )
    return key_of(value.strip())


def _number(text: str) -> str:
    """A number as text, the same however many zeros follow its point."""
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    if text == "-0":
        return "0"
    return text


def _as_bits(names: Sequence[str]) -> list[str]:
    """``names`` with 1 and 0 for booleans, where all are either."""
    if not set(names) <= _BITS:
        return list(names)
    return [BOOLEANS.get(name, name) for name in names]


def _sorted(names: set[str]) -> list[str]:
    """Names of classes: numbers by their value, else by their letters."""
    if all(map(_CANONICAL.fullmatch, names)):
        return sorted(names, key=Decimal)
    return sorted(names)


def _given(classes: Sequence[Any], names: list[str]) -> tuple[list[str], list[str]]:
    """``classes`` as names, and each of ``names`` in the same words if it is a class's number."""
    if not {*names, *map(str, classes)} <= _BITS:  # whose classes may be truth values
        require_plain(f"classes={list(classes)}", classes)
    order = label_names(classes, lambda row: f"classes={list(classes)}")
    if set(order) <= _BITS:
        order = _as_bits(order)
        names = [BOOLEANS.get(name, name) for name in names]
    if len(set(order)) != len(order):
        raise ValueError(f"classes={order}: must not name a class twice")
    if any(_CANONICAL.fullmatch(name) or name in BOOLEANS for name in order):
        return order, names
    words = {str(number): name for number, name in enumerate(order)}
    return order, [words.get(BOOLEANS.get(name, name), name) for name in names]


def narrow(wide: NDArray[Any], place: str, blanks: Blanks = STRICT) -> NDArray[np.float32]:
    """Finite numbers with 32 bits.

    Args:
        wide: (N, F), of any type.
        place: of what they are, for errors.
        blanks: notes rows that 32 bits do not hold. Where such may be, no row is judged by others.

    Raises:
        DataError: 32 bits would hold something else.
    """
    if wide.dtype.kind in "iu":
        large = np.any((wide > MAX_EXACT_INTEGER) | (wide < -MAX_EXACT_INTEGER), axis=1)
        blanks.add_all(large, lambda row: too_large(place))
    with np.errstate(over="ignore", under="ignore"):
        found = wide.astype(np.float32)
    if wide.dtype != np.float64 or not wide.size:
        return found
    beyond = ~np.all(np.isfinite(found), axis=1)
    said = f"{place}: holds numbers beyond 3.4e38; scale it, or leave it out"
    blanks.add_all(beyond, lambda row: DataError(said))
    if blanks.allowed:
        return found
    rounding = np.abs(found - wide).max(axis=0)
    span = np.ptp(wide, axis=0)
    differs = span > _NOISE * np.abs(wide).max(axis=0)
    if (differs & (rounding > _VISIBLE * span)).any():
        raise DataError(
            f"{place}: its values differ by less than 32-bit numbers can show; subtract the least "
            "of them and scale the rest, or leave it out (dataset.inputs)"
        )
    return found


def too_large(place: str) -> DataError:
    """The refusal of whole numbers that 32 bits would round."""
    return DataError(
        f"{place}: holds whole numbers beyond {MAX_EXACT_INTEGER:,}, which 32-bit numbers would "
        "round; leave it out (dataset.inputs) where they are ids or times, else scale it"
    )
