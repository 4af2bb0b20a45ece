"""A file of arrays gives back what was written, or says that it is damaged."""

import numpy as np
import pytest

from murmur.files import replace_file
from murmur.learning.array_file import DamagedError, from_bytes, to_bytes

ARRAYS = {"b": np.arange(3), "a": np.ones((2, 2), np.float32)}
CONTENT = to_bytes(ARRAYS, {"round": 3})


def test_reads_back():
    arrays, facts = from_bytes(CONTENT)
    assert facts == {"round": 3}
    assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)


def test_facts_by_number_are_read_back_however_many_there_are():
    _, facts = from_bytes(to_bytes({}, {"failed": dict.fromkeys(range(12), "late")}))
    assert list(facts["failed"].values()) == ["late"] * 12


def test_every_flipped_byte_is_noticed():
    for place in range(len(CONTENT)):
        damaged = bytearray(CONTENT)
        damaged[place] ^= 1
        with pytest.raises(DamagedError):
            from_bytes(bytes(damaged))


@pytest.mark.parametrize("size", [0, 7, 8, len(CONTENT) // 2, len(CONTENT) - 1])
def test_a_shortened_file_is_noticed(size):
    with pytest.raises(DamagedError):
        from_bytes(CONTENT[:size])


def test_a_huge_header_is_noticed():
    with pytest.raises(DamagedError):
        from_bytes((2**52).to_bytes(8, "little") + CONTENT[8:])


def test_half_a_draft_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "x"
    replace_file(path, b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
