"""Pictures that Pillow reads, as arrays of one size."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.cells import is_missing
from murmur.learning.data.examples import DataError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"})
_TIFF_INK, _ZERO_IS_WHITE = 262, 0  # PhotometricInterpretation
_TIFF_NUMBERS, _SIGNED = 339, 2  # SampleFormat


def require_picture(path: Path) -> None:
    """DataError for a file of another kind, by the ending of its name."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path} is no picture ({', '.join(sorted(SUFFIXES))}); convert or remove it"
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
    """True if all pixels of a picture are the same."""
    return all(low == high for low, high in image.getextrema())
