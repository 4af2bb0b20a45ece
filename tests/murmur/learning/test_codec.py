"""Sums are exact for every grouping, and nothing out of form gets into them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from murmur.learning.array_bytes import MalformedError
from murmur.learning.codec import BitCodec, LabelCodec, WeightCodec
from murmur.learning.sums import SumAccumulator

CODECS = [LabelCodec(3, 10), BitCodec(11), WeightCodec(5)]


def release(codec, rng):
    if isinstance(codec, LabelCodec):
        return rng.integers(0, codec.categories, codec.count)
    if isinstance(codec, BitCodec):
        return rng.integers(0, 2, codec.size)
    return rng.normal(size=codec.size).astype(np.float32)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)
def test_sum_is_the_same_for_every_grouping(codec):
    rng = np.random.default_rng(0)
    packed = [codec.pack(release(codec, rng)) for _ in range(12)]
    weights = [1] * 12 if not isinstance(codec, WeightCodec) else list(range(1, 13))
    whole = SumAccumulator(codec)
    for client, (values, weight) in enumerate(zip(packed, weights, strict=True)):
        whole.add(client, values, weight)
    for parts in (2, 3, 12):
        server = SumAccumulator(codec)
        for share in np.array_split(np.arange(12), parts):
            node = SumAccumulator(codec)
            for client in share:
                node.add(int(client), packed[client], weights[client])
            server.add_total(node.clients, node.total, node.weight)
        assert np.array_equal(server.total, whole.total)
        assert server.weight == whole.weight
        assert server.clients == whole.clients


def test_compact_forms_are_as_small_as_promised():
    assert LabelCodec(4, 10).pack(np.arange(4)).nbytes == 4
    assert BitCodec(81_958).pack(np.zeros(81_958)).nbytes == 10_245
    assert WeightCodec(100).pack(np.zeros(100)).nbytes == 400


def test_weighted_mean_is_that_of_the_reals():
    codec, rng = WeightCodec(50), np.random.default_rng(1)
    values = rng.normal(size=(4, 50)).astype(np.float32)
    weights = [3, 1, 7, 2]
    total = SumAccumulator(codec)
    for client in range(4):
        total.add(client, codec.pack(values[client]), weights[client])
    expected = np.average(values.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(codec.mean(total.total, total.weight), expected, atol=2**-30)


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (LabelCodec(2, 4), np.array([0, 4], np.uint8)),
        (LabelCodec(2, 4), np.array([0, 1, 2], np.uint8)),
        (LabelCodec(2, 4), np.array([0.0, 1.0])),
        (BitCodec(9), np.zeros(1, np.uint8)),
        (BitCodec(9), np.zeros(2, np.int64)),
        (WeightCodec(2), np.array([np.nan, 0], np.float32)),
        (WeightCodec(2), np.array([np.inf, 0], np.float32)),
        (WeightCodec(2), np.array([1e9, 0], np.float32)),
        (WeightCodec(2), np.array([1, 0], np.float64)),
    ],
)
def test_malformed_contribution_is_rejected_and_leaves_the_sum_alone(codec, packed):
    total = SumAccumulator(codec)
    with pytest.raises(MalformedError):
        total.add(0, packed)
    assert not total.total.any()
    assert total.clients == []
    assert total.weight == 0


@pytest.mark.parametrize(
    ("codec", "claimed", "weight"),
    [
        (LabelCodec(1, 3), np.array([[2, 2, 0]]), 3),
        (LabelCodec(1, 3), np.array([[4, -1, 0]]), 3),
        (BitCodec(2), np.array([0, 4]), 3),
        (BitCodec(2), np.array([-1, 0]), 3),
        (WeightCodec(1), np.array([2**62]), 3),
        (WeightCodec(1), np.array([-(2**63)]), 3),
        (WeightCodec(1), np.array([0]), 2**40),
        (WeightCodec(1), np.array([0]), 1),
    ],
)
def test_impossible_node_sum_is_rejected(codec, claimed, weight):
    with pytest.raises(MalformedError):
        SumAccumulator(codec).add_total([0, 1, 2], claimed.astype(np.int64), weight)


@settings(max_examples=300, derandomize=True)
@given(
    codec=st.sampled_from(CODECS),
    values=hnp.arrays(
        dtype=st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_]),
        shape=hnp.array_shapes(max_dims=3, max_side=12),
    ),
    weight=st.integers(-2, 2**64),
)
def test_any_array_is_either_summed_in_bounds_or_rejected(codec, values, weight):
    for add in (
        lambda s: s.add(0, values, weight),
        lambda s: s.add_total([0], values, weight),
    ):
        total = SumAccumulator(codec)
        try:
            add(total)
        except MalformedError:
            continue
        assert total.total.shape == codec.shape
        codec.check_total(total.total, total.weight)


def test_values_beyond_what_can_be_carried_end_at_the_bound():
    codec = WeightCodec(5, bound=8.0)
    values = np.array([np.nan, np.inf, -np.inf, 9.0, -0.5])
    assert codec.pack(values).tolist() == [0.0, 8.0, -8.0, 8.0, -0.5]
    assert np.isnan(values[0]), "the caller's values stay as they were"


@pytest.mark.parametrize("size", [5, 70_000])
def test_single_precision_travels_as_it_is_and_double_precision_to_the_same_bits(size):
    rng = np.random.default_rng(size)
    after, before = rng.normal(scale=[[1.0], [1e-3]], size=(2, size)).astype(np.float32)
    codec = WeightCodec(size)
    single = after - before
    packed = codec.pack(single)
    assert packed is single
    assert np.array_equal(packed, codec.pack(np.subtract(after, before, dtype=np.float64)))
    single[-1] = np.nan
    assert codec.pack(single)[-1] == 0 and np.isnan(single[-1])
