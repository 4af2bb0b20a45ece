"""Arrays of .npz files, as images and labels."""

import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.cache import RawExamples
from murmur.learning.data.cells import BOOLEANS, narrow
from murmur.learning.data.file_errors import damaged
from murmur.learning.objective import CLASSIFICATION, Objective


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file, by name.

    Raises:
        DataError: it is no such file, does not fit into memory, or holds pickled objects.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise damaged(path, "it is a single array, not an .npz archive")
        with archive:
            arrays = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise damaged(path, error) from error
    except MemoryError as error:  # of what a header promises
        raise damaged(path, f"it does not fit into memory: {error}") from error
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):  # bytes of anything else that lies in the archive
            raise damaged(path, f"{key} is no array")
    return arrays


def array_names(path: Path) -> list[str]:
    """Names of the arrays of an .npz file; DataError where it is none."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return list(archive.files)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise damaged(path, error) from error


def array_examples(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    images_key: str,
    labels_key: str,
    blanks: Blanks = STRICT,
    objective: Objective = CLASSIFICATION,
) -> RawExamples:
    """Two arrays of an .npz file as examples.

    Images: (N, H, W), (N, H, W, C) with C = 1 or 3, or (N, C, H, W) (channels last where both fit);
    integers in 0..255, which are divided by 255, or finite floats, which stay as they are. Other
    arrays of floats: (N, F) becomes (N, F, 1, 1), and what has more than four axes (N, C, H, the
    product of the others). Labels: integers of at least 0, or text, (N,) or (N, 1); of
    another task finite numbers (N,), or 0 and 1 (N, L).

    Args:
        path: the file, for errors.
        arrays: all that it holds.
        images_key: name of the images.
        labels_key: name of the labels.
        blanks: notes images that are not as above, and labels of a task without classes. Where
            such may be, classes are as the file has them, of any type: ``cells.number_classes``
            numbers each by itself.
        objective: the task that labels are of.

    Raises:
        DataError: an array is missing or not as above, naming the file and the array.
    """
    for key in (images_key, labels_key):
        if key not in arrays:
            raise damaged(path, f"it lacks the array {key}; it has {sorted(arrays)}")
    images = arrays[images_key]
    labels = arrays[labels_key]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if not objective.has_classes:
        labels = _targets(path, labels_key, labels, objective, blanks)
    elif labels.ndim != 1 or labels.dtype.kind not in ("iubfU" if blanks.allowed else "iubU"):
        raise damaged(
            path,
            f"{labels_key} is {labels.dtype}{labels.shape}, not integers or text (N,) or (N, 1)",
        )
    is_class = objective.has_classes and labels.dtype.kind != "U"
    if not blanks.allowed and is_class and len(labels) and labels.min() < 0:
        raise damaged(path, f"{labels_key} holds {labels.min()}; labels start at 0")
    if images.ndim < 2:
        raise damaged(path, f"{images_key} has shape {images.shape}, not one row for each example")
    if images.ndim == 2:
        images = images[:, :, None, None]
    elif images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    elif images.ndim == 4 and images.shape[3] in (2, 4) and min(images.shape[1:3]) > 4:
        channels, height, width = images.shape[1:]
        raise damaged(
            path,
            f"{images_key} has shape {images.shape}: an alpha channel at the end, or {channels} "
            f"channels of {height} × {width}? Leave grey (1) or RGB (3)",
        )
    elif images.ndim > 4:
        images = images.reshape(*images.shape[:3], -1)
    if len(images) != len(labels):
        raise damaged(path, f"{images_key} holds {len(images)} images for {len(labels)} labels")
    if labels.dtype.kind in "iub":
        labels = labels.astype(np.int64)
    return RawExamples(_pixels(path, images_key, images, blanks), labels)


def _targets(
    path: Path, key: str, labels: NDArray[Any], objective: Objective, blanks: Blanks
) -> NDArray[np.float32]:
    """Labels of a task without classes, float32 (N,) or (N, L); DataError for others.

    Where rows may be blank, texts are read too: one of them makes texts of all numbers.
    """
    axes = 1 if objective.kind == "regression" else 2
    if blanks.allowed and labels.dtype.kind == "U":
        labels = _written(labels, blanks)
    if labels.dtype.kind not in "iubf" or labels.ndim != axes:
        shape = "(N,) or (N, 1)" if axes == 1 else "(N, labels)"
        raise damaged(
            path,
            f"{key} is {labels.dtype}{labels.shape}, not numbers {shape} for task={objective.kind}",
        )
    columns = labels.reshape(len(labels), math.prod(labels.shape[1:]))
    infinite = ~np.all(np.isfinite(columns), axis=1)
    blanks.add_all(infinite, lambda row: damaged(path, f"{key} holds NaN or infinite values"))
    if infinite.any():
        columns = np.where(infinite[:, None], columns.dtype.type(0), columns)
    found = narrow(columns, f"{path}: {key}", blanks)
    if objective.kind == "regression":
        return found[:, 0]
    odd = (found != 0) & (found != 1)
    blanks.add_all(
        odd.any(axis=1),
        lambda row: damaged(
            path, f"{key} holds {found[row][odd[row]][0]:g}; labels of task=multilabel are 0 or 1"
        ),
    )
    return found


def _written(texts: NDArray[Any], blanks: Blanks) -> NDArray[np.float64]:
    """The numbers that texts write, of the same shape; rows with another text are noted."""
    found = np.zeros(texts.shape)
    for row, own in enumerate(texts):
        with blanks.of(row):
            words = np.ravel(own).tolist()
            numbers = [float(BOOLEANS.get(word, word)) for word in words]
            found[row] = np.reshape(numbers, np.shape(own))
    return found


def _pixels(path: Path, key: str, images: NDArray[Any], blanks: Blanks) -> NDArray[Any]:
    """Images as bytes, or as floats of 32 bits; DataError for other numbers."""
    if images.dtype == np.uint8:
        return images
    kind = images.dtype.kind
    if kind not in "iuf":
        raise damaged(path, f"{key} is {images.dtype}; give integers or floats")
    flat = images.reshape(len(images), math.prod(images.shape[1:]))
    if kind == "f":
        infinite = ~np.all(np.isfinite(flat), axis=1)
        blanks.add_all(infinite, lambda row: damaged(path, f"{key} holds NaN or infinite values"))
        if infinite.any():
            flat = np.where(infinite[:, None], flat.dtype.type(0), flat)
        return narrow(flat, f"{path}: {key}", blanks).reshape(images.shape)
    outside = np.any((flat < 0) | (flat > 255), axis=1)
    blanks.add_all(
        outside,
        lambda row: damaged(
            path,
            f"{key} ({images.dtype}) lies in {images.min()}..{images.max()}; integers are pixels "
            "in 0..255; give other numbers as floats",
        ),
    )
    if outside.any():
        flat = np.where(outside[:, None], 0, flat)
    return flat.astype(np.uint8).reshape(images.shape)
