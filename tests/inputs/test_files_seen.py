"""Files that are there are read, or it is said that they are not: links, spares, other splits."""

import os

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fl_app.config.settings import DeviceDataSpec
from fl_app.device.data import load_own
from fl_app.device.node_settings import OwnerSettings
from murmur.learning.data import own_data
from murmur.learning.data.examples import DataError
from murmur.learning.data.tables import huggingface

SIDE = 4


def pictures(folder, count=3):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("L", (SIDE, SIDE), number).save(folder / f"{number}.png")
    return folder


def read(root, tmp_path, **settings):
    settings = {"size": SIDE, "test_fraction": 0, "cache": tmp_path / "cache", **settings}
    return own_data.image_folder(root=root, **settings)


def on_device(root, tmp_path):
    owner = OwnerSettings((0,), None, None)
    return load_own(str(root), owner, DeviceDataSpec([1, SIDE, SIDE], ["a", "b"]), tmp_path / "own")


def seen(root):
    """Picture files below ``root`` by the operating system, links followed."""
    return sum(len(names) for _, _, names in os.walk(root, followlinks=True))


def link(root, tmp_path, where, target):
    place = root / where
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / target, target_is_directory=True)


# What is put behind links: where the link lies and where it leads.
FOLLOWED = {
    "a part of a class": {"a/more": "far"},
    "a class": {"b2": "far"},
    "a link to a link": {"a/more": "x/b/other", "b/other": "far"},
    "parts of two classes": {"a/more": "far", "b/rest": "farther"},
    "far below": {"a/1/2/3": "far"},
    "a file": {"a/one.png": "far/0.png"},
}


@pytest.mark.parametrize("kind", FOLLOWED)
def test_what_lies_behind_links_is_read(kind, tmp_path):
    root = tmp_path / "x"
    for folder in (root / "a", root / "b", tmp_path / "far", tmp_path / "farther"):
        pictures(folder)
    links = FOLLOWED[kind]
    for where, target in links.items():
        link(root, tmp_path, where, target)
    if kind == "a link to a link":  # both lead to one folder
        with pytest.raises(DataError, match="are one folder, by a link, and its files would be"):
            read(root, tmp_path)
        return
    assert len(read(root, tmp_path).train) == seen(root) > 6
    if kind != "a class":
        assert len(on_device(root, tmp_path).train) == seen(root)


@pytest.mark.parametrize(
    ("where", "target"),
    [("a/all", "x"), ("a/itself", "x/a"), ("a/other", "x/b"), ("c", "x/b"), ("a/1/up", "x/a/1")],
)
def test_a_folder_that_would_be_read_twice_is_refused(tmp_path, where, target):
    root = tmp_path / "x"
    for folder in (root / "a", root / "b", root / "a" / "1"):
        pictures(folder)
    link(root, tmp_path, where, target)
    with pytest.raises(DataError, match=rf"{where}.*one folder.*remove the link|and .*{where} are"):
        read(root, tmp_path)


def test_a_link_from_the_test_set_into_the_training_set_is_refused(tmp_path):
    root = tmp_path / "x"
    for name in ("train/a", "train/b", "test/a"):
        pictures(root / name)
    link(root, tmp_path, "test/b", "x/train/b")
    with pytest.raises(DataError, match=r"test/b and .*train/b are one folder"):
        read(root, tmp_path)


def test_on_a_device_a_circle_of_links_ends_and_refuses_nothing(tmp_path):
    root = tmp_path / "x"
    pictures(root / "a")
    pictures(root / "b")
    link(root, tmp_path, "a/all", "x")
    link(root, tmp_path, "b/itself", "x/b")
    found = on_device(root, tmp_path)
    assert np.bincount(found.train.labels).tolist() == [3, 3]
    assert not found.blanks


def test_a_link_to_nothing_is_named(tmp_path):
    root = tmp_path / "x"
    pictures(root / "a")
    pictures(root / "b")
    link(root, tmp_path, "a/gone", "nowhere")
    with pytest.raises(DataError, match=r"a/gone is no picture"):
        read(root, tmp_path)


def test_pictures_of_no_class_are_counted(tmp_path):
    root = pictures(tmp_path / "x", 2)
    pictures(root / "a")
    pictures(root / "b")
    (root / "README.txt").write_text("of two classes")
    assert "2 pictures in x itself, of no class" in read(root, tmp_path).notes


def test_arrays_that_no_part_is_made_of_are_named(tmp_path):
    images, labels = np.zeros((4, SIDE, SIDE), np.uint8), np.arange(4) % 2
    parts = {
        f"{part}_{what}": array
        for part in ("train", "val", "test")
        for what, array in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "x.npz", **parts)
    notes = own_data.npz(path=tmp_path / "x.npz", cache=tmp_path / "cache").notes
    assert notes == ("arrays val_images, val_labels",)
    np.savez(tmp_path / "y.npz", images=images, labels=labels, weights=np.ones(4))
    notes = own_data.npz(path=tmp_path / "y.npz", cache=tmp_path / "cache").notes
    assert "arrays weights" in notes
    np.savez(tmp_path / "z.npz", images=images, labels=labels)
    notes = own_data.npz(path=tmp_path / "z.npz", cache=tmp_path / "cache").notes
    assert notes == ()


def test_splits_of_a_data_set_that_nobody_reads_are_named(tmp_path):
    rows = datasets.Dataset.from_dict({"x": [0.5, 1.5, 2.5], "label": [0, 1, 0]})
    every = datasets.DatasetDict({"train": rows, "test": rows, "validation": rows, "more": rows})
    every.save_to_disk(tmp_path / "x")
    notes = huggingface(path=str(tmp_path / "x")).notes
    assert {"split 'validation'", "split 'more'"} <= set(notes)


def test_a_folder_for_datasets_has_no_folders_behind_links(tmp_path, monkeypatch):
    monkeypatch.setenv("MURMUR_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "x"
    for name in ("train/a", "train/b"):
        pictures(root / name)
    pictures(tmp_path / "far")
    settings = {"path": str(root), "test": None, "test_fraction": 0, "size": SIDE}
    assert len(huggingface(**settings).train) == seen(root)
    link(root, tmp_path, "train/b/more", "far")
    with pytest.raises(DataError, match="b/more: is a link to a folder, which `datasets` does"):
        huggingface(**settings)


def test_datasets_cache_gives_the_file_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("MURMUR_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "x" / "train.jsonl"
    file.parent.mkdir()

    def labels(flipped):
        rows = {"x": np.arange(20) / 2, "label": (np.arange(20) + flipped) % 2}
        pd.DataFrame(rows).to_json(file, orient="records", lines=True)
        os.utime(file, ns=(10**18, 10**18))
        found = huggingface(path=str(file.parent), test=None, test_fraction=0)
        return found.train.labels.tolist()

    assert labels(0) == [0, 1] * 10
    assert labels(1) == [1, 0] * 10
