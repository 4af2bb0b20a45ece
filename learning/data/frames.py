"""Data sets in columns: CSV and Parquet files by pandas, and Hugging Face's ``datasets``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learning.checks import require_number
from learning.data.columns import Column, Part, Reading
from learning.data.examples import DataError, Dataset
from learning.seeding import experiment_rng

SAVED = ("dataset_dict.json", "state.json")  # files by which a folder of save_to_disk is known


def table(
    *,
    path: str | None,
    test_path: str | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    **columns: Any,
) -> Dataset:
    """A CSV or Parquet file with a header, and perhaps another for the test set.

    Args:
        path: the file.
        test_path: the test set; None: ``test_fraction`` of the rows.
        test_fraction: share of the rows held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        columns: see ``learning.data.columns.Reading``.

    Raises:
        ValueError: a setting is outside its range, or pandas is not installed.
        DataError: a file is missing, or has other columns.
    """
    reading, train = Reading(**columns), _frame("path", path)
    parts = [train] if test_path is None else [train, _frame("test_path", test_path)]
    return _dataset("table", reading.read(parts, path), test_fraction, split_seed)


def huggingface(
    *,
    path: str | None,
    name: str | None = None,
    train: str = "train",
    test: str | None = "test",
    test_fraction: float = 0.2,
    split_seed: int = 0,
    **columns: Any,
) -> Dataset:
    """A data set of Hugging Face's ``datasets``: a local folder, or a name on the hub.

    Args:
        path: a folder of ``save_to_disk`` or with files that ``load_dataset`` knows, or a name.
        name: of a configuration, where the data set has several.
        train: the split for training.
        test: the split for evaluation; None: ``test_fraction`` of ``train``.
        test_fraction: share of the rows held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        columns: see ``learning.data.columns.Reading``.

    Raises:
        ValueError: a setting is outside its range, or ``datasets`` is not installed.
        DataError: the data set cannot be had, or lacks a split or a column.
    """
    reading, found = Reading(**columns), _hub(path, name)
    wanted = [train] if test is None else [train, test]
    for split in wanted:
        if split not in found:
            raise DataError(f"dataset.path={path}: has no split {split!r}; it has {list(found)}")
    parts = [{c: found[split][c] for c in found[split].column_names} for split in wanted]
    for split, part in zip(wanted, parts, strict=True):
        label = found[split].features.get(reading.label)
        if reading.classes is None and getattr(label, "names", None):
            part[reading.label] = [str(int(value)) for value in part[reading.label]]
    return _dataset(Path(str(path)).name, reading.read(parts, path), test_fraction, split_seed)


def _dataset(name: str, parts: list[Part], test_fraction: float, split_seed: int) -> Dataset:
    require_number("test_fraction", test_fraction, 0, 1)
    train, owners = parts[0].examples, parts[0].owners
    if len(parts) > 1:
        test = parts[1].examples
    else:
        held_out = round(test_fraction * len(train))
        order = experiment_rng(split_seed, "test split").permutation(len(train))
        rest, test = np.sort(order[held_out:]), train.take(np.sort(order[:held_out]))
        train, owners = train.take(rest), None if owners is None else owners[rest]
    shape = train.images.shape[1:]
    numbers = None if owners is None else np.unique(owners, return_inverse=True)[1]
    return Dataset(name, train, test, max(2, parts[0].num_classes), shape, numbers)


def _frame(key: str, path: str | None) -> Mapping[str, Column]:
    try:
        import pandas
    except ImportError as error:
        raise ValueError(
            f"{key}={path}: tables need the package pandas; install it (extra `data`)"
        ) from error
    if path is None:
        raise DataError(f"dataset.{key}=null: set it to the place where your table lies")
    file = Path(path).expanduser()
    read = pandas.read_parquet if file.suffix.lower() == ".parquet" else pandas.read_csv
    try:
        frame = read(file)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"dataset.{key}={path}: cannot be read ({error})") from error
    return {str(name): frame[name].tolist() for name in frame.columns}


def _hub(path: str | None, name: str | None) -> Mapping[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"path={path}: this needs the package datasets; install it (extra `data`)"
        ) from error
    if path is None:
        raise DataError("dataset.path=null: set it to a folder, or to a name on the hub")
    place = Path(path).expanduser()
    saved = any((place / file).exists() for file in SAVED)
    try:
        if saved:
            found = datasets.load_from_disk(str(place))
        else:
            found = datasets.load_dataset(str(place) if place.exists() else path, name)
    except Exception as error:  # whatever a loader, the network or a file raises
        raise DataError(f"dataset.path={path}: cannot be loaded ({error})") from error
    return {"train": found} if isinstance(found, datasets.Dataset) else dict(found)
