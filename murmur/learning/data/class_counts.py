"""How many examples of each class each client gets.

A partition decides these counts, then ``shards.assign`` gives out the rows.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from murmur.checks import require_integer

Rows = NDArray[np.int64]
Rng = np.random.Generator
_NUM_TURNS = 16  # in which clients draw their examples
_MAX_BLOCK_CLIENTS = 4096  # clients that draw at once


def label_counts(shares: Iterable[Rows], labels: Rows, num_classes: int) -> Rows:
    """How many examples of each class each client has, shape (clients, classes)."""
    return np.stack([np.bincount(labels[share], minlength=num_classes) for share in shares])


def even_sizes(total: int, clients: int) -> Rows:
    """``total`` cut into ``clients`` sizes that differ by at most one, the larger ones first."""
    sizes = np.full(clients, total // clients, dtype=np.int64)
    sizes[: total % clients] += 1
    return sizes


def apportion(total: int, weights: NDArray[np.float64]) -> Rows:
    """``total`` cut in proportion to ``weights`` (sum above 0) by the largest remainder.

    Along the last axis: several rows of weights cut ``total`` each by itself. The counts sum to
    ``total`` and each differs from its exact share by less than one.
    """
    exact = total * (weights / weights.sum(axis=-1, keepdims=True))
    counts = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(counts - exact, axis=-1, kind="stable")
    missing = total - counts.sum(axis=-1, keepdims=True)
    more = np.broadcast_to(np.arange(weights.shape[-1]) < missing, counts.shape)
    raised = np.zeros_like(counts)
    np.put_along_axis(raised, by_remainder, more, axis=-1)
    return counts + raised


def symmetric_dirichlet(rng: Rng, alpha: float, rows: int, columns: int) -> NDArray[np.float64]:
    """``rows`` draws from Dirichlet(α, …, α) over ``columns`` categories; each row sums to 1.

    A Gamma(α) variable is Gamma(α+1) · U^(1/α); taken in logarithms this cannot underflow, where
    normalised Gamma draws give 0/0 for a small α.
    """
    shape = (rows, columns)
    logs = np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def draw_counts(
    sizes: Rows,
    proportions: NDArray[np.float64],
    available: Rows,
    rng: Rng,
) -> Rows:
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
    for turn in range(_NUM_TURNS):
        portions = (turn + 1) * sizes // _NUM_TURNS - turn * sizes // _NUM_TURNS
        clients = np.flatnonzero(portions)
        length = _MAX_BLOCK_CLIENTS
        while len(clients):
            block = clients[:length]
            drawn = _draw_block(portions[block], proportions[block], left, rng)
            counts[block[: len(drawn)]] += drawn
            left -= drawn.sum(axis=0)
            clients = clients[len(drawn) :]
            length = min(2 * len(drawn) + 16, _MAX_BLOCK_CLIENTS)
            if len(drawn) < len(block):
                client = clients[0]
                drawn = _draw_rest(int(portions[client]), proportions[client], left, rng)
                counts[client] += drawn
                left -= drawn
                clients = clients[1:]
    return counts


def _draw_block(portions: Rows, proportions: NDArray[np.float64], left: Rows, rng: Rng) -> Rows:
    """Draws of the first of these clients, one after the other, while no class runs out.

    Args:
        portions: how many examples each draws, (clients,).
        proportions: (clients, classes).
        left: examples of each class, (classes,).
        rng: is then where these draws leave it, whatever was tried beyond them.

    Returns:
        (k, classes) for the first k clients; where k is below their number, the next one meets the
        end of a class.
    """
    weights = np.where(left > 0, proportions, 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    sound = _until(np.logical_or.reduce(totals == 0, axis=1))
    state = rng.bit_generator.state
    drawn = rng.multinomial(portions[:sound], weights[:sound] / totals[:sound])
    # A class that has run out before is no matter: nobody draws from it.
    ends = (np.cumsum(drawn, axis=0) >= left) & (left > 0)
    within = _until(np.logical_or.reduce(ends, axis=1))
    if within == len(drawn):
        return drawn
    rng.bit_generator.state = state
    return rng.multinomial(portions[:within], weights[:within] / totals[:within])


def _until(found: NDArray[np.bool_]) -> int:
    """How many stand before the first that is true."""
    return int(found.argmax()) if found.any() else len(found)


def _draw_rest(missing: int, proportions: NDArray[np.float64], left: Rows, rng: Rng) -> Rows:
    """One client's draw of ``missing`` examples, (classes,), where a class may run out."""
    left = left.copy()
    counts = np.zeros(len(left), dtype=np.int64)
    while missing:
        weights = np.where(left > 0, proportions, 0.0)
        if weights.sum() == 0:
            weights = left.astype(np.float64)
        drawn = np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
        counts += drawn
        left -= drawn
        missing -= int(drawn.sum())
    return counts


def count_classes(labels: Rows, num_clients: int, num_classes: int, min_size: int = 1) -> Rows:
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
