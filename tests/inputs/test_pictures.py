"""Kinds of pictures: each is read as a viewer shows it, or refused by name."""

import io
import re
import struct

import numpy as np
import pytest
from PIL import Image

from murmur.learning.data import own_data
from murmur.learning.data.examples import DataError
from murmur.learning.data.pictures import read_image

GREY = np.array([[10, 200, 30], [120, 50, 240]], np.uint8)
# The eight orientations of EXIF: what is stored -> what is seen.
TURNED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).T,
    8: lambda a: np.rot90(a, 1),
}
WHITE, BLACK = 0, 1  # what 0 is in a TIFF file: its PhotometricInterpretation


def tiff(pixels, bits, ink, width=None, order="<", **more):
    """A baseline TIFF file (Adobe, "TIFF", revision 6.0) of rows of packed pixels."""
    samples = more.pop("samples", 1)
    content = pixels.tobytes()
    tags = {
        256: ("I", [width or pixels.shape[1] // samples]),
        257: ("I", [len(pixels)]),
        258: ("H", [bits] * samples),
        259: ("H", [1]),
        262: ("H", [ink]),
        273: ("I", [0]),
        277: ("H", [samples]),
        278: ("I", [len(pixels)]),
        279: ("I", [len(content)]),
    }
    for name, number in (("turned", 274), ("extra", 338), ("numbers", 339)):
        if name in more:
            tags[number] = ("H", [more[name]] * (samples if name == "numbers" else 1))
    after = 8 + 2 + 12 * len(tags) + 4
    directory, long = b"", b""
    for number, (kind, values) in sorted(tags.items()):
        value = struct.pack(f"{order}{len(values)}{kind}", *values)
        if len(value) > 4:
            value, long = struct.pack(f"{order}I", after + len(long)), long + value
        kind = {"H": 3, "I": 4}[kind]
        directory += struct.pack(f"{order}HHI", number, kind, len(values)) + value.ljust(4, b"\0")
    start = struct.pack(f"{order}I", after + len(long))
    place = 12 * sorted(tags).index(273) + 8
    directory = directory[:place] + start + directory[place + 4 :]
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HIH", 42, 8, len(tags))
    return head + directory + bytes(4) + long + content


def saved(picture, kind, **settings):
    file = io.BytesIO()
    picture.save(file, kind, **settings)
    return file.getvalue()


def read(content, shape, channels=1):
    height, width = shape[:2]
    file = io.BytesIO(content)
    return read_image(file, height=height, width=width, channels=channels, name="x.png")


def grey(content, shape=GREY.shape):
    return read(content, shape)[0].astype(int)


def colours(content, shape=(2, 2)):
    return read(content, shape, 3).transpose(1, 2, 0).astype(int)


@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("ink", [WHITE, BLACK])
@pytest.mark.parametrize("bits", [8, 16])
def test_grey_tiff_is_as_dark_as_it_says_and_upright(bits, ink, turned):
    stored = GREY if bits == 8 else GREY.astype("<u2") * 256
    right = TURNED[turned](255 - GREY if ink == WHITE else GREY)
    assert np.array_equal(grey(tiff(stored, bits, ink, turned=turned), right.shape), right)


@pytest.mark.parametrize(("bits", "row"), [(1, 0b01000000), (2, 0b00110000), (4, 0x0F)])
def test_few_bits_are_black_and_white(bits, row):
    rows = np.array([[row]], np.uint8)
    assert grey(tiff(rows, bits, BLACK, width=2), (1, 2)).tolist() == [[0, 255]]
    assert grey(tiff(rows, bits, WHITE, width=2), (1, 2)).tolist() == [[255, 0]]


def test_16_bits_of_big_end_are_read():
    stored = (GREY.astype("<u2") * 256).astype(">u2")
    assert np.array_equal(grey(tiff(stored, 16, BLACK, order=">")), GREY)


def test_12_bits_stored_as_16_with_0_as_white_are_refused_too():
    with pytest.raises(DataError, match="16-bit pixels are all below 16,384"):
        read(tiff(GREY.astype("<u2") * 16, 16, WHITE), GREY.shape)


@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
def test_a_picture_is_turned_as_its_tag_says(kind, turned):
    tag = Image.Exif()
    tag[274] = turned
    coarse = np.kron(GREY, np.ones((16, 16), np.uint8))  # of which JPEG keeps the middles
    right = TURNED[turned](coarse)
    found = grey(saved(Image.fromarray(coarse), kind, exif=tag), right.shape)
    assert np.abs(found - right)[8::16, 8::16].max() <= 3


RGBA = np.zeros((2, 2, 4), np.uint8)
RGBA[0, 0], RGBA[0, 1] = (255, 0, 0, 255), (0, 255, 0, 128)
RGBA[1, 0], RGBA[1, 1] = (0, 0, 255, 255), (1, 2, 3, 0)
ON_WHITE = [[[255, 0, 0], [127, 255, 127]], [[0, 0, 255], [255, 255, 255]]]
IN_COLOURS = RGBA.reshape(2, 8)
FLAGGED = np.array([[255, 0, 0, 255, 0, 128, 0, 128], [0, 0, 255, 255, 0, 0, 0, 0]], np.uint8)
UNASSOCIATED, ASSOCIATED = 2, 1


@pytest.mark.parametrize(
    "content",
    [
        saved(Image.fromarray(RGBA), "PNG"),
        saved(Image.fromarray(RGBA), "TIFF"),
        tiff(IN_COLOURS, 8, 2, samples=4, extra=UNASSOCIATED),
        tiff(IN_COLOURS.astype("<u2") * 257, 16, 2, samples=4, extra=UNASSOCIATED),
        tiff(FLAGGED, 8, 2, samples=4, extra=ASSOCIATED),
    ],
    ids=["png", "tiff", "tiff 8", "tiff 16", "tiff multiplied"],
)
def test_colours_with_an_alpha_channel_lie_on_white(content):
    assert np.abs(colours(content) - ON_WHITE).max() <= 1


PALETTE = Image.fromarray(np.array([[0, 1], [2, 3]], np.uint8), "P")
PALETTE.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255])
OF_PALETTE = [[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]]


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "BMP"])
def test_a_palette_gives_its_colours_and_their_grey(kind):
    assert colours(saved(PALETTE, kind)).tolist() == OF_PALETTE
    assert grey(saved(PALETTE, kind), (2, 2)).tolist() == [[76, 150], [29, 255]]


def test_a_transparent_entry_of_a_palette_is_white():
    right = [[[255, 255, 255], OF_PALETTE[0][1]], OF_PALETTE[1]]
    assert colours(saved(PALETTE, "PNG", transparency=0)).tolist() == right
    assert colours(saved(PALETTE, "GIF", transparency=0)).tolist() == right


CMYK = np.zeros((32, 32, 4), np.uint8)
CMYK[:16, :16], CMYK[16:, :16], CMYK[16:, 16:] = (0, 255, 255, 0), (0, 0, 0, 255), (255, 0, 0, 0)
PRINTED = [[[255, 0, 0], [255, 255, 255]], [[0, 0, 0], [0, 255, 255]]]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_ink_becomes_colours(kind):
    settings = {"quality": 100} if kind == "JPEG" else {}
    found = colours(saved(Image.fromarray(CMYK, "CMYK"), kind, **settings), (32, 32))
    assert np.abs(found[8::16, 8::16] - PRINTED).max() <= 3


def test_a_jpeg_of_ink_that_does_not_say_what_0_is_is_refused():
    content = saved(Image.fromarray(CMYK, "CMYK"), "JPEG")
    start = content.index(b"\xff\xee")
    length = struct.unpack(">H", content[start + 2 : start + 4])[0]
    with pytest.raises(DataError, match="does not say whether 0 is ink"):
        read(content[:start] + content[start + 2 + length :], (32, 32), 3)


FRAMES = [Image.fromarray(np.full((2, 2), level, np.uint8)) for level in (10, 200)]


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_a_file_of_several_pictures_is_refused(kind, tmp_path):
    content = saved(FRAMES[0], kind, save_all=True, append_images=FRAMES[1:])
    with pytest.raises(DataError, match=r"x\.png: holds 2 pictures"):
        read(content, (2, 2))


def test_a_cameras_preview_is_no_second_picture():
    frames = [frame.convert("RGB") for frame in FRAMES]
    content = saved(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert grey(content, (2, 2)).tolist() == [[10, 10], [10, 10]]


SIGNED, REAL = 2, 3
REFUSED = {
    "signed 8 bits": (tiff(GREY.astype(np.int8), 8, BLACK, numbers=SIGNED), "signed 8-bit pixels"),
    "signed 16 bits": (tiff(GREY.astype("<i2"), 16, BLACK, numbers=SIGNED), "unknown range"),
    "32 bits": (tiff(GREY.astype("<u4"), 32, BLACK), "unknown range"),
    "real numbers": (tiff(GREY.astype("<f4"), 32, BLACK, numbers=REAL), "unknown range"),
    "16 bits, a level transparent": (
        saved(Image.fromarray(GREY.astype("<u2") * 256), "PNG", transparency=2560),
        "16 bits and a transparent grey level",
    ),
    "16 bits of big end, 0 is white": (
        tiff((GREY.astype("<u2") * 256).astype(">u2"), 16, WHITE, order=">"),
        "is not a picture that Pillow reads",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_may_be_shown_as_something_else_is_refused(kind):
    content, said = REFUSED[kind]
    with pytest.raises(DataError, match=said):
        read(content, GREY.shape)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("last", [2, 4])
def test_an_alpha_channel_of_an_array_is_no_width(tmp_path, kind, last):
    images = np.zeros((4, 28, 28, last), kind)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(4) % 2)
    said = re.escape(f"images has shape (4, 28, 28, {last}): an alpha channel at the end, or 28")
    with pytest.raises(DataError, match=said):
        own_data.npz(path=tmp_path / "x.npz", cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("shape", "seen"),
    [((1, 28, 4), (1, 28, 4)), ((3, 8, 4), (3, 8, 4)), ((8, 8, 3), (3, 8, 8)), ((1, 1, 4),) * 2],
)
def test_other_arrays_stay_as_they_were(tmp_path, shape, seen):
    images = np.zeros((4, *shape), np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(4) % 2)
    data = own_data.npz(path=tmp_path / "x.npz", cache=tmp_path / "cache")
    assert data.input_shape == seen
