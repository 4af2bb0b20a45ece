"""Keys, shares and words are bound to everything that they are about: any other gives others."""

import pytest

from murmur.secure_sum.identity import (
    Party,
    about_boxes,
    about_dealing,
    about_mask,
    self_mask_key,
    word_on,
)
from murmur.secure_sum.keys import scalar
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.terms import join_ids

TERMS = SecureSumSettings("on").terms("run", 1, range(6), 10, 20)
OTHERS = SecureSumSettings("on").terms("run", 2, range(6), 10, 20)
ONE, OTHER, THIRD = Party(1, b"one"), Party(2, b"other"), Party(3, b"third")
RENEWED = Party(1, b"one with another key")
AGREED = bytes(32)
ALL, FEWER = (join_ids(range(n), TERMS.clients) for n in (6, 5))
# By function: what it is asked, and another value for each argument in turn.
ASKED = {
    about_boxes: ((TERMS, ONE, OTHER), (OTHERS, RENEWED, THIRD)),
    about_mask: (
        (TERMS, ONE, OTHER, b"question", ALL),
        (OTHERS, RENEWED, THIRD, b"another", FEWER),
    ),
    self_mask_key: ((AGREED, TERMS, ONE), (scalar(), OTHERS, RENEWED)),
    about_dealing: ((TERMS, ONE), (OTHERS, RENEWED)),
    word_on: ((ALL, ALL, b"question", TERMS, ONE), (FEWER, FEWER, b"another", OTHERS, RENEWED)),
}


@pytest.mark.parametrize("function", ASKED, ids=lambda function: function.__name__)
def test_nothing_that_is_bound_stays_the_same_where_anything_it_is_about_changes(function):
    asked, others = ASKED[function]
    found = {function(*asked)}
    for place, other in enumerate(others):
        found.add(function(*asked[:place], other, *asked[place + 1 :]))
    assert len(found) == 1 + len(others)


def test_both_ends_of_a_pair_are_bound_to_the_same():
    ends = ((ONE, OTHER), (OTHER, ONE))
    assert len({about_mask(TERMS, *pair, b"", ALL) for pair in ends}) == 1
    assert len({about_boxes(TERMS, *pair) for pair in ends}) == 1


def test_a_word_says_whose_it_is():
    words = {word_on(ALL, ALL, b"", TERMS, Party(n, b"the same keys")) for n in range(6)}
    assert len(words) == 6
