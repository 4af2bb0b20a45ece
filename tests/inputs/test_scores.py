"""Scores on whatever test set somebody has: right by hand, or refused before the first round."""

import numpy as np
import pytest

from fl_app.config.errors import ConfigError
from fl_app.run.prepare import validated
from murmur.learning.metrics import metrics


def predictions(classes, present):
    """Logits and labels of 60 examples, of the classes ``present``, in which there is a signal."""
    rng = np.random.default_rng(0)
    labels = np.array(present)[rng.integers(0, len(present), 60)]
    logits = rng.normal(size=(60, classes)).astype(np.float32)
    logits[np.arange(60), labels] += 1.5
    return logits, labels


def counts(logits, labels, one):
    """True and false positives and negatives of class ``one``."""
    said, right = logits.argmax(axis=1) == one, labels == one
    return (
        np.sum(said & right),
        np.sum(said & ~right),
        np.sum(~said & right),
        np.sum(~said & ~right),
    )


def recall(logits, labels, one):
    hit, _, missed, _ = counts(logits, labels, one)
    return hit / (hit + missed)


def precision(logits, labels, one):
    hit, wrong, _, _ = counts(logits, labels, one)
    return hit / (hit + wrong)


def f1(logits, labels, one):
    hit, wrong, missed, _ = counts(logits, labels, one)
    return 2 * hit / (2 * hit + wrong + missed)


def f2(logits, labels, one):
    hit, wrong, missed, _ = counts(logits, labels, one)
    return 5 * hit / (5 * hit + wrong + 4 * missed)


def jaccard(logits, labels, one):
    hit, wrong, missed, _ = counts(logits, labels, one)
    return hit / (hit + wrong + missed)


def specificity(logits, labels, one):
    _, wrong, _, right = counts(logits, labels, one)
    return right / (right + wrong)


def shares(logits):
    exponentials = np.exp(logits.astype(np.float64))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def area(logits, labels, one):
    """Pairs of an example of the class and one of another in which the first scores higher."""
    scores = shares(logits)[:, one]
    wins = scores[labels == one][:, None] > scores[labels != one][None, :]
    return wins.mean()


def average_precision(logits, labels, one):
    """Mean precision at the places of the class's examples, from the highest score down."""
    order = np.argsort(-shares(logits)[:, one])
    right = labels[order] == one
    precisions = np.cumsum(right) / np.arange(1, len(labels) + 1)
    return precisions[right].mean()


def log_loss(logits, labels):
    return -np.log(shares(logits)[np.arange(len(labels)), labels]).mean()


def accuracy(logits, labels):
    return (logits.argmax(axis=1) == labels).mean()


def hinge(logits, labels):
    """Crammer and Singer's, of more than two classes."""
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    return np.maximum(0, 1 - logits[rows, labels] + others.max(axis=1)).mean()


def over(score):
    """The mean over the classes that the labels have."""
    return lambda logits, labels: np.mean([score(logits, labels, c) for c in np.unique(labels)])


def by_examples(score):
    """The mean over classes, each with the weight of its examples."""
    return lambda logits, labels: np.mean([score(logits, labels, c) for c in labels])


def of_one(score):
    return lambda logits, labels: score(logits, labels, 1)


LACKING, WHOLE, GAP, TWO = (3, [0, 1]), (3, [0, 1, 2]), (4, [1, 3]), (2, [0, 1])
MICRO, WEIGHTED = {"average": "micro"}, {"average": "weighted"}
# The score, its settings, the test set's classes, the right value.
SCORES = [
    *(
        (name, {}, classes, over(score))
        for classes in (LACKING, WHOLE, GAP)
        for name, score in {
            "f1_score": f1,
            "recall_score": recall,
            "precision_score": precision,
            "jaccard_score": jaccard,
            "roc_auc_score": area,
            "average_precision_score": average_precision,
            "balanced_accuracy_score": recall,
            "multiclass_f1_score": f1,
            "recall": recall,
            "precision": precision,
            "jaccard_index": jaccard,
            "specificity": specificity,
            "auroc": area,
            "average_precision": average_precision,
        }.items()
    ),
    ("fbeta_score", {"beta": 2}, LACKING, over(f2)),
    ("f1_score", MICRO, LACKING, accuracy),
    ("f1_score", WEIGHTED, LACKING, by_examples(f1)),
    ("roc_auc_score", WEIGHTED, LACKING, by_examples(area)),
    ("auroc", WEIGHTED, LACKING, by_examples(area)),
    ("recall", MICRO, LACKING, accuracy),
    ("log_loss", {}, LACKING, log_loss),
    ("hinge_loss", {}, LACKING, hinge),
    # Of two classes scikit-learn scores class 1, torchmetrics both unless it is told.
    ("f1_score", {}, TWO, of_one(f1)),
    ("average_precision_score", {}, TWO, of_one(average_precision)),
    ("average_precision", {}, TWO, over(average_precision)),
    ("average_precision", {"task": "binary"}, TWO, of_one(average_precision)),
    ("binary_average_precision", {}, TWO, of_one(average_precision)),
    ("binary_auroc", {}, TWO, of_one(area)),
    ("recall", {}, (2, [1]), over(recall)),
]


@pytest.mark.parametrize(("name", "settings", "classes", "right"), SCORES)
def test_a_score_counts_the_classes_that_the_test_set_has(name, settings, classes, right):
    logits, labels = predictions(*classes)
    (score,) = metrics([{name: dict(settings)}], classes[0], labels=labels).values()
    assert score(logits, labels) == pytest.approx(right(logits, labels), rel=1e-5)


ONE_CLASS = r"cannot be taken on this test set .* 1 of 2 classes, the first of them 1"
UNTAKEN = [
    ("roc_auc_score", (2, [1]), ONE_CLASS),
    ("auroc", (2, [1]), ONE_CLASS),
    ("binary_auroc", (2, [1]), ONE_CLASS),
    ("multiclass_auroc", (3, [2]), "1 of 3 classes, the first of them 2"),
    ("roc_auc_score", (3, [2]), "1 of 3 classes, the first of them 2"),
]


@pytest.mark.parametrize(("name", "classes", "said"), UNTAKEN)
def test_a_score_that_cannot_be_taken_says_so_with_the_real_labels(name, classes, said):
    with pytest.raises(ValueError, match=rf"^metrics={name}: .*{said}"):
        metrics([name], classes[0], labels=predictions(*classes)[1])


@pytest.mark.parametrize("name", ["auroc", "calibration_error"])
def test_a_setting_that_a_score_has_not_is_refused(name):
    with pytest.raises(ValueError, match=rf"^metrics={name}: cannot be used here .*averge"):
        metrics([{name: {"averge": "micro"}}], 3)


def test_a_run_whose_test_set_lacks_what_a_score_needs_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"train_images": rng.random((80, 8, 8), np.float32), "train_labels": np.arange(80) % 2}
    arrays |= {"test_images": rng.random((20, 8, 8), np.float32), "test_labels": np.ones(20, int)}
    np.savez(tmp_path / "d.npz", **arrays)
    words = [
        "dataset=npz",
        f"dataset.path={tmp_path / 'd.npz'}",
        "strategy=fedavg",
        "engine=inline",
    ]
    words += ["federation.num_clients=4", "federation.public=0"]
    validated([*words, "evaluation.metrics=[f1_score, recall]"])
    with pytest.raises(ConfigError, match=r"^evaluation\.metrics=roc_auc_score: cannot be taken"):
        validated([*words, "evaluation.metrics=[roc_auc_score]"])
