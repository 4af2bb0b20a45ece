"""Readers of the files in which public data sets come: IDX, SVHN's .mat, CIFAR-10's batches, npz.

Nothing is unpacked to disk, so the folder that holds the archives may be read-only. Every
reader checks what it read and raises DataError naming the file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.cache import RawExamples
from murmur.learning.data.examples import DataError
from murmur.learning.data.numbers import narrow


def damaged(path: Path | str, problem: object) -> DataError:
    """The error for a file whose content is not what it should be."""
    detail = " ".join(str(problem).split()) or type(problem).__name__
    return DataError(f"{path} is damaged or of another kind ({detail}); replace it by a good copy")


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file that the operating system refuses to give."""
    return DataError(f"{path} cannot be read ({error.strerror or error}); restore it")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def require_md5(path: Path, expected: str) -> None:
    """Raises DataError unless the file's MD5 sum, which guards against damage, is as expected."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    except OSError as error:
        raise unreadable(path, error) from error
    if digest.hexdigest() != expected:
        raise damaged(path, f"its MD5 sum is {digest.hexdigest()}, the official one is {expected}")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, gzipped when its name ends in .gz (MNIST's format)."""
    content = _read_bytes(path)
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, error) from error
    # Two zero bytes, the type (8: unsigned byte), the number of dimensions, then each one.
    start = 4 + 4 * content[3] if len(content) >= 4 else 4
    if len(content) < start or content[:3] != b"\x00\x00\x08":
        raise damaged(path, "it does not start like an IDX file of bytes")
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if len(content) - start != math.prod(shape):
        raise damaged(
            path,
            f"its header says {shape}, which needs {math.prod(shape)} bytes of content; "
            f"it has {len(content) - start}",
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_idx_pair(images: Path, labels: Path) -> RawExamples:
    """Images (N, H, W) and labels (N,) from two IDX files, as (N, 1, H, W)."""
    pixels, classes = read_idx(images), read_idx(labels)
    if pixels.ndim != 3:
        raise damaged(images, f"it holds an array of shape {pixels.shape}, not (N, H, W)")
    if classes.shape != pixels.shape[:1]:
        raise damaged(labels, f"it holds {classes.shape} labels for {len(pixels)} images")
    return RawExamples(pixels[:, None], classes)


def read_svhn(path: Path) -> RawExamples:
    """One of SVHN's cropped-digit files: X (32, 32, 3, N), y (N, 1), where 10 stands for zero."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=("X", "y"))
        pixels, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
    except Exception as error:  # scipy raises a dozen kinds for a damaged file
        raise damaged(path, error) from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2:] != (3, len(labels)):
        raise damaged(
            path,
            f"X is {pixels.dtype}{pixels.shape} for {len(labels)} labels, not uint8 (32, 32, 3, N)",
        )
    if len(labels) and not (labels.min() >= 1 and labels.max() <= 10):
        raise damaged(path, f"labels in {labels.min()}..{labels.max()}, not 1..10")
    return RawExamples(pixels.transpose(3, 2, 0, 1), labels % 10)


def read_cifar10(files: Sequence[Path]) -> tuple[RawExamples, RawExamples]:
    """CIFAR-10's train and test examples from its one archive, or from its batch files."""
    if len(files) == 1:
        batches = _cifar10_members(files[0])
    else:
        batches = {path.name: _read_bytes(path) for path in files}
    parts = {name: _cifar10_batch(batches[name], name, files[0]) for name in sorted(batches)}
    test = parts.pop("test_batch", None)
    if test is None or not parts:
        raise damaged(files[0], f"it holds only {sorted(batches)}")
    train = RawExamples(
        np.concatenate([part.pixels for part in parts.values()]),
        np.concatenate([part.labels for part in parts.values()]),
    )
    return train, test


def _cifar10_members(path: Path) -> dict[str, bytes]:
    batches = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                file = archive.extractfile(member)
                if file is not None and (name == "test_batch" or name.startswith("data_batch_")):
                    batches[name] = file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise damaged(path, error) from error
    return batches


def _cifar10_batch(content: bytes, name: str, path: Path) -> RawExamples:
    """One pickled batch: ``data`` (N, 3072) in channel, row, column order, and ``labels``."""
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
        images = pixels.reshape(len(labels), 3, 32, 32)
    except Exception as error:  # unpickling damaged bytes raises nearly anything
        raise damaged(path, f"{name}: {error}") from error
    if pixels.dtype != np.uint8 or labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise damaged(path, f"{name}: data {pixels.dtype}, labels {labels.dtype}{labels.shape}")
    if len(labels) and not (labels.min() >= 0 and labels.max() <= 9):
        raise damaged(path, f"{name}: labels in {labels.min()}..{labels.max()}, not 0..9")
    return RawExamples(images, labels)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numbers, text, containers and NumPy arrays; never runs what a file names."""

    _ALLOWED = frozenset(
        {
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core.", "numpy._core.")  # its name before NumPy 2
        if (module, name) in self._ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; pickled objects are refused."""
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise damaged(path, "it is a single array, not an .npz archive")
        with archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise damaged(path, error) from error
    except MemoryError as error:  # of what a header promises
        raise damaged(path, f"it does not fit into memory: {error}") from error


def array_examples(
    path: Path, arrays: Mapping[str, NDArray[Any]], images_key: str, labels_key: str
) -> RawExamples:
    """Two arrays of an .npz file as examples.

    Images: (N, H, W), (N, H, W, C) with C = 1 or 3, or (N, C, H, W) (channels last where both fit);
    integers in 0..255, which are divided by 255, or finite floats, which stay as they are. Other
    arrays of floats: (N, F) becomes (N, F, 1, 1), and what has more than four axes
    (N, C, H, the product of the others). Labels: integers of at least 0, (N,) or (N, 1).

    Raises:
        DataError: an array is missing or not as above, naming the file and the array.
    """
    for key in (images_key, labels_key):
        if key not in arrays:
            raise damaged(path, f"it lacks the array {key}; it has {sorted(arrays)}")
    images, labels = arrays[images_key], arrays[labels_key]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise damaged(
            path, f"{labels_key} is {labels.dtype}{labels.shape}, not integers (N,) or (N, 1)"
        )
    if len(labels) and labels.min() < 0:
        raise damaged(path, f"{labels_key} holds {labels.min()}; labels start at 0")
    if images.ndim < 2:
        raise damaged(path, f"{images_key} has shape {images.shape}, not one row for each example")
    if images.ndim == 2:
        images = images[:, :, None, None]
    elif images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    elif images.ndim > 4:
        images = images.reshape(*images.shape[:3], -1)
    if len(images) != len(labels):
        raise damaged(path, f"{images_key} holds {len(images)} images for {len(labels)} labels")
    return RawExamples(_pixels(path, images_key, images), labels.astype(np.int64))


def _pixels(path: Path, key: str, images: NDArray[Any]) -> NDArray[Any]:
    if images.dtype == np.uint8:
        return images
    kind = images.dtype.kind
    if kind not in "iuf":
        raise damaged(path, f"{key} is {images.dtype}; give integers or floats")
    if kind == "f":
        if not np.isfinite(images).all():
            raise damaged(path, f"{key} holds NaN or infinite values")
        flat = narrow(images.reshape(len(images), math.prod(images.shape[1:])), f"{path}: {key}")
        return flat.reshape(images.shape)
    if images.size and not (images.min() >= 0 and images.max() <= 255):
        raise damaged(
            path,
            f"{key} ({images.dtype}) lies in {images.min()}..{images.max()}; integers are pixels "
            "in 0..255; give other numbers as floats",
        )
    return images.astype(np.uint8)
