"""Choices among records: what one record changes, whatever the order; keys that are kept."""

import stat

import numpy as np
import pytest

from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.record_choice import (
    RecordKey,
    fixed_sample,
    keyed_order,
    keyed_shards,
    poisson_sample,
)

KEY = bytes(32)


def multisets(rng):
    """A data set with copies, and its neighbours, each in an order of its own."""
    words = [b"%d" % number for number in rng.integers(0, 40, 60)]
    left_out = words[1:]
    exchanged = [*left_out, b"%d" % rng.integers(0, 60)]
    return words, *([part[i] for i in rng.permutation(len(part))] for part in (left_out, exchanged))


def differing(one, other):
    """How many records of ``one`` are not in ``other``, copies counted."""
    left = list(other)
    for word in one:
        if word in left:
            left.remove(word)
    return len(one) - (len(other) - len(left))


def shards_of(words, count, key=KEY):
    return [[words[row] for row in shard] for shard in keyed_shards(words, count, key)]


@pytest.mark.parametrize("size", [1, 7, 59, 60])
def test_a_fixed_sample_exchanges_one_record_where_the_data_do(size):
    for number in range(200):
        words, left_out, exchanged = multisets(np.random.default_rng(number))
        samples = []
        for part in (words, left_out, exchanged):
            chosen = fixed_sample(part, size, NoiseGenerator.seeded(number))
            assert len(chosen) == min(size, len(part)) == len(set(chosen.tolist()))
            samples.append([part[row] for row in chosen])
        for other in samples[1:]:
            assert differing(samples[0], other) <= 1
            assert differing(other, samples[0]) <= 1


def test_a_fixed_sample_is_uniform_copies_included():
    words = [b"same"] * 5 + [b"%d" % number for number in range(15)]
    counts = np.zeros(20)
    for number in range(4000):
        counts[fixed_sample(words, 5, NoiseGenerator.seeded("uniform", number))] += 1
    deviation = np.sqrt(4000 * 0.25 * 0.75)
    assert np.abs(counts[5:] - 1000).max() < 4.5 * deviation
    assert abs(counts[:5].sum() - 5000) < 4.5 * deviation * np.sqrt(5)


def test_a_record_left_out_changes_one_shard_and_one_exchanged_two():
    for number in range(200):
        words, left_out, exchanged = multisets(np.random.default_rng(number))
        base = shards_of(words, 8)
        for most, part in ((1, left_out), (2, exchanged)):
            others = shards_of(part, 8)
            changed = [
                i for i, (one, two) in enumerate(zip(base, others, strict=True)) if one != two
            ]
            assert len(changed) <= most


def test_order_counts_nowhere_and_the_key_does():
    rng = np.random.default_rng(1)
    words, _, _ = multisets(rng)
    mixed = [words[i] for i in rng.permutation(len(words))]
    assert shards_of(words, 8) == shards_of(mixed, 8)
    assert [words[i] for i in keyed_order(words, KEY)] == [
        mixed[i] for i in keyed_order(mixed, KEY)
    ]
    assert shards_of(words, 8) != shards_of(words, 8, b"1" * 32)
    assert sorted(np.concatenate(keyed_shards(words, 8, KEY))) == list(range(60))


def test_copies_are_spread_over_shards():
    sizes = [len(shard) for shard in keyed_shards([b"same"] * 800, 8, KEY)]
    assert min(sizes) > 60 and max(sizes) < 140


def test_nobody_is_no_trouble():
    assert len(fixed_sample([], 5, NoiseGenerator.seeded(1))) == 0
    assert [len(shard) for shard in keyed_shards([], 3, KEY)] == [0, 0, 0]


def test_coins_of_records_are_their_own():
    lots = [poisson_sample(0.25, 1000, NoiseGenerator.seeded(i)) for i in range(20)]
    assert abs(np.mean(lots) - 0.25) < 4.5 * np.sqrt(0.25 * 0.75 / 20_000)
    assert poisson_sample(1.0, 5, NoiseGenerator.seeded(1)).all()


def test_the_key_of_records_is_drawn_once_and_kept_for_its_owner_only(tmp_path):
    key = RecordKey(tmp_path / "deep" / "records.key")
    assert key.of(3) == RecordKey(tmp_path / "deep" / "records.key").of(3) != key.of(4)
    assert stat.S_IMODE(key.file.stat().st_mode) == 0o600
    assert RecordKey(tmp_path / "records.key").of(3) != key.of(3)


def test_with_seeded_noise_the_key_follows_from_the_seed_and_no_file_is_made(tmp_path):
    one, again, other = (RecordKey(tmp_path / "records.key", seed).of(3) for seed in (1, 1, 2))
    assert one == again != other
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_key_is_said_and_not_replaced(tmp_path):
    (tmp_path / "records.key").write_text("abc")
    with pytest.raises(ValueError, match="hexadecimal"):
        RecordKey(tmp_path / "records.key").of(1)
