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
from numpy.typing import NDArray

from learning.checks import require_integer, require_number
from learning.data.archives import array_examples, damaged, read_npz
from learning.data.cache import RawDataset, RawExamples, load_or_build
from learning.data.examples import DataError, Dataset
from learning.data.image_files import class_files, read_images
from learning.data.tables import names_files, read_table, shaped
from learning.seeding import experiment_rng

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

    Where ``root`` holds both ``train`` and ``test``, these are the split and ``test_fraction`` is
    not used. Hidden files are passed over; any other file that is no picture is an error.

    Args:
        root: the folder.
        size: pixels that every picture is resized to: a side, or [height, width].
        channels: 1 (grey) or 3 (RGB).
        classes: the names in the order of their labels. None: the folders' names, sorted; names
            that are all whole numbers are the labels themselves.
        test_fraction: share of the pictures held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        cache: see ``learning.data.cache.cache_folder``.

    Raises:
        ValueError: a setting is outside the above.
        DataError: a folder or a file is missing, damaged or of another kind.
    """
    folder = _existing("root", root, os.path.isdir)
    height, width = _height_and_width(size)
    _check_channels(channels)
    require_number("test_fraction", test_fraction, 0, 1)
    split = all((folder / part).is_dir() for part in ("train", "test"))
    parts = [class_files(folder / part) for part in (("train", "test") if split else ("",))]
    names = [name for part in parts for name, _ in part]
    found = [path for part in parts for _, path in part]
    if not parts[0]:
        raise DataError(f"{folder} holds no pictures in class folders; put them in <class>/<file>")
    labels, num_classes = number_classes(names, [str(path) for path in found], classes)

    def build() -> RawDataset:
        raw = RawExamples(read_images(found, height, width, channels), labels)
        if not split:
            return _hold_out(raw, num_classes, test_fraction, split_seed)
        ends = np.arange(len(raw.labels))
        cut = len(parts[0])
        return RawDataset(raw.take(ends[:cut]), raw.take(ends[cut:]), num_classes)

    settings = {
        "size": [height, width],
        "channels": channels,
        "classes": None if classes is None else list(classes),
        "split": split or [test_fraction, split_seed],
    }
    name = "image_folder"
    return load_or_build(name, sources=found, settings=settings, cache=cache, build=build)


def npz(
    *,
    path: str | Path | None,
    num_classes: int | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    cache: str | Path | None = None,
) -> Dataset:
    """An .npz file with ``images`` and ``labels``; see ``learning.data.archives.array_examples``.

    ``test_images`` and ``test_labels`` beside them are the test set; ``test_fraction`` is then not
    used. Keras's names (``x_train``, ``y_train``, …) and MedMNIST's (``train_images``, …) do too.

    Args:
        path: the file.
        num_classes: labels lie below it. None: the largest label found, plus one.
        test_fraction: share of the examples held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        cache: see ``learning.data.cache.cache_folder``.

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
        test = array_examples(file, arrays, names[2], names[3]) if names[2] in arrays else None
        every_label = np.concatenate([train.labels, test.labels if test else train.labels[:0]])
        if not len(train.labels):
            raise damaged(file, f"{names[0]} is empty")
        top = int(every_label.max())
        if num_classes is not None and top >= num_classes:
            raise damaged(file, f"label {top} is not below num_classes={num_classes}")
        classes = top + 1 if num_classes is None else num_classes
        if test is None:
            return _hold_out(train, classes, test_fraction, split_seed)
        if train.pixels.shape[1:] != test.pixels.shape[1:]:
            raise damaged(file, f"{names[0]} and {names[2]} differ in their images' shape")
        return RawDataset(train, test, classes)

    settings = {"num_classes": num_classes, "split": [test_fraction, split_seed]}
    return load_or_build("npz", sources=[file], settings=settings, cache=cache, build=build)


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
        path: the file; see ``learning.data.tables.read_table``.
        shape: of pixel columns, (C, H, W); None: one channel, square.
        size: of picture files, as in ``image_folder``.
        channels: of picture files, as in ``image_folder``.
        classes: as in ``image_folder``, for the values of ``label``.
        test_fraction: share of the examples held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        cache: see ``learning.data.cache.cache_folder``.

    Raises:
        ValueError: a setting is outside the above.
        DataError: the file is missing or a row is wrong, naming file and line.
    """
    file = _existing("path", path, os.path.isfile)
    height, width = _height_and_width(size)
    _check_channels(channels)
    require_number("test_fraction", test_fraction, 0, 1)
    pictures = read_table(file).files if names_files(file) else ()

    def build() -> RawDataset:
        table = read_table(file)
        places = [f"{file}, line {line}" for line in table.lines]
        labels, num_classes = number_classes(table.labels, places, classes)
        if table.files:
            pixels = read_images(table.files, height, width, channels)
        else:
            pixels = shaped(file, table.pixels, shape)
        return _hold_out(RawExamples(pixels, labels), num_classes, test_fraction, split_seed)

    settings = {
        "image": [height, width, channels] if pictures else list(shape or ()),
        "classes": None if classes is None else list(classes),
        "split": [test_fraction, split_seed],
    }
    sources = [file, *pictures]
    return load_or_build("csv", sources=sources, settings=settings, cache=cache, build=build)


def _existing(name: str, value: str | Path | None, exists: Callable[[Path], bool]) -> Path:
    if value is None:
        raise DataError(f"dataset.{name}=null: set it to the place where your data lies")
    path = Path(value).expanduser().absolute()
    if not exists(path):
        raise DataError(f"dataset.{name}={value}: does not exist or is of another kind; correct it")
    return path


def _height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    pair = [size, size] if isinstance(size, int) else list(size)
    if len(pair) != 2:
        raise ValueError(f"size={size}: must be a number of pixels or [height, width]")
    for side in pair:
        require_integer("size", side, 1)
    return pair[0], pair[1]


def _check_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise ValueError(f"channels={channels}: must be 1 (grey) or 3 (RGB)")


def number_classes(
    names: Sequence[str], places: Sequence[object], classes: Sequence[str | int] | None
) -> tuple[NDArray[np.int64], int]:
    """Labels for class ``names`` and the number of classes; ``places`` is for the error."""
    if classes is not None:
        order = [str(name) for name in classes]
    elif all(name.isdecimal() for name in names):
        order = [str(number) for number in range(max(map(int, names)) + 1)]
        names = [str(int(name)) for name in names]
    else:
        order = sorted(set(names))
    numbers = {name: number for number, name in enumerate(order)}
    if len(numbers) != len(order):
        raise ValueError(f"classes={order}: must not name a class twice")
    for name, place in zip(names, places, strict=True):
        if name not in numbers:
            raise DataError(f"{place}: class {name!r} is not among dataset.classes={order}")
    return np.array([numbers[name] for name in names], dtype=np.int64), len(order)


def _hold_out(
    raw: RawExamples, num_classes: int, test_fraction: float, split_seed: int
) -> RawDataset:
    total = len(raw.labels)
    held_out = round(test_fraction * total)
    if held_out >= total:
        raise ValueError(
            f"test_fraction={test_fraction}: leaves none of the {total} examples for training; "
            "lower it"
        )
    order = experiment_rng(split_seed, "test split").permutation(total)
    train, test = np.sort(order[held_out:]), np.sort(order[:held_out])
    return RawDataset(raw.take(train), raw.take(test), num_classes)
