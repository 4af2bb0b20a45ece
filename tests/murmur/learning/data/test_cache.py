import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from murmur.learning.data.cache import (
    RawDataset,
    RawExamples,
    cache_folder,
    load_or_build,
    publish_folder,
)
from murmur.learning.data.examples import DataError


def build() -> RawDataset:
    pixels = np.arange(10 * 2 * 3 * 4, dtype=np.uint8).reshape(10, 2, 3, 4)
    labels = np.arange(10, dtype=np.uint8) % 3
    return RawDataset(
        RawExamples(pixels, labels), RawExamples(pixels[:0], labels[:0]), num_classes=3
    )


def load(cache: Path, *, sources=(), settings=None, build=build):
    return load_or_build("toy", sources=sources, settings=settings or {}, cache=cache, build=build)


def forbidden() -> RawDataset:
    raise AssertionError("decoded again")


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_pixels_are_scaled_and_an_empty_test_set_survives(tmp_path):
    data = load(tmp_path)
    expected = build().train.pixels.astype(np.float32) / np.float32(255)
    assert np.array_equal(data.train.images, expected)
    assert data.test.images.shape == (0, 2, 3, 4)
    assert (data.num_classes, data.input_shape) == (3, (2, 3, 4))


def test_images_longer_than_a_block_are_written_whole(tmp_path):
    pixels = np.random.default_rng(0).random((10_000, 1, 2, 2), dtype=np.float32)
    raw = RawExamples(pixels, np.zeros(10_000, int))
    data = load(tmp_path, build=lambda: RawDataset(raw, raw, 1))
    assert np.array_equal(data.train.images, pixels)


def test_the_second_load_decodes_nothing_and_maps_memory_read_only(tmp_path):
    load(tmp_path)
    data = load(tmp_path, build=forbidden)
    assert isinstance(data.train.images.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        data.train.images[0] = 0


def test_a_changed_source_or_setting_is_another_data_set(tmp_path):
    source = tmp_path / "source"
    source.write_text("one")
    cache = tmp_path / "cache"
    load(cache, sources=[source])
    load(cache, sources=[source], build=forbidden)
    stamp = source.stat().st_mtime_ns
    os.utime(source, ns=(stamp, stamp + 1))
    load(cache, sources=[source], build=forbidden)
    source.write_text("two")
    os.utime(source, ns=(stamp, stamp))
    load(cache, sources=[source])
    load(cache, sources=[source], settings={"size": 3})
    assert len(folders(cache)) == 3


def test_a_failed_decoding_leaves_nothing(tmp_path):
    def failing() -> RawDataset:
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        load(tmp_path / "cache", build=failing)
    assert not (tmp_path / "cache").exists()


def test_a_failed_writing_leaves_nothing(tmp_path):
    def full() -> None:
        with publish_folder(tmp_path / "x") as temporary:
            (temporary / "half").write_text("…")
            raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\)"):
        full()
    assert folders(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_named_with_the_setting(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file.*cannot be written.*MURMUR_CACHE"):
        load(tmp_path / "file" / "cache")


def test_a_damaged_folder_is_named(tmp_path):
    load(tmp_path)
    (folder,) = tmp_path.iterdir()
    file = folder / "train_images.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{folder.name} is damaged.*delete it"):
        load(tmp_path)


def test_the_one_who_comes_second_uses_the_first_ones_folder(tmp_path):
    def slow() -> RawDataset:
        load(tmp_path)  # another process finishes while this one decodes
        return build()

    data = load(tmp_path, build=slow)
    assert len(data.train) == 10
    assert len(folders(tmp_path)) == 1


def concurrent(cache: Path, barrier, results) -> None:
    def synchronised() -> RawDataset:
        barrier.wait(timeout=60)
        return build()

    results.put(float(load(cache, build=synchronised).train.images.sum()))


def test_processes_may_build_the_same_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    arguments = (tmp_path, barrier, results)
    workers = [context.Process(target=concurrent, args=arguments) for _ in range(4)]
    for worker in workers:
        worker.start()
    sums = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(set(sums)) == 1
    assert len(folders(tmp_path)) == 1


def test_the_cache_folder_is_the_argument_then_the_variable_then_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("MURMUR_CACHE", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(tmp_path / "argument") == tmp_path / "argument"
    assert cache_folder(None) == tmp_path / "variable"
    monkeypatch.delenv("MURMUR_CACHE")
    assert cache_folder(None) == tmp_path / "xdg" / "murmur"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / ".cache" / "murmur"


def test_what_was_decoded_is_for_its_user_only(tmp_path):
    """It may be somebody's own images."""
    load(tmp_path / "cache")
    (folder,) = folders(tmp_path / "cache")
    assert (tmp_path / "cache" / folder).stat().st_mode & 0o077 == 0
