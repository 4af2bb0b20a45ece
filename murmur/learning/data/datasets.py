"""The data sets that Murmur knows by name: scikit-learn's digits, torchvision's, MedMNIST's.

Pixels are scaled to [0, 1] and not normalised further. Files are looked for in the user's folder
``root`` first, which is only ever read, then among earlier downloads, then on the network; names
and MD5 sums are torchvision's own. The decoded arrays live in a cache and are memory-mapped from
there (``cache``). A user's own data: ``own_data`` and ``tables``.
"""

import contextlib
import http.client
import importlib.util
import os
import socket
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from murmur.checks import require_integer
from murmur.learning.data import cache as caching
from murmur.learning.data.archives import read_cifar10, read_idx_pair, read_svhn, require_md5
from murmur.learning.data.examples import DataError, Dataset, Examples, take_out
from murmur.learning.data.npz_arrays import array_examples, read_npz
from murmur.random import experiment_rng
from murmur.settings import Seed

# A network that answers does so in milliseconds; one that does not must not look like a hang.
_NETWORK_TIMEOUT_S = 10.0
_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class Source:
    """A data set's files.

    Attributes:
        name: of the data set; torchvision's class name where ``downloads`` is true.
        folders: where below a root the files may lie, best first.
        alternatives: the sets of file names of which one suffices, best first.
        downloads: whether torchvision downloads it.
    """

    name: str
    folders: tuple[str, ...]
    alternatives: tuple[tuple[str, ...], ...]
    downloads: bool = True

    def find(self, root: Path) -> tuple[Path, ...] | None:
        """The first complete set of files below ``root``, or None."""
        for folder in self.folders:
            for names in self.alternatives:
                paths = tuple(root / folder / name for name in names)
                if all(os.path.isfile(path) for path in paths):
                    return paths
        return None


SOURCES = {
    source.name: source
    for source in (
        *(
            Source(
                name,
                folders=(f"{name}/raw", name),
                alternatives=(tuple(f"{file}.gz" for file in _IDX_FILES), _IDX_FILES),
            )
            for name in ("MNIST", "FashionMNIST")
        ),
        Source("SVHN", ("SVHN", "."), (("train_32x32.mat", "test_32x32.mat"),)),
        Source(
            "CIFAR10",
            ("CIFAR10", ".", "CIFAR10/cifar-10-batches-py", "cifar-10-batches-py"),
            (("cifar-10-python.tar.gz",), _CIFAR10_BATCHES),
        ),
    )
}


def locate(
    source: Source, *, root: str | Path | None, cache: str | Path | None, download: bool
) -> tuple[Path, ...]:
    """The files of ``source``: below ``root``, among earlier downloads, or downloaded now.

    Raises:
        DataError: ``root`` is no folder, or the files are nowhere and cannot be downloaded.
    """
    missing = f"{source.name} has not been downloaded yet and dataset.root is not set"
    if root is not None:
        folder = Path(root).expanduser().absolute()
        if not folder.is_dir():
            raise DataError(f"dataset.root={root}: there is no such folder; {_how_to(source)}")
        found = source.find(folder)
        if found is not None:
            return found
        missing = f"{source.name} is not in dataset.root={root}"
    if not source.downloads:
        raise DataError(f"{missing}; {_how_to(source)}")
    downloads = caching.cache_folder(cache) / "downloads" / source.name
    found = source.find(downloads)
    if found is None and download:
        _download(source, downloads, missing)
        found = source.find(downloads)
    if found is None:
        raise DataError(f"{missing}; {_how_to(source)}, or set dataset.download=true")
    return found


def verify(source: Source, paths: tuple[Path, ...]) -> None:
    """Raises DataError where an archive lacks the MD5 sum that torchvision knows for its name.

    torchvision knows none for unpacked IDX files; these pass.
    """
    from torchvision import datasets

    if source.name == "SVHN":
        sums = {name: md5 for _, name, md5 in datasets.SVHN.split_list.values()}
    elif source.name == "CIFAR10":
        of = datasets.CIFAR10
        sums = {of.filename: of.tgz_md5, **dict(of.train_list), **dict(of.test_list)}
    else:
        sums = dict(getattr(datasets, source.name).resources)
    for path in paths:
        if path.name in sums:
            require_md5(path, sums[path.name])


def _how_to(source: Source) -> str:
    wanted = ", ".join(source.alternatives[0])
    return (
        "set dataset.root or the environment variable MURMUR_DATA to a folder that holds "
        f"{source.folders[0]}/ with {wanted}"
    )


def _download(source: Source, downloads: Path, missing: str) -> None:
    from torchvision import datasets

    dataset = getattr(datasets, source.name)
    with caching.publish_folder(downloads) as temporary:
        try:
            with _socket_timeout(_NETWORK_TIMEOUT_S):
                if source.name == "SVHN":
                    for split in ("train", "test"):
                        dataset(temporary, split=split, download=True)
                else:
                    dataset(temporary, download=True)
        except (OSError, RuntimeError, EOFError, http.client.HTTPException) as error:
            reason = textwrap.shorten(str(error) or type(error).__name__, 200)
            raise DataError(
                f"{missing}, and downloading failed ({reason}); {_how_to(source)}"
            ) from error


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """A limit on each wait for the network; torchvision's downloads set none of their own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def digits(*, test_size: int = 360, split_seed: Seed = 0) -> Dataset:
    """scikit-learn's 1,797 digits of 8×8 grey pixels in 0..16; ships with scikit-learn.

    Args:
        test_size: how many examples form the test set.
        split_seed: which ones; the split depends on nothing else.

    Raises:
        ValueError: ``test_size`` leaves the train or the test set empty.
    """
    require_integer("test_size", test_size, 1)
    content = np.loadtxt(_package_folder("sklearn") / "datasets/data/digits.csv.gz", delimiter=",")
    images = (content[:, None, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    labels = content[:, -1].astype(np.int64)
    if test_size >= len(labels):
        raise ValueError(f"test_size={test_size}: must lie in [1, {len(labels) - 1}]")
    rng = experiment_rng(split_seed, "test split")
    test, train = take_out("test_size", len(labels), test_size, rng)
    every = Examples(images, labels)
    return Dataset("digits", every.take(train), every.take(test), 10, (1, 8, 8))


def _package_folder(name: str) -> Path:
    """Where a package's files are, without importing it: scikit-learn takes seconds."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise DataError(f"dataset=digits: {name} is not installed; it ships with the data")
    return Path(spec.origin).parent


def torchvision_dataset(
    *,
    name: str,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    download: bool = True,
    check_md5: bool = True,
) -> Dataset:
    """MNIST, FashionMNIST, SVHN (cropped digits) or CIFAR10, from the files torchvision uses.

    Args:
        name: torchvision's name of the class.
        root: a folder laid out as torchvision lays it out: ``MNIST/raw/*-ubyte.gz``,
            ``FashionMNIST/raw/*-ubyte.gz`` (or the unpacked files), ``train_32x32.mat`` and
            ``test_32x32.mat``, ``cifar-10-python.tar.gz`` or ``cifar-10-batches-py/``; the last
            two also within a folder ``SVHN`` or ``CIFAR10``. May be read-only.
        cache: where downloads and decoded arrays go; see ``murmur.learning.data.cache``.
        download: whether to download what neither ``root`` nor the cache has.
        check_md5: whether archives must carry the official MD5 sum. Switch it off to use files
            of your own in the same format, such as a subset. Unpacked IDX files have no official
            sum; their structure alone is checked.

    Raises:
        ValueError: ``name`` is not one of the four.
        DataError: the files are missing, damaged, or cannot be downloaded.
    """
    if name not in SOURCES:
        raise ValueError(f"name={name}: must be one of {', '.join(SOURCES)}")
    source = SOURCES[name]
    found = locate(source, root=root, cache=cache, download=download)

    def build() -> caching.RawDataset:
        if check_md5:
            verify(source, found)
        if name == "SVHN":
            train, test = (read_svhn(path) for path in found)
        elif name == "CIFAR10":
            train, test = read_cifar10(found)
        else:
            train = read_idx_pair(*found[:2])
            test = read_idx_pair(*found[2:])
        return caching.RawDataset(train, test, num_classes=10)

    settings = {"check_md5": check_md5}
    return caching.load_or_build(name, sources=found, settings=settings, cache=cache, build=build)


def medmnist(
    *,
    name: str,
    root: str | Path | None = None,
    use_validation: bool = False,
    cache: str | Path | None = None,
) -> Dataset:
    """A set of MedMNIST v2 with one label for each image, such as PneumoniaMNIST.

    The official validation set is left out, or follows the train examples where
    ``use_validation`` is true. Never downloaded.

    Args:
        name: MedMNIST's, such as ``PneumoniaMNIST`` or ``PathMNIST``.
        root: holds ``NAME/name.npz`` or ``name.npz``, such as ``pneumoniamnist.npz``.
        use_validation: whether the validation examples join the train set.
        cache: see ``murmur.learning.data.cache.cache_folder``.

    Raises:
        DataError: the file is missing or damaged.
    """
    if not name.isidentifier():
        raise ValueError(f"name={name}: must be a name of MedMNIST's, such as PneumoniaMNIST")
    source = Source(name, (name, "."), ((f"{name.lower()}.npz",),), downloads=False)
    (path,) = locate(source, root=root, cache=cache, download=False)

    def build() -> caching.RawDataset:
        arrays = read_npz(path)
        train, validation, test = (
            array_examples(path, arrays, f"{part}_images", f"{part}_labels")
            for part in ("train", "val", "test")
        )
        if use_validation:
            train = caching.RawExamples(
                np.concatenate([train.pixels, validation.pixels]),
                np.concatenate([train.labels, validation.labels]),
            )
        every = [part.labels.max(initial=0) for part in (train, validation, test)]
        return caching.RawDataset(train, test, num_classes=max(2, int(max(every)) + 1))

    settings = {"use_validation": use_validation}
    data = caching.load_or_build(name, sources=[path], settings=settings, cache=cache, build=build)
    if use_validation:
        return data
    return replace(data, notes=("the official validation set (dataset.use_validation)",))
