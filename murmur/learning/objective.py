"""What a model learns to predict: a class, a number, or several labels at once.

| task | labels of N examples | outputs | loss of an example |
|---|---|---|---|
| ``classification`` | int64 (N,), classes | one for each class | cross-entropy |
| ``regression`` | float32 (N,), in the label's unit | one | ½(z − t)², t in [−1, 1] |
| ``multilabel`` | float32 (N, L), 0 or 1 | one for each label | Σ binary cross-entropy |

Each loss's gradient by the outputs is ``link(outputs) − target``, with softmax, identity or sigmoid
for the link (``murmur.learning.training.losses``). A regression's target t is the label between the
ends of a public range, which the experimenter gives: nothing is fitted to private labels. A label
beyond an end counts as that end in training, and as it is in scores.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from murmur.learning.metrics import area_under_curve, evaluate_logits

Kind = Literal["classification", "regression", "multilabel"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Objective:
    """A task, and the public range of a regression's labels.

    Attributes:
        kind: of the task.
        low, high: the ends of the range, in the label's unit.

    Raises:
        ValueError: the task is unknown, or the range is none.
    """

    kind: Kind = "classification"
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"task={self.kind}: must be one of {', '.join(KINDS)}")
        width = self.high - self.low
        if not (math.isfinite(width) and width > 0):
            raise ValueError(
                f"label_range=[{self.low}, {self.high}]: must be two finite numbers, the lower one "
                "first"
            )

    @classmethod
    def of(cls, label_range: Sequence[float] | None, labels: Sequence[str] | None) -> "Objective":
        """The task of labels within a range, or of several labels; of classes where neither is.

        Args:
            label_range: the lower and the higher end.
            labels: their names.

        Raises:
            ValueError: both are given, or one of them is malformed.
        """
        if label_range is not None and labels is not None:
            raise ValueError(f"labels={list(labels)}: label_range is given too; leave one out")
        if labels is not None:
            if len(labels) < 2 or len({*labels}) < len(labels) or not all(labels):
                raise ValueError(f"labels={list(labels)}: must be two or more names, each once")
            return cls("multilabel")
        if label_range is None:
            return cls()
        if len(label_range) != 2:
            raise ValueError(f"label_range={list(label_range)}: must be two numbers, low and high")
        return cls("regression", *map(float, label_range))

    @property
    def has_classes(self) -> bool:
        """True if each example is of one class."""
        return self.kind == "classification"

    @property
    def min_outputs(self) -> int:
        """The fewest outputs that a model may have."""
        return 1 if self.kind == "regression" else 2

    @property
    def centre(self) -> float:
        """The middle of the range, where t = 0."""
        return (self.low + self.high) / 2

    @property
    def half_width(self) -> float:
        """Units of the label in one of t."""
        return (self.high - self.low) / 2

    def require_labels(self, labels: NDArray[Any], outputs: int) -> None:
        """ValueError unless ``labels`` of a task without classes have its type and shape."""
        shape = (len(labels),) if self.kind == "regression" else (len(labels), outputs)
        if labels.dtype != np.float32 or labels.shape != shape:
            raise ValueError(
                f"labels={labels.dtype}{labels.shape}: must be float32 {shape} for task={self.kind}"
            )

    def blank_labels(self, count: int, outputs: int) -> NDArray[Any]:
        """Labels of ``count`` records that cannot be read: zeros of the task's type and shape."""
        if self.has_classes:
            return np.zeros(count, np.int64)
        return np.zeros((count, outputs)[: 1 if self.kind == "regression" else 2], np.float32)

    def targets(self, labels: NDArray[Any], outputs: int) -> NDArray[np.float32]:
        """Targets (N, outputs) of labels of a task without classes, each within its range."""
        self.require_labels(labels, outputs)
        if self.kind == "multilabel":
            return np.clip(labels, 0, 1)
        scaled = (labels.astype(np.float64) - self.centre) / self.half_width
        return np.clip(scaled, -1, 1).astype(np.float32)[:, None]

    def in_units(self, outputs: NDArray[Any]) -> NDArray[np.float64]:
        """Numbers (N,) in the label's unit from a regression's outputs (N, 1)."""
        return self.centre + self.half_width * outputs[:, 0].astype(np.float64)

    def means(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """``link(outputs)`` (N, outputs) of a task without classes, as targets are."""
        from scipy.special import expit

        return expit(outputs) if self.kind == "multilabel" else outputs

    def predictions(self, outputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Predictions from a model's outputs (N, outputs).

        Probabilities of classes or of labels (N, outputs), or numbers (N, 1) in the label's unit.
        """
        from scipy.special import softmax

        if self.kind == "regression":
            return self.in_units(outputs)[:, None]
        if self.kind == "multilabel":
            return self.means(outputs.astype(np.float64))
        return softmax(outputs.astype(np.float64), axis=1)

    def scores(self, outputs: NDArray[np.float32], labels: NDArray[Any]) -> dict[str, float]:
        """Scores of outputs (N, outputs) by name; NaN where one is not defined.

        Classes: ``accuracy``, ``loss``, and of two ``auc``. Numbers: ``r2``, ``rmse`` and ``mae``
        in the label's unit, ``loss``. Labels: ``accuracy`` as the mean over labels at probability
        ½, ``auc`` as the mean over labels that have both values, ``f1`` over all labels together,
        ``loss``.
        """
        if self.kind == "regression":
            return self._of_numbers(outputs, labels)
        if self.kind == "multilabel":
            return _of_labels(outputs, labels)
        result = evaluate_logits(outputs, labels)
        scores = {"accuracy": result.accuracy, "loss": result.loss}
        if outputs.shape[1] == 2:
            scores["auc"] = area_under_curve(outputs[:, 1] - outputs[:, 0], labels)
        return scores

    def _of_numbers(self, outputs: NDArray[np.float32], labels: NDArray[Any]) -> dict[str, float]:
        truth = labels.astype(np.float64)
        away = self.in_units(outputs) - truth
        squares = float(np.mean(away**2))
        spread = float(np.mean((truth - truth.mean()) ** 2))
        return {
            "r2": 1 - squares / spread if spread else math.nan,
            "rmse": math.sqrt(squares),
            "mae": float(np.mean(np.abs(away))),
            "loss": squares / self.half_width**2 / 2,
        }


CLASSIFICATION = Objective()


def _of_labels(outputs: NDArray[np.float32], labels: NDArray[Any]) -> dict[str, float]:
    logits = outputs.astype(np.float64)
    found, true = logits > 0, labels > 0
    both = int(np.count_nonzero(found & true))
    either = int(np.count_nonzero(found)) + int(np.count_nonzero(true))
    areas = [
        area_under_curve(logits[:, label], true[:, label].astype(np.int64))
        for label in range(labels.shape[1])
    ]
    known = [area for area in areas if math.isfinite(area)]
    return {
        "accuracy": float(np.mean(found == true)),
        "auc": float(np.mean(known)) if known else math.nan,
        "f1": 2 * both / either if either else math.nan,
        "loss": float(np.mean(np.sum(np.logaddexp(0, logits) - logits * true, axis=1))),
    }
