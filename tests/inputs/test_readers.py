"""What people's tables mean: one row for each kind of input, read by every reader that can hold it.

A row has the smallest table that shows the kind, and the right value or the refusal's words.
"""

import datetime
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.preprocessing import LabelEncoder

from fl_app.run.data_card import card_of_own
from murmur.learning.data.examples import DataError
from tests.inputs.readers import ALL, DEVICES, TABLES, TEXT, TYPED, read, seen

AB = [0, 1]  # two labels


@dataclass(frozen=True)
class Row:
    """``right``: words of the refusal, or what is right of labels, classes, owners and inputs."""

    kind: str
    columns: dict[str, list]
    right: str | dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    forms: tuple[str, ...] = ALL


def owners(kind, ids, right, forms=TABLES):
    """A column of owners' ids beside one input and a label."""
    count = len(ids)
    columns = {"a": list(range(count)), "who": ids, "label": [row % 2 for row in range(count)]}
    right = right if isinstance(right, str) else {"owners": right}
    return Row(f"owner: {kind}", columns, right, {"client": "who"}, forms)


def labels(kind, values, right, classes=None, forms=ALL, **settings):
    """A column of labels beside one input; on devices ``classes`` or the right names are given."""
    columns = {"a": list(range(len(values))), "label": values}
    if isinstance(right, tuple):
        right = {"labels": right[0], "classes": right[1]}
    if classes is not None:
        settings["classes"] = classes
    return Row(f"label: {kind}", columns, right, settings, forms)


def numbers(kind, values, right, forms=ALL):
    """A column of numbers beside another, so that it cannot be taken for text."""
    columns = {"b": [0.5] * len(values), "a": values, "label": [i % 2 for i in range(len(values))]}
    right = right if isinstance(right, str) else {"inputs": [[0.5, value] for value in right]}
    return Row(f"number: {kind}", columns, right, {}, forms)


def columns(kind, names, right, forms=TABLES, **settings):
    """Columns of these names, each row of which holds the column's place."""
    found = {name: [place, place + 0.5] for place, name in enumerate(names)}
    found |= {name: AB for name in names if name == "label"}
    right = right if isinstance(right, str) else {"inputs": right}
    return Row(f"column: {kind}", found, right, settings, forms)


TYPED_ONLY = (*TYPED, "device-parquet", "device-saved")
DATE = datetime.date(2024, 1, 31)
FEW = [str(number % 51) for number in range(101)]
MANY = [f"c{number}" for number in range(1001)]
ROWS = [
    # Who owns a row.
    owners("7 and 007 differ", ["7", "007", "7"], [1, 0, 1]),
    owners("whole numbers", [10, 9, 10], [0, 1, 0]),  # as text, 10 comes first
    owners("large whole numbers", [2**53, 2**53 + 1, 2**53], [0, 1, 0]),
    owners("the same id far apart", ["a", *["b", "c"] * 30, "a"], [0, *[1, 2] * 30, 0]),
    owners("whole numbers after words", ["x", "5", "5"], [1, 0, 0]),
    owners("NA is a name", ["NA", "nan", "None", "NA"], [0, 2, 1, 0]),
    owners("a space behind", ["a", "a ", "a"], r"column 'who': .*'a' and 'a ' differ only by"),
    owners("another case", ["A", "a", "A"], "ids 'A' and 'a' differ only by case"),
    owners("wide letters", ["A1", "\uff21\uff11"], r"ids 'A1' and '\\uff21\\uff11' differ only by"),
    owners("an invisible mark", ["a1", "a1\u200b"], r"'a1' and 'a1\\u200b' differ only by"),
    owners("a German sharp s", ["STRASSE", "Stra\u00dfe"], "differ only by case"),
    owners("letters inside", ["ab", "a-b", "a b"], [2, 1, 0]),
    owners("1e5 is a name", ["1e5", "100000", "1e5"], [1, 0, 1]),
    owners("versions", ["1.1", "1.10", "x"], [0, 1, 2]),
    owners("a long id", ["x" * 5000 + "1", "x" * 5000 + "2"], [0, 1]),
    owners("two forms", ["\u00e9", "e\u0301", "\u00e9"], r"'e\\u0301' and '\\xe9' differ only by"),
    owners("accents in one form", ["z", "e\u0301", "e\u0301"], [0, 1, 1]),  # sorted in NFC
    owners("true and True", ["True", "true", "True"], "'True' and 'true' differ only by case"),
    owners("typed booleans", [True, False, True], [1, 0, 1], TYPED),
    owners("one is missing", ["a", None, "b"], r"column 'who', row 1 .*no owner's id"),
    owners("one number is missing", [7, None, 7], r"column 'who', row 1 .*no owner's id"),
    owners("spaces alone", ["a", "  ", "b"], r"row 1 .*no owner's id"),
    owners("real numbers", [7.0, 8.0], "real number"),
    owners("not a number", [float("nan"), 8.0], "row 0 .*no owner's id|real number", TYPED),
    owners("real numbers as text", ["7.0", "8"], "holds real numbers"),
    owners("dates", [DATE, DATE], "text or a whole number, not a date", TYPED),
    owners("decimals", [Decimal("1.5"), Decimal("2.5")], "text or a whole|real numb", ("parquet",)),
    # Which column is which.
    columns("an index of pandas", ["", "a", "label"], [[1], [1.5]]),
    columns("an index by pandas' name", ["Unnamed: 0", "a", "label"], [[1], [1.5]]),
    columns("an index twice", ["Unnamed: 0.1", "Unnamed: 0", "a", "label"], [[2], [2.5]]),
    columns("an index in Parquet", ["a", "label", "__index_level_0__"], [[0], [0.5]]),
    columns("no name in the middle", ["a", "Unnamed: 1", "label"], "column without a name"),
    columns("idx", ["idx", "a", "label"], "column 'idx' looks like a row's number or id"),
    columns("a patient's id", ["patient_id", "a", "label"], "column 'patient_id' looks like"),
    columns("userId", ["userId", "a", "label"], "column 'userId' looks like"),
    columns("ID", ["a", "ID", "label"], "column 'ID' looks like"),
    columns("humid is no id", ["humid", "valid", "label"], [[0, 1], [0.5, 1.5]]),
    columns("idx as asked for", ["idx", "a", "label"], [[0], [0.5]], ALL, inputs=["idx"]),
    columns(
        "the order asked for", ["a", "b", "label"], [[1, 0], [1.5, 0.5]], ALL, inputs=["b", "a"]
    ),
    columns(
        "a space in a name", [" a", "label"], r"no column 'a'; it has  a, label", ALL, inputs=["a"]
    ),
    columns(
        "another case", ["a", "Label"], "no column 'label'; it has a, Label", ALL, inputs=["a"]
    ),
    columns("names that are numbers", ["1", "01", "label"], [[1], [1.5]], ALL, inputs=["01"]),
    columns("a name as a number", ["0", "1", "label"], [[1], [1.5]], TABLES, inputs=[1]),
    columns("two forms of a name", ["e\u0301", "label"], [[0], [0.5]], ALL, inputs=["\u00e9"]),
    columns("01 without quotes", ["01", "label"], "YAML reads 01 .*write '01'", inputs=[1]),
    columns("yes without quotes", ["0x1F", "label"], "write '0x1F' with the", inputs=[31]),
    columns("no inputs", ["label"], "holds no input columns"),
    # What is a class. The order of classes is that of numbers, or else of the alphabet.
    labels("0 and 1", ["0", "1", "1"], ([0, 1, 1], ("0", "1"))),
    labels("0.0 and 1.0", ["0.0", "1.0", "1"], ([0, 1, 1], ("0", "1"))),
    labels("typed real numbers", [0.0, 1.0, 1.0], ([0, 1, 1], ("0", "1"))),
    labels("True and False", ["True", "False", "True"], ([1, 0, 1], ("0", "1"))),
    labels("typed booleans", [True, False], ([1, 0], ("0", "1"))),
    labels("booleans beside 0 and 1", ["True", "0", "1"], ([1, 0, 1], ("0", "1"))),
    labels("booleans beside words", ["True", "False", "?"], ([2, 1, 0], ("?", "False", "True"))),
    labels("1 and 2", [1, 2, 1], ([0, 1, 0], ("1", "2"))),
    labels("post codes", [10115, 80331, 10115], ([0, 1, 0], ("10115", "80331"))),
    labels("dates as numbers", [20240131, 20240201], ([0, 1], ("20240131", "20240201"))),
    labels("01 and 1", ["01", "1", "01"], ([0, 1, 0], ("01", "1"))),
    labels("10 after 9", [10, 9, 10], ([1, 0, 1], ("9", "10"))),
    labels("below zero", [-1, 1, -1], ([0, 1, 0], ("-1", "1"))),
    labels("words that mean nothing", ["NA", "nan", "None"], ([0, 2, 1], ("NA", "None", "nan"))),
    labels("1e0 is a word", ["1e0", "1"], ([1, 0], ("1", "1e0"))),
    labels("parts of numbers", ["0.50", "0.5", "1.5"], "looks like a measurement", forms=TABLES),
    labels("named parts", ["0.50", "0.5", "1.5"], ([0, 0, 1], ("0.5", "1.5")), [0.5, "1.5"]),
    labels("typed prices", [9.99, 10.0, 9.99], "measurement: 2 .* in 3 rows", forms=TABLES),
    labels("prices, one unknown", ["9.99", "?", "8.49"], "looks like a measurement", forms=TABLES),
    labels("prices and shares", ["$9.99", "$5.00", "2,5 %"], "looks like a meas", forms=TABLES),
    labels("bounds", ["<1.5", ">=1.5"], ([0, 1], ("<1.5", ">=1.5"))),
    labels("decimal commas", ["1,5", "2,5", "1,5"], "looks like a measurement", forms=TABLES),
    labels("51 values of 101", FEW, "51 different values in 101 rows .*Murmur", forms=TABLES),
    labels("51 values of 102", [*FEW, "0"], {"classes": tuple(map(str, range(51)))}, forms=TABLES),
    labels("50 values of 50", FEW[:50], {"classes": tuple(map(str, range(50)))}, forms=TABLES),
    labels("51 that are named", FEW[:51], {"labels": list(range(51))}, FEW[:51]),
    labels("a version among words", ["1.5", "a", "b"], ([0, 1, 2], ("1.5", "a", "b"))),
    labels("two forms", ["\u00e9", "e\u0301", "z"], ([1, 1, 0], ("z", "\u00e9"))),
    labels("named in the other form", ["\u00e9", "z"], ([0, 1], ("\u00e9", "z")), ["e\u0301", "z"]),
    labels("spaces around", [" ill", "ill", "well"], ([0, 0, 1], ("ill", "well"))),
    labels("large whole numbers", [2**60, 2**60 + 1], ([0, 1], (str(2**60), str(2**60 + 1)))),
    labels("an empty one", ["a", "", "b"], r"row 1 .*empty label"),
    labels("a null", [0, None, 1], r"row 1 .*empty label"),
    labels("secret ones", [-1, -1], r"has no labels .*set dataset\.test=validation"),
    labels("secret ones as text", ["-1", "-1.0"], "has no labels"),
    labels("dates", [DATE, DATE], "a label is text, a number or a boolean", forms=TYPED_ONLY),
    labels("infinite", [np.inf, 0.0], "a label is text, a number", forms=TYPED_ONLY),
    labels("more than 1,000", MANY, r"1,001 different values; .*dataset\.classes", forms=TABLES),
    labels("1,001 that are named", MANY, (list(range(1001)), tuple(MANY)), MANY),
    labels("named in another order", ["a", "b"], ([1, 0], ("b", "a")), ["b", "a"]),
    labels("named by values", ["0.0", "1"], ([1, 0], ("1", "0")), [1, 0]),
    labels("names for 0 and 1", [1, 0], ([1, 0], ("no", "yes")), ["no", "yes"]),
    labels("names for booleans", [True, False], ([1, 0], ("no", "yes")), ["no", "yes"]),
    labels("named as booleans", ["1", "0"], ([1, 0], ("0", "1")), [False, True], TABLES),
    labels("not named", ["a", "c"], r"row 1 .*class 'c' is not among", ["a", "b"]),
    labels("2 of two names", [0, 2], "class '0' is not among|class '2'", ["no", "yes"]),
    # Numbers that a model sees.
    numbers("as they are", [0.25, -3, 1e-3], [0.25, -3, 1e-3]),
    numbers("2^24", [2**24, 0], [2**24, 0]),
    numbers("beyond 2^24", [2**24 + 1, 0], "whole numbers beyond 16,777,216"),
    numbers("beyond -2^24", [0, -(2**24) - 1], "whole numbers beyond 16,777,216"),
    numbers("times in seconds", [1.7e9 + 0.5, 1.7e9 + 1.5], "differ by less than 32-bit"),
    numbers("a large number that is the same", [1e30, 1e30], [1e30, 1e30]),
    numbers("too large", [1e39, 0.5], "beyond 3.4e38"),
    numbers("far too small", [1e-50, 2e-50], "differ by less than 32-bit"),
    numbers("times", [datetime.datetime(2024, 1, 1), None], "row 0|row 1", TYPED_ONLY),
    numbers(
        "dates as text", ["2024-01-31", "2024-02-01"], "'a' holds more than numbers: '2024-01-31'"
    ),
    numbers("a missing one", [0.5, None], "'a': has no finite number in row 1"),
    numbers("no number", [float("nan"), 0.5], "(no finite number|more than numbers).* row 0"),
    numbers("infinite", [0.5, float("inf")], "no finite number in row 1"),
    numbers("NA", ["0.5", "NA"], "holds more than numbers: 'NA' in row 1"),
    numbers("decimal commas", ["0,5", "1,5"], "has '0,5' in row 0 .*decimal point"),
    numbers("thousands", ["1,000", "2"], "has '1,000' in row 0 .*decimal point"),
    numbers("underscores", ["1_000", "2"], "holds more than numbers: '1_000'"),
    numbers("booleans", [True, False], [1, 0]),
    numbers(
        "decimals", [Decimal("0.5"), Decimal("1.5")], [0.5, 1.5], ("parquet", "device-parquet")
    ),
    numbers("words", ["much", "little"], "holds more than numbers: 'much'"),
]


@pytest.mark.parametrize(
    ("row", "form"), [pytest.param(r, f, id=f"{r.kind}-{f}") for r in ROWS for f in r.forms]
)
def test_a_table_means_the_same_to_every_reader_or_is_refused(tmp_path, row, form):
    given, settings = row.columns, dict(row.settings)
    if form in DEVICES and "classes" not in settings:
        names = row.right.get("classes") if isinstance(row.right, dict) else None
        settings["classes"] = list(names or ("0", "1"))
    if isinstance(row.right, str):
        with pytest.raises(DataError, match=row.right) as refusal:
            read(tmp_path, form, given, **settings)
        assert "x" in str(refusal.value)  # the file
        return
    data = read(tmp_path, form, given, **settings)
    inputs, found = seen(data)
    if "inputs" in row.right:
        assert np.array_equal(inputs, np.array(row.right["inputs"], np.float32))
    if "labels" in row.right:
        assert found.tolist() == row.right["labels"]
    if form not in DEVICES and "classes" in row.right:
        assert data.classes == row.right["classes"]
        assert data.num_classes == max(2, len(row.right["classes"]))
        card = card_of_own(data, "x")
        assert tuple(each.name for each in card.classes) == row.right["classes"]
    if "owners" in row.right:
        assert data.owners.tolist() == row.right["owners"]


def test_the_table_has_rows_enough():
    assert len(ROWS) >= 65
    assert len({row.kind for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("form", TEXT)
def test_ids_and_classes_are_those_of_pandas_and_scikit_learn(tmp_path, form):
    rng = np.random.default_rng(0)
    ids = [f"{number:03}" if number % 2 else str(number) for number in rng.integers(0, 40, 400)]
    names = rng.choice(["flu", "cold", "none", "NA"], 400).tolist()
    columns = {"a": rng.normal(size=400).tolist(), "who": ids, "label": names}
    data = read(tmp_path, form, columns, client="who")
    assert data.owners.tolist() == pandas.factorize(np.array(ids, object), sort=True)[0].tolist()
    assert data.train.labels.tolist() == LabelEncoder().fit_transform(names).tolist()
    assert data.classes == tuple(LabelEncoder().fit(names).classes_)


A_B = {"a": [1.5, 2.5], "b": [3.5, 4.5], "label": ["no", "yes"]}
FORMS = ("csv", "semicolons", "strings", "parquet")


@pytest.mark.parametrize("form", FORMS)
def test_the_columns_of_a_test_table_are_found_by_name(tmp_path, form):
    turned = {"label": ["yes", "no"], "b": [6.5, 8.5], "a": [5.5, 7.5]}
    data = read(tmp_path, form, A_B, turned)
    assert data.test.images[:, :, 0, 0].tolist() == [[5.5, 6.5], [7.5, 8.5]]
    assert data.test.labels.tolist() == [1, 0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("test", "settings", "said"),
    [
        ({"a": [1], "label": ["no"]}, {}, "test.*: has no column 'b'; it has a, label"),
        ({**A_B, "c": [1, 2]}, {}, r"test.*: has columns that the training set lacks \(c\)"),
        ({"": [0, 1], **A_B}, {}, None),  # an index that was written this time
        ({**A_B, "c": [1, 2]}, {"inputs": ["a", "b"]}, None),
        ({**A_B, "label": ["-1", "-1"]}, {}, "test.*: has no labels"),
        ({**A_B, "label": ["no", ""]}, {}, "test.*, row 1 .*empty label"),
        ({**A_B, "a": [1.5, None]}, {}, "test.*'a': has no finite number in row 1"),
        ({**A_B, "label": ["no", "perhaps"]}, {"classes": ["no", "yes"]}, "'perhaps' is not among"),
        ({**A_B, "b": ["yes", "yes"]}, {}, "test.*'b' holds more than numbers"),
        ({"a": [], "b": [], "label": []}, {}, "test.*: holds no rows"),
    ],
)
def test_a_test_table_of_other_columns_is_refused_with_their_names(
    tmp_path, form, test, settings, said
):
    if said is None:
        data = read(tmp_path, form, A_B, test, **settings)
        assert np.array_equal(data.test.images, data.train.images)
        return
    with pytest.raises(DataError, match=said):
        read(tmp_path, form, A_B, test, **settings)


@pytest.mark.parametrize("form", FORMS)
def test_zeros_and_ones_are_the_same_classes_however_a_test_table_writes_them(tmp_path, form):
    train = {"a": [1, 2], "label": ["0", "1"]}
    for written in (["1.0", "0.0"], ["True", "False"], ["1", "0"]):
        data = read(tmp_path, form, train, {"a": [1, 2], "label": written})
        assert data.test.labels.tolist() == [1, 0]
        assert data.num_classes == 2


@pytest.mark.parametrize("form", FORMS)
def test_an_owner_of_training_rows_has_none_in_a_test_table_unless_that_is_asked_for(
    tmp_path, form
):
    train = {"a": [1, 2], "who": ["7", "8"], "label": AB}
    test = {"a": [3, 4], "who": ["007", "8"], "label": AB}
    with pytest.raises(DataError, match=r"1 owners have rows .*'8'.*dataset\.split=rows"):
        read(tmp_path, form, train, test, client="who")
    data = read(tmp_path, form, train, test, client="who", split="rows")
    assert (data.split, data.owners.tolist()) == ("rows", [0, 1])
    other = {**test, "who": ["007", "9"]}
    assert read(tmp_path, form, train, other, client="who").owners.tolist() == [0, 1]


@pytest.mark.parametrize("form", TABLES)
def test_no_reader_holds_out_all_rows_or_the_rows_of_half_an_owner(tmp_path, form):
    table = {"a": [1, 2, 3, 4], "who": ["x", "y", "x", "y"], "label": [0, 0, 1, 1]}
    with pytest.raises(ValueError, match=r"test_fraction=0\.9: leaves none of the 4"):
        read(tmp_path, form, table, test_fraction=0.9, inputs=["a"])
    data = read(tmp_path, form, table, test_fraction=0.5, client="who")
    held_out = data.test.images.ravel().tolist()
    assert held_out in ([1, 3], [2, 4])
    assert data.owners.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,a,label\n1,2,0\n", "line 1: it has the header .* name each column once"),
        ("a,label\n1,0\n2\n", "line 3: it has 1 fields, the header has 2"),
        ("a,label\n1,0,\n2,1,\n", "line 2: it has 3 fields, the header has 2"),
        ('a,label\n1,"0\n2,1\n', "not a CSV file in UTF-8"),
        ('a,label\n"1"x,0\n', "not a CSV file in UTF-8"),
        ("", "line 1: it has the header"),
        ("a,label\n", "holds no rows"),
        ("Temp, C;label\n1;0\n", "line 2: it has 1 fields, the header has 2"),
        ("a|label\n1|0\n", r"no column 'label'; it has a\|label"),
    ],
)
def test_a_csv_file_that_holds_no_table_is_named_with_the_line(tmp_path, text, said):
    from murmur.learning.data.tables import table

    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        table(path=str(tmp_path / "x.csv"))
