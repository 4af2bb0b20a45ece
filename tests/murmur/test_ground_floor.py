import itertools
import math

import numpy as np
import pytest
import torch

from murmur.checks import BLOCK_ENTRIES, is_finite, is_within
from murmur.format import format_number
from murmur.random import StreamKey, experiment_rng, seeded_torch


def test_same_arguments_give_the_same_stream():
    first = experiment_rng(3, "partition", round=2, client=7).random(5)
    second = experiment_rng(3, "partition", round=2, client=7).random(5)
    assert np.array_equal(first, second)


def test_the_stream_is_pinned_across_platforms_and_releases():
    draws = experiment_rng(0, "partition").integers(0, 2**32, size=4)
    assert draws.tolist() == [4277991218, 1926869676, 1828690206, 3629749061]


def test_any_differing_argument_gives_another_stream():
    arguments = itertools.product((0, 1, 11), ("cohort", "partition"), (0, 1, 11), (0, 1, 11))
    draws = [int(experiment_rng(*a).integers(0, 2**63)) for a in arguments]
    assert len(set(draws)) == len(draws) == 54


def test_numpy_integers_are_the_same_as_python_integers():
    ours = experiment_rng(np.int64(3), "x", np.int32(2), np.uint8(1)).random()
    assert ours == experiment_rng(3, "x", 2, 1).random()


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0", None])
def test_a_bad_seed_is_refused_by_name(seed):
    with pytest.raises(ValueError, match=r"^seed="):
        experiment_rng(seed, "partition")


def test_an_empty_purpose_is_refused():
    with pytest.raises(ValueError, match=r"^purpose="):
        experiment_rng(0, "")


def test_streams_are_uncorrelated():
    a = experiment_rng(0, "partition", 0, 1).standard_normal(10_000)
    b = experiment_rng(0, "partition", 0, 2).standard_normal(10_000)
    # 4 standard errors of a correlation of independent samples.
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.04


def test_seeded_torch_draws_what_pytorch_draws_from_that_seed_and_leaves_no_trace():
    torch.manual_seed(2**62 + 5)
    expected, following = torch.rand(3), torch.rand(3)
    torch.manual_seed(2**62 + 5)
    torch.rand(3)
    with seeded_torch(2**62 + 5):
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.rand(3), following)


def test_a_stream_s_key_makes_the_generator_that_numpy_makes_of_it():
    key = np.array([2**63 + 5, 7], np.uint64)
    ours = np.random.Generator(np.random.Philox(StreamKey(key)))
    theirs = np.random.Generator(np.random.Philox(key=key))
    assert ours.permutation(100).tolist() == theirs.permutation(100).tolist()
    assert ours.standard_normal(9).tobytes() == theirs.standard_normal(9).tobytes()
    jumped = [each.bit_generator.jumped().random_raw() for each in (ours, theirs)]
    assert jumped[0] == jumped[1]
    with pytest.raises(ValueError, match="n_words=4"):
        StreamKey(key).generate_state(4)


@pytest.mark.parametrize("size", [1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1, 3 * BLOCK_ENTRIES])
@pytest.mark.parametrize("place", [0, -1])
def test_one_entry_that_is_not_finite_is_found_in_any_block(size, place):
    x = np.full(size, 1e300)  # whose squares overflow
    assert is_finite(x) and is_within(x, 0, 1e300)
    for bad in (math.nan, math.inf, -math.inf):
        x[place] = bad
        assert not is_finite(x)
        assert not is_within(x, -1e308, 1e308)


def test_what_is_within_bounds_may_reach_them():
    x = np.arange(-3, BLOCK_ENTRIES)
    assert is_within(x, -3, BLOCK_ENTRIES - 1)
    assert not is_within(x, -2, BLOCK_ENTRIES - 1)
    assert not is_within(x, -3, BLOCK_ENTRIES - 2)
    assert is_within(np.zeros((2, 0)), 1, 0)


@pytest.mark.parametrize(
    ("value", "most", "least"),
    [
        (3.7522, "3.76", "3.75"),
        (8.0, "8", "8"),
        (0.1 + 0.2, "0.3", "0.3"),
        (7.9996, "8", "7.99"),
        (999.9, "1,000", "999"),
        (1234.2, "1,235", "1,234"),
        (0.0, "0", "0"),
        (math.nan, "nan", "nan"),
    ],
)
def test_what_is_at_most_a_figure_is_never_printed_as_less(value, most, least):
    assert format_number(value) == most
    assert format_number(value, up=False) == least
