"""Labels for public examples: which to ask about, what noisy votes say, and how labels spread.

A model's uncertainty chooses examples (``entropy``, ``draw``), and votes on them become targets
(``plurality``, ``margin``). ``LabelSpreading``: a pool's own structure says which images belong
together (Zhou, Bousquet, Lal, Weston, Schölkopf, "Learning with local and global consistency",
NIPS 2003): F ← αSF + (1−α)F₀ on the symmetrically normalised graph S of nearest neighbours. Here F₀
marks the images of which a present model is most confident, and what has spread trains the next
model. All of it is post-processing of that model: no private data are touched.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from murmur.learning.linear_model import centred, ridge
from murmur.learning.process import one_thread
from murmur.settings import Count, Positive, settings

_MAX_CACHED_GRAPHS = 4  # graphs of a process
_GRAPHS: dict[tuple[Any, ...], Any] = {}


def entropy(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """U = −Σ_j p_j ln p_j of each row of ``logits`` (N, C), in nats, in float64."""
    logs = log_softmax(logits.astype(np.float64), axis=1)
    return -(np.exp(logs) * logs).sum(axis=1)


def draw(utility: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``count`` distinct indices with P(i) ∝ exp(utility_i), sorted."""
    weights = np.exp(utility - utility.max())
    return np.sort(rng.choice(len(weights), count, replace=False, p=weights / weights.sum()))


def plurality(votes: NDArray, rng: np.random.Generator) -> NDArray[np.float64]:
    """One-hot winners (K, C) of ``votes`` (K, C); ties are broken at random.

    Ties are common in small cohorts, and argmax alone would favour the low classes.
    """
    lots = np.where(votes == votes.max(axis=1, keepdims=True), rng.random(votes.shape), -1.0)
    return np.eye(votes.shape[1])[lots.argmax(axis=1)]


def margin(histogram: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lead of the first over the second class of each row (K, C), in standard errors.

    The difference of two multinomial counts has a variance of at most their sum.
    """
    first = np.sort(histogram, axis=1)[:, -1]
    second = np.sort(histogram, axis=1)[:, -2]
    return (first - second) / np.sqrt(np.maximum(first + second, 1))


def cohort_for_plurality(
    keep: float, categories: int, *, agreement: float = 0.6, runner_up: float = 0.1, z: float = 2.5
) -> int:
    """Clients needed for the plurality of randomised labels to be right, ``z`` standard errors.

    ``keep``: β of the randomiser. ``agreement`` and ``runner_up``: shares of clients whose true
    label is the first and the second most common one.
    """
    noise = (1 - keep) / categories
    first = keep * agreement + noise
    second = keep * runner_up + noise
    lead = first - second
    return math.ceil(z**2 * (first + second - lead**2) / lead**2)


@settings
class LabelSpreading:
    """``conf/spreading``: how labels spread over a pool of images.

    Attributes:
        passes: (share, α) of each pass: how many seeds every class gets, as a share of the images
            that a class would have in a balanced pool, and how far labels spread.
        components: how many of the features the graph is made of, the first ones.
        neighbours: of each image in the graph.
        steps: of the iteration.
        penalty: λ of the ridge regression after each pass.
    """

    passes: Sequence[Any] = ((0.3, 0.99), (1.0, 0.9), (1.0, 0.9))
    components: Count = 200
    neighbours: Count = 10
    steps: Count = 60
    penalty: Positive = 1.0

    def __post_init__(self) -> None:
        if not self.passes or not all(map(_is_pass, self.passes)):
            raise ValueError(
                f"passes={self.passes}: must be at least one [share above 0, α in (0, 1)]"
            )

    def graph(self, pool: NDArray[np.float32]) -> Any:
        """S = D^−½ A D^−½, a sparse (P, P), of ``pool`` (P, d); A holds cosines, symmetrically.

        Kept for the process: runs over the same pool share it.
        """
        near = np.ascontiguousarray(pool[:, : self.components])
        key = (hashlib.sha256(near.data).digest(), near.shape, self.neighbours)
        if key not in _GRAPHS:
            if len(_GRAPHS) == _MAX_CACHED_GRAPHS:
                del _GRAPHS[next(iter(_GRAPHS))]
            _GRAPHS[key] = _graph(near, self.neighbours)
        return _GRAPHS[key]

    def refine(
        self, graph: Any, pool: NDArray[np.float32], scores: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """A linear model fitted to what the scores of a pool become.

        Args:
            graph: of ``graph``, over the same pool.
            pool: features (P, d).
            scores: (P, C), of a present model.

        Returns:
            Weights (d, C).
        """
        classes = scores.shape[1]
        for share, alpha in self.passes:
            seeds = seeds_of(scores, max(1, round(share * len(pool) / classes)))
            labels = spread(graph, seeds, alpha, self.steps).argmax(axis=1)
            weights = ridge(pool, centred(labels, classes), self.penalty)
            scores = pool @ weights
        return weights


def _is_pass(values: Any) -> bool:
    try:
        share, alpha = values
        return share > 0 and 0 < alpha < 1
    except (TypeError, ValueError):
        return False


def _graph(near: NDArray[np.float32], neighbours: int) -> Any:
    from scipy.sparse import diags_array
    from sklearn.neighbors import NearestNeighbors

    near = near / np.maximum(np.linalg.norm(near, axis=1, keepdims=True), 1e-12)
    with one_thread():
        search = NearestNeighbors(
            n_neighbors=min(neighbours, len(near) - 1), metric="cosine", algorithm="brute"
        )
        graph = search.fit(near).kneighbors_graph(mode="distance").astype(np.float64)
    graph.data = np.maximum(1 - graph.data, 0.0)
    graph = graph.maximum(graph.T)
    scale = diags_array(1 / np.sqrt(np.maximum(np.asarray(graph.sum(axis=1)).ravel(), 1e-12)))
    return (scale @ graph @ scale).tocsr()


def seeds_of(scores: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """One-hot rows for the ``count`` most confident images of each class, else zero rows.

    An image belongs to the class of its largest score; confidence is its lead over the second. A
    class has as many seeds as it has images, at most: nothing is assumed of its frequency.
    """
    ordered = np.sort(scores, axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    winners = scores.argmax(axis=1)
    seeds = np.zeros(scores.shape)
    for label in range(scores.shape[1]):
        rows = np.flatnonzero(winners == label)
        seeds[rows[np.argsort(-lead[rows], kind="stable")[:count]], label] = 1
    return seeds


def spread(graph: Any, seeds: NDArray[np.float64], alpha: float, steps: int) -> NDArray[np.float64]:
    """F after some steps of F ← αSF + (1−α)F₀.

    Args:
        graph: S (P, P), sparse.
        seeds: F₀ (P, C).
        alpha: how far labels spread, in (0, 1).
        steps: of the iteration.
    """
    found = seeds
    for _ in range(steps):
        found = alpha * (graph @ found) + (1 - alpha) * seeds
    return found
