"""Columns of a table as bins: what is known in public of each column, and of pairs of columns.

A schema says of every input column what anybody may know: the list of its values, or its range and
how many bins divide it. Nothing is learnt from the table. A row becomes a vector with a 1 in one
bin of every column and of every crossed pair, of unit length: a linear model of it is an additive
model that can be drawn, one curve a column and one map a pair.

Values that the list lacks, and numbers below or above the range, have bins of their own.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.cells import nfc, require_plain

UNKNOWN = -1.0  # how a table's reader writes a value that the column's public list lacks


@dataclass(frozen=True)
class Column:
    """One column of a schema: a public list of values, or a range [low, high] in equal bins.

    Attributes:
        name: the column's name in the table.
        values: the list, in order; empty for a range. A reader gives the place in it, from 0.
        low: the range's least value.
        high: its greatest.
        bins: into how many parts of equal length it is divided.
    """

    name: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    bins: int = 0

    @classmethod
    def of(cls, name: str, told: Mapping[str, Any]) -> "Column":
        """The column as a schema writes it: ``{list: [...]}`` or ``{range: [low, high], bins: n}``.

        Raises ValueError with the column's name, what is wrong and what is allowed.
        """
        known = set(told)
        if known == {"list"}:
            require_plain(f"schema.{name}.list={list(told['list'])}", told["list"])
            values = tuple(str(value) for value in told["list"])
            if not values or len(set(values)) != len(values):
                raise ValueError(f"schema.{name}.list: must name at least one value, each once")
            return cls(name, values)
        if known != {"range", "bins"}:
            raise ValueError(
                f"schema.{name}={dict(told)}: must be {{list: [...]}} or "
                "{range: [least, greatest], bins: n}"
            )
        limits = list(told["range"])
        if len(limits) != 2 or not all(math.isfinite(x) for x in limits) or limits[0] >= limits[1]:
            raise ValueError(f"schema.{name}.range={limits}: must be [least, greatest], in order")
        if told["bins"] < 1:
            raise ValueError(f"schema.{name}.bins={told['bins']}: must be at least 1")
        return cls(name, (), float(limits[0]), float(limits[1]), int(told["bins"]))

    @property
    def told(self) -> dict[str, Any]:
        """The column as a schema writes it: the inverse of ``of``."""
        if self.values:
            return {"list": list(self.values)}
        return {"range": [self.low, self.high], "bins": self.bins}

    @property
    def size(self) -> int:
        """How many bins there are: one more than values of a list, two more than a range's bins."""
        if self.values:
            return len(self.values) + 1
        return self.bins + 2

    def places(self, numbers: NDArray[np.float32]) -> NDArray[np.int64]:
        """The bin of each of ``numbers`` (N,), as the table's reader gives them.

        Whatever is no place in the list is any other value, and no number is below the range.
        """
        if self.values:
            known = (numbers >= 0) & (numbers < len(self.values)) & (numbers == np.floor(numbers))
            return np.where(known, numbers, len(self.values)).astype(np.int64)
        known = np.nan_to_num(numbers.astype(np.float64), nan=-np.inf)
        share = (known - self.low) / (self.high - self.low)
        inside = np.clip(np.floor(share * self.bins), 0, self.bins - 1).astype(np.int64)
        below = np.where(share < 0, self.bins, inside)
        return np.where(share > 1, self.bins + 1, below)

    def labels(self) -> list[str]:
        """Names of the bins, for a drawing."""
        if self.values:
            return [*self.values, "any other"]
        edges = np.linspace(self.low, self.high, self.bins + 1)
        inside = [f"{a:g} to {b:g}" for a, b in itertools.pairwise(edges)]
        return [*inside, f"below {self.low:g}, or missing", f"above {self.high:g}"]


class Bins:
    """The map from a table's rows to bins: of every column of a schema, and of crossed pairs.

    Attributes:
        columns: of the schema, in its order, which is that of the table's inputs.
        crossed: pairs of places in ``columns``.
        width: how many bins there are in all.
    """

    def __init__(
        self,
        schema: Mapping[str | int, Mapping[str, Any]],
        crossed: Sequence[Sequence[str | int]] = (),
    ) -> None:
        if not schema:
            raise ValueError("schema={}: must say of every input column what is known in public")
        self.columns = tuple(Column.of(nfc(str(name)), told) for name, told in schema.items())
        names = [column.name for column in self.columns]
        pairs = []
        for names_of_pair in crossed:
            pair = [nfc(str(name)) for name in names_of_pair]
            if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(names):
                raise ValueError(
                    f"crossed={pair}: must be two columns of the schema, which has "
                    f"{', '.join(names)}"
                )
            pairs.append((names.index(pair[0]), names.index(pair[1])))
        self.crossed = tuple(pairs)
        self._sizes = [column.size for column in self.columns]
        self._sizes += [self._sizes[a] * self._sizes[b] for a, b in self.crossed]
        self.width = sum(self._sizes)

    @property
    def schema(self) -> dict[str, dict[str, Any]]:
        """The columns' values and ranges, in the form of a schema."""
        return {column.name: column.told for column in self.columns}

    @property
    def digest(self) -> str:
        """SHA-256 of columns, lists, ranges and pairs; the same digest is the same map."""
        told = [[c.name, c.values, c.low, c.high, c.bins] for c in self.columns]
        return hashlib.sha256(json.dumps([told, self.crossed]).encode()).hexdigest()

    def places(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Where each row's ones are, (N, columns + pairs), of ``rows`` (N, columns) of numbers.

        Raises ValueError where the rows have more or fewer columns than the schema.
        """
        if rows.shape[1] != len(self.columns):
            raise ValueError(
                f"schema: has {len(self.columns)} columns, the table's rows have {rows.shape[1]}"
            )
        found = [column.places(rows[:, i]) for i, column in enumerate(self.columns)]
        for a, b in self.crossed:
            found.append(found[a] * self._sizes[b] + found[b])
        starts = np.cumsum([0, *self._sizes[:-1]])
        return np.stack(found, axis=1) + starts

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors (N, width) of unit length, of a table's rows (N, columns, 1, 1)."""
        places = self.places(images.reshape(len(images), -1))
        out = np.zeros((len(images), self.width), np.float32)
        np.put_along_axis(out, places, np.float32(1 / math.sqrt(places.shape[1])), axis=1)
        return out

    def parts(self) -> list[tuple[str, slice]]:
        """Source of each run of bins, a column's name or "a × b", and its place."""
        names = [column.name for column in self.columns]
        names += [f"{names[a]} × {names[b]}" for a, b in self.crossed]
        starts = np.cumsum([0, *self._sizes])
        return [(name, slice(int(starts[i]), int(starts[i + 1]))) for i, name in enumerate(names)]
