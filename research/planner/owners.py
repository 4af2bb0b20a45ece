"""What `research.owners.signal` foretells of gradient rounds and class moments, and comes out.

``python -m research.planner.owners --rows FILE`` measures what is missing in FILE and prints, for
every setting and ε, the share of the score without noise that is left. The rules were found on the
settings of ``FOUND`` alone; of class moments they say only where nothing can be learnt. Gradient
rounds are direct runs (``research.owners.rounds``), class moments whole ones. Score: AUC of two
classes, else accuracy. One seed. Needs ``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from fl_app.config.compose import compose
from fl_app.run.prepare import prepare
from fl_app.run.validated import ValidatedRun
from research.owners.choose import words_of
from research.owners.rounds import Direct
from strategies.gradient_rounds import GradientRounds

_QUIET = ("engine=inline", "privacy.secure_aggregation=simulated", "tracking=none")
_SUMS = "privacy.secure_sum={minimum: 0.9, threshold: 0.8, dropouts: 0.1, server: honest}"
_IMAGES = ("partition=dirichlet", "federation.public=0", "federation.validation=12000")
_ROUNDS = (
    *("strategy=gradient_rounds", "federation.num_rounds=20", "strategy.length=250"),
    *("model=centred", "model.radius=0.0001", "protection.clipping.norm=0.5", _SUMS, *_IMAGES),
)
_MOMENTS = (
    *("strategy=class_moments", "privacy.unit=record", "federation.num_clients=5"),
    *("federation.public=0", "privacy.secure_sum={minimum: 1.0, colluders: 1}"),
)
_ELSEWHERE = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}


def _images(data: str) -> tuple[str, ...]:
    """100 components of one data set's pixels for the images of the other."""
    other = f"features.fitted_on={_ELSEWHERE[data]}"
    return (f"dataset={data}", "features=pca", "features.components=100", other)


FOUND: dict[str, tuple[str, ...]] = {
    **{
        f"gradient_rounds, {data}, 300 clients": (
            *_ROUNDS,
            *_images(data),
            "federation.num_clients=300",
        )
        for data in _ELSEWHERE
    },
    "class_moments, digits": (*_MOMENTS, "dataset=digits"),
    "class_moments, pneumonia_mnist": ("experiment=hospitals",),
}
CHECKED: dict[str, tuple[str, ...]] = {
    "gradient_rounds, descriptions": ("experiment=descriptions",),
    "gradient_rounds, flights": ("experiment=flights",),
    "gradient_rounds, mnist_no_pool": ("experiment=mnist_no_pool",),
    "gradient_rounds, fashion_no_pool": ("experiment=fashion_no_pool",),
    "gradient_rounds, digits, 60 clients": (
        *("strategy=gradient_rounds", "dataset=digits", "federation.num_clients=60"),
        *("federation.public=0", "federation.num_rounds=20", _SUMS),
    ),
    **{
        f"class_moments, {data}, 10000 records": (
            *_MOMENTS,
            *_images(data),
            "federation.validation=50000",
        )
        for data in _ELSEWHERE
    },
}
_CHOSEN = tuple(  # with settings for each budget
    f"experiment={name}" for name in ("descriptions", "flights", "mnist_no_pool", "fashion_no_pool")
)
BUDGETS = ("1", "2", "8", "inf")


def measure(name: str, budget: str) -> dict[str, object]:
    """The score of one run, and what the planner says of it beforehand."""
    words = list({**FOUND, **CHECKED}[name])
    if words[0] in _CHOSEN:
        words = words_of(words[0].removeprefix("experiment="), budget, 1)
    words += [f"privacy.epsilon={budget}", *_QUIET]
    experiment = ValidatedRun(compose(words))
    forecast = experiment.strategy.forecast()
    if isinstance(experiment.strategy, GradientRounds):
        scores = Direct(experiment, held=False).train(experiment)
    else:
        with tempfile.TemporaryDirectory() as folder:
            ready = prepare(words, Path(folder) / "run")
            ready.run()
            rows = (Path(folder) / "run" / "rounds.jsonl").read_text(encoding="utf-8")
        scores = json.loads(rows.splitlines()[-1])
    score = scores.get("auc", scores["accuracy"])
    is_drowned = forecast is not None and forecast.is_drowned
    return {
        "name": name,
        "budget": budget,
        "ratio": None if forecast is None else forecast.ratio,
        "predicted": None if forecast is None or is_drowned else forecast.share,
        "drowned": is_drowned,
        "score": score,
    }


def show(rows: list[dict[str, object]]) -> None:
    """Print the table of every setting whose score without noise is known."""
    free = {str(row["name"]): row["score"] for row in rows if row["budget"] == "inf"}
    print("| setting | rule | ε | R | foretold | came out | difference |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        name = str(row["name"])
        if row["budget"] == "inf" or name not in free:
            continue
        share = float(str(row["score"])) / float(str(free[name]))
        used = "found on" if name in FOUND else "checked"
        said, gap = "not at this budget" if row["drowned"] else "no share", ""
        if row["predicted"] is not None:
            predicted = float(str(row["predicted"]))
            said, gap = f"{predicted:.3f}", f"{share - predicted:+.3f}"
        ratio = float(str(row["ratio"]))
        print(f"| {name} | {used} | {row['budget']} | {ratio:.2f} | {said} | {share:.3f} | {gap} |")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m research.planner.owners", description=__doc__)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE")
    parser.add_argument("--show", action="store_true", help="print the table, run nothing")
    parser.add_argument("--only", default="", metavar="TEXT", help="settings whose name has it")
    options = parser.parse_args()
    lines = []
    if options.rows.exists():
        lines = options.rows.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    done = {(row["name"], row["budget"]) for row in rows}
    for name in [] if options.show else [*FOUND, *CHECKED]:
        for budget in BUDGETS:
            if (name, budget) in done or options.only not in name:
                continue
            rows.append(measure(name, budget))
            with options.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
