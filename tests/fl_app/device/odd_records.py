"""Data sets that differ in one odd record, as owners' files: every reader, every kind of oddness.

A data set is ``COUNT`` records. ``pair`` writes it twice, once with the record at one place as it
is and once with an odd one there, and gives what a device's owner says of it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from fl_app.device.data import terms_of
from fl_app.device.node_settings import OwnerSettings
from murmur.learning.features.maps import bins, pca, scattering, words

COUNT, CLASSES, SIDE, CLIENT = 12, 3, 8, 0
SIZES = (COUNT, 2, 2)
SCHEMA = {
    "month": {"list": list(range(1, 13))},
    "carrier": {"list": ["AA", "UA"]},
    "temp": {"range": [0, 100], "bins": 5},
}
NUMBERS = ("a", "b", "c", "d")
ODD_NUMBERS = (np.nan, np.inf, -np.inf, 1e-310, 1e-45, 1e38, -1e38, 1e300)
ODD_TEXTS = ("", " ", "much", "1,5", "nan", "inf", "1e38", "1e-310", "1e999", "99999999", "True")
ODD_LABELS = (None, "", "flu", 99, -1, "1.5")


@dataclass(frozen=True)
class Source:
    """One reader: ``write(folder, rng, odd)`` writes the data, and gives where they are.

    ``odd``: the place of the odd record; None: all are as usual. ``features`` are those that suit.
    """

    write: Callable[[Path, np.random.Generator, int | None], Path]
    shape: tuple[int, int, int]
    features: dict[str, Callable[[], Any]]
    own: dict[str, Any] = field(default_factory=dict)

    def owner(self, path: Path) -> OwnerSettings:
        """What the owner says."""
        return OwnerSettings(
            (CLIENT,), str(path), None, shape=self.shape, classes=CLASSES, sizes=SIZES, **self.own
        )

    def pair(self, folder: Path, seed: int) -> list[tuple[OwnerSettings, Any]]:
        """Owner and terms of both data sets; all but one record are the same."""
        place = int(np.random.default_rng(seed).integers(COUNT))
        found = []
        for name, odd in (("one", None), ("other", place)):
            (folder / name).mkdir()
            own = self.owner(self.write(folder / name, np.random.default_rng(seed), odd))
            found.append((own, terms_of(own)))
        return found


def of(rng, values):
    """One of ``values``."""
    return values[int(rng.integers(len(values)))]


def pictures(rng):
    """Pixels (COUNT, SIDE, SIDE) and labels of usual records; then what is odd may be drawn."""
    return rng.integers(0, 256, (COUNT, SIDE, SIDE)).astype(np.uint8), np.arange(COUNT) % CLASSES


def broken_picture(rng, pixels):
    """Bytes of a file that is no such picture, or is one of another kind."""
    whole = png(Image.fromarray(pixels))
    wide = Image.fromarray(rng.integers(0, 256, (5, 40, 3)).astype(np.uint8))
    return of(
        rng,
        [
            b"",
            b"no picture",
            whole[: len(whole) // 2],
            whole[:40] + bytes(20) + whole[60:],
            png(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF"),
            png(Image.fromarray(np.full((4, 4), 7, np.uint16))),  # so few bits that it is dark
            png(wide),
        ],
    )


def png(picture, kind="PNG"):
    """A picture as the bytes of a file."""
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()


def write_npz(folder, rng, odd):
    pixels, labels = pictures(rng)
    images = pixels.astype(np.float64) / 255
    labels = labels.astype(of(rng, [np.int64, np.float64, np.str_]))
    if odd is not None and rng.random() < 0.6:
        images[odd].flat[: rng.integers(1, SIDE**2 + 1)] = of(rng, ODD_NUMBERS)
    elif odd is not None:
        strange = {"i": (99, -1), "f": (np.nan, 1.5, 1e30, -1.0), "U": ("", "9", "x")}
        labels[odd] = of(rng, strange[labels.dtype.kind])
    np.savez(folder / "x.npz", images=images, labels=labels)
    return folder / "x.npz"


def write_integers(folder, rng, odd):
    pixels, labels = pictures(rng)
    images = pixels.astype(np.int32)
    if odd is not None:
        images[odd, 0, 0] = of(rng, (-1, 256, 2**31 - 1))
    np.savez(folder / "x.npz", images=images, labels=labels)
    return folder / "x.npz"


def write_folder(folder, rng, odd):
    pixels, labels = pictures(rng)
    for row, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        content, name, top = png(Image.fromarray(picture)), f"{row:02}.png", str(label)
        if row == odd:
            content = broken_picture(rng, picture)
            name = of(rng, (name, name, name, f"{row:02}.txt"))
            top = of(rng, (top, top, "flu", "train", "2020/1"))
        (folder / "x" / top).mkdir(parents=True, exist_ok=True)
        (folder / "x" / top / name).write_bytes(content)
    return folder / "x"


def write_pixels(folder, rng, odd):
    pixels, labels = pictures(rng)
    lines = [f"label,{','.join(f'p{n}' for n in range(SIDE**2))}".encode()]
    for row, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        cells = [str(label), *map(str, picture.ravel())]
        if row == odd:
            at = int(rng.integers(1, len(cells)))
            match rng.integers(5):
                case 0:
                    cells[at] = of(rng, (*ODD_TEXTS, "256", "-1", "1.5"))
                case 1:
                    cells[0] = of(rng, ("", "flu", "99", "nan"))
                case 2:
                    cells = cells[:at]
                case 3:
                    cells[at] = '"' + cells[at]  # which nothing closes
                case _:
                    cells = [*cells, "1"]
        line = ",".join(cells).encode()
        if row == odd and rng.random() < 0.2:
            line = b"\xff\xfe" + line
        lines.append(line)
    (folder / "x.csv").write_bytes(b"\n".join(lines) + b"\n")
    return folder / "x.csv"


def write_names(folder, rng, odd):
    pixels, labels = pictures(rng)
    out = [["label", "filename"]]
    for row, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        name, content = f"{row:02}.png", png(Image.fromarray(picture))
        said = [str(label), name]
        if row == odd:
            content = broken_picture(rng, picture)
            said = of(rng, (said, said, [said[0], "none.png"], [said[0], ""], ["flu", name]))
        (folder / name).write_bytes(content)
        out.append(said)
    with (folder / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows(out)
    return folder / "x.csv"


def typed(rng, odd):
    """Columns of numbers, and labels."""
    columns = {name: rng.normal(size=COUNT).tolist() for name in NUMBERS}
    columns["label"] = (np.arange(COUNT) % CLASSES).tolist()
    if odd is not None and rng.random() < 0.8:
        columns[of(rng, NUMBERS)][odd] = of(rng, (*ODD_NUMBERS, None))
    elif odd is not None:
        columns["label"][odd] = of(rng, (None, 99, -1))
    return columns


def binned(rng, odd):
    """Columns of a schema, and labels."""
    columns = {
        "month": rng.integers(1, 13, COUNT).tolist(),
        "carrier": [["AA", "UA"][n] for n in rng.integers(0, 2, COUNT)],
        "temp": rng.uniform(0, 100, COUNT).tolist(),
        "label": (np.arange(COUNT) % CLASSES).tolist(),
    }
    if odd is not None:
        match rng.integers(4):
            case 0:
                columns["month"][odd] = of(rng, (0, 13, 99, -5, 2**40, None))
            case 1:
                columns["carrier"][odd] = of(rng, ("", "aa", "AA ", "ü", None))
            case 2:
                columns["temp"][odd] = of(rng, (*ODD_NUMBERS, None))
            case _:
                columns["label"][odd] = of(rng, (None, 99))
    return columns


def listed(rng, odd):
    """One column of lists."""
    columns = {"v": [row.tolist() for row in rng.normal(size=(COUNT, len(NUMBERS)))]}
    columns["label"] = (np.arange(COUNT) % CLASSES).tolist()
    if odd is not None:
        strange = ([], [1.0], [1.0] * 9, None, [np.nan] * 4, [1e300] * 4, [1.0, None, 1.0, 1.0])
        columns["v"][odd] = of(rng, strange)
    return columns


def texts(rng, odd):
    """One column of texts."""
    told = ["ill", "well", "tired", "7", "a b", "é"]
    columns = {"note": [" ".join(rng.choice(told, 4)) for _ in range(COUNT)]}
    columns["label"] = (np.arange(COUNT) % CLASSES).tolist()
    if odd is not None:
        columns["note"][odd] = of(rng, ("", None, "x " * 500, "\u0000", "12", "\ufffd"))
    return columns


def cells(rng, odd):
    """Pictures in cells of a table."""
    pixels, labels = pictures(rng)
    columns = {"picture": [{"bytes": png(Image.fromarray(p)), "path": None} for p in pixels]}
    columns["label"] = labels.tolist()
    if odd is not None:
        strange = {"bytes": broken_picture(rng, pixels[odd]), "path": None}
        columns["picture"][odd] = of(
            rng, (strange, None, {"bytes": None, "path": "none.png"}, {"bytes": None, "path": None})
        )
    return columns


def parquet(columns):
    def write(folder, rng, odd):
        pyarrow.parquet.write_table(pyarrow.table(columns(rng, odd)), folder / "x.parquet")
        return folder / "x.parquet"

    return write


def saved(columns):
    def write(folder, rng, odd):
        datasets.disable_progress_bars()
        datasets.Dataset.from_dict(columns(rng, odd)).save_to_disk(folder / "x")
        return folder / "x"

    return write


def csv_table(columns):
    """The same as text, in which any cell may hold any text."""

    def write(folder, rng, odd):
        found = columns(rng, odd)
        if odd is not None and rng.random() < 0.5:
            name = of(rng, list(found))
            found[name][odd] = of(rng, ODD_LABELS if name == "label" else ODD_TEXTS)
        rows = zip(*found.values(), strict=True)
        with (folder / "x.csv").open("w", newline="") as file:
            csv.writer(file).writerow(found)
            csv.writer(file).writerows(["" if v is None else v for v in row] for row in rows)
        return folder / "x.csv"

    return write


IMAGES = {"none": lambda: None, "pca": lambda: pca(components=4), "scattering": scattering}
PLAIN = {"none": lambda: None, "pca": lambda: pca(components=2)}
BINS = {"bins": lambda: bins(schema=SCHEMA, crossed=[["month", "carrier"]])}
SQUARE, ROW, TEXT = (1, SIDE, SIDE), (len(NUMBERS), 1, 1), (1, 1, 16)
OF_NUMBERS = {"inputs": NUMBERS}
OF_SCHEMA = {"inputs": tuple(SCHEMA)}
SOURCES = {
    "npz": Source(write_npz, SQUARE, IMAGES),
    "npz of integers": Source(write_integers, SQUARE, IMAGES),
    "folder": Source(write_folder, SQUARE, IMAGES),
    "csv of pixels": Source(write_pixels, SQUARE, IMAGES),
    "csv of names": Source(write_names, SQUARE, IMAGES),
    "csv": Source(csv_table(typed), ROW, PLAIN, OF_NUMBERS),
    "parquet": Source(parquet(typed), ROW, PLAIN, OF_NUMBERS),
    "saved": Source(saved(typed), ROW, PLAIN, OF_NUMBERS),
    "csv of bins": Source(csv_table(binned), (3, 1, 1), BINS, OF_SCHEMA),
    "parquet of bins": Source(parquet(binned), (3, 1, 1), BINS, OF_SCHEMA),
    "parquet of lists": Source(parquet(listed), ROW, PLAIN, {"inputs": ("v",)}),
    "csv of texts": Source(
        csv_table(texts), TEXT, {"words": lambda: words(size=16)}, {"inputs": ("note",)}
    ),
    "parquet of texts": Source(
        parquet(texts), TEXT, {"words": lambda: words(size=16)}, {"inputs": ("note",)}
    ),
    "parquet of pictures": Source(parquet(cells), SQUARE, IMAGES, {"inputs": ("picture",)}),
}
