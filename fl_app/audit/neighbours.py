"""Two neighbours by a claim's own unit and adjacency, as far apart as we can make them.

Where a client is protected, so is whatever its training may lead to, and neighbours may be two
results of training (the canary clients of Andrew et al., "One-shot empirical privacy estimation for
federated learning", ICLR 2024); where a record is, they are two data sets that differ in one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clients.base import Canary
from murmur.learning.data.examples import LocalData
from murmur.privacy.events import Adjacency, Unit

# What a client's release comes from: its data, the result of its training, or nothing at all.
Source = LocalData | NDArray | None


@dataclass(frozen=True)
class Pair:
    """Two inputs of a client that a claim says cannot be told apart.

    Attributes:
        name: in words.
        one, other: data, results of training, or None: the client is absent.
        direction: where messages and sums of the two differ, if that is known.
    """

    name: str
    one: Source
    other: Source
    direction: NDArray | None = None


def results_apart(canary: Canary, adjacency: Adjacency) -> Pair:
    """Results of training as far apart as they can be.

    Where a client is exchanged the two are opposite; where it is present or absent, one of them is
    nothing.
    """
    if adjacency is Adjacency.REPLACE_ONE:
        name = "two opposite results of training"
        return Pair(name, canary.result, canary.opposite, canary.direction)
    return Pair("a result of training, or no client", canary.result, None, canary.direction)


def candidate_pairs(data: LocalData, classes: int, unit: Unit, adjacency: Adjacency) -> list[Pair]:
    """Neighbours of a client; which of them is told apart best is tried out.

    Args:
        data: what the client holds.
        classes: how many classes there are.
        unit: what the claim protects: all of a client's data, or one record.
        adjacency: whether it is exchanged, or present or absent.
    """
    own = LocalData(
        np.array(data.images[data.indices]), data.labels[data.indices], np.arange(len(data))
    )
    if unit is Unit.CLIENT:
        one = replace(own, labels=np.zeros_like(own.labels))
        two = replace(own, labels=np.ones_like(own.labels))
        moved = replace(own, labels=(own.labels + 1) % classes)
        if adjacency is Adjacency.REPLACE_ONE:
            return [
                Pair("every label moved on by one", own, moved),
                Pair("all labels 0, or all labels 1", one, two),
            ]
        return [Pair("its data, or no client", own, None)]
    if adjacency is not Adjacency.REPLACE_ONE:
        empty = _images(own, np.nan)
        return [Pair("a white image, or one more null record", _first(empty, 0), empty)]
    black = replace(_images(own, 0.0), labels=np.arange(len(own)) % 2)
    return [
        Pair("a white image, labelled 0 or 1", _first(own, 0), _first(own, 1)),
        Pair("a white image among black ones, labelled 0 or 1", _first(black, 0), _first(black, 1)),
    ]


def _images(data: LocalData, pixel: float) -> LocalData:
    """``data`` with plain images; of NaN they are null records, whose gradient DP-SGD leaves out.

    The number of records is public, and a null record keeps it.
    """
    return replace(data, images=np.full_like(data.images, pixel))


def _first(data: LocalData, label: int) -> LocalData:
    """``data`` with a white image as its first record."""
    images = data.images.copy()
    labels = data.labels.copy()
    images[0] = 1.0
    labels[0] = label
    return replace(data, images=images, labels=labels)
