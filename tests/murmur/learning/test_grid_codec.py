"""Integer contributions: exact sums, and only what an honest client can send."""

import numpy as np
import pytest

from murmur.checks import BLOCK_ENTRIES, blocks
from murmur.learning.array_bytes import MalformedError
from murmur.learning.codec import MAX_GRID_ENTRY, GridCodec, WeightCodec
from murmur.learning.sums import SumAccumulator


def test_a_sum_does_not_depend_on_how_clients_are_grouped():
    rng = np.random.default_rng(0)
    codec = GridCodec(50, grid=2.0**-20)
    releases = rng.integers(-(2**30), 2**30, (6, 50))
    alone, left, right = SumAccumulator(codec), SumAccumulator(codec), SumAccumulator(codec)
    for client, release in enumerate(releases):
        alone.add(client, codec.pack(release), weight=client + 1)
        (left if client % 2 else right).add(client, codec.pack(release), weight=client + 1)
    left.add_total(right.clients, right.total, right.weight)
    assert np.array_equal(alone.total, left.total)
    expected = np.average(releases, axis=0, weights=np.arange(1, 7)) * 2.0**-20
    np.testing.assert_allclose(codec.mean(alone.total, alone.weight), expected, rtol=1e-12)


def test_what_is_beyond_the_bound_is_cut_to_it():
    packed = GridCodec(2, bound=10).pack(np.array([11, -(2**40)]))
    assert packed.dtype == np.int32
    assert packed.tolist() == [10, -10]


@pytest.mark.parametrize(
    "size", [0, 1, BLOCK_ENTRIES - 1, BLOCK_ENTRIES, 2 * BLOCK_ENTRIES, 2 * BLOCK_ENTRIES + 7]
)
@pytest.mark.parametrize("kind", [GridCodec, WeightCodec])
def test_what_a_secure_sum_adds_is_the_same_block_by_block(kind, size):
    codec = kind(size)
    packed = codec.pack(np.random.default_rng(1).normal(0, 1000, size))
    summand = codec.summand(packed, 3)
    assert (summand.dtype, summand.shape) == (np.int64, (size + 1,)) and len(summand) == size + 1
    whole = np.append(codec.expand(packed, 3), 3)
    read = [summand[block] for block in blocks(size + 1)]
    assert all(part.dtype == np.int64 for part in read)
    assert np.concatenate(read).tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    "packed",
    [
        np.zeros(3, np.int64),
        np.zeros(4, np.int32),
        np.array([0, 0, 11], np.int32),
        np.array([0, 0, -(2**31)], np.int32),
    ],
    ids=["dtype", "shape", "too large", "least integer"],
)
def test_hostile_contributions_are_refused(packed):
    for take in (GridCodec(3, bound=10).expand, GridCodec(3, bound=10).summand):
        with pytest.raises(MalformedError):
            take(packed, 1)


def test_hostile_totals_are_refused():
    codec = GridCodec(3, bound=10)
    codec.check_total(np.array([0, 20, -20]), 2)
    for total in (np.array([0, 21, 0]), np.zeros(2, np.int64), np.zeros(3, np.int32)):
        with pytest.raises(MalformedError):
            codec.check_total(total, 2)


def test_the_largest_total_weight_leaves_room_for_noise():
    codec = GridCodec(1)
    assert codec.limits(codec.capacity)[1] <= 2**60
    with pytest.raises(ValueError, match="bound=2147483648: must lie in"):
        GridCodec(1, bound=MAX_GRID_ENTRY + 1)


def test_noise_of_many_clients_needs_the_root_of_their_number():
    codec = GridCodec(2, bound=1000, spread=900)
    assert codec.limits(1) == (-1000, 1000)
    assert codec.limits(100) == (-100 * 100 - 900 * 10, 100 * 100 + 900 * 10)
    assert codec.expand(np.array([-1000, 1000], np.int32), 1).tolist() == [-1000, 1000]
    with pytest.raises(MalformedError, match=r"outside -19000\.\.19000"):
        codec.check_total(np.array([19_001, 0]), 100)
    with pytest.raises(ValueError, match="spread=1001: must lie in"):
        GridCodec(2, bound=1000, spread=1001)
