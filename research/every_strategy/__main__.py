"""What every strategy reaches on digits at one budget, against each of the three threats.

    python -m research.every_strategy --rows runs/every_strategy.jsonl

ε = 8 at δ = 1e-5 for the whole run and one client, 40 clients. A strategy's candidates against a
threat (``research.every_strategy.candidates``) are compared on 200 examples that neither clients
nor the pool have, in the mean of two seeds; these go back to the clients, and the best candidate
runs once on the test set with each of three seeds. Where a strategy does not offer a threat the
table says so in its own words. Sums are simulated: the same sums and the same noise. Prints the
table of docs/algorithms.md, then what was compared.

    python -m research.every_strategy --rows runs/every_strategy.jsonl --defaults

does the same for the default settings, at the default budget, and prints what a run says of itself
before it starts.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.runs import RunFile, print_table, run_once, spread
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups
from fl_app.run.prepare import forecast_of
from fl_app.run.validated import ValidatedRun
from research.every_strategy.candidates import candidates, shared, typed

EPSILON = 8
THREATS = ("local", "secure_aggregation", "central")
QUICK = ["engine.workers=1", "tracking=none", "keep_checkpoints=false"]
COMMON = [*QUICK, f"privacy.epsilon={EPSILON}"]
# Where a run is scored: its words, and its seeds.
VALIDATION = ["federation.validation=200", "federation.score=validation"]
SCORED: dict[str, tuple[list[str], tuple[int, ...]]] = {
    "validation": (VALIDATION, (1, 2)),
    "test": ([], (1, 2, 3)),
}


def refusal(words: Sequence[str]) -> str | None:
    """Why there can be no run with the overrides ``words``; None where there can."""
    try:
        ValidatedRun(compose(list(words)))
    except ConfigError as error:
        return _reason(str(error))
    return None


def _reason(error: str) -> str:
    """The part of an error that says what is the matter, without a class and what to type."""
    reason = error.partition(": ")[2].partition(";")[0]
    return reason.replace("this strategy supports", "it supports")


def reached(words: Sequence[str]) -> dict[str, Any]:
    """Accuracy and stated ε of one run."""
    done = run_once(words)
    first = done["guarantees"][0]
    return {
        "accuracy": done["metrics"]["accuracy"],
        "epsilon": first["assumed_total"] or first["proven_total"],
        "seconds": round(done["seconds"], 1),
        "words": list(words),
    }


def accuracies(
    kept: RunFile, name: str, threat: str, candidate: Sequence[str], data: str
) -> list[float]:
    """Those of the ``candidate`` on ``data``, one for each seed, measured where missing."""
    scored, seeds = SCORED[data]
    words = [*shared(name, threat), *candidate, *scored, *COMMON]
    key = {"strategy": name, "threat": threat, "candidate": " ".join(candidate), "data": data}
    rows = [
        kept.get({**key, "seed": seed}, partial(reached, [*words, f"seed={seed}"]))
        for seed in seeds
    ]
    assert all(row["epsilon"] <= EPSILON for row in rows)
    return [row["accuracy"] for row in rows]


def compared(kept: RunFile, name: str, threat: str) -> dict[tuple[str, ...], float]:
    """Mean accuracy on validation data by candidate, best first."""
    found = {
        tuple(words): statistics.mean(accuracies(kept, name, threat, words, "validation"))
        for words in candidates(name, threat)
    }
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def said(found: Mapping[tuple[str, ...], float]) -> str:
    """Candidates and their accuracies, for a cell of the second table."""
    return ", ".join(f"`{' '.join(words)}` {mean:.3f}" for words, mean in found.items())


def defaults(kept: RunFile, name: str, threat: str) -> str:
    """What the default settings reach on the test set, and what the run says of that before."""
    words = typed(name, threat)
    try:
        forecast = forecast_of(ValidatedRun(compose(words)))
    except ConfigError as error:
        return f"not offered: {_reason(str(error))}"
    key = {"strategy": name, "threat": threat, "data": "test", "candidate": "default"}
    rows = [
        kept.get({**key, "seed": seed}, partial(reached, [*words, *QUICK, f"seed={seed}"]))
        for seed in SCORED["test"][1]
    ]
    found = spread([row["accuracy"] for row in rows], 3)
    said = "nothing" if forecast is None else forecast.text().partition("; what")[0]
    return f"{found}; {said}"


def main() -> None:
    """Measure what is missing in the file, then print the tables."""
    parser = argparse.ArgumentParser(description="What every strategy reaches at one budget.")
    parser.add_argument("--rows", type=Path, required=True, help="the file of the runs")
    parser.add_argument("--defaults", action="store_true", help="of the default settings instead")
    options = parser.parse_args()
    kept = RunFile(options.rows)
    if options.defaults:
        names = groups()["strategy"]
        rows = [[f"`{name}`", *(defaults(kept, name, each) for each in THREATS)] for name in names]
        print_table(["`strategy=`", *(f"`{threat}`" for threat in THREATS)], rows)
        return
    table, choices = [], []
    for name in groups()["strategy"]:
        line = [f"`{name}`"]
        for threat in THREATS:
            refused = refusal([*shared(name, threat), *candidates(name, threat)[0], *COMMON])
            if refused is not None:
                line.append(f"not offered: {refused}")
                continue
            found = compared(kept, name, threat)
            best = next(iter(found))
            line.append(spread(accuracies(kept, name, threat, best, "test"), 3))
            choices.append([f"`{name}`", f"`{threat}`", said(found)])
        table.append(line)
    print(f"\n{describe_machine()}\n")
    print_table(["`strategy=`", *(f"`{threat}`" for threat in THREATS)], table)
    print()
    print_table(["`strategy=`", "`privacy.threat=`", "on validation data"], choices)


if __name__ == "__main__":
    main()
