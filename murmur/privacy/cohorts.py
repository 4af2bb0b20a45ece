"""Public facts about a run's cohorts, to which noise is calibrated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


def _once() -> Collection[tuple[int, ...]]:
    return [(1,)]


def _anybody(client: int, number: int) -> bool:
    return True


@dataclass(frozen=True)
class Cohorts:
    """Who takes part when, as an accountant sees it.

    ``clients``: of the federation. ``size``: clients asked in a round (or expected).
    ``rate``: probability with which every client joins each round by itself and in secret; None
    where cohorts can be known, from which nothing is gained. ``patterns``: for known cohorts, the
    rounds (1, 2, …) in which each client is asked; equal ones once. ``includes``: whether a client
    (first) is asked in a round (second); what is drawn in secret may include anybody.
    """

    clients: int = 1
    size: int = 1
    rate: float | None = None
    patterns: Callable[[], Collection[tuple[int, ...]]] = _once
    includes: Callable[[int, int], bool] = _anybody
