"""A user's own images: a folder of picture files, an .npz file, or a CSV file.

Each takes ``test_fraction``: 0 for one client's own data, of which nothing is held back, and
``blanks``: whether a row that cannot be read is a blank record of that data set, zeros of class 0,
rather than an error. Each row is then read by itself, and its classes must be named. Where
several sites train together, give ``classes`` (or ``num_classes``), the same at every site: a site
that lacks a class must not number the others differently. ``conf/dataset`` names these functions,
and a device reads its data by them.
"""

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from murmur.checks import require_integer
from murmur.learning.data.blanks import Blanks
from murmur.learning.data.cache import RawDataset, RawExamples, load_or_build
from murmur.learning.data.cells import nfc, number_classes, require_labels, require_unlike
from murmur.learning.data.class_folders import (
    class_files,
    each_file,
    loose_pictures,
    owner_of,
    split_folders,
)
from murmur.learning.data.csv_rows import open_csv
from murmur.learning.data.digests import of_arrays
from murmur.learning.data.examples import (
    DataError,
    Dataset,
    numbered_owners,
    require_apart,
    split_test,
)
from murmur.learning.data.file_errors import damaged, wrong_row
from murmur.learning.data.npz_arrays import array_examples, array_names, read_npz
from murmur.learning.data.pictures import read_images, require_picture
from murmur.learning.data.target_columns import objective_of
from murmur.learning.objective import Objective
from murmur.settings import Seed

_LABEL = "label"
_MAX_SIDE_PIXELS = 2**14  # pixels of a side
_FILENAME = "filename"
# Names of (images, labels, test images, test labels): our own, MedMNIST's and Keras's.
_NPZ_NAMES = (
    ("images", "labels", "test_images", "test_labels"),
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)


def image_folder(
    *,
    root: str | Path | None,
    size: int | Sequence[int] = 28,
    channels: int = 1,
    classes: Sequence[Any] | None = None,
    owners: Annotated[int, Field(ge=0, le=8)] = 0,
    test_fraction: float = 0.2,
    split_seed: Seed = 0,
    split: Literal["owners", "rows"] = "owners",
    cache: str | Path | None = None,
    blanks: bool = False,
) -> Dataset:
    """Picture files in one folder per class: ``root/<class>/…`` or ``root/train/<class>/…``.

    With ``owners=1`` a folder for each owner holds these: ``root/<owner>/<class>/…`` or
    ``root/train/<owner>/<class>/…``. A device of that owner reads ``root/<owner>`` alike.

    Where ``root`` holds both ``train`` and ``test`` (or ``val``, and other names of these;
    ``split_folders``), these are the split and ``test_fraction`` is not used. Hidden
    files are passed over; any other file that is no picture is an error.

    Args:
        root: the folder.
        size: pixels that every picture is resized to: a side, or [height, width].
        channels: 1 (grey) or 3 (RGB).
        classes: the names in the order of their labels. None: the folders' names, sorted, numbers
            in their order (``murmur.learning.data.cells``).
        owners: levels of folders above the class that say whose a picture is; 0: none does.
        test_fraction: share of the pictures held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        split: whether pool, validation and test set take whole owners, or rows of any.
        cache: see ``murmur.learning.data.cache.cache_folder``.
        blanks: see the head of this file. A client's own data are of one owner: ``owners`` is 0.

    Raises:
        ValueError: a setting is outside the above.
        DataError: a folder or a file is missing, damaged or of another kind, or where owners are
            kept whole, one has pictures for training and in the test set.
    """
    folder = _existing("root", root, os.path.isdir)
    height, width = _height_and_width(size)
    _check_channels(channels)
    if owners and blanks:
        raise ValueError(f"owners={owners}: must be 0 for a client's own data, of one owner")
    bad = Blanks(blanks)
    places, left_out = [folder], list[str]()
    if blanks:
        parts = [each_file(folder, list(map(str, classes or ())))]
    else:
        places, left_out = split_folders(folder)
        reached: dict[tuple[int, int], Path] = {}
        parts = [class_files(place, reached, owners) for place in places]
    for place, part in zip(places, parts, strict=True):
        if not part:
            raise DataError(
                f"{place} holds no pictures in class folders; put them in <class>/<file>"
            )
    names = [name for part in parts for name, _ in part]
    found = [path for part in parts for _, path in part]
    for row, path in enumerate(found):
        with bad.of(row):
            require_picture(path)
    labels, order = number_classes(names, lambda row: str(found[row]), classes, bad)
    ids = [
        nfc(owner_of(place, path, owners))
        for place, part in zip(places, parts, strict=True)
        for _, path in part
    ]
    require_unlike(ids, f"{folder}")
    rows = np.split(np.arange(len(labels)), [len(parts[0])])
    if len(parts) == 1:
        together = numbered_owners(ids)[0] if owners and split == "owners" else None
        rows = list(split_test(labels, test_fraction, split_seed, together))

    def build() -> RawDataset:
        raw = RawExamples(read_images(found, height, width, channels, bad), labels)
        bad.clear(raw.pixels, raw.labels)
        train, test = (raw.take(half) for half in rows)
        return RawDataset(train, test, max(2, len(order)), order, bad.rows)

    settings = {
        "size": [height, width],
        "channels": channels,
        "classes": classes,
        "split": str(places[1]) if len(parts) > 1 else [test_fraction, split_seed, split, owners],
        "blanks": blanks,
    }
    data = load_or_build("image_folder", sources=found, settings=settings, cache=cache, build=build)
    data = replace(data, named=classes is not None)
    if owners:
        train_ids, test_ids = ([ids[row] for row in half] for half in rows)
        data = _owned(data, train_ids, test_ids, split)
    notes = [f"pictures below {name}, another split for evaluation" for name in left_out]
    for place in places:
        loose = loose_pictures(place)
        if loose:
            notes.append(f"{loose} pictures in {place.name} itself, of no class")
    return replace(data, notes=tuple(notes))


def _owned(
    data: Dataset, train: list[str], test: list[str], split: Literal["owners", "rows"]
) -> Dataset:
    """``data`` with the owners of its examples.

    Args:
        data: whose examples nobody owns yet.
        train: the id of each train example's owner.
        test: the id of each test example's owner.
        split: as in ``Dataset``.

    Raises:
        DataError: an owner has examples in both, and is to be kept whole.
    """
    if split == "owners":
        require_apart(train, test)
    numbers, ids = numbered_owners(train)
    return replace(
        data,
        owners=numbers,
        split=split,
        digests={**data.digests, "owners": of_arrays(train, test)},
        owner_ids=ids,
        test_owner_ids=tuple(sorted(set(test))),
    )


def npz(
    *,
    path: str | Path | None,
    num_classes: Annotated[int, Field(ge=1, le=2**20)] | None = None,
    test_fraction: float = 0.2,
    split_seed: Seed = 0,
    cache: str | Path | None = None,
    blanks: bool = False,
    task: str = "classification",
    label_range: Sequence[float] | None = None,
) -> Dataset:
    """An .npz file with ``images`` and ``labels``, as ``array_examples`` reads it.

    ``test_images`` and ``test_labels`` beside them are the test set; ``test_fraction`` is then not
    used. Keras's names (``x_train``, ``y_train``, …) and MedMNIST's (``train_images``, …) do too.

    Args:
        path: the file.
        num_classes: labels are numbers below it. None: the values found, numbers or text, are the
            classes, in their order.
        test_fraction: share of the examples held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        cache: see ``murmur.learning.data.cache.cache_folder``.
        blanks: see the head of this file.
        task: what labels are (``murmur.learning.objective``).
        label_range: of task=regression, [low, high], as it is known in public.

    Raises:
        ValueError: a setting is outside the above.
        DataError: the file is missing, damaged, or holds other arrays.
    """
    file = _existing("path", path, os.path.isfile)
    objective = objective_of(task, label_range)
    if num_classes is not None and not objective.has_classes:
        raise ValueError(f"num_classes={num_classes}: task={task} has none; set it to null")
    if num_classes is not None:
        require_integer("num_classes", num_classes, 1)
    bad = Blanks(blanks)

    def build() -> RawDataset:
        arrays = read_npz(file)
        names = _npz_names(arrays)
        train = array_examples(file, arrays, names[0], names[1], bad, objective)
        test = train.take(np.arange(0))
        if names[2] in arrays and not blanks:
            test = array_examples(file, arrays, names[2], names[3], objective=objective)
        if not len(train.labels):
            raise damaged(file, f"{names[0]} is empty")
        if train.pixels.shape[1:] != test.pixels.shape[1:]:
            raise damaged(file, f"{names[0]} and {names[2]} differ in their images' shape")
        if not objective.has_classes:
            given = test if names[2] in arrays else None
            train = _cleared(train, bad)
            return _of_task(file, train, given, objective, test_fraction, split_seed, bad.rows)
        values = [*train.labels.tolist(), *test.labels.tolist()]
        known = None
        if num_classes is not None:
            known = list(range(num_classes))
            beyond = [value for value in values if isinstance(value, int) and value >= num_classes]
            if beyond and not blanks:
                raise damaged(file, f"label {max(beyond)} is not below num_classes={num_classes}")
        labels, order = number_classes(values, lambda row: f"{file}, label {row}", known, bad)
        train = RawExamples(train.pixels, labels[: len(train.labels)])
        if blanks or names[2] not in arrays:
            return _hold_out(train, order, test_fraction, split_seed, bad)
        test = RawExamples(test.pixels, labels[len(train.labels) :])
        return RawDataset(train, test, max(2, len(order)), order)

    settings: dict[str, Any] = {
        "num_classes": num_classes,
        "split": [test_fraction, split_seed],
        "blanks": blanks,
    }
    if not objective.has_classes:
        settings["task"] = [objective.kind, objective.low, objective.high]
    data = load_or_build("npz", sources=[file], settings=settings, cache=cache, build=build)
    data = replace(data, named=num_classes is not None)
    present = array_names(file)
    read = _npz_names(present)[: 2 if blanks else 4]
    others = [name for name in present if name not in read]
    if not others:
        return data
    return replace(data, notes=(f"arrays {', '.join(others)}",))


def _of_task(
    file: Path,
    train: RawExamples,
    test: RawExamples | None,
    objective: Objective,
    test_fraction: float,
    split_seed: int,
    blanks: Mapping[int, str],
) -> RawDataset:
    """Examples whose labels are no classes, and their test set; None: a share of them.

    Raises:
        DataError: there are too few labels, or the test set has another number of them.
    """
    count = math.prod(train.labels.shape[1:])
    if count < objective.min_outputs:
        raise damaged(file, f"task={objective.kind} needs {objective.min_outputs} labels or more")
    if test is None:
        rows = split_test(np.zeros(len(train.labels), np.int64), test_fraction, split_seed)
        train, test = (train.take(half) for half in rows)
    if train.labels.shape[1:] != test.labels.shape[1:]:
        raise damaged(file, "training and test rows have different numbers of labels")
    return RawDataset(train, test, count, objective=objective, blanks=blanks)


def _npz_names(arrays: Collection[str]) -> tuple[str, ...]:
    """Names of the arrays of an archive: the first of ``_NPZ_NAMES`` that fit, else our own."""
    return next((names for names in _NPZ_NAMES if names[0] in arrays), _NPZ_NAMES[0])


def csv(
    *,
    path: str | Path | None,
    shape: Sequence[int] | None = None,
    size: int | Sequence[int] = 28,
    channels: int = 1,
    classes: Sequence[Any] | None = None,
    test_fraction: float = 0.2,
    split_seed: Seed = 0,
    cache: str | Path | None = None,
    blanks: bool = False,
) -> Dataset:
    """A CSV file of labelled images: a column ``label``, and pixels or the name of a picture file.

    Beside the label stands one column ``filename`` (a relative name starts from the CSV file's
    folder), or any number of columns with integers in 0..255. A first column without a name, which
    pandas writes, is left out.

    Args:
        path: the file; see ``csv_rows.open_csv``.
        shape: of pixel columns, (C, H, W); None: one channel, square.
        size: of picture files, as in ``image_folder``.
        channels: of picture files, as in ``image_folder``.
        classes: as in ``image_folder``, for the values of ``label``.
        test_fraction: share of the examples held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        cache: see ``murmur.learning.data.cache.cache_folder``.
        blanks: see the head of this file.

    Raises:
        ValueError: a setting is outside the above.
        DataError: the file is missing or a row is wrong, naming file and line.
    """
    file = _existing("path", path, os.path.isfile)
    height, width = _height_and_width(size)
    _check_channels(channels)
    pictures = _pictures_of(file, Blanks(blanks))
    bad = Blanks(blanks)
    image = list(shape or ())
    if pictures:
        image = [height, width, channels]

    def build() -> RawDataset:
        lines, values, rows, columns = _labelled_rows(file, bad)
        if not blanks:
            require_labels(values, f"{file}")
        labels, order = number_classes(
            values, lambda row: f"{file}, line {lines[row]}", classes, bad
        )
        if pictures:
            pixels = read_images(pictures, height, width, channels, bad)
        else:
            flat = [bytes(len(columns))] * len(rows)
            for row, fields in enumerate(rows):
                with bad.of(row):
                    flat[row] = _pixels(file, lines[row], fields, columns)
            pixels = _shaped(file, b"".join(flat), len(columns), shape)
        return _hold_out(RawExamples(pixels, labels), order, test_fraction, split_seed, bad)

    settings = {
        "image": image,
        "classes": classes,
        "split": [test_fraction, split_seed],
        "blanks": blanks,
    }
    sources = [file, *pictures]
    data = load_or_build("csv", sources=sources, settings=settings, cache=cache, build=build)
    data = replace(data, named=classes is not None)
    with open_csv(file, Blanks(blanks)) as (header, _):
        if header[0]:
            return data
    return replace(data, notes=("column '', an index",))


def _pictures_of(file: Path, blanks: Blanks) -> list[Path]:
    """The picture files that a CSV file names; none where it holds pixels."""
    with open_csv(file, blanks) as (header, _):
        columns = _image_columns(file, header)
    if columns != [_FILENAME]:
        return []
    return [file.parent / name for (name,) in _labelled_rows(file, blanks)[2]]


def _image_columns(file: Path, header: Sequence[str]) -> list[str]:
    """The columns beside the label, without the index that pandas writes."""
    columns = [name for name in header[not header[0] :] if name != _LABEL]
    if _LABEL not in header or not columns:
        raise wrong_row(file, 1, f"the header {list(header[:9])}; it must have a column {_LABEL!r}")
    if "" in columns:
        raise wrong_row(file, 1, "a column without a name that is not the first")
    if _FILENAME in columns and len(columns) != 1:
        raise wrong_row(file, 1, f"more columns than {_LABEL} and {_FILENAME}")
    return columns


def _labelled_rows(
    file: Path, blanks: Blanks
) -> tuple[list[int], list[str], list[list[str]], list[str]]:
    """Pixels or file names, and labels, of a CSV file.

    Returns:
        Each row's last line, its label and its other fields, and the columns of these.

    Raises:
        DataError: the file cannot be read, is no such table or has no rows.
    """
    lines = []
    labels = []
    others = []
    with open_csv(file, blanks) as (header, rows):
        columns = _image_columns(file, header)
        label_at = header.index(_LABEL)
        places = [header.index(name) for name in columns]
        for line, fields in rows:
            lines.append(line)
            labels.append(fields[label_at])
            others.append([fields[place] for place in places])
    if not lines:
        raise DataError(f"{file} has a header but no rows; add some")
    return lines, labels, others, columns


def _pixels(file: Path, line: int, fields: Sequence[str], columns: Sequence[str]) -> bytes:
    """A row's pixels as bytes; DataError names the first that is none."""
    try:
        return bytes(map(int, fields))
    except ValueError:
        wrong = [name for name, field in zip(columns, fields, strict=True) if not _is_byte(field)]
        field = fields[columns.index(wrong[0])]
        what = f"{wrong[0]} = {field!r}, which is no integer in 0..255"
        raise wrong_row(file, line, what) from None


def _is_byte(field: str) -> bool:
    """True if a field writes an integer in 0..255."""
    try:
        return 0 <= int(field) <= 255
    except ValueError:
        return False


def _shaped(
    file: Path, content: bytes, columns: int, shape: Sequence[int] | None
) -> NDArray[np.uint8]:
    """Rows of pixels as images (N, C, H, W), in channel, row, column order.

    Args:
        file: where they are from, for errors.
        content: one byte for each pixel, row after row.
        columns: pixels of a row.
        shape: (C, H, W); None: one channel, square.

    Raises:
        ValueError: a row does not make such an image.
    """
    side = math.isqrt(columns)
    wanted = tuple(shape or (1, side, side))
    if len(wanted) != 3 or math.prod(wanted) != columns:
        raise ValueError(
            f"shape={shape}: must be [channels, height, width] with a product of {columns}, the "
            f"number of pixel columns in {file}"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, *wanted)


def _existing(name: str, value: str | Path | None, exists: Callable[[Path], bool]) -> Path:
    """A path that a setting names.

    Args:
        name: of the setting.
        value: its value.
        exists: whether a path is of the kind that is wanted.

    Raises:
        DataError: none is named, or it does not exist.
    """
    if value is None:
        raise DataError(f"dataset.{name}=null: set it to the place where your data lies")
    path = Path(value).expanduser().absolute()
    if not exists(path):
        raise DataError(f"dataset.{name}={value}: does not exist or is of another kind; correct it")
    return path


def _height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) of a size in pixels, a side or a pair; ValueError for other sizes."""
    pair = [size, size] if isinstance(size, int) else list(size)
    if len(pair) != 2:
        raise ValueError(f"size={size}: must be a number of pixels or [height, width]")
    for side in pair:
        require_integer("size", side, 1)
        if side > _MAX_SIDE_PIXELS:
            raise ValueError(f"size={side}: must be at most {_MAX_SIDE_PIXELS} pixels")
    return pair[0], pair[1]


def _check_channels(channels: int) -> None:
    """ValueError unless pictures are grey (1) or in colours (3)."""
    if channels not in (1, 3):
        raise ValueError(f"channels={channels}: must be 1 (grey) or 3 (RGB)")


def _hold_out(
    raw: RawExamples,
    classes: tuple[str, ...],
    test_fraction: float,
    split_seed: int,
    blanks: Blanks,
) -> RawDataset:
    """The examples with a share of them as the test set; see ``examples.split_test``."""
    raw = _cleared(raw, blanks)
    train, test = split_test(raw.labels, test_fraction, split_seed)
    count = max(2, len(classes))
    return RawDataset(raw.take(train), raw.take(test), count, classes, blanks.rows)


def _cleared(raw: RawExamples, blanks: Blanks) -> RawExamples:
    """``raw`` with zeros where a row could not be read."""
    if not blanks.rows:
        return raw
    raw = RawExamples(raw.pixels.copy(), raw.labels.copy())
    blanks.clear(raw.pixels, raw.labels)
    return raw
