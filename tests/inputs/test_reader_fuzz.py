"""Generated tables, of which the test knows owners, classes and columns: right, or refused.

First what a table means is drawn, then how it is written, and perhaps one fault. A table without a
fault must be read as it was meant; one with a fault must be refused. 2,000 in `make test-long`.
"""

import string
from dataclasses import dataclass

import numpy as np
import pytest

from murmur.learning.data.examples import DataError
from tests.inputs.readers import DEVICES, TABLES, TEXT, read, seen

FORMS = (*TABLES, *DEVICES)
LETTERS = [
    *string.ascii_letters,
    *string.digits,
    " ",
    "é",
    "ß",
    "中",
    "-",
    "_",
    '"',
    ",",
    ";",
    "\n",
]
WORDS = ["NA", "nan", "None", "null", "-", "true enough", "ill", "well", "01", "1e3", "0x1", "x y"]
FAULTS = {
    "a missing id": "no owner's id",
    "ids that are real numbers": "real number",
    "an id in two spellings": "differ only by case",
    "a missing label": "empty label",
    "a missing number": "no finite number|more than numbers",
    "a word among numbers": "more than numbers",
    "a decimal comma": "decimal point",
    "a whole number that is too large": "whole numbers beyond",
    "a column like an id": "looks like a row's number or id",
    "no label column": "no column 'label'",
    "secret labels": "has no labels",
}
OF_OWNERS = ("a missing id", "ids that are real numbers", "an id in two spellings")
OF_TEXT = ("a word among numbers", "a decimal comma")  # no typed column holds these
OF_GUESSED_INPUTS = ("a column like an id",)  # devices name theirs


@dataclass
class Meaning:
    """What a table says: inputs by column (N,), the class of each row, and whose each row is."""

    inputs: dict[str, np.ndarray]
    labels: list[int]
    classes: tuple[str, ...]
    owners: list[str]


def word(rng, letters, most=6):
    """Text that is neither empty nor spaces alone, and no number."""
    return "q" + "".join(rng.choice(letters, rng.integers(0, most)))


def meaning(rng, rows):
    """What a table of so many rows is to say."""
    names = {word(rng, list(string.ascii_letters)) + "_x" for _ in range(rng.integers(2, 5))}
    inputs = {}
    for name in sorted(names):
        kind = rng.integers(3)
        values = rng.normal(size=rows) * 10.0 ** rng.integers(-3, 4)
        inputs[name] = [values, np.rint(values), (values > 0) + 0.0][kind]
    match rng.integers(4):
        case 0:
            classes = sorted({int(n) for n in rng.integers(-9, 10**8, rng.integers(2, 6))} | {5})
            classes = tuple(map(str, classes))
        case 1:
            classes = ("0", "1")
        case 2:
            classes = tuple(sorted(rng.choice(WORDS, rng.integers(2, 6), replace=False).tolist()))
        case _:
            classes = tuple(sorted({word(rng, LETTERS).strip() for _ in range(5)} | {"a"}))
    labels = [*range(len(classes)), *rng.integers(0, len(classes), rows - len(classes))]
    everybody = owner_ids(rng)
    owners = [everybody[i] for i in rng.integers(0, len(everybody), rows)]
    return Meaning(inputs, [int(n) for n in rng.permutation(labels)], classes, owners)


def owner_ids(rng):
    """Distinct ids that a careless reader takes for one another, or for nothing."""
    number = int(rng.integers(1, 10**9))
    alike = [str(number), f"0{number}", f"00{number}", f"-{number}", f"{number}e0", f"{number}x"]
    return [*alike, "NA", "nan", "None", "True", word(rng, LETTERS)]


def respelt(rng, owner):
    """The same id as somebody else writes it."""
    ways = [f" {owner}", f"{owner}\u00a0", f"{owner}\u200b"]
    ways += [other for other in (owner.upper(), owner.swapcase()) if other != owner]
    return ways[int(rng.integers(len(ways)))]


def write_label(rng, name, is_bit):
    """One of the ways in which people write a class; ``is_bit``: all classes are 0 and 1."""
    if is_bit and rng.random() < 0.3:
        return str(bool(int(name)))
    if name.lstrip("-").isdecimal() and name == str(int(name)) and rng.random() < 0.3:
        return f"{name}.0"
    return name


def written(rng, meant, form):
    """The columns of a table that says what is meant, in any order."""
    are_bits = meant.classes == ("0", "1")
    are_whole = all(name.lstrip("-").isdecimal() and name[0] != "0" for name in meant.classes)
    labels = [write_label(rng, meant.classes[label], are_bits) for label in meant.labels]
    if form not in TEXT and are_bits and rng.random() < 0.5:
        labels = [bool(label) for label in meant.labels]
    elif form not in TEXT and are_whole and rng.random() < 0.5:
        labels = [int(meant.classes[label]) for label in meant.labels]
    columns = {name: values.tolist() for name, values in meant.inputs.items()}
    for name, values in columns.items():
        if form in TEXT and rng.random() < 0.3:
            columns[name] = [f"{value:+.17g}" for value in values]
    columns |= {"label": labels, "who": list(meant.owners)}
    order = [str(name) for name in rng.permutation(list(columns))]
    return {name: columns[name] for name in order}


def spoil(rng, fault, columns, meant):
    """Put one fault into ``columns``."""
    rows, at = len(meant.labels), int(rng.integers(len(meant.labels)))
    name = sorted(meant.inputs)[int(rng.integers(len(meant.inputs)))]

    def replaced(column, value):
        return [value if row == at else cell for row, cell in enumerate(columns[column])]

    match fault:
        case "a missing id":
            columns["who"] = replaced("who", None)
        case "ids that are real numbers":
            columns["who"] = (rng.integers(0, 99, rows) + 0.5).tolist()
        case "an id in two spellings":
            other = (at + 1) % rows
            columns["who"] = replaced("who", respelt(rng, columns["who"][other]))
            columns["who"][other] = meant.owners[other]
        case "a missing label":
            columns["label"] = replaced("label", None)
        case "a missing number":
            columns[name] = replaced(name, None)
        case "a word among numbers":
            columns[name] = replaced(name, "much")
        case "a decimal comma":
            columns[name] = replaced(name, "1,5")
        case "a whole number that is too large":
            columns[name] = [int(rng.integers(2**25, 2**50)) for _ in range(rows)]
        case "a column like an id":
            columns[str(rng.choice(["idx", "row", "uuid", "visit_id"]))] = list(range(rows))
        case "no label column":
            columns["Label"] = columns.pop("label")
        case "secret labels":
            columns["label"] = [-1] * rows


def check(folder, seed):
    """One generated table in one form, read back."""
    rng = np.random.default_rng(seed)
    form = FORMS[seed % len(FORMS)]
    meant = meaning(rng, int(rng.integers(8, 40)))
    columns = written(rng, meant, form)
    on_device = form in DEVICES
    possible = [
        fault
        for fault in FAULTS
        if not (on_device and fault in (*OF_OWNERS, *OF_GUESSED_INPUTS))
        and not (form not in TEXT and fault in OF_TEXT)
    ]
    settings: dict = {"client": "who"}
    names = sorted(meant.inputs, key=list(columns).index)
    if on_device:
        settings |= {"inputs": names, "classes": list(meant.classes)}
    if rng.random() < 0.5:
        fault = possible[int(rng.integers(len(possible)))]
        spoil(rng, fault, columns, meant)
        with pytest.raises(DataError, match=FAULTS[fault]):
            read(folder, form, columns, **settings)
        return fault
    data = read(folder, form, columns, **settings)
    inputs, labels = seen(data)
    expected = np.stack([meant.inputs[name] for name in names], axis=1)
    assert np.array_equal(inputs, expected.astype(np.float32)), form
    assert labels.tolist() == meant.labels, form
    if not on_device:
        assert data.classes == meant.classes, form
        known = sorted(set(meant.owners))
        assert data.owners.tolist() == [known.index(owner) for owner in meant.owners], form
    return None


def all_of(folder, seeds):
    """Every seed in a folder of its own; the faults that were met."""
    met = []
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        try:
            met.append(check(place, seed))
        except BaseException as error:
            raise AssertionError(f"table of seed {seed}") from error
    return met


def test_generated_tables_are_read_right_or_refused(tmp_path):
    met = all_of(tmp_path, range(48))
    assert 10 < met.count(None) < 38


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_two_thousand_generated_tables_are_read_right_or_refused(tmp_path, part):
    met = all_of(tmp_path, range(1000 + 200 * part, 1200 + 200 * part))
    assert set(met) == {*FAULTS, None}
