import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.learning.data.examples import require_disjoint, split_public
from murmur.random import experiment_rng


@given(st.integers(1, 500), st.integers(0, 2**31), st.data())
@settings(max_examples=100, derandomize=True)
def test_public_and_private_are_sorted_disjoint_and_complete(total, seed, data):
    size = data.draw(st.integers(0, total - 1))
    public, private = split_public(total, size, experiment_rng(seed, "public pool"))
    assert np.all(np.diff(public) > 0) and np.all(np.diff(private) > 0)
    assert np.array_equal(np.sort(np.concatenate([public, private])), np.arange(total))
    assert len(public) == size


def test_the_split_follows_from_the_generator_alone():
    first, again, other = (
        split_public(100, 20, experiment_rng(seed, "public pool"))[0] for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("size", [-1, 10, 11, -0.1, 1.0, 0.99, 2.5, float("nan"), True, "3", None])
def test_a_size_that_leaves_nothing_private_or_is_no_size_is_refused(size):
    with pytest.raises(ValueError, match=r"^size="):
        split_public(10, size, experiment_rng(0, "public pool"))


@pytest.mark.parametrize(("public", "private"), [([1, 2], [2, 3]), ([1, 1], [2, 3]), ([1], [3, 3])])
def test_an_index_on_both_sides_or_twice_is_refused(public, private):
    with pytest.raises(ValueError, match=r"^public="):
        require_disjoint(np.array(public), np.array(private))
