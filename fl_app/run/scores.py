"""The leading score of a run: the first of ``evaluation.metrics``.

Progress, card, report and forecast print it. Where nothing is named accuracy leads, and R² of a
regression, of which more is better, too.
"""

from collections.abc import Mapping
from typing import Any

ROW_SCORES = ("accuracy", "auc", "protected_score", "protected_accuracy")
"""Scores that rows carry by themselves: of every run, of two classes, of a protected evaluation."""
TASK_SCORES = {"regression": ("r2", "rmse", "mae"), "multilabel": ("accuracy", "auc", "f1")}
"""The same of tasks without classes (``murmur.learning.objective.Objective.scores``)."""

_CHANCE = {"auc": 0.5, "roc_auc_score": 0.5, "auroc": 0.5, "r2": 0.0}
_LABELS = {"auc": "AUC", "r2": "R²", "rmse": "RMSE", "mae": "MAE", "f1": "F1"}


def leading_score(config: Mapping[str, Any]) -> str:
    """Returns the name that the leading score of ``config`` has in a row.

    Args:
        config: of a run, as composed; {} where none is known.
    """
    usual = row_scores(config)[0]
    names = (config.get("evaluation") or {}).get("metrics") or [usual]
    first = names[0]
    if not isinstance(first, str):
        first = next(iter(first))
    return str(first).rpartition(".")[2]


def row_scores(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the scores that rows of ``config`` carry by themselves, the usual leading one first.

    ``config``: as of ``leading_score``.
    """
    return TASK_SCORES.get(config.get("task") or "", ROW_SCORES)


def compared_score(metrics: Mapping[str, Any]) -> tuple[str, float | None]:
    """Returns by what runs of a sweep are compared, more of which is better, and its name.

    The mean accuracy of the last rounds; of a regression R².

    Args:
        metrics: the last figures of a run (``metrics.json``).
    """
    if "r2" in metrics:
        return "r2", metrics["r2"]
    return "accuracy", metrics["accuracy_last_5"]


def label_of(score: str) -> str:
    """Returns what a person calls ``score``."""
    return _LABELS.get(score, score.replace("_", " "))


def chance_of(score: str) -> float | None:
    """Returns what ``score`` is for a model that guesses; None: accuracy's own, or not known."""
    return _CHANCE.get(score)
