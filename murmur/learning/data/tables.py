"""Data sets in columns, by pandas: CSV and Parquet files, and Hugging Face's ``datasets``.

``table`` and ``huggingface`` are the data sets; a ``ColumnSpec`` says which columns are what, and
the type of a column decides what it becomes: numbers (F, 1, 1), one for each column, as they are; a
text (1, 1, L), the numbers of its first L words; a picture (C, H, W) in [0, 1]. Nothing is fitted
to the data, neither a scale nor a vocabulary: that would be a release. ``features=pca`` fits on the
public pool.

With ``blanks`` a row that cannot be read is a blank record, zeros of class 0, rather than an error.
Each row is then read by itself, and what columns hold must be told: the inputs are named, and
``channels`` × ``size`` is the shape of an example, (F, 1, 1) of numbers and (1, 1, L) of a text.

Columns are pandas' with Arrow's types: whole numbers beside missing cells stay whole numbers, and
text stays text. CSV files are read to the letter (``csv_rows``), with text in every column.
All of this needs the extra ``data``; ``own_data`` and ``datasets`` do without.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from murmur.learning.data import examples
from murmur.learning.data.blanks import Blanks
from murmur.learning.data.cache import cache_folder, key_of
from murmur.learning.data.column_spec import ColumnSpec, Split
from murmur.learning.data.digests import of_arrays
from murmur.learning.data.examples import DataError, Dataset
from murmur.learning.data.frames import arrow_frame, csv_frame, missing_packages, read_frame
from murmur.settings import Seed

SAVED = ("dataset_dict.json", "state.json")  # files by which a folder of save_to_disk is known

SplitBy = Literal["owners", "rows"]


def table(
    *,
    path: str | None,
    test_path: str | None = None,
    test_fraction: float = 0.2,
    split_seed: Seed = 0,
    split: SplitBy = "owners",
    test_owners: float | None = None,
    rows_per_owner: int | None = None,
    blanks: bool = False,
    task: str = "classification",
    **columns: Any,
) -> Dataset:
    """A CSV or Parquet file with a header, and perhaps another for the test set.

    Args:
        path: the file.
        test_path: the test set; None: ``test_fraction`` of the rows.
        test_fraction: share of the rows held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        split: whether pool, validation and test set take whole owners, or rows of any.
        test_owners: share of the owners held out instead, in (0, 1); None: ``test_fraction``.
        rows_per_owner: the most rows of an owner that are used, drawn by ``split_seed``; None: all.
        blanks: see the head of this file.
        task: what labels are (``murmur.learning.objective``).
        columns: see ``ColumnSpec``.

    Raises:
        ValueError: a setting is outside its range, or the extra ``data`` is not installed.
        DataError: a file is missing, or has other columns.
    """
    reading = ColumnSpec(task=task, **columns)
    if (test_owners or rows_per_owner) and reading.client is None:
        raise ValueError("test_owners and rows_per_owner: name the owners' column (dataset.client)")
    bad = Blanks(blanks)
    frames = [read_frame("path", path, bad)]
    places = [f"{path}"]
    if test_path is not None:
        frames.append(read_frame("test_path", test_path))
        places.append(f"{path}, {test_path}")
    parts = reading.read(frames, places, blanks=bad)
    read = sum(len(part.examples) for part in parts)
    if rows_per_owner is not None:
        parts = [part.thinned(rows_per_owner, split_seed) for part in parts]
    found = _dataset("table", parts, test_fraction, split_seed, split, test_owners)
    notes = found.notes
    if more := read - len(found.train) - len(found.test):
        notes = (*notes, f"{more:,} rows beyond rows_per_owner={rows_per_owner}")
    return replace(found, blanks=bad.rows, notes=notes)


def huggingface(
    *,
    path: str | None,
    name: str | None = None,
    train: str = "train",
    test: str | None = "test",
    test_fraction: float = 0.2,
    split_seed: Seed = 0,
    split: SplitBy = "owners",
    blanks: bool = False,
    task: str = "classification",
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
        split: whether pool, validation and test set take whole owners, or rows of any.
        blanks: see the head of this file.
        task: what labels are (``murmur.learning.objective``).
        columns: see ``ColumnSpec``.

    Raises:
        ValueError: a setting is outside its range, or the extra ``data`` is not installed.
        DataError: the data set cannot be had, or lacks a split or a column.
    """
    reading = ColumnSpec(task=task, **columns)
    found, is_guessed = _hub(path, name)
    wanted = [part for part in (train, test) if part is not None]
    for part in wanted:
        if part not in found:
            raise _no_split(path, part, test, list(found))
    if reading.client is not None and is_guessed:
        raise DataError(
            f"dataset.path={path}: its CSV files are read by guessing types, which changes owners' "
            "ids (007 becomes 7); download them and use dataset=table"
        )
    # Pictures are mappings with the ``bytes`` or the ``path`` of a file.
    frames = [arrow_frame(found[part].with_format("arrow")[:]) for part in wanted]
    places = [f"{path}, split {part!r}" for part in wanted]
    declared = [getattr(found[part].features.get(reading.label), "names", None) for part in wanted]
    bad = Blanks(blanks)
    parts = reading.read(frames, places, declared, bad)
    data = _dataset(Path(str(path)).name, parts, test_fraction, split_seed, split)
    others = tuple(f"split {part!r}" for part in found if part not in wanted)
    return replace(data, blanks=bad.rows, notes=(*data.notes, *others))


def _no_split(path: str | None, part: str, test: str | None, known: list[str]) -> DataError:
    """The refusal of a split that a data set lacks; ``test``: the split for evaluation."""
    remedy = "name one of these (dataset.train, dataset.test)"
    if part == test:
        remedy = (
            "name one of these (dataset.test), or let a share of the training rows, of whole "
            "owners where dataset.client names them, be the test set (dataset.test=null)"
        )
    return DataError(f"dataset.path={path}: has no split {part!r}; it has {known}; {remedy}")


def _dataset(
    name: str,
    parts: list[Split],
    test_fraction: float,
    split_seed: int,
    split: SplitBy,
    test_owners: float | None = None,
) -> Dataset:
    """A data set of one part, of which a share is held out, or of a train and a test part.

    Args:
        name: of the data set.
        parts: one or two.
        test_fraction: share of the rows that are held out of one part.
        split_seed: which ones.
        split: whether whole owners are held out; of two parts, whether no owner may be in both.
        test_owners: share of the owners of the first part that are held out instead; None: none.

    Raises:
        DataError: an owner has rows in both parts.
    """
    first = parts[0]
    train = first.examples
    test = parts[-1].examples
    halves = None
    owners = None
    tested = None
    ids: tuple[str, ...] = ()
    test_ids = tuple(sorted(set(parts[-1].owners or ())))
    if first.owners is not None:
        owners, ids = examples.numbered_owners(first.owners)
    if test_owners is not None and owners is not None:
        split = "owners"
        halves = examples.split_owners(owners, test_owners, split_seed, train.strata)
        tested = examples.numbered_owners([ids[owner] for owner in owners[halves[1]]])[0]
    elif len(parts) == 1:
        together = owners if split == "owners" else None
        halves = examples.split_test(train.strata, test_fraction, split_seed, together)
    elif first.owners is not None and split == "owners":
        examples.require_apart(first.owners, parts[1].owners or [])
    if halves is not None:
        train = first.examples.take(halves[0])
        test = first.examples.take(halves[1])
        if first.owners is not None:
            test_ids = tuple(sorted({first.owners[row] for row in halves[1]}))
            owners, ids = examples.numbered_owners([first.owners[row] for row in halves[0]])
    classes = first.classes or None
    shape = train.images.shape[1:]
    count = max(first.objective.min_outputs, len(first.classes))
    digests = {}
    if first.owners is not None:  # numbers do not tell one person from another
        digests = {"owners": of_arrays(*(part.owners for part in parts))}
    return Dataset(
        name,
        train,
        test,
        count,
        shape,
        owners,
        split,
        classes,
        first.left_out,
        tested,
        first.texts,
        named=first.named,
        digests=digests,
        columns=first.inputs,
        owner_ids=ids,
        test_owner_ids=test_ids,
        objective=first.objective,
    )


def _cache_of(place: Path) -> str:
    """Where ``datasets`` keeps what it decodes of a local folder: its own cache goes by times.

    Raises:
        DataError: it would pass over a folder of ``place``.
    """
    every = [(path.relative_to(place).parts, path) for path in sorted(place.rglob("*"))]
    below = [path for parts, path in every if not any(part.startswith(".") for part in parts)]
    for path in below:
        if path.is_symlink() and path.is_dir():
            raise DataError(
                f"{path}: is a link to a folder, which `datasets` does not follow; put the folder "
                "there, or use dataset=image_folder for pictures"
            )
    key = key_of("datasets", [path for path in below if path.is_file()], {})
    return str(cache_folder(None) / f"datasets-{key}")


def _hub(path: str | None, name: str | None) -> tuple[dict[str, Any], bool]:
    """The splits of a local folder or of a data set on the hub.

    Returns:
        A ``datasets.Dataset`` by name, and whether a reader has guessed their types.

    Raises:
        ValueError: the extra ``data`` is not installed.
        DataError: it cannot be had, for whatever reason.
    """
    try:
        import datasets
        import pandas  # noqa: F401
    except ImportError as error:
        raise missing_packages(f"path={path}", "datasets and pandas") from error
    if path is None:
        raise DataError("dataset.path=null: set it to a folder, or to a name on the hub")
    place = Path(path).expanduser()
    is_csv = False
    try:
        if any((place / file).exists() for file in SAVED):
            found = datasets.load_from_disk(str(place))
        else:
            where, kept = path, None
            if place.exists():
                where, kept = str(place), _cache_of(place)
            config = datasets.load_dataset_builder(where, name, cache_dir=kept).config
            is_csv = type(config).__name__ == "CsvConfig"
            if is_csv and place.exists():  # as ``table`` reads them: nothing is guessed
                frames = {str(part): csv_frame(files) for part, files in config.data_files.items()}
                read = partial(datasets.Dataset.from_pandas, preserve_index=False)
                return {part: read(frame) for part, frame in frames.items()}, False
            found = datasets.load_dataset(where, name, cache_dir=kept)
    except DataError:
        raise
    except Exception as error:  # whatever a loader, the network or a file raises
        raise DataError(f"dataset.path={path}: cannot be loaded ({error})") from error
    if isinstance(found, datasets.Dataset):
        found = {"train": found}
    return {str(part): rows for part, rows in found.items()}, is_csv
