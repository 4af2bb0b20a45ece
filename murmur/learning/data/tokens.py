"""Texts as numbers of words: hashed words, or a tokenizer of Hugging Face's."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from murmur.learning.data.cache import encoder_folder
from murmur.learning.data.examples import DataError
from murmur.learning.data.frames import Images, missing_packages

_WORD = re.compile(r"\w+")
# Without spaces between words: each letter, with its marks, stands for one.
_SCRIPTS = ("Han", "Hiragana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
_UNSPACED = "".join(rf"\p{{{script}}}" for script in _SCRIPTS)
_WORD_OF_ANY_SCRIPT = rf"[{_UNSPACED}]\p{{M}}*|[\w\p{{M}}&&[^{_UNSPACED}]]+"  # Oniguruma's


def hashed_words(vocabulary: int) -> Callable[[str], list[int]]:
    """A function from a text to the numbers of its words.

    A hash is the same for everybody, and knows no data.

    Args:
        vocabulary: numbers lie from 2 to below it.
    """

    @lru_cache(maxsize=1 << 16)
    def number(word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return 2 + int.from_bytes(digest, "little") % (vocabulary - 2)

    return lambda text: [number(word) for word in words_of(text)]


def words_of(text: str) -> list[str]:
    """The words of ``text`` in lower case, whatever its script and its form of Unicode.

    Between spaces and signs, accents and vowel signs included; one letter after the other where a
    script has no spaces between words. Katakana, of whole words, is split by other scripts only.
    """
    text = unicodedata.normalize("NFC", text).lower()
    if text.isascii():
        return _WORD.findall(text)
    return [word for word, _ in _splitter().pre_tokenize_str(text)]


@lru_cache(maxsize=1)
def _splitter() -> Any:
    """Splitter of texts by ``_WORD_OF_ANY_SCRIPT``; ValueError without the extra ``data``."""
    try:
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Split
    except ImportError as error:
        raise missing_packages("text", "tokenizers") from error
    return Split(Regex(_WORD_OF_ANY_SCRIPT), "removed", invert=True)


def encoded(texts: Sequence[str], tokenizer: str, length: int) -> Images:
    """The first ``length`` token numbers of each text by a tokenizer, (n, 1, 1, length).

    Raises:
        ValueError, DataError: as ``tokenizer_of``.
    """
    known = tokenizer_of(tokenizer)
    return padded((known.encode(text).ids for text in texts), len(texts), length)


def padded(tokens: Iterable[Sequence[int]], count: int, length: int) -> Images:
    """The first ``length`` of each text's ``tokens``, (count, 1, 1, length), then zeros."""
    ids = np.zeros((count, 1, 1, length), np.float32)
    for row, found in zip(ids, tokens, strict=True):
        row[0, 0, : len(found)] = found[:length]
    return ids


def vocabulary_of(tokenizer: str) -> int:
    """How many tokens a tokenizer knows: all their numbers lie below.

    Raises:
        ValueError, DataError: as ``tokenizer_of``.
    """
    return 1 + max(tokenizer_of(tokenizer).get_vocab().values())


def tokenizer_of(tokenizer: str) -> Any:
    """A tokenizer of Hugging Face's, which pads and cuts nothing.

    Raises:
        ValueError: the extra ``data`` is not installed.
        DataError: the file is no tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_packages("tokenizer", "tokenizers") from error
    try:
        place = Path(tokenizer).expanduser()
        if not place.is_file():  # an encoder's folder or package
            place = encoder_folder(tokenizer) / "tokenizer.json"
        known = Tokenizer.from_file(str(place))
        known.no_padding()
        known.no_truncation()
    except DataError:
        raise
    except Exception as error:  # the library raises no other kind
        raise DataError(f"dataset.tokenizer={tokenizer}: cannot be read ({error})") from error
    return known
