import warnings
from pathlib import Path

import numpy as np

from murmur.learning.training.memory import as_tensor, keep_heap


def test_keeping_the_heap_is_harmless_and_repeatable() -> None:
    assert keep_heap() is keep_heap()


def test_a_read_only_array_is_seen_without_copy_or_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = as_tensor(mapped)
    assert tensor.data_ptr() == mapped.ctypes.data
    assert tensor.tolist() == mapped.tolist()
    assert not mapped.flags.writeable


def test_the_tensor_keeps_the_array_alive() -> None:
    array = np.arange(100_000.0)
    array.flags.writeable = False
    tensor = as_tensor(array)
    del array
    filler = [np.zeros(100_000) for _ in range(5)]
    assert tensor.sum() == 100_000 * 99_999 / 2
    assert len(filler) == 5
