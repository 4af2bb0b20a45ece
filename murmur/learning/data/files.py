"""Readers of the files in which data come: public archives, arrays, CSV files and pictures.

IDX (MNIST), SVHN's .mat, CIFAR-10's batches, arrays in .npz files, rows of CSV files as text, and
whatever pictures Pillow reads. Nothing is unpacked to disk, so the folder that holds the files may
be read-only. Every reader checks what it has read and raises DataError, which names the file, what
is wrong and what to do; what a file names is never executed.

CSV files are read by Python's own ``csv`` and not by pandas, which fills short rows up, numbers
columns of the same name, and cuts long rows or takes their first field for an index: here a file is
read to the letter or refused.
"""

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import math
import pickle
import re
import tarfile
import zipfile
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.cache import RawExamples
from murmur.learning.data.cells import is_missing, narrow, nfc
from murmur.learning.data.examples import DataError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"})
_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation", "eval")  # the first that is there
_PACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_QUOTED = re.compile(r'"[^"]*"')
_TIFF_INK, _ZERO_IS_WHITE = 262, 0  # PhotometricInterpretation
_TIFF_NUMBERS, _SIGNED = 339, 2  # SampleFormat
_LONGEST_FIELD = 2**31 - 1  # of the csv module, which would refuse long texts


def damaged(path: Path | str, problem: object) -> DataError:
    """The error for a file whose content is not what it should be.

    Args:
        path: the file.
        problem: an exception or words, which are put on one line.
    """
    detail = " ".join(str(problem).split()) or type(problem).__name__
    return DataError(f"{path} is damaged or of another kind ({detail}); replace it by a good copy")


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file that the operating system refuses to give."""
    return DataError(f"{path} cannot be read ({error.strerror or error}); restore it")


def wrong_row(path: Path, line: int, what: str) -> DataError:
    """The error for one line of a CSV file.

    Args:
        path: the file.
        line: its number, from 1.
        what: is wrong with it.
    """
    return DataError(f"{path}, line {line}: it has {what}; correct the file")


def _read_bytes(path: Path) -> bytes:
    """All of a file; DataError where the operating system does not give it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


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
    content = _read_bytes(path)
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
) -> RawExamples:
    """Two arrays of an .npz file as examples.

    Images: (N, H, W), (N, H, W, C) with C = 1 or 3, or (N, C, H, W) (channels last where both fit);
    integers in 0..255, which are divided by 255, or finite floats, which stay as they are. Other
    arrays of floats: (N, F) becomes (N, F, 1, 1), and what has more than four axes (N, C, H, the
    product of the others). Labels: integers of at least 0, or text, (N,) or (N, 1).

    Args:
        path: the file, for errors.
        arrays: all that it holds.
        images_key: name of the images.
        labels_key: name of the labels.
        blanks: notes images that are not as above. Where such may be, labels are as the file has
            them, of any type: ``cells.number_classes`` numbers each by itself.

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
    if labels.ndim != 1 or labels.dtype.kind not in ("iubfU" if blanks.allowed else "iubU"):
        raise damaged(
            path,
            f"{labels_key} is {labels.dtype}{labels.shape}, not integers or text (N,) or (N, 1)",
        )
    is_text = labels.dtype.kind == "U"
    if not blanks.allowed and not is_text and len(labels) and labels.min() < 0:
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


@contextmanager
def open_csv(
    path: Path, blanks: Blanks = STRICT
) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """The header, and an iterator over (line number, fields) of the rows that are not empty.

    UTF-8, packed or not; commas, or, where the header has none, semicolons or tabs. Names (in
    NFC) and fields are what the file says, to the letter.

    Args:
        path: the file.
        blanks: notes rows that are longer or shorter than the header, or whose quotes are not
            closed; their fields are empty. Bytes that are no UTF-8 are then ``\ufffd``.

    Raises:
        DataError: the file cannot be read, a name stands twice, a row is longer or shorter than
            the header, or quotes are not closed.
    """
    unpack = _PACKED.get(path.suffix.lower(), open)
    csv.field_size_limit(_LONGEST_FIELD)
    how = {"newline": "", "encoding": "utf-8-sig"}
    if blanks.allowed:
        how["errors"] = "replace"
    try:
        with unpack(path, "rt", **how) as file:
            separator = _separator(file.readline())
        with unpack(path, "rt", **how) as file:
            lines = _Lines(file)
            reader = csv.reader(lines, strict=True, delimiter=separator)
            header = list(map(nfc, next(reader, [])))
            if not header or len(set(header)) != len(header):
                raise wrong_row(path, 1, f"the header {header[:9]}; it must name each column once")
            yield header, _rows(path, lines, reader, len(header), blanks)
    except (csv.Error, UnicodeDecodeError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}); convert it") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _separator(line: str) -> str:
    """What separates the names of the header ``line``: commas, else semicolons or tabs."""
    bare = _QUOTED.sub("", line)
    return next((separator for separator in ",;\t" if separator in bare), ",")


class _Lines:
    """The lines of a file, of which those since ``begin`` can be read again but for the first."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file = iter(file)
        self._again: deque[str] = deque()
        self._taken: list[str] = []
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._file)
        self._taken.append(line)
        self.number += 1
        return line

    def begin(self) -> None:
        """Forget the lines so far: a row begins."""
        self._taken.clear()

    def give_back(self) -> None:
        """Let all lines of a row but its first be read again: a quote has taken in other rows."""
        again = self._taken[1:]
        self._again.extendleft(reversed(again))
        self.number -= len(again)


def _rows(
    path: Path, lines: _Lines, reader: Any, width: int, blanks: Blanks
) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of each row; a broken one is its first line, and has empty fields."""
    row = 0
    while True:
        lines.begin()
        try:
            fields = next(reader, None)
            if fields is None:
                return
            if fields and len(fields) != width:
                said = f"{len(fields)} fields, the header has {width}"
                raise wrong_row(path, lines.number, said)
        except (csv.Error, DataError) as error:
            blanks.add(row, error)
            lines.give_back()
            fields = [""] * width
        if fields:
            yield lines.number, fields
            row += 1


def split_folders(root: Path) -> tuple[list[Path], list[str]]:
    """The folders of the training and test classes, and names that are left out.

    ``root`` itself, unless its folders are named as splits are (whatever the case); a second one
    for evaluation (``val`` beside ``test``) is left out.

    Returns:
        One folder, or that of the training and that of the test classes; names of others.

    Raises:
        DataError: splits and other folders lie side by side, or one split has two names.
    """
    try:
        found = sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    except OSError as error:
        raise unreadable(root, error) from error
    train = [path for path in found if path.name.lower() in _TRAIN]
    held_out = [path for path in found if path.name.lower() in _TEST]
    others = [path.name for path in found if path not in train and path not in held_out]
    if not train or (others and not held_out):
        return [root], []  # a class may be called train
    names = [path.name.lower() for path in held_out]
    if others or len(train) > 1 or len(set(names)) != len(names):
        raise DataError(
            f"{root} holds {', '.join(path.name for path in found)}: splits or classes? Leave one "
            "folder for training and one for testing, or class folders only"
        )
    held_out.sort(key=lambda path: _TEST.index(path.name.lower()))
    return [train[0], *held_out[:1]], [path.name for path in held_out[1:]]


def class_files(
    folder: Path, reached: dict[tuple[int, int], Path], owners: int = 0
) -> list[tuple[str, Path]]:
    """Every file below a folder of class folders, behind links too.

    Hidden files are passed over, and whatever lies in ``folder`` itself.

    Args:
        folder: of class folders, or of owners' folders that hold them.
        reached: see ``_below``.
        owners: levels of folders above the class that say whose a file is (``owner_of``).

    Returns:
        (class name, file), sorted.

    Raises:
        DataError: a class folder cannot be read, two paths lead to it, classes seem to lie one
            folder deeper, or a file of an owner is in no class folder.
    """
    found = _below(folder, reached)
    for path in found:
        if len(path.relative_to(folder).parts) < owners + 2:
            raise DataError(
                f"{path}: lies in no class folder; dataset.owners={owners} says that pictures lie "
                f"in {'<owner>/' * owners}<class>/<file>"
            )
    _require_one_level(folder, found, owners)
    return [(path.relative_to(folder).parts[owners], path) for path in found]


def owner_of(folder: Path, path: Path, owners: int) -> str:
    """Whose the file ``path`` below ``folder`` is: the names of the first ``owners`` folders."""
    return "/".join(path.relative_to(folder).parts[:owners])


def loose_pictures(folder: Path) -> int:
    """How many pictures lie in ``folder`` itself, of no class."""
    return sum(
        path.suffix.lower() in SUFFIXES and path.name[0] != "." and not path.is_dir()
        for path in folder.iterdir()
    )


def _below(folder: Path, reached: dict[tuple[int, int], Path] | None = None) -> list[Path]:
    """Every file in the folders of ``folder``, sorted; names that begin with a dot are passed over.

    Links are followed. What leads back to a folder above itself adds nothing.

    Args:
        folder: what lies in it directly is passed over.
        reached: folders that were read before, by device and inode; takes up these. None: a folder
            may be reached twice, and one that cannot be read stands for a file.

    Raises:
        DataError: a folder cannot be read, or two paths lead to it.
    """
    found: list[Path] = []

    def walk(place: Path, above: frozenset[tuple[int, int]]) -> None:
        try:
            stat = place.stat()
            entries = sorted(place.iterdir())
        except OSError as error:
            if reached is not None or place == folder:
                raise unreadable(place, error) from error
            found.append(place)
            return
        itself = (stat.st_dev, stat.st_ino)
        if reached is not None and itself in reached:
            raise DataError(
                f"{place} and {reached[itself]} are one folder, by a link, and its files would be "
                "read twice; remove the link"
            )
        if itself in above:
            return
        if reached is not None:
            reached[itself] = place
        for path in entries:
            if path.name.startswith("."):
                continue
            if path.is_dir():
                walk(path, above | {itself})
            elif place != folder:
                found.append(path)

    walk(folder, frozenset())
    return sorted(found)


def require_picture(path: Path) -> None:
    """DataError for a file of another kind, by the ending of its name."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path} is no picture ({', '.join(sorted(SUFFIXES))}); convert or remove it"
        )


def each_file(folder: Path, classes: Sequence[str]) -> list[tuple[str, Path]]:
    """Every file below a folder of class folders, each with its class by its own path alone.

    That is the first folder of its path, or the one below a folder for training. Links to folders
    are followed, but not in circles. Hidden files are passed over, files of a folder for
    evaluation, and whatever lies in ``folder`` itself.

    Args:
        folder: of class folders.
        classes: their names; a class may be called train.

    Returns:
        (class name, file), sorted.
    """
    found = []
    known = set(map(nfc, classes))
    for path in _below(folder):
        first, *others = path.relative_to(folder).parts
        split = first.lower() if nfc(first) not in known else ""
        if split in _TRAIN and len(others) > 1:
            first = others[0]
        if split not in _TEST:
            found.append((first, path))
    return found


def _require_one_level(folder: Path, files: Sequence[Path], owners: int) -> None:
    """DataError where ``folder`` seems to hold folders of classes and not the classes.

    ``owners``: levels of folders above the class.
    """
    below: dict[str, set[str]] = {}
    for path in files:
        name, *deeper = path.relative_to(folder).parts[owners:-1]
        below.setdefault(name, set()).add(deeper[0] if deeper else "")
    shared = Counter(chain(*below.values()))
    twice = sorted(name for name, count in shared.items() if name and count > 1)
    if twice:
        raise DataError(
            f"{folder}: several of its folders hold folders named {', '.join(twice[:5])}; are "
            "these the classes? Put all pictures of a class into one folder, or where the folders "
            f"above them are owners, set dataset.owners={owners + 1}"
        )
    if len(below) == 1 and "" not in shared and len(shared) > 1:
        raise DataError(
            f"{folder} holds one folder, {next(iter(below))}, and the classes seem to lie in it; "
            "set dataset.root to that"
        )


def read_images(
    paths: Sequence[Path], height: int, width: int, channels: int, blanks: Blanks = STRICT
) -> NDArray[np.uint8]:
    """Pictures of files, (N, ``channels``, ``height``, ``width``); see ``read_image``.

    ``blanks``: notes files that hold none, which are zeros.
    """
    images = np.zeros((len(paths), channels, height, width), dtype=np.uint8)
    for row, path in enumerate(paths):
        with blanks.of(row):
            images[row] = read_image(path, height=height, width=width, channels=channels)
    return images


def read_image(
    file: Path | io.BytesIO, *, height: int, width: int, channels: int, name: str = ""
) -> NDArray[np.uint8]:
    """The picture in ``file`` as (``channels``, ``height``, ``width``).

    Turned as its EXIF tag says, laid on white where it is transparent, converted to grey (1
    channel, ITU-R 601 luma) or RGB (3), and resized without regard to its proportions (Pillow's
    antialiased bilinear filter). 16 bits are brought to 8 by the upper byte, and inverted where 0
    is white. Of a camera's file with a preview (MPO), the picture itself.

    ``name``: with which errors begin, if not by the file's.

    Raises:
        DataError: the file is missing, damaged, not a picture of that kind, holds several, or would
            become a blank one: 16 bits of which fewer are used, white ink on nothing.
    """
    from PIL import Image, UnidentifiedImageError

    name = name or str(file)
    try:
        with Image.open(file) as opened:
            return _to_pixels(opened, height, width, channels, name)
    except FileNotFoundError as error:
        raise DataError(f"{name} does not exist; restore it or remove its entry") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{name} is not a picture that Pillow reads; replace it") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} is damaged ({error}); replace it") from error


def read_stored(
    picture: Any, height: int, width: int, channels: int, name: str
) -> NDArray[np.uint8]:
    """The picture of a table's cell, as ``read_image`` gives it.

    Args:
        picture: a mapping with the ``bytes`` of a file or its ``path``.
        height: in pixels.
        width: in pixels.
        channels: 1 (grey) or 3 (RGB).
        name: of the cell, with which errors begin.

    Raises:
        DataError: as ``read_image``, or there is no picture.
    """
    if is_missing(picture):
        raise DataError(f"{name}: has no picture; add it, or leave the row out")
    file: Path | io.BytesIO = Path(str(picture["path"]))
    if picture["bytes"] is not None:
        file = io.BytesIO(picture["bytes"])
    return read_image(file, height=height, width=width, channels=channels, name=name)


def _to_pixels(
    picture: Any, height: int, width: int, channels: int, name: str
) -> NDArray[np.uint8]:
    """A picture that Pillow has opened, as ``read_image`` says."""
    from PIL import Image, ImageOps

    tags = getattr(picture, "tag_v2", {})  # of a TIFF file
    _require_one_meaning(picture, tags, name)
    # Pillow itself drops the lower byte of 16-bit colours; what it reads is known before it does.
    cut = any("16" in str(tile[3]) for tile in getattr(picture, "tile", ()))
    image = ImageOps.exif_transpose(picture)
    if image.mode.startswith("I;16"):
        pixels = np.asarray(image)
        _require_sixteen_bits(int(pixels.max()), name)
        if tags.get(_TIFF_INK) == _ZERO_IS_WHITE:  # which Pillow heeds up to 8 bits
            pixels = ~pixels
        image = Image.fromarray((pixels >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise DataError(
            f"{name} has {image.mode} pixels of unknown range; convert it to 8 or 16 bits"
        )
    elif cut:
        _require_sixteen_bits(int(np.asarray(image.convert("RGB")).max()) << 8, name)
    if image.has_transparency_data:
        image = _on_white(image, name)
    mode = "RGB"
    if channels == 1:
        mode = "L"
    pixels = np.asarray(image.convert(mode).resize((width, height), Image.Resampling.BILINEAR))
    if channels == 1:
        return pixels[None]
    return pixels.transpose(2, 0, 1)


def _require_one_meaning(picture: Any, tags: Mapping[int, Any], name: str) -> None:
    """DataError for a file of which Pillow would show something else than it holds.

    Args:
        picture: as Pillow has opened it.
        tags: of a TIFF file.
        name: with which the error begins.
    """
    frames = getattr(picture, "n_frames", 1)
    problem = ""
    if frames > 1 and picture.format != "MPO":
        problem = f"holds {frames} pictures (frames, pages); save the one that is meant"
    elif picture.mode == "L" and _SIGNED in tags.get(_TIFF_NUMBERS, ()):
        problem = "has signed 8-bit pixels; convert it to unsigned ones"
    elif picture.mode.startswith("I;16") and "transparency" in picture.info:
        problem = "has 16 bits and a transparent grey level; convert it to 8 bits"
    elif picture.mode == "CMYK" and picture.format == "JPEG" and "adobe" not in picture.info:
        problem = "is a CMYK JPEG that does not say whether 0 is ink; convert it to RGB"
    if problem:
        raise DataError(f"{name}: {problem}")


def _require_sixteen_bits(largest: int, name: str) -> None:
    """DataError where the two upper bits are never used: the file holds 14 bits, 12 or fewer."""
    if largest < 1 << 14:
        raise DataError(
            f"{name}: its 16-bit pixels are all below {1 << 14:,}, so that fewer bits are used and "
            "it would become dark; convert it to 8 bits"
        )


def _on_white(image: Any, name: str) -> Any:
    """A transparent picture on white paper; DataError where nothing of it is to be seen there."""
    from PIL import Image

    inked = image.convert("RGBA")
    paper = Image.new("RGBA", inked.size, "white")
    laid = Image.alpha_composite(paper, inked).convert("RGB")
    if _is_even(laid) and not _is_even(inked):
        raise DataError(f"{name}: is transparent and as white as the paper; give it a background")
    return laid


def _is_even(image: Any) -> bool:
    """Whether all pixels of a picture are the same."""
    return all(low == high for low, high in image.getextrema())
