"""Scores by the names of scikit-learn and torchmetrics."""

import numpy as np
import pytest
import sklearn.metrics as theirs

from murmur.learning.metrics import metrics


def predictions(classes):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, 60)
    logits = rng.normal(size=(60, classes)).astype(np.float32)
    logits[np.arange(60), labels] += 1
    return logits, labels


def test_scores_are_those_of_the_library():
    logits, labels = predictions(3)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    names = ["f1_score", {"fbeta_score": {"beta": 2, "average": "micro"}}, "log_loss"]
    found = {k: f(logits, labels) for k, f in metrics([*names, "roc_auc_score"], 3).items()}
    said = logits.argmax(1)
    assert found == pytest.approx(
        {
            "f1_score": theirs.f1_score(labels, said, average="macro"),
            "fbeta_score": theirs.fbeta_score(labels, said, beta=2, average="micro"),
            "log_loss": theirs.log_loss(labels, shares),
            "roc_auc_score": theirs.roc_auc_score(labels, shares, multi_class="ovr"),
        },
        rel=1e-6,
    )


def test_two_classes():
    logits, labels = predictions(2)
    (found,) = metrics(["roc_auc_score"], 2).values()
    scores = logits[:, 1] - logits[:, 0]
    assert found(logits, labels) == pytest.approx(theirs.roc_auc_score(labels, scores))


class Above:
    """A score of one's own, which also spoils what it is given."""

    def __init__(self, least=0.5):
        self.least = least

    def __call__(self, logits, labels):
        found = (logits > self.least).mean()
        logits[:] = 0
        return found


def test_a_score_of_ones_own_has_its_settings_and_spoils_no_other():
    logits, labels = predictions(3)
    found = metrics([{"mine.Above": {"least": 1}}, "f1_score"], 3, own=lambda name: Above)
    before = found["f1_score"](logits, labels)
    assert found["Above"](logits, labels) == pytest.approx((logits > 1).mean())
    assert found["f1_score"](logits, labels) == before


def test_torchmetrics_by_name():
    logits, labels = predictions(3)
    (found,) = metrics(["calibration_error"], 3).values()
    assert 0 < found(logits, labels) < 1


def test_a_metric_of_torch_gets_tensors_and_starts_anew_each_time():
    from torchmetrics.classification import MulticlassF1Score

    logits, labels = predictions(3)
    name = "mine.MulticlassF1Score"
    settings = {"num_classes": 3, "average": "macro"}
    (found,) = metrics([{name: settings}], 3, own=lambda name: MulticlassF1Score).values()
    right = theirs.f1_score(labels, logits.argmax(1), average="macro")
    for _ in range(2):
        assert found(logits, labels) == pytest.approx(right)
    assert found(logits[:9], labels[:9]) == pytest.approx(
        theirs.f1_score(labels[:9], logits[:9].argmax(1), average="macro")
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["f1_scor"], "f1_scor: is neither.*did you mean f1_score"),
        (["loss"], "is in every row already"),
        (["f1_score", "f1_score"], "named twice"),
        (["confusion_matrix"], "cannot be used here"),
        ([{"f1_score": {"average": "no"}}], "cannot be used here"),
        (["os.system"], "is n"),
    ],
)
def test_other_names_are_refused(names, said):
    with pytest.raises(ValueError, match=rf"^metrics=.*{said}"):
        metrics(names, 3)
