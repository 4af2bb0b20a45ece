import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from murmur.learning.data import own_data
from murmur.learning.data.examples import DataError


def save_picture(path: Path, value: int, size: tuple[int, int] = (6, 8), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


@pytest.fixture
def folder(tmp_path):
    """Two classes of five pictures each: cats of brightness 0..4, dogs of 100..104."""
    for i in range(5):
        save_picture(tmp_path / "pictures" / "cat" / f"{i}.png", i)
        save_picture(tmp_path / "pictures" / "dog" / "more" / f"{i}.PNG", 100 + i)
    return tmp_path / "pictures"


def load_folder(root, tmp_path, **settings):
    return own_data.image_folder(root=root, size=4, cache=tmp_path / "cache", **settings)


def brightness(examples) -> list[int]:
    return sorted(np.rint(examples.images[:, 0, 0, 0] * 255).astype(int).tolist())


def test_a_folder_of_class_folders_is_read_resized_and_labelled(folder, tmp_path):
    data = load_folder(folder, tmp_path, test_fraction=0)
    assert data.input_shape == (1, 4, 4)
    assert (len(data.train), len(data.test), data.num_classes) == (10, 0, 2)
    values = np.rint(data.train.images[:, 0, 0, 0] * 255)
    assert values[data.train.labels == 0].tolist() == [0, 1, 2, 3, 4]
    assert values[data.train.labels == 1].tolist() == [100, 101, 102, 103, 104]


def test_a_share_is_held_out_by_the_split_seed_alone(folder, tmp_path):
    first = load_folder(folder, tmp_path, test_fraction=0.3)
    again = own_data.image_folder(root=folder, size=4, cache=tmp_path / "b", test_fraction=0.3)
    assert (len(first.train), len(first.test)) == (7, 3)
    assert brightness(first.test) == brightness(again.test)
    together = brightness(first.train) + brightness(first.test)
    assert sorted(together) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
    others = [
        brightness(load_folder(folder, tmp_path, test_fraction=0.3, split_seed=seed).test)
        for seed in range(1, 6)
    ]
    assert any(other != brightness(first.test) for other in others)


def test_train_and_test_folders_are_the_split(tmp_path):
    for i in range(3):
        save_picture(tmp_path / "x" / "train" / f"{i}" / "a.png", i)
    save_picture(tmp_path / "x" / "test" / "1" / "b.png", 9)
    data = load_folder(tmp_path / "x", tmp_path)
    assert (len(data.train), data.test.labels.tolist()) == (3, [1])
    assert brightness(data.test) == [9]


@pytest.fixture
def owned(tmp_path):
    """Five owners, each with cats of brightness 10 i and 10 i + 1 and a dog of 100 + i."""
    for i, owner in enumerate(("ann", "bo", "cy", "di", "ed")):
        save_picture(tmp_path / "owned" / owner / "cat" / "0.png", 10 * i)
        save_picture(tmp_path / "owned" / owner / "cat" / "more" / "1.png", 10 * i + 1)
        save_picture(tmp_path / "owned" / owner / "dog" / "2.png", 100 + i)
    return tmp_path / "owned"


def test_folders_of_owners_say_whose_pictures_are_and_whole_owners_are_held_out(owned, tmp_path):
    data = load_folder(owned, tmp_path, owners=1, test_fraction=0.4)
    assert data.classes == ("cat", "dog") and len(data.train) == 9 and len(data.test) == 6
    assert sorted(data.owner_ids + data.test_owner_ids) == ["ann", "bo", "cy", "di", "ed"]
    assert data.owners.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    names = sorted(path.name for path in owned.iterdir())
    for number, owner in enumerate(data.owner_ids):
        i = names.index(owner)
        rows = np.flatnonzero(data.owners == number)
        assert brightness(data.train.take(rows)) == [10 * i, 10 * i + 1, 100 + i]
    anybody = load_folder(owned, tmp_path, owners=1, test_fraction=0.4, split="rows")
    assert set(anybody.owner_ids) & set(anybody.test_owner_ids)
    assert anybody.digests["owners"] != data.digests["owners"]


def test_an_owner_has_two_levels_of_folders(tmp_path):
    for i, place in enumerate(("north/ann", "north/bo", "south/ann")):
        save_picture(tmp_path / "x" / place / "cat" / "0.png", i)
        save_picture(tmp_path / "x" / place / "dog" / "0.png", 100 + i)
    data = load_folder(tmp_path / "x", tmp_path, owners=2, test_fraction=0)
    assert data.owner_ids == ("north/ann", "north/bo", "south/ann")


def test_an_owner_with_pictures_for_training_and_testing_is_refused(tmp_path):
    for part in ("train", "test"):
        for owner in ("ann", part):
            for kind in ("cat", "dog"):
                save_picture(tmp_path / "x" / part / owner / kind / "0.png", 1)
    with pytest.raises(DataError, match=r"1 owners have rows in the training .* \(such as 'ann'\)"):
        load_folder(tmp_path / "x", tmp_path, owners=1)
    data = load_folder(tmp_path / "x", tmp_path, owners=1, split="rows")
    assert (data.owner_ids, data.test_owner_ids) == (("ann", "train"), ("ann", "test"))


def test_folders_of_owners_are_not_taken_for_classes(owned, tmp_path):
    with pytest.raises(DataError, match=r"named cat, dog; .* owners, set dataset\.owners=1"):
        load_folder(owned, tmp_path)
    save_picture(owned / "ann" / "3.png", 7)
    with pytest.raises(DataError, match=r"ann/3.png: lies in no class folder; .*<owner>/<class>/"):
        load_folder(owned, tmp_path, owners=1)
    (owned / "ann" / "3.png").unlink()
    save_picture(owned / "Ann" / "cat" / "3.png", 7)
    with pytest.raises(DataError, match="'Ann' and 'ann' differ only by case"):
        load_folder(owned, tmp_path, owners=1)
    with pytest.raises(ValueError, match="owners=1: must be 0 for a client's own data"):
        load_folder(owned, tmp_path, owners=1, blanks=True, classes=["cat", "dog"])


def test_one_site_numbers_classes_as_all_do(folder, tmp_path):
    data = load_folder(folder, tmp_path, classes=["bird", "dog", "cat"], test_fraction=0)
    assert data.num_classes == 3
    assert np.bincount(data.train.labels).tolist() == [0, 5, 5]


def test_a_class_that_is_not_listed_is_named_with_its_file(folder, tmp_path):
    with pytest.raises(DataError, match=r"more.0\.PNG: class 'dog' is not among dataset\.classes"):
        load_folder(folder, tmp_path, classes=["cat"])


def test_folders_named_by_numbers_are_as_many_classes_in_the_order_of_these(tmp_path):
    for name in ("10", "2", "7"):
        save_picture(tmp_path / "x" / name / "a.png", int(name))
    data = load_folder(tmp_path / "x", tmp_path, test_fraction=0)
    assert dict(zip(brightness(data.train), data.classes, strict=True)) == {
        2: "2",
        7: "7",
        10: "10",
    }
    assert sorted(data.train.labels.tolist()) == [0, 1, 2]
    assert data.num_classes == 3


def test_colours_are_kept_when_asked(tmp_path):
    save_picture(tmp_path / "x" / "a" / "a.jpg", 200, mode="RGB")
    data = load_folder(tmp_path / "x", tmp_path, channels=3, test_fraction=0)
    assert data.input_shape == (3, 4, 4)
    assert np.allclose(data.train.images[0, :, 0, 0] * 255, [200, 0, 255], atol=3)


def test_sixteen_bits_become_eight(tmp_path):
    (tmp_path / "x" / "a").mkdir(parents=True)
    Image.fromarray(np.full((5, 5), 0x80FF, np.uint16)).save(tmp_path / "x" / "a" / "a.png")
    data = load_folder(tmp_path / "x", tmp_path, test_fraction=0)
    assert brightness(data.train) == [0x80]


def test_pictures_are_turned_as_their_tag_says(tmp_path):
    path = tmp_path / "x" / "a" / "a.tif"
    path.parent.mkdir(parents=True)
    pixels = np.zeros((2, 2), np.uint8)
    pixels[0] = 255  # bright on top; tag 3 turns it by half
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 3
    image.save(path, exif=exif)
    data = own_data.image_folder(root=path.parents[1], size=2, test_fraction=0, cache=tmp_path)
    assert data.train.images[0, 0].tolist() == [[0, 0], [1, 1]]


def test_hidden_files_are_passed_over_and_others_named(folder, tmp_path):
    (folder / "cat" / ".DS_Store").write_text("x")
    assert len(load_folder(folder, tmp_path, test_fraction=0).train) == 10
    (folder / "cat" / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"notes\.txt is no picture"):
        load_folder(folder, tmp_path)


@pytest.mark.parametrize("damage", ["text", "cut"])
def test_a_damaged_picture_is_named_and_nothing_is_kept(folder, tmp_path, damage):
    path = folder / "dog" / "more" / "3.PNG"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (64, 64), dtype=np.uint8)).save(path)
    path.write_bytes(b"no picture" if damage == "text" else path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"3\.PNG is "):
        load_folder(folder, tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_folder_without_class_folders_is_refused(tmp_path):
    save_picture(tmp_path / "x" / "a.png", 1)
    with pytest.raises(DataError, match="holds no pictures in class folders"):
        load_folder(tmp_path / "x", tmp_path)


@pytest.mark.parametrize("load", [own_data.npz, own_data.csv])
@pytest.mark.parametrize(("path", "said"), [(None, "null: set it"), ("/nowhere/x", "not exist")])
def test_a_missing_file_is_named(load, path, said):
    with pytest.raises(DataError, match=rf"^dataset\.path=.*{said}"):
        load(path=path)


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 0},
        {"size": [4]},
        {"size": [4, 4.5]},
        {"channels": 2},
        {"test_fraction": -0.1},
        {"test_fraction": 1.0},
        {"test_fraction": float("nan")},
        {"test_fraction": "0.2"},
        {"classes": ["cat", "dog", "cat"]},
    ],
)
def test_bad_settings_are_refused_by_name(folder, tmp_path, settings):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"^{name}="):
        own_data.image_folder(root=folder, cache=tmp_path / "cache", **settings)


@pytest.mark.parametrize(
    "names",
    [
        ("images", "labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_an_npz_file_with_its_own_test_set(tmp_path, names):
    rng = np.random.default_rng(0)
    arrays = (rng.random((6, 5, 5)), np.arange(6), rng.random((2, 5, 5)), np.array([7, 0]))
    np.savez(tmp_path / "x.npz", **dict(zip(names, arrays, strict=True)))
    data = own_data.npz(path=tmp_path / "x.npz", cache=tmp_path)
    assert np.array_equal(data.train.images[:, 0], arrays[0].astype(np.float32))
    assert data.test.labels.tolist() == [6, 0]  # 0 to 5 and 7 are seven classes
    assert data.classes == ("0", "1", "2", "3", "4", "5", "7")


def test_an_npz_file_for_one_client_holds_nothing_out(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((6, 5, 5), np.uint8), labels=np.arange(6) % 2)
    data = own_data.npz(path=tmp_path / "x.npz", num_classes=10, test_fraction=0, cache=tmp_path)
    assert (len(data.train), len(data.test), data.num_classes) == (6, 0, 10)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"pictures": np.zeros(3)}, "lacks the array images"),
        ({"images": np.zeros((2, 4, 4))}, "lacks the array labels"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.array([0, 3])}, "label 3 is not below"),
        ({"images": np.zeros((0, 4, 4)), "labels": np.zeros(0, int)}, "images is empty"),
    ],
)
def test_an_npz_file_with_other_arrays_is_named(tmp_path, arrays, said):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError, match=rf"x\.npz is damaged.*{said}"):
        own_data.npz(path=tmp_path / "x.npz", num_classes=3, cache=tmp_path / "cache")


def load_csv(tmp_path, text: str, **settings):
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode())
    return own_data.csv(path=path, cache=tmp_path / "cache", **{"test_fraction": 0, **settings})


def test_a_csv_file_of_pixels(tmp_path):
    data = load_csv(tmp_path, "\ufeffp0,p1,label,p2,p3\r\n0,51,1,102,255\r\n\r\n1,2,0,3,4\r\n")
    assert data.train.images.shape == (2, 1, 2, 2)
    assert np.allclose(data.train.images[0].ravel(), [0, 0.2, 0.4, 1], atol=1e-7)
    assert data.train.labels.tolist() == [1, 0]


def test_a_csv_file_of_coloured_pixels_in_a_given_shape(tmp_path):
    header = ",".join(["label", *(f"p{i}" for i in range(6))])
    data = load_csv(tmp_path, f"{header}\nyes,0,1,2,3,4,5\nno,5,4,3,2,1,0\n", shape=[3, 1, 2])
    assert data.input_shape == (3, 1, 2)
    assert data.train.labels.tolist() == [1, 0]


def test_a_csv_file_of_picture_names(folder, tmp_path):
    text = "filename,label\npictures/cat/0.png,cat\npictures/dog/more/3.PNG,dog\n"
    data = load_csv(tmp_path, text, size=4, classes=["dog", "cat"])
    assert data.train.labels.tolist() == [1, 0]
    assert brightness(data.train) == [0, 103]


def test_a_changed_picture_behind_a_csv_file_is_read_anew(folder, tmp_path):
    load_csv(tmp_path, "filename,label\npictures/cat/0.png,0\n", size=4)
    table = tmp_path / "x.csv"
    save_picture(folder / "cat" / "0.png", 77)
    os.utime(folder / "cat" / "0.png", ns=(1, 1))
    data = own_data.csv(path=table, size=4, test_fraction=0, cache=tmp_path / "cache")
    assert brightness(data.train) == [77]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: it has the header"),
        ("a,b\n1,2\n", "line 1: it has the header"),
        ("label\n1\n", "line 1: it has the header"),
        ("label,a,a\n1,2,3\n", "line 1: it has the header"),
        ("label,filename,age\n1,a.png,7\n", "line 1: it has more columns"),
        ("label,a\n", "no rows"),
        ("label,a\n1,2\n1,2,3\n", "line 3: it has 3 fields, the header has 2"),
        ("label,a\n1,2\n\n ,2\n", "line 4: it has an empty label"),
        ("label,a\n1,2\n1,256\n", "line 3: it has a = '256'"),
        ("label,a\n1,2\n1,x\n", "line 3: it has a = 'x'"),
        ("label,a\n1,-1\n", "line 2: it has a = '-1'"),
        ("label,a\n1,0.5\n", "line 2: it has a = '0.5'"),
        ('label,a\n1,"2\n', "not a CSV file"),
        ("label,a\n5,1\n", r"line 2: class '5' is not among dataset\.classes"),
        ("filename,label\nnone.png,1\n", r"none\.png does not exist"),
    ],
)
def test_a_wrong_csv_file_is_named_with_the_line(tmp_path, text, said):
    with pytest.raises(DataError, match=said) as caught:
        load_csv(tmp_path, text, classes=[0, 1, 2])
    assert str(tmp_path) in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_csv_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"label,a\n\xff\xfe,1\n")
    with pytest.raises(DataError, match=r"x\.csv is not a CSV file in UTF-8"):
        own_data.csv(path=tmp_path / "x.csv", cache=tmp_path)


@pytest.mark.parametrize("shape", [None, [1, 2, 2], [6]])
def test_a_shape_that_does_not_fit_the_columns_is_refused(tmp_path, shape):
    with pytest.raises(ValueError, match=r"^shape=.*product of 6"):
        load_csv(tmp_path, "label,a,b,c,d,e,f\n1,1,2,3,4,5,6\n", shape=shape)
