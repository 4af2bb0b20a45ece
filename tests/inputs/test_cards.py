"""Data cards of odd inputs beside values that pandas, Pillow, ``datasets`` or a hand has counted.

What a card says is compared with the files as others read them: splits, classes by name, owners,
what a model sees with its shape and range, and what was left out.
"""

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
from PIL import Image

from fl_app.api import data_card
from fl_app.run.data_card import DataCard

WHOLE = ("dataset.test_fraction=0", "federation.public=0", "federation.num_clients=2")
CARDS: dict[str, Callable[[Path], "Seen"]] = {}


@dataclass(frozen=True)
class Seen:
    """An input, and what others see in it.

    Attributes:
        words: the settings that read it.
        train, test: names of labels; of a test set that is drawn from ``train``, ``drawn`` rows.
        values: all numbers that a model may see, (N, ...).
        shape: (C, H, W).
        kind: of an input.
        classes: names in their order; None: those of the labels, sorted as text.
        columns: a table's inputs: name -> its numbers, or None for what is no single number.
        owners: whose each training row is.
        texts: that a model sees.
        left_out: the sentences.
        pool, validation, drawn: rows that are drawn from ``train``.
    """

    words: Sequence[str]
    train: Sequence[str]
    values: Any
    shape: tuple[int, int, int]
    kind: str = "numbers"
    test: Sequence[str] = ()
    classes: Sequence[str] | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    owners: Sequence[str] | None = None
    texts: Sequence[str] | None = None
    left_out: Sequence[str] = ()
    pool: int = 0
    validation: int = 0
    drawn: int = 0


def card(make):
    """Enter ``make`` into the list of inputs."""
    CARDS[make.__name__] = make
    return make


def digit(value: float, up: bool) -> float:
    """One digit of ``value``, rounded up or down."""
    if value == 0:
        return 0.0
    step = 10.0 ** math.floor(math.log10(abs(value)) + 1e-7)
    steps = round(value / step, 5)
    return (math.ceil(steps) if up else math.floor(steps)) * step


def around(values):
    """The bounds of ``values`` as a card has them."""
    plain = np.asarray(values, np.float64)
    return pytest.approx((digit(plain.min(), False), digit(plain.max(), True)), rel=1e-6)


def table(path, label="label", **more):
    words = [f"dataset.{key}={value}" for key, value in more.items()]
    return ["dataset=table", f"dataset.path={path}", f"dataset.label={label}", *words, *WHOLE]


def picture(rng, mode, size=(9, 7)):
    """A picture of noise in Pillow's ``mode``."""
    bands = {"L": 1, "RGB": 3, "RGBA": 4, "P": 1}[mode]
    noise = rng.integers(40, 200, (*size[::-1], bands)).astype(np.uint8)
    if mode == "P":
        return Image.fromarray(noise[..., 0]).convert("P")
    if mode == "RGBA":
        noise[..., 3] = 255
    return Image.fromarray(noise.squeeze(), mode=None)


def pixels(file, mode, size):
    """A file's pixels as Pillow reads it, in [0, 1]; ``size``: (width, height)."""
    with Image.open(file) as opened:
        return np.asarray(opened.convert(mode).resize(size, Image.Resampling.BILINEAR)) / 255


@card
def four_spellings_of_two_classes(folder):
    labels = ["spam", "ham", "Spam", "ham", "ham."] * 6
    pandas.DataFrame({"a": np.arange(30) / 4, "label": labels}).to_csv(folder / "x.csv")
    read = pandas.read_csv(folder / "x.csv")
    return Seen(
        table(folder / "x.csv"),
        read["label"].tolist(),
        read["a"],
        (1, 1, 1),
        columns={"a": read["a"]},
        left_out=["column '', an index"],
    )


@card
def semicolons_a_byte_order_mark_and_quotes(folder):
    text = '\ufeff"weight; kg";"b";"label"\n' + '70,5;1;"x ; y"\n'.replace(",", ".") * 4
    (folder / "x.csv").write_text(text + '-2.25;3;"z"\n' * 3, encoding="utf-8")
    read = pandas.read_csv(folder / "x.csv", sep=";", encoding="utf-8-sig")
    columns = {name: read[name] for name in ("weight; kg", "b")}
    labels = read["label"].tolist()
    return Seen(table(folder / "x.csv"), labels, read[[*columns]], (2, 1, 1), columns=columns)


@card
def zeros_before_numbers_are_text(folder):
    pandas.DataFrame({"a": [1, 2, 3, 4, 5], "label": ["01", "1", "01", "1.0", "001"]}).to_csv(
        folder / "x.tsv", sep="\t", index=False
    )
    return Seen(
        table(folder / "x.tsv"),
        ["01", "1", "01", "1", "001"],
        [1, 5],
        (1, 1, 1),
        columns={"a": [1, 5]},
    )


@card
def booleans_in_a_packed_file(folder):
    frame = pandas.DataFrame({"a": [True, False, True], "b": [0.1, 0.2, 0.3], "label": [True] * 3})
    frame.loc[1, "label"] = False
    frame.to_csv(folder / "x.csv.gz", index=False)
    read = pandas.read_csv(folder / "x.csv.gz")
    columns = {"a": read["a"].astype(float), "b": read["b"]}
    labels = read["label"].astype(int).astype(str).tolist()
    values = np.concatenate([*map(np.asarray, columns.values())])
    return Seen(table(folder / "x.csv.gz"), labels, values, (2, 1, 1), columns=columns)


@card
def parquet_with_nullable_whole_numbers_and_an_index(folder):
    frame = pandas.DataFrame({"a": pandas.array([4, 5, -600], "Int64"), "label": [2, 1, 2]})
    frame.index = pandas.Index([10, 20, 30], name="__index_level_0__")
    frame.to_parquet(folder / "x.parquet")
    read = pandas.read_parquet(folder / "x.parquet")
    values = read["a"].astype(int)
    return Seen(
        table(folder / "x.parquet"),
        read["label"].astype(str).tolist(),
        values,
        (1, 1, 1),
        columns={"a": values},
        left_out=["column '__index_level_0__', an index"],
    )


@card
def owners_whose_ids_begin_with_zeros(folder):
    who = ["7", "007", "7", "07", "7", "007"] * 3
    pandas.DataFrame({"a": range(18), "who": who, "label": ["x", "y"] * 9}).to_csv(
        folder / "x.csv", index=False
    )
    read = pandas.read_csv(folder / "x.csv", dtype={"who": str})
    return Seen(
        table(folder / "x.csv", client="who"),
        read["label"].tolist(),
        read["a"],
        (1, 1, 1),
        columns={"a": read["a"]},
        owners=read["who"].tolist(),
    )


@card
def a_class_that_the_test_table_lacks(folder):
    train = pandas.DataFrame({"a": range(9), "b": 1.5, "label": ["u", "v", "w"] * 3})
    test = pandas.DataFrame({"b": [2.5] * 4, "a": [100, 0, 0, 1], "label": ["w", "w", "u", "w"]})
    train.to_csv(folder / "x.csv", index=False)
    test.to_csv(folder / "y.csv", index=False)
    every = pandas.concat([pandas.read_csv(folder / name) for name in ("x.csv", "y.csv")])
    columns = {name: every[name] for name in ("a", "b")}
    words = table(folder / "x.csv", test_path=folder / "y.csv")
    labels = every["label"].tolist()
    return Seen(words, labels[:9], every[[*columns]], (2, 1, 1), test=labels[9:], columns=columns)


@card
def named_classes_of_which_one_has_no_row(folder):
    frame = pandas.DataFrame({"a": [1e-3, 2e-3, 3e-3], "label": ["no", "yes", "no"]})
    frame.to_csv(folder / "x.csv", index=False)
    return Seen(
        table(folder / "x.csv", classes="[yes, maybe, no]"),
        pandas.read_csv(folder / "x.csv")["label"].tolist(),
        frame["a"],
        (1, 1, 1),
        classes=["yes", "maybe", "no"],
        columns={"a": frame["a"]},
    )


@card
def texts_of_different_lengths(folder):
    texts = ["un été à Gênes", "x", "a b c d e f g h", "don't, stop!"]
    pandas.DataFrame({"said": texts, "kind": ["p", "q", "p", "q"], "when": 1999}).to_csv(
        folder / "x.csv", index=False
    )
    read = pandas.read_csv(folder / "x.csv")
    words = table(folder / "x.csv", "kind", text="said", length=6, vocabulary=50)
    return Seen(
        [*words, "strategy=fedavg"],
        read["kind"].tolist(),
        None,
        (1, 1, 6),
        "texts",
        columns={"said": None},
        texts=read["said"].tolist(),
        left_out=["columns that are not among the inputs: when"],
    )


@card
def pictures_in_a_table(folder):
    rng = np.random.default_rng(1)
    stored = []
    for mode in ("L", "RGB", "P", "RGBA"):
        out = io.BytesIO()
        picture(rng, mode).save(out, "PNG")
        stored.append({"bytes": out.getvalue(), "path": None})
    frame = pandas.DataFrame({"scan": stored, "label": ["cat", "dog", "dog", "dog"]})
    frame.to_parquet(folder / "x.parquet")
    read = pandas.read_parquet(folder / "x.parquet")
    values = [pixels(io.BytesIO(cell["bytes"]), "RGB", (5, 4)) for cell in read["scan"]]
    return Seen(
        table(folder / "x.parquet", size="[4, 5]", channels=3),
        read["label"].tolist(),
        values,
        (3, 4, 5),
        "pictures",
        columns={"scan": None},
    )


@card
def few_rows_of_each_owner(folder):
    who = ["a"] * 7 + ["b"] * 2 + ["c"] * 3
    pandas.DataFrame({"x": 2.0, "who": who, "label": "same"}).to_csv(folder / "x.csv", index=False)
    read = pandas.read_csv(folder / "x.csv").groupby("who").head(2)
    return Seen(
        [*table(folder / "x.csv", client="who", rows_per_owner=2)],
        read["label"].tolist(),
        read["x"],
        (1, 1, 1),
        columns={"x": read["x"]},
        owners=read["who"].tolist(),
        left_out=["6 rows beyond rows_per_owner=2"],
    )


@card
def owners_of_whom_some_take_no_part(folder):
    who = [f"p{row % 9}" for row in range(45)]
    pandas.DataFrame({"x": np.arange(45.0), "who": who, "label": np.arange(45) % 2}).to_parquet(
        folder / "x.parquet"
    )
    read = pandas.read_parquet(folder / "x.parquet")
    words = table(folder / "x.parquet", client="who")
    return Seen(
        [*words, "partition=natural", "federation.num_clients=5"],
        read["label"].astype(str).tolist(),
        read["x"],
        (1, 1, 1),
        columns={"x": read["x"]},
        owners=read["who"].tolist(),
        left_out=["20 training rows of 4 owners who are no clients: seed=1 draws 5 of 9"],
    )


@card
def columns_that_a_schema_knows(folder):
    frame = pandas.DataFrame(
        {"month": [1, 2, 99], "age": [30.5, 200.0, 18.0], "label": list("aba")}
    )
    frame.to_csv(folder / "x.csv", index=False)
    schema = "{month: {list: [1, 2, 3]}, age: {range: [0, 100]}}"
    places = frame["month"].map({1: 0, 2: 1, 3: 2}).fillna(-1)
    columns = {"month": places, "age": frame["age"]}
    return Seen(
        table(folder / "x.csv", schema=schema),
        frame["label"].tolist(),
        np.concatenate([places, frame["age"]]),
        (2, 1, 1),
        columns=columns,
    )


@card
def lists_of_numbers_in_one_column(folder):
    lists = [np.arange(6) - 2.5, np.zeros(6), np.ones(6) * 7.25]
    pandas.DataFrame({"vector": lists, "label": ["a", "b", "a"]}).to_parquet(folder / "x.parquet")
    read = pandas.read_parquet(folder / "x.parquet")
    return Seen(
        table(folder / "x.parquet"),
        read["label"].tolist(),
        np.stack(read["vector"]),
        (6, 1, 1),
        columns={"vector": None},
    )


@card
def a_share_of_the_rows_for_pool_validation_and_test(folder):
    rng = np.random.default_rng(3)
    frame = pandas.DataFrame({"a": rng.normal(size=200), "label": rng.integers(5, 9, 200)})
    frame.to_csv(folder / "x.csv", index=False)
    read = pandas.read_csv(folder / "x.csv")
    words = [word for word in table(folder / "x.csv") if word not in WHOLE]
    return Seen(
        [*words, "federation.public=30", "federation.validation=20", "federation.num_clients=4"],
        read["label"].astype(str).tolist(),
        read["a"],
        (1, 1, 1),
        columns={"a": read["a"]},
        pool=30,
        validation=20,
        drawn=40,
    )


def npz(folder, **arrays):
    np.savez(folder / "x.npz", **arrays)
    return ["dataset=npz", f"dataset.path={folder / 'x.npz'}", *WHOLE]


@card
def grey_pixels_in_an_array(folder):
    images = np.arange(4 * 30).reshape(4, 5, 6).astype(np.uint8)
    words = npz(folder, images=images, labels=np.array([3, 3, 8, 3]))
    return Seen(words, ["3", "3", "8", "3"], images / 255, (1, 5, 6), "pictures")


@card
def real_numbers_in_an_array_and_classes_without_rows(folder):
    images = np.array([[-1.5, 0.25], [0.5, 3.75], [0, 0]])
    words = [*npz(folder, images=images, labels=np.array([[1], [3], [1]])), "dataset.num_classes=5"]
    return Seen(words, ["1", "3", "1"], images, (2, 1, 1), classes=list("01234"))


@card
def kerass_names_and_colours(folder):
    train = np.full((4, 3, 2, 3), 51, np.uint8)
    test = np.full((2, 3, 2, 3), 204, np.uint8)
    words = npz(
        folder, x_train=train, y_train=np.arange(4) % 2, x_test=test, y_test=np.array([1, 1])
    )
    return Seen(
        words, ["0", "1", "0", "1"], [51 / 255, 204 / 255], (3, 3, 2), "pictures", ["1", "1"]
    )


@card
def validation_arrays_beside_the_others(folder):
    parts = {"train": 4, "val": 2, "test": 3}
    arrays = {f"{part}_images": np.full((n, 2, 2), 40 * n, np.uint8) for part, n in parts.items()}
    arrays |= {f"{part}_labels": np.arange(n)[:, None] % 2 for part, n in parts.items()}
    return Seen(
        npz(folder, **arrays),
        ["0", "1", "0", "1"],
        [160 / 255, 120 / 255],
        (1, 2, 2),
        "pictures",
        ["0", "1", "0"],
        left_out=["arrays val_images, val_labels"],
    )


@card
def two_colours_which_are_no_picture(folder):
    images = np.zeros((3, 2, 28, 28), np.uint8)
    images[0, 0, 0, 0] = 255
    words = npz(folder, images=images, labels=np.array([0, 1, 1]))
    return Seen(words, ["0", "1", "1"], images / 255, (2, 28, 28), "arrays")


@card
def a_series_of_numbers(folder):
    series = np.sin(np.arange(3 * 50)).reshape(3, 1, 50, 1).astype(np.float32)
    words = npz(folder, images=series.transpose(0, 1, 3, 2), labels=np.array([False, True, True]))
    return Seen(words, ["0", "1", "1"], series, (1, 1, 50), "arrays")


@card
def pixels_in_columns(folder):
    frame = pandas.DataFrame([[row * 20 + place for place in range(9)] for row in range(5)])
    frame.columns = [f"pixel{place}" for place in range(9)]
    frame["label"] = ["ä", "b", "b", "ä", "b"]
    frame.to_csv(folder / "x.csv")
    read = pandas.read_csv(folder / "x.csv", index_col=0)
    values = read.drop(columns="label").to_numpy() / 255
    words = ["dataset=csv", f"dataset.path={folder / 'x.csv'}", *WHOLE]
    labels = read["label"].tolist()
    return Seen(words, labels, values, (1, 3, 3), "pictures", left_out=["column '', an index"])


@card
def names_of_pictures_in_a_file(folder):
    rng = np.random.default_rng(5)
    files = []
    for number, mode in enumerate(("L", "RGB", "P")):
        files.append(f"{number}.png")
        picture(rng, mode).save(folder / files[-1])
    frame = pandas.DataFrame({"filename": files, "label": [10, 9, 10]})
    frame.to_csv(folder / "x.csv", index=False)
    values = [pixels(folder / file, "L", (6, 6)) for file in files]
    words = ["dataset=csv", f"dataset.path={folder / 'x.csv'}", "dataset.size=6", *WHOLE]
    labels = pandas.read_csv(folder / "x.csv")["label"].astype(str).tolist()
    return Seen(words, labels, values, (1, 6, 6), "pictures", classes=["9", "10"])


def pictures_of(folder, splits, modes, suffix="png"):
    """A folder of pictures: split -> class -> how many; the files by split."""
    rng = np.random.default_rng(8)
    files = {}
    for split, classes in splits.items():
        for name, count in classes.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                file = folder / split / name / f"{number}.{suffix}"
                picture(rng, modes[number % len(modes)]).save(file)
                files.setdefault(split, []).append(file)
    return files


@card
def a_folder_with_three_splits(folder):
    splits = {
        "Train": {"cat": 3, "dog": 2},
        "test": {"cat": 1, "dog": 2},
        "val": {"cat": 1, "dog": 1},
    }
    files = pictures_of(folder, splits, ["L", "RGB", "P"])
    read = [*files["Train"], *files["test"]]
    return Seen(
        ["dataset=image_folder", f"dataset.root={folder}", "dataset.size=[7, 9]", *WHOLE],
        [file.parent.name for file in files["Train"]],
        [pixels(file, "L", (9, 7)) for file in read],
        (1, 7, 9),
        "pictures",
        [file.parent.name for file in files["test"]],
        left_out=["pictures below val, another split for evaluation"],
    )


@card
def folders_with_spaces_and_other_letters(folder):
    names = {"ill person": 4, "здоров": 2, "健康": 1}
    files = pictures_of(folder / "all", {"": names}, ["RGB", "RGBA", "L"])[""]
    root = folder / "all"
    (root / ".hidden").write_text("no picture")
    words = ["dataset=image_folder", f"dataset.root={root}", "dataset.size=4", "dataset.channels=3"]
    values = [pixels(file, "RGB", (4, 4)) for file in files]
    labels = [file.parent.name for file in files]
    return Seen([*words, *WHOLE], labels, values, (3, 4, 4), "pictures")


@card
def a_data_set_that_declares_its_classes(folder):
    features = datasets.Features(
        {"x": datasets.Value("float64"), "label": datasets.ClassLabel(names=["z", "a", "m"])}
    )
    made = datasets.DatasetDict(
        {
            part: datasets.Dataset.from_dict({"x": values, "label": labels}, features)
            for part, values, labels in (
                ("train", [0.5, 40.0, -3.0, 1.0], [0, 2, 0, 0]),
                ("test", [9.5, 1.0], [2, 0]),
                ("validation", [1.0], [1]),
            )
        }
    )
    made.save_to_disk(folder / "saved")
    read = datasets.load_from_disk(str(folder / "saved"))
    names = read["train"].features["label"].int2str
    values = [*read["train"]["x"], *read["test"]["x"]]
    return Seen(
        ["dataset=huggingface", f"dataset.path={folder / 'saved'}", *WHOLE],
        [names(number) for number in read["train"]["label"]],
        values,
        (1, 1, 1),
        test=[names(number) for number in read["test"]["label"]],
        classes=["z", "a", "m"],
        columns={"x": values},
        left_out=["split 'validation'"],
    )


@card
def a_folder_of_files_for_datasets(folder):
    (folder / "files").mkdir()
    for part, count in (("train", 6), ("test", 3)):
        frame = pandas.DataFrame({"a": np.arange(count) * 11, "label": np.arange(count) % 3 + 1})
        frame.to_csv(folder / "files" / f"{part}.csv", index=False)
    read = datasets.load_dataset(str(folder / "files"), cache_dir=str(folder / "cache"))
    values = [*read["train"]["a"], *read["test"]["a"]]
    return Seen(
        ["dataset=huggingface", f"dataset.path={folder / 'files'}", *WHOLE],
        list(map(str, read["train"]["label"])),
        values,
        (1, 1, 1),
        test=list(map(str, read["test"]["label"])),
        columns={"a": values},
    )


@card
def pictures_in_a_saved_data_set(folder):
    rng = np.random.default_rng(2)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    images = [picture(rng, mode) for mode in ("L", "RGB", "P")]
    made = datasets.Dataset.from_dict({"image": images, "label": ["a", "b", "b"]}, features)
    made.save_to_disk(folder / "saved")
    read = datasets.load_from_disk(str(folder / "saved"))
    values = [
        np.asarray(image.convert("L").resize((8, 8), Image.Resampling.BILINEAR)) / 255
        for image in read["image"]
    ]
    words = ["dataset=huggingface", f"dataset.path={folder / 'saved'}", "dataset.test=null"]
    return Seen(
        [*words, "dataset.size=8", *WHOLE],
        list(read["label"]),
        values,
        (1, 8, 8),
        "pictures",
        columns={"image": None},
    )


def require_rows(found: DataCard, seen: Seen) -> None:
    """Compare rows of splits and classes."""
    names = seen.classes or sorted({*seen.train, *seen.test})
    assert [each.name for each in found.classes] == list(names)
    train = Counter(seen.train)
    test = Counter(seen.test)
    drawn = (seen.pool, seen.validation, len(seen.test) + seen.drawn)
    assert tuple(found.rows) == (len(seen.train) - sum(drawn) + len(seen.test), *drawn)
    for each in found.classes:
        if not any(drawn[:2]) and not seen.drawn:
            assert tuple(each.rows) == (train[each.name], 0, 0, test[each.name])
        assert sum(each.rows) == train[each.name] + test[each.name]
    for place, total in enumerate(found.rows):
        assert sum(tuple(each.rows)[place] for each in found.classes) == total


def require_inputs(found: DataCard, seen: Seen) -> None:
    """Compare what a model sees."""
    assert (found.kind, found.shape) == (seen.kind, seen.shape)
    if seen.values is not None:
        assert (found.low, found.high) == around(seen.values)
    assert [column.name for column in found.columns] == list(seen.columns)
    for column, values in zip(found.columns, seen.columns.values(), strict=True):
        if values is None:
            assert column.low is column.high is None
        else:
            assert (column.low, column.high) == around(values)
    if seen.texts is None:
        assert found.words is None
    else:
        lengths = [min(len(re.findall(r"\w+", text)), seen.shape[2]) for text in seen.texts]
        assert found.words == (min(lengths), max(lengths))


@pytest.mark.parametrize("name", CARDS)
def test_a_card_says_what_others_count(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MURMUR_CACHE", str(tmp_path / "cached"))
    place = tmp_path / "input"
    place.mkdir()
    seen = CARDS[name](place)
    found = data_card(seen.words)
    require_rows(found, seen)
    require_inputs(found, seen)
    sizes = None if seen.owners is None else Counter(seen.owners).values()
    if sizes is None:
        assert found.owners is found.owner_rows is None
    else:
        assert (found.owners, found.owner_rows) == (len(sizes), (min(sizes), max(sizes)))
    assert list(found.left_out) == list(seen.left_out)
    assert found.is_own and str(place) in found.source
    for width in (60, 80, 100):
        said = found.lines(width)
        assert max(map(len, said)) <= width and len(said) < 12
    assert all(each.name in " ".join(found.lines()) for each in found.classes)


def test_there_are_twenty_five_cards():
    assert len(CARDS) >= 25


def test_a_wrong_count_is_noticed(tmp_path):
    """The comparison itself can fail."""
    seen = four_spellings_of_two_classes(tmp_path)
    found = data_card(seen.words)
    wrong = Seen(seen.words, [*seen.train[:-1], "spam"], seen.values, (1, 1, 1))
    with pytest.raises(AssertionError):
        require_rows(found, wrong)
    with pytest.raises(AssertionError):
        require_inputs(found, Seen(seen.words, seen.train, [0.0, 8.1], (1, 1, 1), columns={"a": 0}))
