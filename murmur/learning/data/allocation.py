"""Splitting labelled examples over clients by a matrix of counts: what the partitions share.

A partition first decides how many examples of each class every client gets, then deals them out.
Everything here ends after a bounded number of steps and never yields a NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from murmur.common import require_integer, require_number

_TURNS = 16


def even_sizes(total: int, clients: int) -> NDArray[np.int64]:
    """``total`` cut into ``clients`` sizes that differ by at most one, the larger ones first."""
    sizes = np.full(clients, total // clients, dtype=np.int64)
    sizes[: total % clients] += 1
    return sizes


def apportion(total: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """``total`` cut in proportion to ``weights`` (sum above 0) by the largest remainder.

    The counts sum to ``total`` and each differs from its exact share by less than one.
    """
    exact = total * (weights / weights.sum())
    counts = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: total - counts.sum()]] += 1
    return counts


def symmetric_dirichlet(
    rng: np.random.Generator, alpha: float, rows: int, columns: int
) -> NDArray[np.float64]:
    """``rows`` draws from Dirichlet(α, …, α) over ``columns`` categories; each row sums to 1.

    A Gamma(α) variable is Gamma(α+1) · U^(1/α); taken in logarithms this cannot underflow, where
    normalised Gamma draws give 0/0 for a small α.
    """
    shape = (rows, columns)
    logs = np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def draw_counts(
    sizes: NDArray[np.int64],
    proportions: NDArray[np.float64],
    available: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Counts (clients, classes): client i draws ``sizes[i]`` examples, by ``proportions[i]``.

    Without replacement. Where a class has run out, the rest is drawn from the classes left, in
    the client's own proportions, and where these are all 0, in proportion to what is left. The
    clients draw a sixteenth of their examples at a time, in turn: were each to draw all of its
    own at once, the last ones would be left with a single class. (Acar et al. 2021,
    arXiv:2111.04263, let a random client draw one example at a time in their code.)

    Args:
        sizes: shape (clients,), with a sum of at most that of ``available``.
        proportions: shape (clients, classes), rows sum to 1.
        available: how many examples each class has, shape (classes,).
        rng: the experiment's randomness.
    """
    left = available.copy()
    counts = np.zeros(proportions.shape, dtype=np.int64)
    for turn in range(_TURNS):
        portions = (turn + 1) * sizes // _TURNS - turn * sizes // _TURNS
        for client in np.flatnonzero(portions):
            missing = int(portions[client])
            while missing:  # another draw means that a class ran out, so there are few
                weights = np.where(left > 0, proportions[client], 0.0)
                if weights.sum() == 0:
                    weights = left.astype(np.float64)
                drawn = np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
                counts[client] += drawn
                left -= drawn
                missing -= int(drawn.sum())
    return counts


def deal(
    labels: NDArray[np.int64], counts: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Each client's sorted indices: of class c, client i gets ``counts[i, c]``, at random."""
    shares: list[list[NDArray[np.int64]]] = [[] for _ in counts]
    for category in range(counts.shape[1]):
        pool = rng.permutation(np.flatnonzero(labels == category))
        ends = np.cumsum(counts[:, category])
        for client, (start, end) in enumerate(zip(ends - counts[:, category], ends, strict=True)):
            shares[client].append(pool[start:end])
    return [np.sort(np.concatenate(share)) for share in shares]


def deal_sizes(
    total: int, sizes: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Sorted indices below ``total``, ``sizes[i]`` for client i, whatever their labels."""
    order = rng.permutation(total)
    ends = np.cumsum(sizes)
    return [np.sort(order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def draw_until_large_enough(
    draw: Callable[[], NDArray[np.int64]], *, min_size: int, max_retries: int, remedy: str
) -> NDArray[np.int64]:
    """The first counts (clients, classes) from ``draw`` in which no client is under ``min_size``.

    Raises:
        ValueError: none of ``max_retries`` draws was large enough; the message ends in ``remedy``.
    """
    smallest = 0
    for _ in range(max_retries):
        counts = draw()
        smallest = max(smallest, int(counts.sum(axis=1).min()))
        if smallest >= min_size:
            return counts
    raise ValueError(
        f"min_size={min_size}: no draw in max_retries={max_retries} gave every client so many "
        f"examples, the best gave the smallest {smallest}; {remedy}"
    )


def count_classes(
    labels: NDArray[np.int64], num_clients: int, num_classes: int, min_size: int = 1
) -> NDArray[np.int64]:
    """How many examples each class has, shape (classes,), once the request is seen to be sound.

    Raises:
        ValueError: a label is outside [0, num_classes), or the examples do not suffice for
            ``num_clients`` clients of ``min_size`` each.
    """
    require_integer("num_clients", num_clients, 1)
    require_integer("num_classes", num_classes, 1)
    if len(labels) < num_clients:
        raise ValueError(
            f"num_clients={num_clients}: there are only {len(labels)} private examples, and each "
            "client needs at least one; lower num_clients"
        )
    if len(labels) < num_clients * min_size:
        raise ValueError(
            f"min_size={min_size}: {num_clients} clients of that size need "
            f"{num_clients * min_size} examples, there are {len(labels)}; lower min_size or "
            "num_clients"
        )
    if not (labels.min() >= 0 and labels.max() < num_classes):
        raise ValueError(
            f"labels={labels.min()}..{labels.max()}: must lie in [0, num_classes={num_classes})"
        )
    return np.bincount(labels, minlength=num_classes)


def require_concentration(name: str, value: object) -> None:
    """Raises ValueError unless ``value`` is a Dirichlet concentration that can be drawn from.

    1e-6 is one class per client to every digit, 1e6 is even; beyond them there is nothing.
    """
    require_number(name, value, 1e-6, 1e6)
