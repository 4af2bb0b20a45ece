import gzip
import hashlib
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from murmur.learning.data.datasets import (
    DataError,
    Dataset,
    Examples,
    digits,
    medmnist,
    torchvision_dataset,
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def gunzipped(path: Path, header: int) -> bytes:
    return gzip.decompress(path.read_bytes())[header:]


def as_bytes(images: np.ndarray) -> bytes:
    return np.rint(images * 255).astype(np.uint8).tobytes()


def test_digits_are_split_once_and_for_all():
    data = digits()
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert (data.num_classes, data.input_shape) == (10, (1, 8, 8))
    assert hashlib.md5(data.test.labels.tobytes()).hexdigest() == "e5519a962e9e9efd4cf5fa6a03b8266a"
    again = digits()
    assert np.array_equal(again.train.images, data.train.images)


def test_digits_hold_every_example_of_scikit_learn_once():
    from sklearn.datasets import load_digits

    data = digits()
    ours = np.concatenate([data.train.images, data.test.images]).reshape(-1, 64)
    theirs = (load_digits().data / 16).astype(np.float32)
    assert np.array_equal(np.unique(ours, axis=0), np.unique(theirs, axis=0))
    assert len(ours) == len(theirs)
    assert ours.min() == 0 and ours.max() == 1


def test_another_split_seed_holds_out_other_digits():
    assert not np.array_equal(digits(split_seed=1).test.images, digits().test.images)


@pytest.mark.parametrize("size", [0, 1797, -1, 0.2, True])
def test_digits_refuse_a_test_size_that_leaves_nothing(size):
    with pytest.raises(ValueError, match=r"^test_size="):
        digits(test_size=size)


@pytest.mark.parametrize(
    ("name", "md5"),
    [
        ("MNIST", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("FashionMNIST", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    ],
)
def test_decoded_images_are_those_of_the_official_archive(name, md5, cache, data_root):
    archive = data_root / name / "raw" / "train-images-idx3-ubyte.gz"
    assert hashlib.md5(archive.read_bytes()).hexdigest() == md5
    data = torchvision_dataset(name=name, root=data_root, cache=cache, download=False)
    assert data.train.images.shape == (60_000, 1, 28, 28)
    assert data.test.images.shape == (10_000, 1, 28, 28)
    raw = data_root / name / "raw"
    assert as_bytes(data.train.images) == gunzipped(raw / "train-images-idx3-ubyte.gz", 16)
    assert as_bytes(data.test.images) == gunzipped(raw / "t10k-images-idx3-ubyte.gz", 16)
    labels = data.train.labels.astype(np.uint8).tobytes()
    assert labels == gunzipped(raw / "train-labels-idx1-ubyte.gz", 8)
    labels = data.test.labels.astype(np.uint8).tobytes()
    assert labels == gunzipped(raw / "t10k-labels-idx1-ubyte.gz", 8)


def test_pneumonia_mnist_leaves_validation_out_unless_asked(cache, data_root):
    data = medmnist(name="PneumoniaMNIST", root=data_root, cache=cache)
    joined = medmnist(name="PneumoniaMNIST", root=data_root, cache=cache, use_validation=True)
    assert (len(data.train), len(joined.train), len(data.test)) == (4708, 5232, 624)
    assert (data.num_classes, data.input_shape) == (2, (1, 28, 28))
    assert np.array_equal(joined.train.images[:4708], data.train.images)
    raw = np.load(data_root / "PneumoniaMNIST" / "pneumoniamnist.npz")
    assert as_bytes(joined.train.images[4708:]) == raw["val_images"].tobytes()
    assert np.array_equal(data.test.labels, raw["test_labels"][:, 0])


def write_idx(folder: Path, train: int = 6, test: int = 4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for prefix, n in (("train", train), ("t10k", test)):
        pixels = rng.integers(0, 256, (n, 5, 4), dtype=np.uint8).tobytes()
        header = b"\x00\x00\x08\x03" + np.array([n, 5, 4], ">u4").tobytes()
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels))
        header = b"\x00\x00\x08\x01" + np.array([n], ">u4").tobytes()
        labels = bytes(i % 10 for i in range(n))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels))


def load(name: str, root: Path, cache: Path, **more: object) -> Dataset:
    settings = {"download": False, "check_md5": False, **more}
    return torchvision_dataset(name=name, root=root, cache=cache, **settings)


def test_unpacked_idx_files_read_like_the_archives(tmp_path):
    packed, unpacked = tmp_path / "a" / "MNIST" / "raw", tmp_path / "b" / "MNIST" / "raw"
    write_idx(packed)
    unpacked.mkdir(parents=True)
    for file in packed.iterdir():
        (unpacked / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    first = load("MNIST", tmp_path / "a", tmp_path / "cache")
    second = load("MNIST", tmp_path / "b", tmp_path / "cache")
    assert first.input_shape == (1, 5, 4)
    assert np.array_equal(first.train.images, second.train.images)
    assert np.array_equal(first.test.labels, second.test.labels)


def test_svhn_reads_its_matlab_files(tmp_path):
    rng = np.random.default_rng(0)
    stored = {}
    for part, n in (("train", 12), ("test", 5)):
        x = rng.integers(0, 256, (32, 32, 3, n), dtype=np.uint8)
        y = (np.arange(n, dtype=np.uint8) % 10 + 1)[:, None]
        savemat(tmp_path / f"{part}_32x32.mat", {"X": x, "y": y})
        stored[part] = x
    data = load("SVHN", tmp_path, tmp_path / "cache")
    assert (len(data.train), len(data.test), data.input_shape) == (12, 5, (3, 32, 32))
    assert data.train.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    expected = stored["train"][:, :, 1, 7].astype(np.float32) / np.float32(255)
    assert np.array_equal(data.train.images[7, 1], expected)


def cifar_batches(rng: np.random.Generator) -> dict[str, dict[bytes, object]]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {
        name: {
            b"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8),
            b"labels": [place, 1, 2, 9],
        }
        for place, name in enumerate(names)
    }


@pytest.mark.parametrize("packed", [True, False])
def test_cifar10_reads_its_batches(tmp_path, packed):
    batches = cifar_batches(np.random.default_rng(0))
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, batch in batches.items():
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    if packed:
        (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": []}))
        with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
            archive.add(folder, folder.name)
        for file in folder.iterdir():
            file.unlink()
    data = load("CIFAR10", tmp_path, tmp_path / "cache")
    assert (len(data.train), len(data.test), data.input_shape) == (20, 4, (3, 32, 32))
    assert data.train.labels[::4].tolist() == [0, 1, 2, 3, 4]
    assert data.test.labels.tolist() == [5, 1, 2, 9]
    pixels = batches["data_batch_2"][b"data"][3].reshape(3, 32, 32)
    assert as_bytes(data.train.images[7]) == pixels.tobytes()


def test_the_users_folder_is_never_written_to(tmp_path):
    root = tmp_path / "root"
    write_idx(root / "MNIST" / "raw")
    before = sorted(root.rglob("*"))
    load("MNIST", root, tmp_path / "cache")
    assert sorted(root.rglob("*")) == before


def test_an_archive_without_the_official_sum_is_refused_and_nothing_is_written(tmp_path):
    write_idx(tmp_path / "MNIST" / "raw")
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged.*MD5"):
        load("MNIST", tmp_path, tmp_path / "cache", check_md5=True)
    assert not (tmp_path / "cache").exists()


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"^name=mnist: must be one of MNIST, FashionMNIST"):
        load("mnist", tmp_path, tmp_path)


def test_missing_pneumonia_mnist_names_folder_and_file(tmp_path):
    with pytest.raises(DataError, match=r"MURMUR_DATA.*PneumoniaMNIST/ with pneumoniamnist\.npz"):
        medmnist(name="PneumoniaMNIST", root=tmp_path, cache=tmp_path)


def test_a_damaged_pneumonia_mnist_is_named(tmp_path):
    (tmp_path / "pneumoniamnist.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match=r"pneumoniamnist\.npz is damaged"):
        medmnist(name="PneumoniaMNIST", root=tmp_path, cache=tmp_path / "cache")


def test_take_copies_and_orders():
    data = digits()
    taken = data.train.take(np.array([5, 2]))
    assert np.array_equal(taken.images, data.train.images[[5, 2]])
    taken.images[:] = 0
    assert data.train.images[5].max() > 0


@pytest.mark.parametrize(
    ("images", "labels", "name"),
    [
        (np.zeros((2, 1, 3, 3)), np.zeros(2, np.int64), "images"),
        (np.zeros((2, 3, 3), np.float32), np.zeros(2, np.int64), "images"),
        (np.zeros((2, 1, 3, 3), np.float32), np.zeros(3, np.int64), "labels"),
        (np.zeros((2, 1, 3, 3), np.float32), np.zeros(2, np.int32), "labels"),
    ],
)
def test_examples_refuse_other_shapes_and_types(images, labels, name):
    with pytest.raises(ValueError, match=rf"^{name}="):
        Examples(images, labels)


def test_a_dataset_refuses_labels_beyond_its_classes():
    examples = Examples(np.zeros((2, 1, 3, 3), np.float32), np.array([0, 2]))
    with pytest.raises(ValueError, match=r"^train\.labels=0\.\.2"):
        Dataset("x", examples, examples, 2, (1, 3, 3))
