"""Writing small tables in every form that Murmur reads, and reading them back."""

import csv
import io
from contextlib import suppress
from functools import partial

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet

from fl_app.config.settings import DeviceDataSpec
from fl_app.device.data import load_own
from fl_app.device.node_settings import OwnerSettings
from murmur.learning.data.examples import DataError
from murmur.learning.data.tables import huggingface, table

TEXT = ("csv", "semicolons", "tabs", "quoted", "packed", "folder")  # all cells are text there
TYPED = ("parquet", "saved")
TABLES = (*TEXT, "strings", *TYPED)
DEVICES = ("device-csv", "device-parquet", "device-saved")
ALL = (*TABLES, *DEVICES)


def as_text(value):
    """A cell as a CSV file has it."""
    return "" if value is None else str(value)


def csv_text(columns, **style):
    """The table as a CSV file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", **style)
    writer.writerow(columns)
    writer.writerows(zip(*([as_text(v) for v in c] for c in columns.values()), strict=True))
    return out.getvalue()


def write(folder, form, columns, name="x"):
    """The table in a file (or folder) of this form; where it is."""
    match form.removeprefix("device-"):
        case "semicolons":
            path, text = folder / f"{name}.csv", csv_text(columns, delimiter=";")
        case "tabs":
            path, text = folder / f"{name}.tsv", csv_text(columns, delimiter="\t")
        case "quoted":
            path, text = folder / f"{name}.csv", csv_text(columns, quoting=csv.QUOTE_ALL)
        case "folder":
            path, text = folder / name / "train.csv", csv_text(columns)
        case "csv":
            path, text = folder / f"{name}.csv", "\ufeff" + csv_text(columns)
        case "packed":
            path = folder / f"{name}.csv.gz"
            with pyarrow.output_stream(str(path), compression="gzip") as out:
                out.write(csv_text(columns).encode())
            return path
        case "strings":
            columns = {key: [as_text(v) for v in values] for key, values in columns.items()}
            return write(folder, "parquet", columns, name)
        case "parquet":
            path = folder / f"{name}.parquet"
            pyarrow.parquet.write_table(pyarrow.table(columns), path)
            return path
        case "saved":
            path = folder / name
            datasets.Dataset.from_dict(columns).save_to_disk(path)
            return path
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path.parent if form == "folder" else path


def read(folder, form, columns, test=None, **settings):
    """The table once written and read: a data set, all of whose rows are for training."""
    path = write(folder, form, columns)
    if form.startswith("device-"):
        return on_device(path, columns, **settings)
    if form in ("saved", "folder"):
        return huggingface(path=str(path), test=None, **{"test_fraction": 0.0, **settings})
    if test is not None:
        settings["test_path"] = str(write(folder, form, test, "test"))
    return table(path=str(path), **{"test_fraction": 0.0, **settings})


def on_device(path, columns, label="label", client=None, inputs=None, classes=None, **other):
    """The examples as a device reads them, whose owner names inputs and classes.

    What a researcher's reader refuses is raised: `murmur doctor device` tells of it. In a run it is
    a matter of single rows, or the table as a whole is none; a good table is read alike.
    """
    assert not other
    inputs = inputs or [name for name in columns if name not in (label, client)]
    owner = OwnerSettings((0,), None, None, inputs=tuple(inputs), label=label)
    terms = DeviceDataSpec([len(inputs), 1, 1], classes)
    read = partial(load_own, str(path), owner, terms, path.parent / "cache")
    try:
        strict = read(blanks=False)
    except DataError:
        with suppress(DataError):
            found = read()
            assert len(found.train) == len(next(iter(columns.values())))
            assert np.isfinite(found.train.images).all()
        raise
    found = read()
    assert not found.blanks
    for one, other in zip(seen(strict), seen(found), strict=True):
        assert np.array_equal(one, other)
    return found.train


def seen(data):
    """Inputs (N, F) and labels of training examples, wherever these were read."""
    examples = getattr(data, "train", data)
    return examples.images.reshape(len(examples), -1), np.asarray(examples.labels)
