"""Scores: how good a model is, from its logits, and how well vectors cluster.

``evaluate_logits`` has every run's accuracy and loss. ``metrics`` finds further scores by the names
of scikit-learn and torchmetrics, or a user's own.

``clustering_score`` has scikit-learn's silhouette (Rousseeuw 1987), Calinski–Harabasz (1974) and
Davies–Bouldin (1979). Undefined ones, where fewer than two clusters remain or every vector is a
cluster of its own, are NaN. A score that is computed with the vectors' own argmax as labels
flatters: noise that is projected onto the simplex piles up in its corners and scores 0.97. Hence
``judge`` and its ``Verdict``, whether a score says more than noise would.
"""

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Metric = Callable[[NDArray[np.float32], NDArray[np.int64]], float]
_OWN = ("accuracy", "loss", "auc")  # of every run
_MIN_EXAMPLES, _MAX_EXAMPLES, _PENALTY = 50, 2000, 0.01  # of ``linear_score``
_OF_PROBABILITIES = ("log_loss", "d2_log_loss_score")  # whose argument older versions call y_pred
CLUSTERINGS = ("silhouette", "calinski_harabasz", "davies_bouldin")  # scores of them
_SIGMAS = 4.0  # above noise, or chance


@dataclass(frozen=True)
class Evaluation:
    """Results on one set of examples.

    Attributes:
        accuracy: share of the examples whose largest logit is the label's, 0 to 1.
        loss: mean cross-entropy in nats.
    """

    accuracy: float
    loss: float


def chance(labels: NDArray[Any]) -> float:
    """The accuracy of always naming the most frequent of ``labels``; 0 without any.

    ``labels``: classes (n,), or several labels of 0 and 1, (n, L), each by itself.
    """
    if not len(labels):
        return 0.0
    if labels.ndim == 2:
        ones = (labels > 0).mean(axis=0)
        return float(np.maximum(ones, 1 - ones).mean())
    return float(np.bincount(labels).max() / len(labels))


def is_at_chance(accuracy: float, labels: NDArray[Any]) -> bool:
    """True if ``accuracy`` is at most two standard errors above ``chance`` on ``labels``."""
    if not len(labels):
        return False
    guessed = chance(labels)
    error = math.sqrt(guessed * (1 - guessed) / len(labels))
    return accuracy <= guessed + 2 * error


def linear_score(
    features: NDArray[np.float32], labels: NDArray[np.int64], score: str = "accuracy"
) -> float | None:
    """Score of ridge regression that is trained on four fifths and scored on the last, in turn.

    What a linear model reaches without noise, estimated from labelled examples alone.

    Args:
        features: (n, ...), of which the first ``_MAX_EXAMPLES`` examples are used.
        labels: (n,).
        score: ``accuracy``, or ``auc`` of two classes.

    Returns:
        None for fewer than ``_MIN_EXAMPLES`` examples, or a single class.
    """
    labels = labels[:_MAX_EXAMPLES]
    if len(labels) < _MIN_EXAMPLES or len(np.unique(labels)) < 2:
        return None
    rows = features[:_MAX_EXAMPLES].reshape(len(labels), -1).astype(np.float64)
    rows -= rows.mean(axis=0)
    size = np.sqrt(np.mean(np.sum(rows**2, axis=1))) or 1.0
    kernel = rows @ rows.T / size**2 + 1.0  # and the offset
    targets = np.eye(int(labels.max()) + 1)[labels]
    fifth = np.arange(len(labels)) % 5
    logits = np.zeros_like(targets)
    for each in range(5):
        out, rest = fifth == each, fifth != each
        ridge = kernel[np.ix_(rest, rest)] + _PENALTY * np.eye(int(rest.sum()))
        logits[out] = kernel[np.ix_(out, rest)] @ np.linalg.solve(ridge, targets[rest])
    if score == "auc":
        return area_under_curve(logits[:, 1] - logits[:, 0], labels)
    return float(np.mean(logits.argmax(axis=1) == labels))


def evaluate_logits(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> Evaluation:
    """Accuracy and mean cross-entropy.

    Ties go to the smallest class. The loss is summed in float64.

    Args:
        logits: (N, C).
        labels: (N,), below C.

    Raises:
        ValueError: there is no example, the lengths differ, or a label is no class.
    """
    count = len(logits)
    if count == 0 or labels.shape != (count,):
        raise ValueError(f"labels={labels.shape}: must be ({count},), at least one, as the logits")
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise ValueError(f"labels={labels.min()}..{labels.max()}: must be below {logits.shape[1]}")
    scores = logits.astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(count), labels]
    correct = np.count_nonzero(logits.argmax(axis=1) == labels)
    return Evaluation(float(correct / count), float(losses.mean()))


def area_under_curve(scores: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """Area under the ROC curve of two classes.

    The share of pairs of a 1 and a 0 in which the 1 scores higher; ties count half.

    Args:
        scores: (N,).
        labels: (N,), 0 and 1.

    Returns:
        NaN if one of the two is missing.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    ones = labels == 1
    positives = int(ones.sum())
    negatives = int((~ones).sum())
    if not positives or not negatives:
        return float("nan")
    wins = ranks[ones].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))


def metrics(
    names: Sequence[str | Mapping[str, Mapping[str, Any]]],
    num_classes: int,
    own: Callable[[str], Any] | None = None,
    labels: NDArray[np.int64] | None = None,
) -> dict[str, Metric]:
    """Functions of logits (N, classes) and labels (N,), by name.

    Args:
        names: of functions of ``sklearn.metrics`` or ``torchmetrics.functional.classification``,
            each alone or with its settings: ``{f1_score: {average: micro}}``. Averages over classes
            are ``macro`` unless the settings say otherwise, over the classes that the labels have.
            Of two classes scikit-learn's score class 1, torchmetrics' average over both unless
            their settings say ``task: binary``. ``module.name`` is one of the user's
            own, and is called ``name`` in the result: a function of logits, labels and its
            settings, or a class that is built with its settings and called with both. It gets
            NumPy arrays, a module of PyTorch tensors (``_own``).
        num_classes: number of logits.
        own: finds what ``module.name`` stands for; None: there are no such scores.
        labels: those that the scores will be taken with, if they are known.

    Raises:
        ValueError: there is no such function, or it gives no number for made-up predictions, or
            another one the second time; or none with ``labels``.
    """
    found: dict[str, Metric] = {}
    for item in names:
        chosen: Mapping[str, Mapping[str, Any]]
        if isinstance(item, str):
            chosen = {item: {}}
        else:
            chosen = item
        for path, settings in chosen.items():
            name = path.rpartition(".")[2]
            if name in _OWN or name in found:
                raise ValueError(f"metrics={path}: is in every row already, or named twice")
            if own is not None and name != path:
                found[name] = _own(path, own(path), dict(settings or {}))
            else:
                found[name] = _metric(path, dict(settings or {}), num_classes)
            fault = _fault(found[name], np.arange(4 * num_classes) % num_classes, num_classes)
            if fault:
                raise ValueError(f"metrics={path}: {fault}")
            if labels is None:
                continue
            if fault := _fault(found[name], labels, num_classes):
                present = np.unique(labels)
                raise ValueError(
                    f"metrics={path}: cannot be taken on this test set ({fault}), which has "
                    f"examples of {len(present)} of {num_classes} classes, the first of them "
                    f"{present[0]}; leave it out, or choose a test set with all classes"
                )
    return found


def over_owners(owners: NDArray[np.int64]) -> Metric:
    """Accuracy as the mean over ``owners`` (N,) of each one's own: every owner counts alike."""
    _, whose, counts = np.unique(owners, return_inverse=True, return_counts=True)

    def score(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        right = (logits.argmax(axis=1) == labels).astype(np.float64)
        return float((np.bincount(whose, right) / counts).mean())

    return score


def _metric(name: str, settings: dict[str, Any], classes: int) -> Metric:
    """A score by its name in scikit-learn, or else in torchmetrics.

    Args:
        name: of a function.
        settings: its own arguments.
        classes: how many there are.

    Raises:
        ValueError: there is none of that name, or torchmetrics is not installed.
    """
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
        meant = ""
        if near:
            meant = f"; did you mean {' or '.join(near)}?"
        raise ValueError(
            f"metrics={name}: is neither in sklearn.metrics nor in "
            f"torchmetrics.functional.classification{meant}"
        )
    return _torchmetrics(getattr(known, name), settings, classes)


def _own(name: str, thing: Any, settings: dict[str, Any]) -> Metric:
    """A user's own score: a function, or a class whose instances are called.

    Args:
        name: its path, for errors.
        thing: takes logits, float32 (N, C), and labels, int64 (N,): NumPy arrays, or tensors where
            it is a module of PyTorch, as metrics of torchmetrics are.
        settings: of the function or of the class.

    Raises:
        ValueError: it does not take these settings.
    """
    import torch

    try:
        function: Any = partial(thing, **settings)
        if inspect.isclass(thing):
            function = thing(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metrics={name}: cannot be used here ({error})") from error
    if isinstance(function, torch.nn.Module):
        return _of_tensors(function)
    # Copies, for what a user's function does to its arguments must not reach the next score.
    return lambda logits, labels: float(function(logits.copy(), labels.copy()))


def _of_tensors(module: Any) -> Metric:
    """A module of PyTorch as a score; one of torchmetrics forgets what it was called with."""

    def score(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        import torch

        with torch.no_grad():
            found = module(torch.tensor(logits), torch.tensor(labels))
        if hasattr(module, "reset"):
            module.reset()
        return float(found)

    return score


def _sklearn(function: Callable[..., Any], settings: dict[str, Any], classes: int) -> Metric:
    """A function of scikit-learn as a score of logits.

    What its second argument is called says what it is given: probabilities, a decision function or
    classes. Means over classes are over those that the test set has.

    Args:
        function: of ``sklearn.metrics``.
        settings: its own arguments; means over more than two classes are plain ones unless they say
            otherwise.
        classes: how many there are.
    """
    takes = inspect.signature(function).parameters
    second = ""
    if len(takes) > 1:
        second = list(takes)[1]
    ranks = second in ("y_proba", "y_score") or function.__name__ in _OF_PROBABILITIES
    names_classes = "labels" in takes and "labels" not in settings
    if "average" in takes and classes > 2:
        settings.setdefault("average", "macro")
    if "multi_class" in takes and classes > 2:
        settings.setdefault("multi_class", "ovr")
    if names_classes and (ranks or second == "pred_decision"):
        settings["labels"] = list(range(classes))
    average = settings.get("average")
    one_by_one = ranks and average in ("macro", "weighted") and settings.get("multi_class") != "ovo"

    def score(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        present = np.unique(labels)
        if one_by_one and len(present) < classes:
            # scikit-learn takes all classes or none: here each that there is against the rest.
            rest = {key: value for key, value in settings.items() if key != "labels"}
            own = (labels[:, None] == present).astype(np.int64)
            return float(function(own, _probabilities(logits)[:, present], **rest))
        if ranks:
            said: NDArray[Any] = _probabilities(logits)
            if classes == 2:
                said = said[:, 1]
        elif second == "pred_decision":
            said = logits
            if classes == 2:
                said = logits[:, 1] - logits[:, 0]
        else:
            said = logits.argmax(axis=1)
            if names_classes and average == "macro":
                return float(function(labels, said, labels=present, **settings))
        return float(function(labels, said, **settings))

    return score


def _torchmetrics(function: Callable[..., Any], settings: dict[str, Any], classes: int) -> Metric:
    """A function of torchmetrics as a score of logits.

    Args:
        function: of ``torchmetrics.functional.classification``, given probabilities.
        settings: its own arguments.
        classes: how many there are.
    """
    takes = inspect.signature(function).parameters
    if "task" in takes:
        settings.setdefault("task", "multiclass")
    binary = settings.get("task") == "binary" or function.__name__.startswith("binary_")
    if "num_classes" in takes and not binary:
        settings.setdefault("num_classes", classes)
    if "average" in takes and not binary:
        settings.setdefault("average", "macro")
    one_by_one = settings.get("average") == "macro"
    if one_by_one:
        settings["average"] = "none"

    def score(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        import torch

        said = _probabilities(logits)
        if binary:
            said = said[:, 1].copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes that the labels lack
            # It would give 0 for a curve that a single class has not.
            warnings.filterwarnings("error", "No negative samples in targets")
            found = function(torch.from_numpy(said), torch.from_numpy(labels), **settings)
        if one_by_one:
            found = found[torch.from_numpy(np.unique(labels))].mean()
        return float(found)

    return score


def _probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Softmax of logits (N, C), in float64."""
    from scipy.special import softmax

    return softmax(logits.astype(np.float64), axis=1)


def _fault(metric: Metric, labels: NDArray[np.int64], classes: int) -> str:
    """Error of ``metric`` for ``labels`` (N,) and made-up predictions, if it has one."""
    logits = np.random.default_rng(0).normal(size=(len(labels), classes)).astype(np.float32)
    try:
        value = metric(logits, labels)
        again = metric(logits, labels)
    except Exception as error:  # whatever a function of a library raises
        return f"cannot be used here ({error})"
    if not math.isfinite(value):
        return f"gives {value} for made-up predictions"
    if value != again:
        return f"gives {value}, and {again} for the same predictions"
    return ""


def clustering_score(metric: str, vectors: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The score of ``vectors`` (n, d) under ``labels`` (n,); NaN where it is undefined.

    Raises:
        ValueError: ``metric`` is unknown, or a vector is not finite.
    """
    if metric not in CLUSTERINGS:
        raise ValueError(f"metric={metric}: must be one of {', '.join(CLUSTERINGS)}")
    if not 2 <= len(np.unique(labels)) < len(vectors):
        return math.nan
    import sklearn.metrics

    score = getattr(sklearn.metrics, f"{metric}_score")
    return float(score(vectors, labels))


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's ρ of two series (n,); NaN for fewer than 3 points or a constant series."""
    pairs = np.column_stack([first, second]).astype(float)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) < 3 or np.any(np.ptp(pairs, axis=0) == 0):
        return math.nan
    from scipy.stats import spearmanr

    return float(spearmanr(pairs[:, 0], pairs[:, 1]).statistic)


@dataclass(frozen=True)
class Verdict:
    """A protected score beside what it must be compared with.

    Attributes:
        score: of what was released.
        nulls: of pure noise of the same scale, processed in the same way, a few draws.
        clean: of the unprotected vectors; NaN outside simulations. Never a release.
        retention: share of clients whose label survived the protection; NaN likewise.
        chance: the retention of labels that are independent of the clean ones.
        clients: n.
        higher_is_better: false for Davies–Bouldin.
    """

    score: float
    nulls: tuple[float, ...]
    clean: float
    retention: float
    chance: float
    clients: int
    higher_is_better: bool

    @property
    def null(self) -> float:
        """The mean of ``nulls``; NaN where noise has no score."""
        return float(np.mean(self.nulls))

    @property
    def beats_noise(self) -> bool:
        """Better than every draw of noise and four of their deviations above the mean of them.

        Where the labels' retention is known, it too must lie four deviations above chance.
        """
        sign = -1.0
        if self.higher_is_better:
            sign = 1.0
        nulls = sign * np.array(self.nulls)
        known = nulls[np.isfinite(nulls)]
        if not math.isfinite(self.score):
            return False
        spread = 0.0
        if len(known) > 1:
            spread = float(known.std(ddof=1))
        if len(known):
            limit = max([known.max(), known.mean() + _SIGMAS * spread])
        else:
            limit = -math.inf
        return sign * self.score > limit and not self.is_at_chance

    @property
    def is_at_chance(self) -> bool:
        """True if the labels tell nothing of the clean ones; False where that is not known."""
        if not math.isfinite(self.retention):
            return False
        deviation = math.sqrt(self.chance * (1 - self.chance) / self.clients)
        return self.retention <= self.chance + _SIGMAS * deviation


def judge(
    metric: str,
    vectors: NDArray[np.float64],
    labels: NDArray[np.int64],
    nulls: Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]],
    clean: NDArray[np.float64] | None = None,
) -> Verdict:
    """Score vectors beside pure noise and, in simulations, the unprotected vectors.

    Args:
        metric: one of ``CLUSTERINGS``.
        vectors: (n, d), as they were released.
        labels: (n,), their clusters.
        nulls: vectors and labels of pure noise, processed in the same way.
        clean: (n, d), unprotected; None outside simulations.
    """
    clean_score = retention = chance = math.nan
    if clean is not None:
        truth = clean.argmax(axis=1)
        clean_score = clustering_score(metric, clean, truth)
        retention = float(np.mean(truth == labels))
        size = int(max(truth.max(), labels.max())) + 1
        shares = [np.bincount(each, minlength=size) / len(each) for each in (truth, labels)]
        chance = float(shares[0] @ shares[1])
    return Verdict(
        score=clustering_score(metric, vectors, labels),
        nulls=tuple(clustering_score(metric, v, each) for v, each in nulls),
        clean=clean_score,
        retention=retention,
        chance=chance,
        clients=len(vectors),
        higher_is_better=metric != "davies_bouldin",
    )
