import numpy as np
import pytest
from PIL import Image

from learning.data.partition_picture import partition_picture


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (5, 2), (40, 10), (1000, 10), (8, 100)])
def test_a_picture_is_written_for_any_federation(tmp_path, clients, classes):
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    path = tmp_path / "partition.png"
    partition_picture(counts, path, "digits")
    with Image.open(path) as picture:
        picture.load()
        assert 500 < picture.width < 2000 and 300 < picture.height < 1500
    assert [file.name for file in tmp_path.iterdir()] == ["partition.png"]


def test_a_client_without_examples_is_drawn_white_and_not_as_a_nan(tmp_path, recwarn):
    partition_picture(np.array([[0, 0], [3, 1]]), tmp_path / "x.png", "x")
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_other_counts_draw_another_picture_and_the_same_the_same(tmp_path):
    for name, counts in (("a", [[9, 1], [1, 9]]), ("b", [[1, 9], [9, 1]]), ("c", [[9, 1], [1, 9]])):
        partition_picture(np.array(counts), tmp_path / name, "x")
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == c != b


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "x.png").mkdir()
    with pytest.raises(OSError):
        partition_picture(np.ones((2, 2), int), tmp_path / "x.png", "x")
    assert [file.name for file in tmp_path.iterdir()] == ["x.png"]


@pytest.mark.parametrize("shape", [(0, 10), (10, 0), (10,)])
def test_counts_of_another_shape_are_refused(tmp_path, shape):
    with pytest.raises(ValueError, match=r"^counts="):
        partition_picture(np.zeros(shape, int), tmp_path / "x.png", "x")
