"""Scores on a test set: those of scikit-learn and torchmetrics by name, and a user's own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Metric = Callable[[NDArray[np.float32], NDArray[np.int64]], float]
_OWN = ("accuracy", "loss", "auc")  # of every run


def metrics(
    names: Sequence[str | Mapping[str, Mapping[str, Any]]],
    num_classes: int,
    own: Callable[[str], Any] | None = None,
) -> dict[str, Metric]:
    """Functions of logits (N, classes) and labels (N,), by name.

    Args:
        names: of functions of ``sklearn.metrics`` or ``torchmetrics.functional.classification``,
            each alone or with its settings: ``{f1_score: {average: micro}}``. Averages over classes
            are ``macro`` unless the settings say otherwise. ``module.name`` is one of the user's
            own, and is called ``name`` in the result: a function of logits, labels and its
            settings, or a class that is built with its settings and called with both.
        num_classes: number of logits.
        own: finds what ``module.name`` stands for; None: there are no such scores.

    Raises:
        ValueError: there is no such function, or it gives no number for made-up predictions, or
            another one the second time.
    """
    found: dict[str, Metric] = {}
    for item in names:
        chosen = {item: {}} if isinstance(item, str) else dict(item)
        for path, settings in chosen.items():
            name = path.rpartition(".")[2]
            if name in _OWN or name in found:
                raise ValueError(f"metrics={path}: is in every row already, or named twice")
            if own is not None and name != path:
                found[name] = _own(path, own(path), dict(settings or {}))
            else:
                found[name] = _metric(path, dict(settings or {}), num_classes)
            _try(path, found[name], num_classes)
    return found


def _metric(name: str, settings: dict[str, Any], classes: int) -> Metric:
    import sklearn.metrics

    if name.isidentifier() and callable(getattr(sklearn.metrics, name, None)):
        return _sklearn(getattr(sklearn.metrics, name), settings, classes)
    try:
        import torchmetrics.functional.classification as known
    except ImportError as error:
        raise ValueError(
            f"metrics={name}: is not in sklearn.metrics; others need the package torchmetrics, "
            "install it (extra `metrics`)"
        ) from error
    if not name.isidentifier() or not callable(getattr(known, name, None)):
        choices = {n for n in dir(sklearn.metrics) + dir(known) if n[0].islower()}
        near = get_close_matches(name, sorted(choices))
        raise ValueError(
            f"metrics={name}: is neither in sklearn.metrics nor in "
            "torchmetrics.functional.classification"
            + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
    return _torchmetrics(getattr(known, name), settings, classes)


def _own(name: str, thing: Any, settings: dict[str, Any]) -> Metric:
    try:
        function: Any = thing(**settings) if inspect.isclass(thing) else partial(thing, **settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metrics={name}: cannot be used here ({error})") from error
    # Copies, for what a user's function does to its arguments must not reach the next score.
    return lambda logits, labels: float(function(logits.copy(), labels.copy()))


def _sklearn(function: Callable[..., Any], settings: dict[str, Any], classes: int) -> Metric:
    takes = inspect.signature(function).parameters
    second = list(takes)[1] if len(takes) > 1 else ""
    if "average" in takes and classes > 2:
        settings.setdefault("average", "macro")
    if "multi_class" in takes and classes > 2:
        settings.setdefault("multi_class", "ovr")
    if second in ("y_proba", "y_score") and "labels" in takes:
        settings.setdefault("labels", list(range(classes)))

    def score(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        if second not in ("y_proba", "y_score"):
            said: NDArray[Any] = logits if second == "pred_decision" else logits.argmax(axis=1)
        else:
            said = _probabilities(logits)
            said = said[:, 1] if classes == 2 else said
        return float(function(labels, said, **settings))

    return score


def _torchmetrics(function: Callable[..., Any], settings: dict[str, Any], classes: int) -> Metric:
    takes = inspect.signature(function).parameters
    if "task" in takes:
        settings.setdefault("task", "multiclass")
        settings.setdefault("average", "macro")
    if "num_classes" in takes:
        settings.setdefault("num_classes", classes)
    settings = {key: value for key, value in settings.items() if key in takes}

    def score(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        import torch

        said = torch.from_numpy(_probabilities(logits))
        return float(function(said, torch.from_numpy(labels), **settings))

    return score


def _probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    scores = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def _try(name: str, metric: Metric, classes: int) -> None:
    labels = np.arange(4 * classes) % classes
    logits = np.random.default_rng(0).normal(size=(len(labels), classes)).astype(np.float32)
    try:
        value, again = metric(logits, labels), metric(logits, labels)
    except Exception as error:  # whatever a function of a library raises
        raise ValueError(f"metrics={name}: cannot be used here ({error})") from error
    if not math.isfinite(value):
        raise ValueError(f"metrics={name}: gives {value} for made-up predictions")
    if value != again:
        raise ValueError(f"metrics={name}: gives {value}, and {again} for the same predictions")
