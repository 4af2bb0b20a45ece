"""Bytes of strangers are a plain array of numbers, or malformed."""

import io
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from murmur.learning.array_bytes import MalformedError, array_from_bytes


def saved(values):
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=True)
    return stream.getvalue()


@settings(max_examples=200, derandomize=True)
@given(
    values=hnp.arrays(
        dtype=st.sampled_from(["<f4", "<f8", "<i8", "<i4", "u1", "?", "<f2"]),
        shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    fortran=st.booleans(),
)
def test_what_numpy_wrote_comes_back_as_it_was(values, fortran):
    values = np.asfortranarray(values) if fortran else values
    found = array_from_bytes(saved(values))
    assert found.dtype == values.dtype and found.shape == values.shape
    np.testing.assert_array_equal(found, values)
    assert found.flags.c_contiguous


def test_an_array_lies_in_the_bytes_that_were_sent_and_nobody_can_change_them():
    found = array_from_bytes(saved(np.arange(3.0)))
    assert not found.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


@pytest.mark.parametrize(
    "values",
    [
        np.array(["a", "b"]),
        np.array([object()], object),
        np.zeros(3, np.complex64),
        np.zeros(3, ">f4"),
        np.zeros(2, [("a", "f4"), ("b", "i4")]),
        np.array(["2026-01-01"], "datetime64[D]"),
    ],
    ids=lambda values: str(values.dtype),
)
def test_anything_but_plain_numbers_is_malformed(values):
    with pytest.raises(MalformedError):
        array_from_bytes(saved(values))


@pytest.mark.parametrize(
    "shape", ["(3)", "(-1,)", "(0, 999999999999999999, 999999999999999999)", "(2, 2)", "(True,)"]
)
def test_a_shape_that_numpy_would_not_write_or_that_the_bytes_do_not_fill_is_malformed(shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    with pytest.raises(MalformedError):
        array_from_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def test_many_threads_read_at_once():
    data, interval = saved(np.arange(6.0).reshape(2, 3)), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: array_from_bytes(data).sum(), range(2000)))
    finally:
        sys.setswitchinterval(interval)
    assert found == [15.0] * 2000


@settings(max_examples=500, derandomize=True)
@given(data=st.data())
def test_damaged_bytes_are_malformed_or_an_array_of_the_bytes_that_came(data):
    whole = bytearray(saved(np.arange(6.0).reshape(2, 3)))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        found = array_from_bytes(cut)
    except MalformedError:
        return
    assert found.nbytes <= len(cut)
