"""Picture files as arrays of bytes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.archives import unreadable
from murmur.learning.data.examples import DataError
from murmur.learning.data.owners import is_missing

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"})


_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation", "eval")  # the first that is there


def split_folders(root: Path) -> tuple[list[Path], list[str]]:
    """The folder of the training classes, perhaps that of the test classes, and names left out.

    ``root`` itself, unless its folders are named as splits are (whatever the case); a second one
    for evaluation (``val`` beside ``test``) is left out.

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


def class_files(folder: Path) -> list[tuple[str, Path]]:
    """(class name, picture file) of every picture below a folder of class folders, sorted.

    Hidden files are passed over, and whatever lies in ``folder`` itself.

    Raises:
        DataError: a class folder holds another kind of file, or cannot be read; or classes seem to
            lie one folder deeper.
    """
    found = []
    try:
        for path in sorted(folder.glob("*/**/*")):
            parts = path.relative_to(folder).parts
            if path.is_dir() or any(part.startswith(".") for part in parts):
                continue
            if path.suffix.lower() not in SUFFIXES:
                raise DataError(
                    f"{path} is no picture ({', '.join(sorted(SUFFIXES))}); convert or remove it"
                )
            found.append((parts[0], path))
    except OSError as error:
        raise unreadable(folder, error) from error
    _require_one_level(folder, [path for _, path in found])
    return found


def _require_one_level(folder: Path, files: Sequence[Path]) -> None:
    """DataError where ``folder`` seems to hold folders of classes and not the classes."""
    below: dict[str, set[str]] = {}
    for path in files:
        name, *deeper = path.relative_to(folder).parts[:-1]
        below.setdefault(name, set()).add(deeper[0] if deeper else "")
    shared = Counter(chain(*below.values()))
    twice = sorted(name for name, count in shared.items() if name and count > 1)
    if twice:
        raise DataError(
            f"{folder}: several of its folders hold folders named {', '.join(twice[:5])}; are "
            "these the classes? Put all pictures of a class into one folder"
        )
    if len(below) == 1 and "" not in shared and len(shared) > 1:
        raise DataError(
            f"{folder} holds one folder, {next(iter(below))}, and the classes seem to lie in it; "
            "set dataset.root to that"
        )


def read_images(paths: Sequence[Path], height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """The pictures at ``paths`` as (N, ``channels``, ``height``, ``width``); see ``read_image``."""
    images = np.empty((len(paths), channels, height, width), dtype=np.uint8)
    for image, path in zip(images, paths, strict=True):
        image[:] = read_image(path, height=height, width=width, channels=channels)
    return images


def read_image(path: Path, *, height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """The picture at ``path`` as (``channels``, ``height``, ``width``).

    Turned as its EXIF tag says, laid on white where it is transparent, converted to grey (1
    channel, ITU-R 601 luma) or RGB (3), and resized without regard to its proportions (Pillow's
    antialiased bilinear filter). 16 bits are brought to 8 by the upper byte. Of a file with several
    frames, the first.

    Raises:
        DataError: the file is missing, damaged, not a picture of that kind, or would become a
            blank one: 16 bits of which fewer are used, white ink on nothing.
    """
    return _opened(path, height, width, channels, str(path))


def read_stored(
    picture: Any, height: int, width: int, channels: int, name: str
) -> NDArray[np.uint8]:
    """The same of a cell: a Pillow image, or a mapping with the ``bytes`` or ``path`` of a file.

    DataError, which begins with ``name``, also where there is none.
    """
    if is_missing(picture):
        raise DataError(f"{name}: has no picture; add it, or leave the row out")
    if not isinstance(picture, Mapping):
        return _to_pixels(picture, height, width, channels, name)
    content = picture["bytes"]
    file = Path(str(picture["path"])) if content is None else io.BytesIO(content)
    return _opened(file, height, width, channels, name)


def _opened(
    file: Path | io.BytesIO, height: int, width: int, channels: int, name: str
) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            return _to_pixels(opened, height, width, channels, name)
    except FileNotFoundError as error:
        raise DataError(f"{name} does not exist; restore it or remove its entry") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{name} is not a picture that Pillow reads; replace it") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name} is damaged ({error}); replace it") from error


def _to_pixels(
    picture: Any, height: int, width: int, channels: int, name: str
) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    # Pillow itself drops the lower byte of 16-bit colours; what it reads is known before it does.
    cut = any("16" in str(tile[3]) for tile in getattr(picture, "tile", ()))
    image = ImageOps.exif_transpose(picture)
    if image.mode.startswith("I;16"):
        pixels = np.asarray(image)
        _require_sixteen_bits(int(pixels.max()), name)
        image = Image.fromarray((pixels >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise DataError(
            f"{name} has {image.mode} pixels of unknown range; convert it to 8 or 16 bits"
        )
    elif cut:
        _require_sixteen_bits(int(np.asarray(image.convert("RGB")).max()) << 8, name)
    if image.has_transparency_data:
        image = _on_white(image, name)
    mode = "L" if channels == 1 else "RGB"
    pixels = np.asarray(image.convert(mode).resize((width, height), Image.Resampling.BILINEAR))
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


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
    """Whether all pixels are the same."""
    return all(low == high for low, high in image.getextrema())
