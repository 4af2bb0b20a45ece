"""The best of a random number of runs, of which nothing else is published.

Papernot and Steinke, "Hyperparameter Tuning with Rényi Differential Privacy" (ICLR 2022,
arXiv:2110.03620), theorem 2, for the truncated negative binomial distribution with η = 1, which is
the geometric one: P[K = k] = γ (1 − γ)^(k−1), k ≥ 1, E[K] = 1/γ. Where every run is (λ, ε)- and
(λ̂, ε̂)-RDP, the best of K independent ones is (λ, ε′)-RDP,

    ε′ = ε + 2 (1 − 1/λ̂) ε̂ + 2 ln(1/γ) / λ̂ + ln E[K] / (λ − 1).

It holds if K and each run's settings are drawn without looking at the data, runs are independent
and drawn alike, and the score by which one is kept follows from what it would publish, and from
public data. A run of settings that are drawn first is as bad as its worst settings, at each order.

Whoever sees every run (a server that reads messages, or sums) is told all of them: those compose.

Ours, since dp-accounting (whose ``RepeatAndSelectDpEvent`` tests compare with) reads none of our
events, and looks at the orders of a fixed list only.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence

from murmur.checks import require_count
from murmur.privacy.accounting import rdp
from murmur.privacy.accounting.flatten import Threat, View, failure, flatten
from murmur.privacy.events import Event, NonPrivateEvent

THEOREM = "Papernot and Steinke 2022 (arXiv:2110.03620), theorem 2"
DISTRIBUTION = "truncated negative binomial, η = 1 (geometric)"
_SHAPE = 1.0  # η

Leaves = Mapping[Event, int]
Run = Sequence[Event]  # what each client has released in it; clients that released the same, once


def draw_trials(mean: int) -> int:
    """A number of runs from the geometric distribution with this mean, from the system's entropy.

    Raises ValueError for a ``mean`` below 1.
    """
    require_count("mean", mean)
    trials = 1
    while secrets.randbelow(mean):
        trials += 1
    return trials


def epsilon_of_best(runs: Sequence[Run], mean: float, delta: float, view: View) -> float:
    """ε at ``delta`` of the best of a number of runs with this mean, for who sees that one only.

    Args:
        runs: those that were done; each is as any that could have been drawn.
        mean: E[K] ≥ 1 of the geometric distribution that their number was drawn from.
        delta: in (0, 1).
        view: of the adversary, who sees what the best run publishes.

    Returns:
        Infinity where a run releases something without protection, or nothing is known.
    """
    # Wald: on average so many sums fail in all runs together.
    left = delta - mean * max(_failure(run, view) for run in runs)
    divergence = _divergence([_leaves(run, view) for run in runs], max)
    if left <= 0 or mean < 1 or divergence is None:
        return math.inf
    cost = selection_cost(divergence, mean)
    return _converted(lambda order: repeated_divergence(divergence, mean, order, cost), left)


def epsilon_of_all(runs: Sequence[Run], delta: float, view: View) -> float:
    """ε at ``delta`` of all runs together, for whoever sees each; as ``epsilon_of_best``."""
    left = delta - sum(_failure(run, view) for run in runs)
    divergence = _divergence([_leaves(run, view) for run in runs], sum)
    if left <= 0 or divergence is None:
        return math.inf
    return _converted(divergence, left)


def selection_cost(divergence: Callable[[float], float], mean: float) -> float:
    """Cost of the choice at every order: (1 + η) times the least over λ̂ of theorem 2."""
    gamma = 1 / mean

    def value(order: float) -> float:
        return (1 - 1 / order) * divergence(order) - math.log(gamma) / order

    return (1 + _SHAPE) * rdp.least(value, whole=True)


def repeated_divergence(
    divergence: Callable[[float], float], mean: float, order: float, cost: float
) -> float:
    """ε′ of theorem 2 at ``order``, with ``cost`` of ``selection_cost``."""
    return divergence(order) + cost + math.log(mean) / (order - 1)


def _converted(divergence: Callable[[float], float], delta: float) -> float:
    """ε at ``delta``, the least over orders."""

    def value(order: float) -> float:
        total = divergence(order)
        return rdp.to_epsilon(total, order, delta) if math.isfinite(total) else math.inf

    return max(0.0, rdp.least(value, whole=True))


def _leaves(run: Run, view: View) -> list[Leaves]:
    """Elementary releases of each client, as the adversary sees them."""
    return [flatten(event, view) for event in run]


def _failure(run: Run, view: View) -> float:
    """How likely it is, at most, that a sum of a client's in ``run`` hid nothing."""
    if view.threat is Threat.LOCAL:
        return 0.0
    return max((failure(event, view) for event in run), default=0.0)


def _divergence(
    runs: Sequence[Sequence[Leaves]], over: Callable[[list[float]], float]
) -> Callable[[float], float] | None:
    """D of the worst client of each run ``over`` all runs, by order; None without protection."""
    every = [leaf for run in runs for client in run for leaf in client]
    if any(isinstance(leaf, NonPrivateEvent) for leaf in every):
        return None

    def divergence(order: float) -> float:
        return over([max((_total(client, order) for client in run), default=0.0) for run in runs])

    return divergence


def _total(leaves: Leaves, order: float) -> float:
    """D_α of independent releases."""
    return sum(count * rdp.divergence(leaf, order) for leaf, count in leaves.items())
