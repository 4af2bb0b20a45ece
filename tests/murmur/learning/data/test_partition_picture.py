import io

import numpy as np
import pytest
from PIL import Image

from murmur.learning.data.partitions import partition_picture


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (5, 2), (40, 10), (1000, 10), (8, 100)])
def test_a_picture_is_drawn_for_any_federation(clients, classes):
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes))
    with Image.open(io.BytesIO(partition_picture(counts, "digits"))) as picture:
        picture.load()
        assert 500 < picture.width < 2000 and 300 < picture.height < 1500


def test_a_client_without_examples_is_drawn_white_and_not_as_a_nan(recwarn):
    partition_picture(np.array([[0, 0], [3, 1]]), "x")
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_other_counts_draw_another_picture_and_the_same_the_same():
    a, b, c = (
        partition_picture(np.array(counts), "x")
        for counts in ([[9, 1], [1, 9]], [[1, 9], [9, 1]], [[9, 1], [1, 9]])
    )
    assert a == c != b


@pytest.mark.parametrize("shape", [(0, 10), (10, 0), (10,)])
def test_counts_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"^counts="):
        partition_picture(np.zeros(shape, int), "x")
