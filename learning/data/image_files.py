"""Picture files as arrays of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learning.data.archives import unreadable
from learning.data.examples import DataError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"})


def class_files(folder: Path) -> list[tuple[str, Path]]:
    """(class name, picture file) of every picture below a folder of class folders, sorted.

    Hidden files are passed over, and whatever lies in ``folder`` itself.

    Raises:
        DataError: a class folder holds another kind of file, or cannot be read.
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
    return found


def read_images(paths: Sequence[Path], height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """The pictures at ``paths`` as (N, ``channels``, ``height``, ``width``); see ``read_image``."""
    images = np.empty((len(paths), channels, height, width), dtype=np.uint8)
    for image, path in zip(images, paths, strict=True):
        image[:] = read_image(path, height=height, width=width, channels=channels)
    return images


def read_image(path: Path, *, height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """The picture at ``path`` as (``channels``, ``height``, ``width``).

    Turned as its EXIF tag says, converted to grey (1 channel, ITU-R 601 luma) or RGB (3), and
    resized without regard to its proportions (Pillow's antialiased bilinear filter). 16-bit grey
    is brought to 8 bits by its upper byte. Of a file with several frames, the first.

    Raises:
        DataError: the file is missing, damaged, or not a picture of that kind.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            return to_pixels(opened, height, width, channels, str(path))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; restore it or remove its entry") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{path} is not a picture that Pillow reads; replace it") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is damaged ({error}); replace it") from error


def to_pixels(
    picture: Any, height: int, width: int, channels: int, name: str = "a picture"
) -> NDArray[np.uint8]:
    """A Pillow image as ``read_image`` has it; DataError where its range is unknown."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(picture)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise DataError(
            f"{name} has {image.mode} pixels of unknown range; convert it to 8 or 16 bits"
        )
    mode = "L" if channels == 1 else "RGB"
    pixels = np.asarray(image.convert(mode).resize((width, height), Image.Resampling.BILINEAR))
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
