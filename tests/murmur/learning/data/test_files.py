import gzip
import os
import pickle

import numpy as np
import pytest
from scipy.io import savemat

from murmur.learning.data.archives import read_cifar10, read_idx, read_svhn
from murmur.learning.data.examples import DataError
from murmur.learning.data.npz_arrays import array_examples, read_npz

HEADER = b"\x00\x00\x08\x02" + np.array([2, 3], ">u4").tobytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00",
        b"\x00\x00\x08\x03\x00",
        b"\x00\x00\x0d\x02" + HEADER[4:] + b"123456",
        HEADER + b"12345",
        HEADER + b"1234567",
        b"<html>not found</html>",
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_a_damaged_idx_file_is_named(tmp_path, content, packed):
    path = tmp_path / ("x-ubyte.gz" if packed else "x-ubyte")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match=rf"{path.name} is damaged"):
        read_idx(path)


def test_a_truncated_or_altered_gzip_file_is_named(tmp_path):
    path = tmp_path / "x.gz"
    whole = gzip.compress(HEADER + os.urandom(6))
    altered = bytearray(whole)
    altered[-6] ^= 1  # within the checksum
    for content in (whole[:-3], bytes(altered), b"plain text"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.gz is damaged"):
            read_idx(path)


def test_an_idx_file_is_read_in_its_shape(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(HEADER + bytes([1, 2, 3, 4, 5, 255]))
    assert read_idx(path).tolist() == [[1, 2, 3], [4, 5, 255]]


@pytest.mark.parametrize(
    "content",
    [
        {"X": np.zeros((32, 32, 3, 2), np.uint8)},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1))},
        {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.zeros((2, 1))},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.full((2, 1), 11)},
    ],
)
def test_a_matlab_file_with_other_content_is_named(tmp_path, content):
    savemat(tmp_path / "train_32x32.mat", content)
    with pytest.raises(DataError, match=r"train_32x32\.mat is damaged"):
        read_svhn(tmp_path / "train_32x32.mat")


def test_a_truncated_matlab_file_is_named(tmp_path):
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": np.zeros((32, 32, 3, 9), np.uint8), "y": np.ones((9, 1))})
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"train_32x32\.mat is damaged"):
        read_svhn(path)


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path):
    marker = tmp_path / "ran"
    paths = [tmp_path / "data_batch_1", tmp_path / "test_batch"]
    for path in paths:
        path.write_bytes(pickle.dumps({b"data": Payload(str(marker)), b"labels": []}))
    with pytest.raises(DataError, match=r"asks for (posix|nt)\.mkdir"):
        read_cifar10(paths)
    assert not marker.exists()


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": np.zeros((2, 3072), np.uint8)},
        {b"data": np.zeros((2, 3000), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072)), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]},
        [1, 2],
    ],
)
def test_a_cifar10_batch_with_other_content_is_named(tmp_path, batch):
    paths = [tmp_path / "data_batch_1", tmp_path / "test_batch"]
    for path in paths:
        path.write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=r"data_batch_1 is damaged"):
        read_cifar10(paths)


def test_a_cifar10_archive_that_is_cut_off_is_named(tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    for content in (b"", gzip.compress(b"x" * 2000)[:-4], gzip.compress(b"\0" * 10240)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz is damaged"):
            read_cifar10([path])


def test_an_npz_file_with_pickled_objects_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, images=np.array([Payload(str(tmp_path / "ran"))], dtype=object))
    with pytest.raises(DataError, match=r"x\.npz is damaged"):
        read_npz(path)
    assert not (tmp_path / "ran").exists()


def test_a_single_array_is_not_an_npz_file(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"not an \.npz"):
        read_npz(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 8, 9), (5, 1, 8, 9)),
        ((5, 8, 9, 3), (5, 3, 8, 9)),
        ((5, 8, 9, 1), (5, 1, 8, 9)),
        ((5, 3, 8, 9), (5, 3, 8, 9)),
    ],
)
def test_images_may_be_grey_or_have_channels_first_or_last(tmp_path, shape, expected):
    arrays = {"x": np.zeros(shape, np.uint8), "y": np.zeros((5, 1), np.uint8)}
    raw = array_examples(tmp_path, arrays, "x", "y")
    assert raw.pixels.shape == expected
    assert raw.labels.shape == (5,)


@pytest.mark.parametrize(
    ("images", "labels", "problem"),
    [
        (np.zeros((2, 4, 4)), np.zeros(3, int), "2 images for 3 labels"),
        (np.zeros(2), np.zeros(2, int), "has shape"),
        (np.full((2, 4, 4), np.nan), np.zeros(2, int), "NaN"),
        (np.full((2, 4, 4), 256), np.zeros(2, int), r"lies in 256"),
        (np.full((2, 4, 4), -1), np.zeros(2, int), r"lies in -1"),
        (np.zeros((2, 4, 4), bool), np.zeros(2, int), "bool"),
        (np.zeros((2, 4, 4)), np.zeros(2), "not integers"),
        (np.zeros((2, 4, 4)), np.zeros((2, 10), int), "not integers"),
        (np.zeros((2, 4, 4)), np.array([0, -1]), "start at 0"),
    ],
)
def test_arrays_that_are_no_labelled_images_are_refused(tmp_path, images, labels, problem):
    with pytest.raises(DataError, match=problem):
        array_examples(tmp_path / "x.npz", {"x": images, "y": labels}, "x", "y")
