import copy
import os
import pickle
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from murmur.privacy.noise import NoiseGenerator

KEY = bytes(range(32))


def in_child(work):
    """The bytes that ``work`` returns in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, work())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return answer


def test_stream_is_aes_256_of_a_counter():
    block_cipher = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    counters = b"".join(i.to_bytes(16, "big") for i in range(1000))
    assert NoiseGenerator(KEY, is_seeded=True).uint8(16_000).tobytes() == block_cipher.update(
        counters
    )


def test_bytes_do_not_depend_on_the_sizes_of_requests():
    sizes = [1, 4095, 3, 2**20 - 1, 2**20 + 7, 5, 2**21, 100_000]
    pieces = NoiseGenerator.seeded("sizes")
    whole = NoiseGenerator.seeded("sizes").uint8(sum(sizes)).tobytes()
    assert b"".join(pieces.uint8(size).tobytes() for size in sizes) == whole


def test_integer_widths_read_the_same_stream():
    whole = NoiseGenerator.seeded("widths").uint8(800).tobytes()
    for width in ("uint8", "uint16", "uint32", "uint64"):
        n = 800 // np.dtype(width).itemsize
        drawn = getattr(NoiseGenerator.seeded("widths"), width)(n)
        assert drawn.dtype == np.dtype(width) and drawn.tobytes() == whole


def test_same_parts_give_the_same_stream():
    first, again = (
        NoiseGenerator.seeded(3, "round", b"\x01").uint8(64).tobytes() for _ in range(2)
    )
    assert first == again


def test_different_parts_never_run_into_each_other():
    different = [("ab", "c"), ("a", "bc"), ("abc",), ("a", "b"), ("asb",), ()]
    different += [(1, 23), (12, 3), ("12", 3), (b"12", 3), (-12, 3)]
    streams = {NoiseGenerator.seeded(*parts).uint8(32).tobytes() for parts in different}
    assert len(streams) == len(different)


def test_numpy_integers_count_as_integers():
    assert (
        NoiseGenerator.seeded(np.int64(5)).uint8(8).tobytes()
        == NoiseGenerator.seeded(5).uint8(8).tobytes()
    )


def test_parts_of_another_type_are_refused():
    with pytest.raises(TypeError, match=r"part 0\.5 of type float"):
        NoiseGenerator.seeded(0.5)


def test_os_keyed_generators_differ_and_are_not_seeded():
    first, second = NoiseGenerator.from_os(), NoiseGenerator.from_os()
    assert repr(first) != repr(NoiseGenerator.seeded(1))
    assert first.uint8(32).tobytes() != second.uint8(32).tobytes()


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_key_never_travels(attempt):
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        attempt(NoiseGenerator.from_os())


def test_repr_does_not_show_the_key():
    assert repr(NoiseGenerator.seeded(1)) == "NoiseGenerator(seeded)"


def test_a_forked_child_does_not_repeat_its_parents_noise():
    generator = NoiseGenerator.from_os()
    generator.uint8(100).tobytes()  # something is buffered when the fork happens
    children = [in_child(lambda: generator.uint8(64).tobytes()) for _ in range(2)]
    assert len({*children, generator.uint8(64).tobytes()}) == 3


def test_a_child_with_its_parents_process_id_does_not_repeat_its_noise(monkeypatch):
    """In another PID namespace (a container) both may be process 1."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    generator = NoiseGenerator.from_os()
    generator.uint8(100).tobytes()
    assert in_child(lambda: generator.uint8(64).tobytes()) != generator.uint8(64).tobytes()


def test_a_fork_under_a_held_lock_does_not_block_the_child():
    generator = NoiseGenerator.from_os()
    with generator._stream._lock:  # as if another thread were drawing
        assert len(in_child(lambda: generator.uint8(64).tobytes())) == 64


def test_a_seeded_generator_refuses_to_go_on_in_a_forked_child():
    generator = NoiseGenerator.seeded("fork")

    def work():
        with pytest.raises(RuntimeError, match="carried across a fork"):
            generator.uint8(1).tobytes()
        return b"refused"

    assert in_child(work) == b"refused"


def test_threads_never_draw_the_same_bytes():
    generator, drawn = NoiseGenerator.seeded("threads"), [[] for _ in range(4)]

    def draw(into):
        for _ in range(300):
            into.append(generator.uint64(37))

    threads = [threading.Thread(target=draw, args=(into,)) for into in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = np.concatenate([block for into in drawn for block in into])
    assert np.unique(numbers).size == numbers.size == 4 * 300 * 37


def test_bytes_are_uniform():
    counts = np.bincount(NoiseGenerator.seeded("uniform").uint8(2_000_000), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_fill_overwrites_arrays_of_integers_only():
    out = np.zeros((3, 5), dtype=np.int16)
    NoiseGenerator.seeded("fill").fill(out)
    assert out.tobytes() == NoiseGenerator.seeded("fill").uint8(30).tobytes()
    NoiseGenerator.seeded("fill").fill(np.zeros(0, dtype=np.uint8))
    locked = np.zeros(4, dtype=np.uint8)
    locked.flags.writeable = False
    for wrong in (np.zeros(3), np.zeros((4, 4), dtype=np.uint8)[:, 1], locked):
        with pytest.raises(ValueError, match="out"):
            NoiseGenerator.seeded("fill").fill(wrong)


def test_a_key_of_another_length_is_refused():
    with pytest.raises(ValueError, match="key of 16 bytes"):
        NoiseGenerator(bytes(16), is_seeded=True)
