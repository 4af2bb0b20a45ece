"""Where the files of a public data set are: the user's folder, earlier downloads, the network.

File names and MD5 sums are torchvision's own. The user's folder is only ever read.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from murmur.learning.data.archives import require_md5
from murmur.learning.data.cache import cache_folder, publish_folder
from murmur.learning.data.examples import DataError

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
    downloads = cache_folder(cache) / "downloads" / source.name
    found = source.find(downloads)
    if found is None and download:
        _download(source, downloads, missing)
        found = source.find(downloads)
    if found is None:
        raise DataError(f"{missing}; {_how_to(source)}, or set dataset.download=true")
    return found


def verify(source: Source, files: tuple[Path, ...]) -> None:
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
    for path in files:
        if path.name in sums:
            require_md5(path, sums[path.name])


def _how_to(source: Source) -> str:
    files = ", ".join(source.alternatives[0])
    return (
        "set dataset.root or the environment variable MURMUR_DATA to a folder that holds "
        f"{source.folders[0]}/ with {files}"
    )


def _download(source: Source, downloads: Path, missing: str) -> None:
    from torchvision import datasets

    dataset = getattr(datasets, source.name)
    with publish_folder(downloads) as temporary:
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
