"""Labelled examples from named columns: numbers, texts or pictures, and whose each row is.

What a column holds decides what it becomes: numbers (F, 1, 1), one for each column, as they are;
a text (1, 1, L), the numbers of its first L words; a picture (C, H, W) in [0, 1]. Nothing is fitted
to the data, neither a scale nor a vocabulary: that would be a release. ``features=pca`` fits on the
public pool.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learning.data.examples import DataError, Examples
from learning.data.own_data import number_classes

Column = Sequence[Any]
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Reading:
    """Which columns are what.

    ``inputs``: the columns that a model sees; None: all but ``label`` and ``client``. One of texts
    or pictures stands alone. ``client``: the column that says whose each row is. ``classes``: the
    values of ``label`` in the order of their numbers; None: sorted. ``tokenizer``: a local file of
    Hugging Face's ``tokenizers``; None: a word's number is a hash of it. ``vocabulary``: numbers
    from 2 on that such hashes take; 0 is padding, 1 unknown. ``length``: of a text, in tokens.
    ``size``, ``channels``: of pictures, as in ``learning.data.own_data.image_folder``.
    """

    label: str = "label"
    inputs: Sequence[str] | None = None
    client: str | None = None
    classes: Sequence[str | int] | None = None
    tokenizer: str | None = None
    vocabulary: int = 4096
    length: int = 64
    size: int | Sequence[int] = 28
    channels: int = 1

    def __post_init__(self) -> None:
        for name, least in (("vocabulary", 3), ("length", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least {least}")
        if self.inputs is not None and not self.inputs:
            raise ValueError("inputs=[]: must name a column, or be null for all")

    def read(self, parts: Sequence[Mapping[str, Column]], source: object) -> list[Part]:
        """The parts of one data set (train, test), whose classes and clients are numbered alike.

        DataError, which names ``source`` and the column, where a column is missing or cannot be
        read.
        """
        columns = [self._inputs(part, source) for part in parts]
        labels = [[str(value) for value in self._column(p, self.label, source)] for p in parts]
        every = [name for part in labels for name in part]
        places = [f"{source}, row {row}" for part in labels for row in range(len(part))]
        numbers, num_classes = number_classes(every, places, self.classes)
        split = np.split(numbers, np.cumsum([len(part) for part in labels])[:-1])
        owners = [self._owners(part, source) for part in parts]
        return [
            Part(Examples(images, own), whose, num_classes)
            for images, own, whose in zip(columns, split, owners, strict=True)
        ]

    def _owners(self, part: Mapping[str, Column], source: object) -> NDArray[np.str_] | None:
        if self.client is None:
            return None
        return np.array([str(value) for value in self._column(part, self.client, source)])

    def _inputs(self, part: Mapping[str, Column], source: object) -> NDArray[np.float32]:
        names = [n for n in part if n not in (self.label, self.client)]
        names = names if self.inputs is None else list(self.inputs)
        first = [self._column(part, name, source) for name in names]
        if not first or not len(first[0]):
            raise DataError(f"{source}: holds no input columns or no rows")
        if len(names) == 1:
            if isinstance(first[0][0], str):
                return self._texts(first[0])
            if hasattr(first[0][0], "convert"):
                return self._pictures(first[0])
        values = [_numbers(v, name, source) for v, name in zip(first, names, strict=True)]
        return np.concatenate(values, axis=1)[:, :, None, None]

    def _column(self, part: Mapping[str, Column], name: str, source: object) -> Column:
        if name not in part:
            raise DataError(f"{source}: has no column {name!r}; it has {', '.join(map(str, part))}")
        return part[name]

    def _texts(self, texts: Column) -> NDArray[np.float32]:
        ids = np.zeros((len(texts), 1, 1, self.length), np.float32)
        tokens = _hashed(self.vocabulary) if self.tokenizer is None else _file(self.tokenizer)
        for row, text in enumerate(texts):
            known = tokens(str(text))[: self.length]
            ids[row, 0, 0, : len(known)] = known
        return ids

    def _pictures(self, pictures: Column) -> NDArray[np.float32]:
        from learning.data.image_files import to_pixels

        pair = [self.size] * 2 if isinstance(self.size, int) else list(self.size)
        pixels = [to_pixels(picture, pair[0], pair[1], self.channels) for picture in pictures]
        return np.stack(pixels).astype(np.float32) / np.float32(255)


@dataclass(frozen=True, eq=False)
class Part:
    """Examples, and whose each is (N,); None where no column says so."""

    examples: Examples
    owners: NDArray[np.str_] | None
    num_classes: int


def _numbers(values: Column, name: str, source: object) -> NDArray[np.float32]:
    try:
        found = np.array([np.ravel(value) for value in values], np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{source}: column {name!r} holds more than numbers; leave it out (dataset.inputs), or "
            "turn it into numbers"
        ) from error
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found).all(axis=1)))
        raise DataError(f"{source}: column {name!r} has no finite number in row {row}")
    return found


def _hashed(vocabulary: int) -> Callable[[str], list[int]]:
    @lru_cache(maxsize=1 << 16)
    def number(word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return 2 + int.from_bytes(digest, "little") % (vocabulary - 2)

    return lambda text: [number(word) for word in _WORD.findall(text.lower())]


def _file(tokenizer: str) -> Callable[[str], list[int]]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            "tokenizer: reading it needs the package tokenizers; install it (extra `data`)"
        ) from error
    try:
        known = Tokenizer.from_file(str(Path(tokenizer).expanduser()))
    except Exception as error:  # the library raises no other kind
        raise DataError(f"dataset.tokenizer={tokenizer}: cannot be read ({error})") from error
    return lambda text: known.encode(text).ids
