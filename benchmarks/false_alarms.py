"""Correct mechanisms, audited again and again: how often an audit accuses one of them.

``python -m benchmarks.false_alarms 1000`` audits four mechanisms whose proven ε is exactly theirs,
in turn, each time with fresh noise on the worst pair of inputs. An audit at 99.9% confidence may be
wrong once in a thousand. Prints a row for each mechanism; the exit status is 1 where alarms are
more than chance allows (with probability 99.9%, by the binomial law).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from privacy.accounting import epsilon
from privacy.audit import audit
from privacy.mechanisms import (
    BinaryRandomizedResponse,
    DiscreteGaussian,
    DiscreteLaplace,
    RandomizedResponse,
)
from privacy.noise import NoiseGenerator

DELTA = 1e-2  # where a Gaussian's ε can be measured
CONFIDENCE = 0.999
Draw = Callable[[NDArray[np.int64], NoiseGenerator], NDArray]

_LABELS = RandomizedResponse(2.0, 10)
_BITS = BinaryRandomizedResponse(0.3)
_LAPLACE = DiscreteLaplace(10.0, 20.0)
_GAUSSIAN = DiscreteGaussian(20.0, 20.0)

# By name: ε, δ, two neighbouring inputs, and what releases them.
HONEST: dict[str, tuple[float, float, tuple[int, int], Draw]] = {
    "randomised response": (_LABELS.epsilon, 0.0, (3, 4), _LABELS.privatize),
    "randomised bits": (
        _BITS.epsilon,
        0.0,
        (0, 1),
        lambda x, rng: _BITS.privatize(x.astype(np.uint8), rng),
    ),
    "discrete Laplace": (_LAPLACE.epsilon, 0.0, (0, 20), _LAPLACE.privatize_integers),
    "discrete Gaussian": (
        epsilon(_GAUSSIAN.event(), DELTA).epsilon,
        DELTA,
        (0, 20),
        _GAUSSIAN.privatize_integers,
    ),
}


def alarms(name: str, audits: int, runs: int) -> tuple[int, float]:
    """How many of ``audits`` find more than is proven, and the largest share of it found."""
    proven, delta, inputs, release = HONEST[name]
    count, most = 0, 0.0
    for number in range(audits):
        one, other = (
            release(np.full(runs, x), NoiseGenerator.seeded("alarms", name, number, x))
            for x in inputs
        )
        found = audit(one, other, delta, CONFIDENCE).epsilon
        count, most = count + (found > proven), max(most, found / proven)
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
