"""Readers of public archives: IDX (MNIST), SVHN's .mat, CIFAR-10's batches.

Nothing is unpacked to disk, so the folder that holds the files may be read-only. Every reader
checks what it has read and raises DataError, which names the file, what is wrong and what to do;
what a file names is never executed.
"""

import gzip
import hashlib
import io
import math
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.cache import RawExamples
from murmur.learning.data.file_errors import damaged, read_bytes, unreadable


def require_md5(path: Path, expected: str) -> None:
    """Check a file's MD5 sum, which guards against damage and not against forgery.

    Raises:
        DataError: it cannot be read, or the sum is another.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    except OSError as error:
        raise unreadable(path, error) from error
    if digest.hexdigest() != expected:
        raise damaged(path, f"its MD5 sum is {digest.hexdigest()}, the official one is {expected}")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, gzipped where its name ends in .gz.

    The format of MNIST (LeCun, Cortes and Burges).

    Returns:
        An array of the shape that the header says.

    Raises:
        DataError: it is another file, or longer or shorter than its header says.
    """
    content = read_bytes(path)
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, error) from error
    # Two zero bytes, the type (8: unsigned byte), the number of dimensions, then each one.
    start = 4
    if len(content) >= 4:
        start = 4 + 4 * content[3]
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
    """Images and labels from two IDX files.

    Args:
        images: of shape (N, H, W), which become (N, 1, H, W).
        labels: of shape (N,).

    Raises:
        DataError: one of them is damaged, or they do not belong together.
    """
    pixels = read_idx(images)
    classes = read_idx(labels)
    if pixels.ndim != 3:
        raise damaged(images, f"it holds an array of shape {pixels.shape}, not (N, H, W)")
    if classes.shape != pixels.shape[:1]:
        raise damaged(labels, f"it holds {classes.shape} labels for {len(pixels)} images")
    return RawExamples(pixels[:, None], classes)


def read_svhn(path: Path) -> RawExamples:
    """One of SVHN's cropped-digit files: X (32, 32, 3, N), y (N, 1), where 10 stands for zero.

    Returns:
        Images (N, 3, 32, 32), labels 0 to 9.

    Raises:
        DataError: it is damaged or holds something else.
    """
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=("X", "y"))
        pixels = content["X"]
        labels = content["y"].reshape(-1).astype(np.int64)
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
    """CIFAR-10's examples from its one archive, or from its batch files.

    Returns:
        Train and test examples, (N, 3, 32, 32).

    Raises:
        DataError: a file is damaged, or a batch is missing.
    """
    if len(files) == 1:
        batches = _cifar10_members(files[0])
    else:
        batches = {path.name: read_bytes(path) for path in files}
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
    """Name -> content of the batches in CIFAR-10's archive."""
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
    """One pickled batch: ``data`` (N, 3072) in channel, row, column order, and ``labels``.

    Args:
        content: the pickle, of which nothing but arrays is made (``_ArraysOnly``).
        name: the batch's.
        path: where it is from, for errors.
    """
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        pixels = np.asarray(batch[b"data"])
        labels = np.asarray(batch[b"labels"])
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
