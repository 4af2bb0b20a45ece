"""Owners held out by their share, and few rows of each."""

import numpy as np
import pytest

from murmur.learning.data.examples import few_of_each, split_owners

OWNERS = np.repeat(np.arange(20), np.arange(1, 21))


def test_a_share_of_the_owners_is_held_out_with_all_their_rows():
    train, test = split_owners(OWNERS, 0.15, 1)
    assert len(np.unique(OWNERS[test])) == 3
    assert not set(OWNERS[test]) & set(OWNERS[train])
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(OWNERS)))
    assert not np.array_equal(test, split_owners(OWNERS, 0.15, 2)[1])


@pytest.mark.parametrize("share", [0, 1, 0.001, 0.999])
def test_a_share_that_leaves_nobody_on_a_side_is_refused(share):
    with pytest.raises(ValueError, match="test_owners="):
        split_owners(OWNERS, share, 1)


def test_no_owner_keeps_more_rows_than_is_allowed():
    rows = few_of_each(OWNERS, 5, 1)
    assert np.array_equal(np.bincount(OWNERS[rows]), np.minimum(np.bincount(OWNERS), 5))
    with pytest.raises(ValueError, match="rows_per_owner=0"):
        few_of_each(OWNERS, 0, 1)
