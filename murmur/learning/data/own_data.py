"""A user's own images: a folder of picture files, an .npz file, or a CSV file.

Each takes ``test_fraction``: 0 for one client's own data, of which nothing is held back. Where
several sites train together, give ``classes`` (or ``num_classes``), the same at every site: a site
that lacks a class must not number the others differently.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from murmur.common import require_integer, require_number
from murmur.learning.data.cache import RawDataset, RawExamples, load_or_build
from murmur.learning.data.cells import number_classes, require_labels
from murmur.learning.data.csv_file import names_files, read_table, shaped
from murmur.learning.data.examples import DataError, Dataset, described
from murmur.learning.data.files import (
    array_examples,
    class_files,
    damaged,
    read_images,
    read_npz,
    split_folders,
)
from murmur.learning.data.splits import split_test

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
    classes: Sequence[str | int] | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    cache: str | Path | None = None,
) -> Dataset:
    """Picture files in one folder per class: ``root/<class>/…`` or ``root/train/<class>/…``.

    Where ``root`` holds both ``train`` and ``test`` (or ``val``, and other names of these;
    ``image_files.split_folders``), these are the split and ``test_fraction`` is not used. Hidden
    files are passed over; any other file that is no picture is an error.

    Args:
        root: the folder.
        size: pixels that every picture is resized to: a side, or [height, width].
        channels: 1 (grey) or 3 (RGB).
        classes: the names in the order of their labels. None: the folders' names, sorted, numbers
            in their order (``murmur.learning.data.cells``).
        test_fraction: share of the pictures held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        cache: see ``murmur.learning.data.cache.cache_folder``.

    Raises:
        ValueError: a setting is outside the above.
        DataError: a folder or a file is missing, damaged or of another kind.
    """
    folder = _existing("root", root, os.path.isdir)
    height, width = _height_and_width(size)
    _check_channels(channels)
    require_number("test_fraction", test_fraction, 0, 1)
    places, left_out = split_folders(folder)
    parts = [class_files(place) for place in places]
    names = [name for part in parts for name, _ in part]
    found = [path for part in parts for _, path in part]
    for place, part in zip(places, parts, strict=True):
        if not part:
            raise DataError(
                f"{place} holds no pictures in class folders; put them in <class>/<file>"
            )
    labels, order = number_classes(names, lambda row: str(found[row]), classes)

    def build() -> RawDataset:
        raw = RawExamples(read_images(found, height, width, channels), labels)
        if len(parts) == 1:
            return _hold_out(raw, order, test_fraction, split_seed)
        ends = np.arange(len(raw.labels))
        cut = len(parts[0])
        train = raw.take(ends[:cut])
        test = raw.take(ends[cut:])
        return RawDataset(train, test, max(2, len(order)), order)

    settings = {
        "size": [height, width],
        "channels": channels,
        "classes": None if classes is None else list(classes),
        "split": [test_fraction, split_seed] if len(parts) == 1 else f"{places[1]}",
    }
    name = "image_folder"
    data = load_or_build(name, sources=found, settings=settings, cache=cache, build=build)
    return described(data, *(f"pictures below {name} are left out" for name in left_out))


def npz(
    *,
    path: str | Path | None,
    num_classes: int | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    cache: str | Path | None = None,
) -> Dataset:
    """An .npz file with ``images`` and ``labels``, as ``data.archives.array_examples`` reads it.

    ``test_images`` and ``test_labels`` beside them are the test set; ``test_fraction`` is then not
    used. Keras's names (``x_train``, ``y_train``, …) and MedMNIST's (``train_images``, …) do too.

    Args:
        path: the file.
        num_classes: labels lie below it. None: the values found are the classes, in their order.
        test_fraction: share of the examples held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        cache: see ``murmur.learning.data.cache.cache_folder``.

    Raises:
        ValueError: a setting is outside the above.
        DataError: the file is missing, damaged, or holds other arrays.
    """
    file = _existing("path", path, os.path.isfile)
    require_number("test_fraction", test_fraction, 0, 1)
    if num_classes is not None:
        require_integer("num_classes", num_classes, 1)

    def build() -> RawDataset:
        arrays = read_npz(file)
        names = next((names for names in _NPZ_NAMES if names[0] in arrays), _NPZ_NAMES[0])
        train = array_examples(file, arrays, names[0], names[1])
        if names[2] in arrays:
            test = array_examples(file, arrays, names[2], names[3])
        else:
            test = None
        every_label = np.concatenate([train.labels, test.labels if test else train.labels[:0]])
        if not len(train.labels):
            raise damaged(file, f"{names[0]} is empty")
        top = int(every_label.max())
        if num_classes is not None and top >= num_classes:
            raise damaged(file, f"label {top} is not below num_classes={num_classes}")
        if num_classes is None:
            known = None
        else:
            known = list(range(num_classes))
        labels, order = number_classes(
            every_label.tolist(), lambda row: f"{file}, label {row}", known
        )
        train = RawExamples(train.pixels, labels[: len(train.labels)])
        if test is None:
            return _hold_out(train, order, test_fraction, split_seed)
        if train.pixels.shape[1:] != test.pixels.shape[1:]:
            raise damaged(file, f"{names[0]} and {names[2]} differ in their images' shape")
        test = RawExamples(test.pixels, labels[len(train.labels) :])
        return RawDataset(train, test, max(2, len(order)), order)

    settings = {"num_classes": num_classes, "split": [test_fraction, split_seed]}
    return described(
        load_or_build("npz", sources=[file], settings=settings, cache=cache, build=build)
    )


def csv(
    *,
    path: str | Path | None,
    shape: Sequence[int] | None = None,
    size: int | Sequence[int] = 28,
    channels: int = 1,
    classes: Sequence[str | int] | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    cache: str | Path | None = None,
) -> Dataset:
    """A CSV file with a header: ``label`` and pixel columns, or ``filename`` and ``label``.

    Args:
        path: the file; see ``murmur.learning.data.tables.read_table``.
        shape: of pixel columns, (C, H, W); None: one channel, square.
        size: of picture files, as in ``image_folder``.
        channels: of picture files, as in ``image_folder``.
        classes: as in ``image_folder``, for the values of ``label``.
        test_fraction: share of the examples held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        cache: see ``murmur.learning.data.cache.cache_folder``.

    Raises:
        ValueError: a setting is outside the above.
        DataError: the file is missing or a row is wrong, naming file and line.
    """
    file = _existing("path", path, os.path.isfile)
    height, width = _height_and_width(size)
    _check_channels(channels)
    require_number("test_fraction", test_fraction, 0, 1)
    pictures: tuple[Path, ...] = ()
    if names_files(file):
        pictures = read_table(file).files

    def build() -> RawDataset:
        table = read_table(file)
        require_labels(table.labels, f"{file}")
        places = [f"{file}, line {line}" for line in table.lines]
        labels, order = number_classes(table.labels, places.__getitem__, classes)
        if table.files:
            pixels = read_images(table.files, height, width, channels)
        else:
            pixels = shaped(file, table.pixels, shape)
        return _hold_out(RawExamples(pixels, labels), order, test_fraction, split_seed)

    settings = {
        "image": [height, width, channels] if pictures else list(shape or ()),
        "classes": None if classes is None else list(classes),
        "split": [test_fraction, split_seed],
    }
    sources = [file, *pictures]
    return described(
        load_or_build("csv", sources=sources, settings=settings, cache=cache, build=build)
    )


def _existing(name: str, value: str | Path | None, exists: Callable[[Path], bool]) -> Path:
    if value is None:
        raise DataError(f"dataset.{name}=null: set it to the place where your data lies")
    path = Path(value).expanduser().absolute()
    if not exists(path):
        raise DataError(f"dataset.{name}={value}: does not exist or is of another kind; correct it")
    return path


def _height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(size, int):
        pair = [size, size]
    else:
        pair = list(size)
    if len(pair) != 2:
        raise ValueError(f"size={size}: must be a number of pixels or [height, width]")
    for side in pair:
        require_integer("size", side, 1)
    return pair[0], pair[1]


def _check_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise ValueError(f"channels={channels}: must be 1 (grey) or 3 (RGB)")


def _hold_out(
    raw: RawExamples, classes: tuple[str, ...], test_fraction: float, split_seed: int
) -> RawDataset:
    train, test = split_test(len(raw.labels), test_fraction, split_seed)
    return RawDataset(raw.take(train), raw.take(test), max(2, len(classes)), classes)
