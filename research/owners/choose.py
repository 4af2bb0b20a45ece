"""Settings of gradient rounds, chosen on owners who are neither clients nor the test's.

By seed a tenth of all owners is held back; they rejoin training once the settings are chosen. The
candidates of one experiment and budget are trained by ``research.owners.rounds`` on the others,
and the mean of their scores over seeds is printed, best first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from fl_app.config.composition import compose
from fl_app.run.experiment import Experiment
from research.owners.rounds import Direct, Scores

QUIET = ("engine=inline", "privacy.secure_aggregation=simulated", "tracking=none")
_SHOWN = ("auc", "accuracy_over_owners", "accuracy")  # the first that there is decides

# Key: values to be tried, all with all, by experiment and ε.
Grid = Mapping[str, Sequence[object]]
GRIDS: dict[tuple[str, str], Grid] = {
    ("descriptions", "1"): {
        "model.start_length": (8, 10, 14),
        "strategy.length": (40, 80, 120, 240),
        "strategy.average": (0.0, 0.5),
    },
    ("descriptions", "8"): {
        "model.start_length": (14,),
        "federation.num_rounds": (16,),
        "strategy.length": (480, 900, 1600),
        "strategy.constant": (0.3, 0.6),
    },
    ("fashion_no_pool", "1"): {
        "federation.num_rounds": (30,),
        "strategy.length": (150, 300, 600),
    },
    ("fashion_no_pool", "8"): {
        "strategy.length": (1000, 2000),
        "strategy.average": (0.5,),
    },
    ("flights", "1"): {"strategy.length": (40, 80, 160)},
    ("flights", "8"): {"strategy.length": (80, 160, 320)},
    ("flights_weather", "1"): {"strategy.length": (40, 80, 160)},
    ("flights_weather", "8"): {"strategy.length": (80, 160, 320)},
}


# Settings of larger budgets. Those of descriptions are chosen here, as what conf/experiment
# has for ε = 1 is; the others are from the same sketches as there.
LARGE: dict[str, list[str]] = {
    "descriptions": [
        *("federation.num_rounds=16", "strategy.length=900", "model.start_length=14.0"),
    ],
    "flights": ["strategy.length=100"],
    "flights_weather": ["strategy.length=100"],
    "mnist_no_pool": [
        *("federation.num_rounds=60", "strategy.length=1200", "features.components=400"),
    ],
    "fashion_no_pool": ["strategy.length=2000", "strategy.average=0.5"],
}


def words_of(name: str, budget: str, seed: int) -> list[str]:
    """The overrides of one run."""
    more = LARGE.get(name, []) if budget != "1" else []
    return [f"experiment={name}", *more, f"privacy.epsilon={budget}", f"seed={seed}"]


def candidates(grid: Grid) -> list[list[str]]:
    """Every combination of ``grid`` as overrides."""
    values = itertools.product(*grid.values())
    return [[f"{key}={v}" for key, v in zip(grid, each, strict=True)] for each in values]


def choose(name: str, budget: str, seeds: Sequence[int], held: bool = True) -> None:
    """Print the candidates' scores, best first."""
    tried = candidates(GRIDS[name, budget])
    found: list[list[Scores]] = [[] for _ in tried]
    for seed in seeds:
        for words, scores in zip(tried, found, strict=True):
            run = [f"experiment={name}", f"privacy.epsilon={budget}", f"seed={seed}", *words]
            experiment = Experiment(compose([*run, *QUIET]))
            scores.append(Direct(experiment, held).train(experiment))
    shown = [score for score in _SHOWN if score in found[0][0]]
    means = [[float(np.mean([s[score] for s in each])) for score in shown] for each in found]
    print(f"{name}, ε = {budget}, {len(seeds)} seeds: {', '.join(shown)}")
    for place in np.argsort([-mean[0] for mean in means], kind="stable"):
        print(*(f"{value:.4f}" for value in means[place]), " ".join(tried[place]), flush=True)
