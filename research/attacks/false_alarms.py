"""Correct mechanisms, audited again and again: how often an audit accuses one of them.

``python -m research.attacks.false_alarms 1000`` audits mechanisms whose proven ε is exactly
theirs, in turn and by every estimator of ``murmur audit`` that is right for them, each time with
fresh noise on the worst pair of inputs. An audit at 99.9% confidence may be wrong once in a
thousand. Prints a row for each; the exit status is 1 where alarms are more than chance allows
(with probability 99.9%, by the binomial law).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from murmur.privacy.accounting import epsilon
from murmur.privacy.audit import empirical_epsilon, gaussian_fit, normal_fit
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.noise import NoiseGenerator

DELTA = 1e-2  # where a Gaussian's ε can be measured
CONFIDENCE = 0.999
Draw = Callable[[NDArray[np.int64], NoiseGenerator], NDArray]
Estimator = Callable[[NDArray, NDArray, float, float], float]


def counted(one: NDArray, other: NDArray, delta: float, confidence: float) -> float:
    """ε by an event that is counted."""
    return empirical_epsilon(one, other, delta, confidence)


@dataclass(frozen=True)
class Honest:
    """``release`` of two neighbouring ``inputs`` is (``epsilon``, ``delta``)-private, no better.

    ``same_noise``: both inputs get the same, as they do where noise is only added.
    """

    epsilon: float
    delta: float
    inputs: tuple[int, int]
    release: Draw
    estimator: Estimator = counted
    same_noise: bool = False


_LABELS = RandomizedResponse(2.0, 10)
_BITS = BinaryRandomizedResponse(0.3)
_LAPLACE = DiscreteLaplace(10.0, 20.0)
_GAUSSIAN = DiscreteGaussian(2e6, 2e6)  # fine enough for the Gaussian's ε
_NORMAL = Honest(
    epsilon(_GAUSSIAN.event(), DELTA).epsilon, DELTA, (0, 2_000_000), _GAUSSIAN.privatize_integers
)
HONEST = {
    "randomised response": Honest(_LABELS.epsilon, 0.0, (3, 4), _LABELS.privatize),
    "randomised bits": Honest(
        _BITS.epsilon, 0.0, (0, 1), lambda x, rng: _BITS.privatize(x.astype(np.uint8), rng)
    ),
    "discrete Laplace": Honest(_LAPLACE.epsilon, 0.0, (0, 20), _LAPLACE.privatize_integers),
    "discrete Gaussian": _NORMAL,
    "discrete Gaussian, by its trade-off": replace(_NORMAL, estimator=gaussian_fit),
    "discrete Gaussian, by its moments": replace(_NORMAL, estimator=normal_fit),
    "the same, both with the same noise": replace(_NORMAL, estimator=normal_fit, same_noise=True),
}


def alarms(name: str, audits: int, runs: int) -> tuple[int, float]:
    """How many of ``audits`` find more than is proven, and the largest share of it found."""
    honest = HONEST[name]
    count, most = 0, 0.0
    for number in range(audits):
        one, other = (
            honest.release(
                np.full(runs, x),
                NoiseGenerator.seeded("alarms", name, number, 0 if honest.same_noise else x),
            )
            for x in honest.inputs
        )
        found = honest.estimator(one, other, honest.delta, CONFIDENCE)
        count, most = count + (found > honest.epsilon), max(most, found / honest.epsilon)
    return count, most


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("audits", type=int, nargs="?", default=1000, help="of all mechanisms")
    parser.add_argument("--runs", type=int, default=20_000, help="releases of each input")
    given = parser.parse_args()
    each, total = math.ceil(given.audits / len(HONEST)), 0
    print("| correct mechanism | audits | alarms | largest measured / proven |\n|---|---|---|---|")
    for name in HONEST:
        found, most = alarms(name, each, given.runs)
        total += found
        print(f"| {name} | {each} | {found} | {most:.3f} |", flush=True)
    return int(total > stats.binom.ppf(0.999, each * len(HONEST), 1 - CONFIDENCE))


if __name__ == "__main__":
    sys.exit(main())
