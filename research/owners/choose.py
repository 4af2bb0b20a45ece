"""Settings of gradient rounds, chosen on owners who are neither clients nor the test's.

By seed a tenth of all owners is held back; they rejoin training once the settings are chosen. The
candidates of one experiment and budget are trained by ``research.owners.rounds`` on the others,
and the mean of their scores over seeds is printed, best first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from fl_app.config.compose import compose
from fl_app.run.validated import ValidatedRun
from research.owners.rounds import Direct, Scores
from strategies.gradient_rounds import GradientRounds

QUIET = ("engine=inline", "privacy.secure_aggregation=simulated", "tracking=none")
_SHOWN = ("auc", "accuracy_over_owners", "accuracy")  # the first that there is decides

# Key: values to be tried, all with all, by experiment and ε.
Grid = Mapping[str, Sequence[object]]
_PAIRS = "[month,weekday],[carrier,hour],[origin,hour],[carrier,month]"
_WEATHER = f"{_PAIRS},[origin,wind_speed],[month,temp],[hour,visib]"
_MORE = "[weekday,hour],[month,hour]"
_MORE_WEATHER = "[hour,precip],[month,pressure],[origin,visib],[month,humid]"
_NO_POOL: Grid = {
    "strategy.balance": (0.0,),
    "strategy.constant": (0.1,),
    "strategy.flatten": (0.0, 0.6),
}
GRIDS: dict[tuple[str, str], Grid] = {
    ("descriptions", "1"): {
        "model.start_length": (10,),
        "strategy.length": (80, 120),
        "strategy.logit_adjustment": (0.0, 1.0),
        "strategy.flatten": (0.0, 0.6),
    },
    ("descriptions", "8"): {
        "model.start_length": (14,),
        "federation.num_rounds": (16,),
        "strategy.length": (480, 900, 1600),
        "strategy.constant": (0.3, 0.6),
    },
    ("mnist_no_pool", "1"): {
        **_NO_POOL,
        "strategy.logit_adjustment": (0.0, 1.0),
        "strategy.length": (250,),
    },
    ("mnist_no_pool", "8"): {
        "federation.num_rounds": (60,),
        "features.components": (400,),
        **_NO_POOL,
        "strategy.logit_adjustment": (0.0, 0.5),
        "strategy.length": (1200,),
    },
    ("fashion_no_pool", "1"): {
        **_NO_POOL,
        "strategy.logit_adjustment": (0.0, 1.0),
        "strategy.length": (300,),
    },
    ("fashion_no_pool", "8"): {
        "features.power": (0.5,),
        **_NO_POOL,
        "strategy.logit_adjustment": (0.0, 0.5),
        "strategy.length": (1200,),
        "strategy.average": (0.5,),
    },
    ("flights", "1"): {
        "features.crossed": (f"[{_PAIRS}]", f"[{_PAIRS},{_MORE}]"),
        "federation.num_rounds": (20, 40),
        "strategy.length": (60, 80, 160),
    },
    ("flights", "8"): {
        "features.crossed": (f"[{_PAIRS}]", f"[{_PAIRS},{_MORE}]"),
        "federation.num_rounds": (40, 80),
        "strategy.length": (100, 200, 400),
    },
    ("flights_weather", "1"): {
        "features.crossed": (f"[{_WEATHER}]", f"[{_WEATHER},{_MORE},{_MORE_WEATHER}]"),
        "federation.num_rounds": (20, 40),
        "strategy.length": (60, 80, 160),
    },
    ("flights_weather", "8"): {
        "features.crossed": (f"[{_WEATHER}]", f"[{_WEATHER},{_MORE},{_MORE_WEATHER}]"),
        "federation.num_rounds": (40, 80),
        "strategy.length": (100, 200, 400, 800),
    },
}


# Settings of larger budgets, chosen here, as what conf/experiment has for ε = 1 is; a sketch's
# stands where the best lies within one standard error of it. Those of flights are a sketch's.
LARGE: dict[str, list[str]] = {
    "descriptions": [
        *("federation.num_rounds=16", "strategy.length=900", "model.start_length=14.0"),
    ],
    "flights": ["strategy.length=100"],
    "flights_weather": [
        f"features.crossed=[{_WEATHER},{_MORE},{_MORE_WEATHER}]",
        *("federation.num_rounds=80", "strategy.length=200"),
    ],
    "mnist_no_pool": [
        *("federation.num_rounds=60", "strategy.length=1200", "features.components=400"),
        "strategy.logit_adjustment=0.5",
    ],
    "fashion_no_pool": [
        *("features.power=0.5", "strategy.length=1200", "strategy.average=0.5"),
        "strategy.logit_adjustment=0.5",
    ],
}


def words_of(name: str, budget: str, seed: int) -> list[str]:
    """The overrides of one run."""
    more = LARGE.get(name, []) if budget != "1" else []
    return [f"experiment={name}", *more, f"privacy.epsilon={budget}", f"seed={seed}"]


def direct_row(case: tuple[str, str, int]) -> dict[str, object] | None:
    """One direct run on the test set; None where the experiment is none of gradient rounds.

    Args:
        case: experiment, ε and seed.
    """
    name, budget, seed = case
    words = [*words_of(name, budget, seed), *QUIET]
    experiment = ValidatedRun(compose(words))
    if not isinstance(experiment.strategy, GradientRounds):
        return None
    scores = Direct(experiment, held=False).train(experiment)
    return {"name": name, "budget": budget, "seed": seed, "scores": scores, "words": words}


def candidates(grid: Grid) -> list[list[str]]:
    """Every combination of ``grid`` as overrides."""
    values = itertools.product(*grid.values())
    return [[f"{key}={v}" for key, v in zip(grid, each, strict=True)] for each in values]


def choose(
    cases: Sequence[tuple[str, str]], seeds: Sequence[int], processes: int, held: bool = True
) -> None:
    """Print the candidates' scores for each (experiment, ε), best first.

    Candidates that share their features are trained by the same process, one after the other.
    """
    jobs = []
    for case in cases:
        parts: dict[tuple[str, ...], list[list[str]]] = {}
        for words in candidates(GRIDS[case]):
            features = tuple(word for word in words if word.startswith("features."))
            parts.setdefault(features, []).append(words)
        jobs += [(case, seed, part, held) for seed in seeds for part in parts.values()]
    found: dict[tuple[str, str], dict[str, list[Scores]]] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for (case, _, part, _), scores in zip(jobs, pool.map(_scores, jobs), strict=True):
            for words, each in zip(part, scores, strict=True):
                found.setdefault(case, {}).setdefault(" ".join(words), []).append(each)
            if len(found[case]) == len(candidates(GRIDS[case])):
                _show(case, found[case], len(seeds))


def _scores(job: tuple[tuple[str, str], int, list[list[str]], bool]) -> list[Scores]:
    """Of each candidate of a job, with one seed."""
    (name, budget), seed, part, held = job
    found = []
    for words in part:
        run = [f"experiment={name}", f"privacy.epsilon={budget}", f"seed={seed}", *words]
        experiment = ValidatedRun(compose([*run, *QUIET]))
        found.append(Direct(experiment, held).train(experiment))
    return found


def _show(case: tuple[str, str], found: dict[str, list[Scores]], seeds: int) -> None:
    """The table of one case, when every seed is there."""
    if any(len(each) < seeds for each in found.values()):
        return
    one = next(iter(found.values()))[0]
    shown = [score for score in _SHOWN if score in one]
    means = {
        words: [float(np.mean([each[score] for each in scores])) for score in shown]
        for words, scores in found.items()
    }
    print(f"{case[0]}, ε = {case[1]}, {seeds} seeds: {', '.join(shown)}")
    for words in sorted(means, key=lambda words: -means[words][0]):
        print(*(f"{value:.4f}" for value in means[words]), words, flush=True)
