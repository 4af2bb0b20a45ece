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
    trainer = client.trainer
    ends = (0.0, 1.0)
    if trainer.objective.kind == "regression":
        ends = (trainer.objective.low, trainer.objective.high)
    if unit is Unit.CLIENT:
        if trainer.objective.has_classes:
            moved = (own.labels + 1) % trainer.num_classes
        else:
            moved = sum(ends) - own.labels
        pairs = _clients_apart(own, nobody, replace(own, labels=moved), ends, adjacency)
    else:
        pairs = _records_apart(own, nulls, ends, adjacency)
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
    own: LocalData,
    nobody: Source,
    moved: LocalData,
    ends: tuple[float, float],
    adjacency: Adjacency,
) -> list[NeighbourPair]:
    """Two clients by their data.

    Args:
        own: that of one client.
        nobody: the client that contributes nothing.
        moved: ``own`` with other labels, the next class or the opposite value.
        ends: the two labels that are compared.
        adjacency: as of ``neighbours``.
    """
    low, high = ends
    zeros = replace(own, labels=np.full_like(own.labels, low))
    if adjacency is Adjacency.REPLACE_ONE:
        ones = replace(own, labels=np.full_like(own.labels, high))
        return [
            NeighbourPair("every label moved on by one", own, moved),
            NeighbourPair(f"all labels {low:g}, or all labels {high:g}", zeros, ones),
        ]
    alike = replace(zeros, images=np.ones_like(own.images))  # whose gradients are all the same
    return [
        NeighbourPair("its data, or a client that contributes nothing", own, nobody),
        NeighbourPair(
            f"white images, labelled {low:g}, or a client that contributes nothing", alike, nobody
        ),
    ]


def _records_apart(
    own: LocalData, nulls: LocalData, ends: tuple[float, float], adjacency: Adjacency
) -> list[NeighbourPair]:
    """Two data sets that differ in the first record; ``nulls``: as many that count as none."""
    low, high = ends
    if adjacency is Adjacency.REPLACE_SPECIAL:
        return [NeighbourPair("a white image, or one more null record", _first(nulls, low), nulls)]
    if adjacency is Adjacency.ADD_REMOVE:
        fewer = replace(nulls, indices=nulls.indices[1:])
        return [NeighbourPair("a white image, or one record less", _first(nulls, low), fewer)]
    labels = np.full_like(own.labels, low)
    labels[1::2] = high
    said = f"labelled {low:g} or {high:g}"
    black = replace(own, images=np.zeros_like(own.images), labels=labels)
    return [
        NeighbourPair(f"a white image, {said}", _first(own, low), _first(own, high)),
        NeighbourPair(
            f"a white image among black ones, {said}", _first(black, low), _first(black, high)
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


def _first(data: LocalData, label: float) -> LocalData:
    """``data`` with a white image as its first record."""
    images = data.images.copy()
    labels = data.labels.copy()
    images[0] = 1.0
    labels[0] = label
    return replace(data, images=images, labels=labels)
