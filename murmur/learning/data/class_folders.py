"""Folders of pictures: splits, classes, owners and the files below them."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from murmur.learning.data.cells import nfc
from murmur.learning.data.examples import DataError
from murmur.learning.data.file_errors import unreadable
from murmur.learning.data.pictures import SUFFIXES

_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation", "eval")  # the first that is there


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
    """Owner of the file ``path`` below ``folder``: the names of the first ``owners`` folders."""
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
