"""Our accountant beside dp-accounting's privacy-loss distributions.

``python -m benchmarks.accountants`` prints, for each release, composed so often, and each δ: ε of
both, the processor time of each, and theirs over ours. ``docs/accounting.md`` says what follows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution as distributions

from benchmarks.machine import describe_machine
from murmur.privacy.accounting import epsilon
from murmur.privacy.accounting.elementary_losses import report_probabilities
from murmur.privacy.events import (
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
)

STEP = 1e-4  # dp-accounting's own lattice, its default
DELTAS = (1e-5, 1e-10, 1e-12, 1e-15)


def _sampled(rate: float, noise: float, count: int) -> Callable[[float], float]:
    gaussian = dp_accounting.GaussianDpEvent(noise)
    sampled = dp_accounting.PoissonSampledDpEvent(rate, gaussian)

    def theirs(delta: float) -> float:
        accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=STEP)
        accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, count))
        return float(accountant.get_epsilon(delta))

    return theirs


def _reports(one: float, classes: int, count: int) -> Callable[[float], float]:
    _, other = report_probabilities(one, classes)
    loss = distributions.from_randomized_response(
        classes * other, classes, value_discretization_interval=STEP
    )
    return lambda delta: float(loss.self_compose(count).get_epsilon_for_delta(delta))


def _laplace(noise: float, count: int) -> Callable[[float], float]:
    loss = distributions.from_laplace_mechanism(noise, value_discretization_interval=STEP)
    return lambda delta: float(loss.self_compose(count).get_epsilon_for_delta(delta))


def _discrete(sigma: float, sensitivity: int, count: int) -> Callable[[float], float]:
    loss = distributions.from_discrete_gaussian_mechanism(
        sigma, sensitivity, value_discretization_interval=STEP
    )
    return lambda delta: float(loss.self_compose(count).get_epsilon_for_delta(delta))


CASES: list[tuple[str, Event, int, Callable[[float], float]]] = [
    (
        "DP-SGD, q = 0.01, z = 0.8",
        PoissonSampledEvent(0.01, GaussianEvent(0.8)),
        2000,
        _sampled(0.01, 0.8, 2000),
    ),
    (
        "labels, ε = 0.1 of 10 classes",
        RandomizedResponseEvent(0.1, 10),
        2500,
        _reports(0.1, 10, 2500),
    ),
    ("labels, ε = 2.5 of 10", RandomizedResponseEvent(2.5, 10), 20, _reports(2.5, 10, 20)),
    ("Laplace, scale 2", LaplaceEvent(2.0, 0), 30, _laplace(2.0, 30)),
    (
        "discrete Gaussian, σ = 20, Δ = 7",
        DiscreteGaussianEvent(20.0, 7.0, True),
        100,
        _discrete(20.0, 7, 100),
    ),
]


def main() -> None:
    """Print a row for each case and δ."""
    print(f"{describe_machine()}\n")
    print("| release | composed | δ | ours | s | dp-accounting | s | theirs over ours |")
    print("|---|---|---|---|---|---|---|---|")
    for name, event, count, theirs in CASES:
        for delta in DELTAS:
            begun = time.process_time()
            ours = epsilon(RepeatedEvent(event, count), delta).epsilon
            between = time.process_time()
            other = theirs(delta)
            ended = time.process_time()
            ratio = "∞" if math.isinf(other) else f"{other / ours:.6f}"
            print(
                f"| {name} | {count} | {delta:g} | {ours:.5f} | {between - begun:.3f} "
                f"| {other:.5f} | {ended - between:.3f} | {ratio} |"
            )


if __name__ == "__main__":
    main()
