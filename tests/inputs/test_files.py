"""What people's folders, pictures, arrays and data sets of Hugging Face mean, or why not."""

import io

import datasets
import numpy as np
import pytest
from PIL import Image

from fl_app.config.settings import DeviceDataSpec
from fl_app.device.data import load_own
from fl_app.device.node_settings import OwnerSettings
from murmur.learning.data import own_data, tables
from murmur.learning.data.examples import DataError
from murmur.learning.data.pictures import read_image
from murmur.learning.data.tables import huggingface

SIDE = 6


def folder_of(root, *names):
    """A picture at each of these paths below ``root``, a little brighter each."""
    for number, name in enumerate(names):
        path = root / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (SIDE, SIDE), 10 * number).save(path)
    return root


def read_folder(root, tmp_path, **settings):
    return own_data.image_folder(root=root, size=SIDE, cache=tmp_path / "cache", **settings)


def brightness(examples):
    return np.rint(examples.images[:, 0, 0, 0] * 255).astype(int).tolist()


TWO = ("cat/a", "dog/b")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train", "test"),
        ("train", "val"),
        ("Train", "Test"),
        ("training", "validation"),
        ("TRAINING", "valid"),
        ("training", "testing"),
    ],
)
def test_folders_named_as_splits_are_splits(tmp_path, train, test):
    names = [f"{split}/{name}" for split in (train, test) for name in TWO]
    data = read_folder(folder_of(tmp_path / "x", *names), tmp_path)
    assert data.classes == ("cat", "dog")
    assert (brightness(data.train), data.train.labels.tolist()) == ([0, 10], [0, 1])
    assert (brightness(data.test), data.test.labels.tolist()) == ([20, 30], [0, 1])


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (("2019/a", "2020/b"), ("2019", "2020")),
        (("01/a", "1/b"), ("01", "1")),
        (("10/a", "9/b"), ("9", "10")),
        (("True/a", "False/b"), ("0", "1")),
        (("train/a", "car/b", "bus/c"), ("bus", "car", "train")),  # of vehicles
        (("valid/a", "invalid/b"), ("invalid", "valid")),
        (("train/cat/a", "train/dog/b"), ("cat", "dog")),  # nothing held out
        (("cat/front/a", "dog/b"), ("cat", "dog")),
        (("cat/a", "dog/b", ".git/c"), ("cat", "dog")),
    ],
)
def test_folders_are_classes_by_the_rule_of_labels(tmp_path, names, classes):
    data = read_folder(folder_of(tmp_path / "x", *names), tmp_path, test_fraction=0)
    assert data.classes == classes
    assert data.num_classes == len(classes)
    assert np.bincount(data.train.labels).tolist() == [1] * len(classes)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("2019/cat/a", "2019/dog/b", "2020/cat/c", "2020/dog/d"), "folders named cat, dog"),
        (("train/s1/cat/a", "train/s2/cat/b", "test/cat/c"), "folders named cat"),
        (("pets/cat/a", "pets/dog/b"), "holds one folder, pets, .*set dataset.root to that"),
        (("train/cat/a", "test/cat/b", "more/cat/c"), "more, test, train: splits or classes"),
        (("train/cat/a", "Train/cat/b", "test/cat/c"), "splits or classes"),
        (("train/a", "test/b"), "holds no pictures in class folders"),
        (("1/a", "1.0/b"), None),  # the same number
    ],
)
def test_folders_that_may_mean_two_things_are_refused(tmp_path, names, said):
    root = folder_of(tmp_path / "x", *names)
    if said is None:
        assert read_folder(root, tmp_path, test_fraction=0).classes == ("1",)
        return
    with pytest.raises(DataError, match=said):
        read_folder(root, tmp_path)


def test_a_second_folder_for_evaluation_is_left_out_and_said(tmp_path):
    names = [f"{split}/{name}" for split in ("train", "test", "val") for name in TWO]
    data = read_folder(folder_of(tmp_path / "x", *names), tmp_path)
    assert brightness(data.test) == [20, 30]
    assert "pictures below val, another split for evaluation" in data.notes


def test_all_pictures_cannot_be_held_out(tmp_path):
    with pytest.raises(ValueError, match=r"test_fraction=1\.0: leaves none"):
        read_folder(folder_of(tmp_path / "x", *TWO), tmp_path, test_fraction=1.0)


@pytest.mark.parametrize("classes", [["0", "1", "2"], 3])
def test_a_device_that_lacks_a_class_numbers_the_others_as_all_do(tmp_path, classes):
    root = folder_of(tmp_path / "x", "1/a", "2/b")
    (tmp_path / "x.csv").write_text("filename,label\nx/1/a.png,1.0\nx/2/b.png,2\n")
    terms = DeviceDataSpec([1, SIDE, SIDE], classes)
    for path in (root, tmp_path / "x.csv"):
        found = load_own(str(path), OwnerSettings((0,), None, None), terms, tmp_path / "cache")
        assert found.train.labels.tolist() == [1, 2] and not found.blanks


def test_a_device_does_not_guess_which_word_is_which_class(tmp_path):
    root, own = folder_of(tmp_path / "x", *TWO), OwnerSettings((0,), None, None)
    found = load_own(str(root), own, DeviceDataSpec([1, SIDE, SIDE], 2), tmp_path / "cache")
    assert "class 'cat' is not among" in found.blanks[0] and len(found.blanks) == 2
    terms = DeviceDataSpec([1, SIDE, SIDE], ["dog", "cat"])
    assert load_own(str(root), own, terms, tmp_path / "cache").train.labels.tolist() == [1, 0]


def ramp(largest, dtype=np.uint16):
    """Pixels from 0 to ``largest``, column by column."""
    return np.tile(np.linspace(0, largest, SIDE).astype(dtype), (SIDE, 1))


def save_colours_of_16_bits(path, pixels):
    """A PNG file with three channels of 16 bits, which Pillow reads but does not write."""
    import struct
    import zlib

    def chunk(kind, content):
        whole = kind + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, 2, 0, 0, 0)
    content = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("colours", [False, True])
def test_16_bits_of_which_fewer_are_used_are_refused_and_never_black(tmp_path, bits, colours):
    pixels = ramp(2**bits - 1)
    if colours:
        save_colours_of_16_bits(tmp_path / "x.png", np.stack([pixels] * 3, axis=-1))
    else:
        Image.fromarray(pixels).save(tmp_path / "x.png")
    if bits < 16:
        with pytest.raises(DataError, match=r"x\.png: its 16-bit pixels are all below 16,384"):
            read_image(tmp_path / "x.png", height=SIDE, width=SIDE, channels=1)
        return
    read = read_image(tmp_path / "x.png", height=SIDE, width=SIDE, channels=1)
    assert np.abs(read[0] - (pixels / 257)).max() <= 1


def drawn(mode, ink, paper=0):
    """A picture whose left half is opaque ink and whose right half is transparent."""
    image = Image.new("RGBA", (SIDE, SIDE), (paper, paper, paper, 0))
    image.paste((ink, ink, ink, 255), (0, 0, SIDE // 2, SIDE))
    return image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("channels", [1, 3])
def test_ink_in_an_alpha_channel_is_laid_on_white(tmp_path, mode, channels):
    drawn(mode, 0).save(tmp_path / "x.png", **({"transparency": 255} if mode == "P" else {}))
    if mode == "P":  # of one black colour, transparent by its number
        image = Image.new("P", (SIDE, SIDE), 1)
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.paste(0, (0, 0, SIDE // 2, SIDE))
        image.save(tmp_path / "x.png", transparency=1)
    read = read_image(tmp_path / "x.png", height=SIDE, width=SIDE, channels=channels)
    expected = np.where(np.arange(SIDE) < SIDE // 2, 0, 255)
    assert (read == expected).all()


def test_white_ink_on_nothing_is_refused(tmp_path):
    drawn("RGBA", 255, 255).save(tmp_path / "x.png")
    with pytest.raises(DataError, match="as white as the paper"):
        read_image(tmp_path / "x.png", height=SIDE, width=SIDE, channels=1)


def test_half_transparent_ink_is_half_as_dark(tmp_path):
    Image.new("RGBA", (SIDE, SIDE), (0, 0, 0, 128)).save(tmp_path / "x.png")
    read = read_image(tmp_path / "x.png", height=SIDE, width=SIDE, channels=1)
    assert (read == 127).all()


def saved(folder, rows, features=None, **more):
    """A data set of Hugging Face's, saved; ``more`` are other splits."""
    kinds = None if features is None else datasets.Features(features)
    parts = {"train": rows, **more}
    made = {name: datasets.Dataset.from_dict(part, features=kinds) for name, part in parts.items()}
    datasets.DatasetDict(made).save_to_disk(folder / "saved")
    return str(folder / "saved")


LABELS = datasets.ClassLabel(names=["no", "yes", "perhaps"])
ONE = {"a": datasets.Value("float32"), "label": LABELS}


def test_a_declared_class_that_no_row_has_is_a_class(tmp_path):
    path = saved(tmp_path, {"a": [1, 2], "label": [1, 0]}, ONE)
    data = huggingface(path=path, test=None, test_fraction=0)
    assert (data.train.labels.tolist(), data.num_classes) == ([1, 0], 3)
    assert data.classes == ("no", "yes", "perhaps")


@pytest.mark.parametrize(
    ("classes", "right"),
    [
        (["yes", "no"], [0, 1]),
        ([1, 0], [0, 1]),
        (["0", "1"], [1, 0]),
        (["perhaps", "no", "yes"], [2, 1]),
    ],
)
def test_declared_classes_are_named_by_name_or_by_value(tmp_path, classes, right):
    path = saved(tmp_path, {"a": [1, 2], "label": [1, 0]}, ONE)
    data = huggingface(path=path, test=None, test_fraction=0, classes=classes)
    assert data.train.labels.tolist() == right
    assert data.num_classes == len(classes)


@pytest.mark.parametrize(
    ("train", "test", "settings", "said"),
    [
        ([0, 1], [-1, -1], {}, r"split 'test': has no labels .*set dataset\.test=validation"),
        ([0, -1], [0, 1], {}, r"split 'train', row 1 .*empty label"),
        ([0, None], [0, 1], {}, r"split 'train', row 1 .*empty label"),
        ([0, 1], [0, 1], {"classes": ["no", "yess"]}, "the data declare .*; use these"),
        ([0, 1], [0, 1], {"test": "dev"}, r"no split 'dev'; it has \['train', 'test'\]"),
    ],
)
def test_declared_labels_that_are_none_are_refused(tmp_path, train, test, settings, said):
    rows = [{"a": [1, 2], "label": labels} for labels in (train, test)]
    path = saved(tmp_path, rows[0], ONE, test=rows[1])
    with pytest.raises(DataError, match=said):
        huggingface(path=path, **settings)


def test_the_columns_of_a_test_split_are_found_by_name(tmp_path):
    test = {"label": ["yes"], "b": [4.0], "a": [3.0]}
    path = saved(tmp_path, {"a": [1.0], "b": [2.0], "label": ["no"]}, test=test)
    data = huggingface(path=path)
    assert data.test.images.ravel().tolist() == [3, 4]


def test_ids_that_a_reader_has_guessed_are_refused(tmp_path, monkeypatch):
    rows = datasets.Dataset.from_dict({"a": [1, 2], "who": [7, 7], "label": [0, 1]})
    monkeypatch.setattr(tables, "_hub", lambda path, name: ({"train": rows}, True))
    asked = {"path": "somebody/table", "test": None, "test_fraction": 0}
    with pytest.raises(DataError, match=r"changes owners' ids .*use dataset=table"):
        huggingface(**asked, client="who")
    assert len(huggingface(**asked, inputs=["a"]).train) == 2


def stored(value):
    """A picture's file, in memory."""
    out = io.BytesIO()
    Image.new("L", (SIDE, SIDE), value).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


def test_a_null_picture_is_named_by_its_row(tmp_path):
    kinds = {"image": datasets.Image(), "label": LABELS}
    path = saved(tmp_path, {"image": [stored(0), stored(9), None], "label": [0, 1, 2]}, kinds)
    with pytest.raises(DataError, match=r"column 'image', row 2 \(from 0\): has no picture"):
        huggingface(path=path, test=None, test_fraction=0)


def test_a_null_text_is_named_by_its_row(tmp_path):
    path = saved(tmp_path, {"text": ["None", None], "label": ["a", "b"]})
    with pytest.raises(DataError, match=r"column 'text': has no text in row 1"):
        huggingface(path=path, test=None, test_fraction=0)


@pytest.mark.parametrize(
    ("text", "labels", "classes"),
    [
        ("label,p\n1,0\n2,9\n", [0, 1], ("1", "2")),
        ("label;p\n0.0;0\n1.0;9\n", [0, 1], ("0", "1")),
        ("label\tp\nTrue\t0\nFalse\t9\n", [1, 0], ("0", "1")),
        (",label,p\n0,01,0\n1,1,9\n", [0, 1], ("01", "1")),  # with an index of pandas
        ("label,p\nNA,0\nnan,9\n", [0, 1], ("NA", "nan")),
    ],
)
def test_a_csv_file_of_pixels_has_labels_by_the_same_rule(tmp_path, text, labels, classes):
    (tmp_path / "x.csv").write_text(text)
    data = own_data.csv(path=tmp_path / "x.csv", test_fraction=0, cache=tmp_path / "cache")
    assert (data.train.labels.tolist(), data.classes) == (labels, classes)
    assert np.rint(data.train.images.ravel() * 255).tolist() == [0, 9]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("label,p\n-1,0\n-1,9\n", "has no labels"),
        ("label,p\n0,0\n ,9\n", "line 3: it has an empty label"),
        ("label,p,\n0,0,1\n", "a column without a name that is not the first"),
        ("Label,p\n0,0\n", "it must have a column 'label'"),
        ("label,p\n" + "".join(f"c{i},0\n" for i in range(1001)), "1,001 different values"),
    ],
)
def test_a_csv_file_of_pixels_that_may_mean_two_things_is_refused(tmp_path, text, said):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        own_data.csv(path=tmp_path / "x.csv", test_fraction=0, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("values", "right", "classes"),
    [
        ([1, 2], [0, 1], ("1", "2")),
        ([20240131, 10115], [1, 0], ("10115", "20240131")),
        ([True, False], [1, 0], ("0", "1")),
    ],
)
def test_the_labels_of_an_array_are_as_many_classes_as_there_are(tmp_path, values, right, classes):
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 3)), labels=np.array(values))
    data = own_data.npz(path=tmp_path / "x.npz", test_fraction=0, cache=tmp_path / "cache")
    assert (data.train.labels.tolist(), data.classes) == (right, classes)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ([[1.7e9 + 0.5], [1.7e9 + 1.5]], "differ by less than 32-bit"),
        ([[1e39], [0.5]], "beyond 3.4e38"),
        ([[np.nan], [0.5]], "NaN or infinite"),
        ([[4095], [0]], "integers are pixels in 0..255"),
    ],
)
def test_an_array_that_32_bits_cannot_hold_is_refused(tmp_path, images, said):
    np.savez(tmp_path / "x.npz", images=np.array(images), labels=np.array([0, 1]))
    with pytest.raises(DataError, match=said):
        own_data.npz(path=tmp_path / "x.npz", test_fraction=0, cache=tmp_path / "cache")
