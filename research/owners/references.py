"""What needs no federation: all data in one place, one owner's alone, the majority, and trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.config.compose import compose
from fl_app.run.population import Population, image_population, population
from murmur.random import experiment_rng
from research.owners.choose import words_of
from research.owners.rounds import few_or_all

ALONE = 20  # owners whose own model is scored


def reference_row(case: tuple[str, int]) -> dict[str, Any]:
    """Scores on the experiment's features and test set, by what was fitted.

    Args:
        case: experiment and seed.
    """
    name, seed = case
    config = compose(words_of(name, "1", seed))
    people = population(config)
    rows = np.concatenate(people.shards)
    found = {"all in one place": _fitted(people, rows), "majority": _majority(people)}
    clients = experiment_rng(seed, "owners alone").permutation(len(people.shards))[:ALONE]
    alone = [_fitted(people, people.shards[int(client)]) for client in clients]
    names = alone[0].keys()
    found["one owner alone"] = {n: float(np.mean([each[n] for each in alone])) for n in names}
    if name.startswith("flights"):
        found["boosted trees"] = _trees(image_population(config))
    return {"name": name, "seed": seed, "scores": found}


def _fitted(people: Population, rows: NDArray[np.int64]) -> dict[str, float]:
    """Logistic regression on ``rows`` of the run's features."""
    from sklearn.linear_model import LogisticRegression

    train, test = people.dataset.train, people.dataset.test
    labels = train.labels[rows]
    classes = people.dataset.num_classes
    scores = np.zeros((len(test), classes))
    present = np.unique(labels)
    if len(present) == 1:
        scores[:, present[0]] = 1
        return _scored(people, scores)
    flat = few_or_all(train.images[rows].reshape(len(rows), -1))
    model = LogisticRegression(C=100.0, max_iter=200).fit(flat, labels)
    scores[:, model.classes_] = model.predict_proba(test.images.reshape(len(test), -1))
    return _scored(people, scores)


def _trees(people: Population) -> dict[str, float]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = np.concatenate(people.shards)
    train, test = people.dataset.train, people.dataset.test
    model = HistGradientBoostingClassifier(max_iter=300, random_state=0)
    model.fit(train.images[rows].reshape(len(rows), -1), train.labels[rows])
    return _scored(people, model.predict_proba(test.images.reshape(len(test), -1)))


def _majority(people: Population) -> dict[str, float]:
    counts = people.class_counts().sum(axis=0)
    scores = np.tile(counts, (len(people.dataset.test), 1)).astype(np.float64)
    return _scored(people, scores)


def _scored(people: Population, scores: NDArray[np.float64]) -> dict[str, float]:
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score

    from murmur.learning.metrics import over_owners

    labels = people.dataset.test.labels
    said = scores.argmax(axis=1)
    found = {"accuracy": float((said == labels).mean())}
    if people.dataset.test_owners is not None:
        found["accuracy_over_owners"] = over_owners(people.dataset.test_owners)(
            scores.astype(np.float32), labels
        )
    if people.dataset.num_classes == 2:
        found["balanced_accuracy_score"] = float(balanced_accuracy_score(labels, said))
        found["auc"] = float(roc_auc_score(labels, scores[:, 1]))
    return found
