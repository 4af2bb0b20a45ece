"""Framed fields can be told apart, wherever they are cut."""

import itertools

import pytest

from murmur.format import framed, unframed


def test_no_two_lists_of_fields_are_framed_alike():
    words = [b"", b"a", b"aa", b"\0", framed(b"a"), framed(b""), b"ab" * 200]
    lists = [fields for n in range(4) for fields in itertools.product(words, repeat=n)]
    assert len({framed(*fields) for fields in lists}) == len(lists)
    assert [tuple(unframed(framed(*fields))) for fields in lists] == lists


def test_what_is_framed_may_follow_what_is_framed():
    assert framed(b"a", b"b") + framed(b"c") == framed(b"a", b"b", b"c")


def test_what_is_cut_off_is_not_framed():
    whole = framed(b"a", b"bc")
    for end in (1, 7, 8, 10, len(whole) - 1):
        with pytest.raises(ValueError, match="cut off"):
            unframed(whole[:end])
