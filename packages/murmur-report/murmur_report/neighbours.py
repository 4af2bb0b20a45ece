"""Neighbours: two inputs of a client that a claim says cannot be told apart.

They are made by a claim's own unit and adjacency, as far apart as we can make them. Where a client
is protected, so is whatever its training may lead to, and neighbours may be two results of training
(the canary clients of Andrew et al., "One-shot empirical privacy estimation for federated
learning", ICLR 2024); where a record is, they are two data sets that differ in one.

A unit that contributes nothing is a *null* one: a record that counts as none, a client of such
records. Whoever reads messages or sums sees a message of it all the same: the model that training
starts from, with noise. Only in what a trusted server publishes may it be absent (None).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fl_app.audit_api import EvaluationClient, LocalData, has_canaries, null_records
from murmur.privacy.accounting import Threat
from murmur.privacy.events import Adjacency, Event, Unit, releases
from murmur.privacy.guarantee import Exposure
from murmur_report.views import Messages, Source


@dataclass(frozen=True)
class NeighbourPair:
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


def neighbours(
    messages: Messages, own: LocalData, exposure: Exposure, unit: Unit, adjacency: Adjacency
) -> list[NeighbourPair]:
    """Neighbours of the client that is attacked; which are told apart best is tried out.

    They are made of its data. Where its release protects a client, that of a record included, two
    results of training as far apart as they can be are among them; of an evaluation, two results.

    Args:
        messages: the client, and what it is asked.
        own: what it holds.
        exposure: who tells them apart, which decides what is seen of a client that contributes
            nothing; and what one release costs, which says what that hides.
        unit: what the claim protects: all of a client's data, or one record.
        adjacency: whether it is exchanged, for anything or for nothing, or present or absent.
    """
    client = messages.client
    own = LocalData(np.array(own.images[own.indices]), own.labels[own.indices], np.arange(len(own)))
    nulls = null_records(own)
    nobody: Source = nulls
    if (
        exposure.threat is Threat.CENTRAL
    ):  # a trusted server publishes the same as without the client
        nobody = None
    if unit is Unit.CLIENT:
        pairs = _clients_apart(own, nobody, client.trainer.num_classes, adjacency)
    else:
        pairs = _records_apart(own, nulls, adjacency)
    if isinstance(client, EvaluationClient):
        one, other = client.apart()
        pairs.append(NeighbourPair("two results as far apart as they can be", one, other))
    elif messages.trains_alone and has_canaries(client) and _hides_clients(exposure.per_round):
        pairs.append(_results_apart(messages, nobody, adjacency, exposure.threat))
    return pairs


def _hides_clients(event: Event) -> bool:
    """Returns whether ``event`` hides a client's whole training result, not only one record."""
    return all(release.unit is Unit.CLIENT for release in releases(event))


def _clients_apart(
    own: LocalData, nobody: Source, classes: int, adjacency: Adjacency
) -> list[NeighbourPair]:
    """Two clients by their data; ``nobody``: the one that contributes nothing."""
    zeros = replace(own, labels=np.zeros_like(own.labels))
    if adjacency is Adjacency.REPLACE_ONE:
        ones = replace(own, labels=np.ones_like(own.labels))
        moved = replace(own, labels=(own.labels + 1) % classes)
        return [
            NeighbourPair("every label moved on by one", own, moved),
            NeighbourPair("all labels 0, or all labels 1", zeros, ones),
        ]
    alike = replace(zeros, images=np.ones_like(own.images))  # whose gradients are all the same
    return [
        NeighbourPair("its data, or a client that contributes nothing", own, nobody),
        NeighbourPair(
            "white images, labelled 0, or a client that contributes nothing", alike, nobody
        ),
    ]


def _records_apart(own: LocalData, nulls: LocalData, adjacency: Adjacency) -> list[NeighbourPair]:
    """Two data sets that differ in the first record; ``nulls``: as many that count as none."""
    if adjacency is Adjacency.REPLACE_SPECIAL:
        return [NeighbourPair("a white image, or one more null record", _first(nulls, 0), nulls)]
    if adjacency is Adjacency.ADD_REMOVE:
        fewer = replace(nulls, indices=nulls.indices[1:])
        return [NeighbourPair("a white image, or one record less", _first(nulls, 0), fewer)]
    labels = np.arange(len(own)) % 2
    black = replace(own, images=np.zeros_like(own.images), labels=labels)
    return [
        NeighbourPair("a white image, labelled 0 or 1", _first(own, 0), _first(own, 1)),
        NeighbourPair(
            "a white image among black ones, labelled 0 or 1", _first(black, 0), _first(black, 1)
        ),
    ]


def _results_apart(
    messages: Messages, nobody: Source, adjacency: Adjacency, threat: Threat
) -> NeighbourPair:
    """Results of training as far apart as they can be.

    Where a client is exchanged the two are opposite; else one of them is that of ``nobody``.
    """
    canary = messages.client.canary(messages.task, 0, 1)
    direction: NDArray | None = canary.direction
    if threat is Threat.CENTRAL:  # in a model it is another one
        direction = None
    if adjacency is Adjacency.REPLACE_ONE:
        name = "two opposite results of training"
        return NeighbourPair(name, canary.result, canary.negated, direction)
    name = "a result of training, or a client that contributes nothing"
    return NeighbourPair(name, canary.result, nobody, direction)


def _first(data: LocalData, label: int) -> LocalData:
    """``data`` with a white image as its first record."""
    images = data.images.copy()
    labels = data.labels.copy()
    images[0] = 1.0
    labels[0] = label
    return replace(data, images=images, labels=labels)
