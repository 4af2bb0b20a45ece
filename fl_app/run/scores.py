"""The leading score of a run: the first of ``evaluation.metrics``.

Progress, card, report and forecast print it; accuracy leads where nothing is named.
"""

from collections.abc import Mapping
from typing import Any

ROW_SCORES = ("accuracy", "auc", "protected_score", "protected_accuracy")
"""Scores that rows carry by themselves: of every run, of two classes, of a protected evaluation."""

_CHANCE = {"auc": 0.5, "roc_auc_score": 0.5, "auroc": 0.5}
_LABELS = {"auc": "AUC"}


def leading_score(config: Mapping[str, Any]) -> str:
    """Returns the name that the leading score of ``config`` has in a row.

    Args:
        config: of a run, as composed; {} where none is known.
    """
    names = (config.get("evaluation") or {}).get("metrics") or ["accuracy"]
    first = names[0]
    if not isinstance(first, str):
        first = next(iter(first))
    return str(first).rpartition(".")[2]


def label_of(score: str) -> str:
    """Returns what a person calls ``score``."""
    return _LABELS.get(score, score.replace("_", " "))


def chance_of(score: str) -> float | None:
    """Returns what ``score`` is for a model that guesses; None: accuracy's own, or not known."""
    return _CHANCE.get(score)
