"""Framed fields can be told apart, wherever they are cut."""

import itertools

from murmur.common import framed


def test_no_two_lists_of_fields_are_framed_alike():
    words = [b"", b"a", b"aa", b"\0", framed(b"a"), framed(b""), b"ab" * 200]
    lists = [fields for n in range(4) for fields in itertools.product(words, repeat=n)]
    assert len({framed(*fields) for fields in lists}) == len(lists)


def test_what_is_framed_may_follow_what_is_framed():
    assert framed(b"a", b"b") + framed(b"c") == framed(b"a", b"b", b"c")
