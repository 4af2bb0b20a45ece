"""Hospitals together and each alone: the same two releases, over all records or over its own.

Together every record is protected by the noise of all hospitals but the colluding one, as
``experiment=hospitals`` has it; the functions are the product's, without messages or masks between.
A hospital alone protects its records by its own noise, with nobody who colludes, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fl_app.config.compose import compose
from fl_app.run.validated import ValidatedRun
from murmur.algorithms.class_moments import Releases, centre, discriminants
from murmur.learning.linear_model import directions, unit
from murmur.learning.metrics import area_under_curve
from strategies.class_moments import ClassMoments

PARTITIONS = {"equal": ("partition=iid",), "skewed": ("partition=dirichlet", "partition.alpha=0.5")}
_QUIET = ("engine=inline", "privacy.secure_aggregation=simulated", "privacy.noise=seeded")
Scores = tuple[float, float, float]  # accuracy, balanced accuracy, AUC


def table(seeds: Sequence[int]) -> None:
    """Print the scores of both partitions at ε = 1, 8 and ∞, means over ``seeds`` and hospitals."""
    print("| | ε | accuracy | balanced accuracy | AUC | least and most of a hospital's AUC |")
    print("|---|---|---|---|---|---|")
    for partition, words in PARTITIONS.items():
        for epsilon in ("1", "8", "inf"):
            together = []
            alone = []
            for seed in seeds:
                run = ["experiment=hospitals", f"seed={seed}", f"privacy.epsilon={epsilon}"]
                experiment = ValidatedRun(compose([*run, *words, *_QUIET, "tracking=none"]))
                clients = range(len(experiment.population.shards))
                together.append(scores(experiment, clients))
                alone += [scores(experiment, [client]) for client in clients]
            _line(f"{partition}, together", epsilon, together, ranged=False)
            _line(f"{partition}, a hospital alone", epsilon, alone, ranged=True)


def _line(what: str, epsilon: str, found: Sequence[Scores], ranged: bool) -> None:
    means = np.mean(found, axis=0)
    more = ""
    if ranged:
        areas = [each[2] for each in found]
        more = f"{min(areas):.3f} to {max(areas):.3f}"
    cells = " | ".join(f"{value:.3f}" for value in means)
    print(f"| {what} | {epsilon.replace('inf', '∞')} | {cells} | {more} |", flush=True)


def scores(experiment: ValidatedRun, clients: Sequence[int]) -> Scores:
    """Of the rule that ``clients`` find together, or one of them alone."""
    strategy = experiment.strategy
    assert isinstance(strategy, ClassMoments)
    people = experiment.population
    train = people.dataset.train
    parts = [people.shards[client] for client in clients]
    releases = strategy.releases
    records = sum(map(len, parts))
    if len(clients) == 1:
        budget = replace(strategy.setup.budget, threat="local", honest_clients=1, failure=0.0)
        share = experiment.config.strategy.centre_share
        releases = Releases(budget, strategy.head, strategy.constant, records, None, share)
    noise = strategy.setup.noise(f"hospitals {clients}", 1)
    total = sum(
        releases.centre.privatize(releases.centre.of(train.images[rows]), noise) for rows in parts
    )
    deviation = releases.centre.deviation(len(parts))
    middle = centre(releases.centre.read(np.asarray(total)), records, deviation)
    radius = strategy.head.radius
    assert radius is not None

    def seen(images: NDArray[np.float32]) -> NDArray[np.float64]:
        return directions(unit(images), middle, radius)

    total = sum(
        releases.moments.privatize(
            releases.moments.of(seen(train.images[rows]), train.labels[rows]), noise
        )
        for rows in parts
    )
    weights, offsets = discriminants(
        releases.moments.matrices(np.asarray(total)),
        records,
        strategy.constant,
        releases.moments.deviation(len(parts)),
        strategy.shrinkage,
    )
    test = people.dataset.test
    inputs = math.sqrt(1 - strategy.constant**2) * seen(test.images)
    return _scored(inputs @ weights.T + offsets, test.labels)


def _scored(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> Scores:
    from sklearn.metrics import balanced_accuracy_score

    said = logits.argmax(axis=1)
    return (
        float((said == labels).mean()),
        float(balanced_accuracy_score(labels, said)),
        area_under_curve(logits[:, 1] - logits[:, 0], labels),
    )
