"""Hashed words: what a text's vector is, without an encoder."""

import numpy as np
import pytest

from murmur.learning.features.maps import words


def vectors(*texts, size=256):
    """Of texts as lists of word numbers, padded to six."""
    ids = np.zeros((len(texts), 1, 1, 6), np.float32)
    for row, text in enumerate(texts):
        ids[row, 0, 0, : len(text)] = text
    features = words(size=size)
    return features.apply(features.fit(ids), ids).reshape(len(texts), -1)


def test_a_text_has_length_one_and_no_words_none():
    found = vectors([5, 9, 7], [])
    assert found.shape == (2, 256)
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 0])


def test_shared_words_are_near_and_their_order_tells_texts_apart():
    same, turned, other = (
        vectors([5, 9, 7], text)[1] for text in ([5, 9, 7], [7, 9, 5], [1, 2, 3])
    )
    first = vectors([5, 9, 7])[0]
    assert first @ same == pytest.approx(1)
    assert 0.3 < first @ turned < 0.9
    assert abs(first @ other) < 0.3


def test_padding_counts_for_nothing():
    assert np.array_equal(vectors([5, 9])[0], vectors([5, 9, 0, 0])[0])


def test_two_numbers_at_least():
    with pytest.raises(ValueError, match="size=1: must be at least 2"):
        words(size=1)
