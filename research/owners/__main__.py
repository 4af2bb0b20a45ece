"""The figures of ``docs/owners.md``: ``python -m research.owners WHAT [EXPERIMENT ...]``.

``run``: whole runs of ``murmur``, one process each. ``direct``: gradient rounds in this process
(``research.owners.rounds``). ``choose``: settings on held-back owners. ``hospitals``: together and
each alone. ``masks``: real secure sums beside simulated ones. ``table``: what there is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.config.composition import compose
from fl_app.run.population import Population, image_population, population
from murmur.common import experiment_rng
from research.owners.choose import GRIDS, QUIET, choose, direct_row, words_of
from research.owners.hospitals import table as hospitals
from research.owners.masks import table as masks
from research.owners.rounds import few_or_all

SEEDS = (1, 2, 3)
BUDGETS = ("1", "8", "inf")
EXPERIMENTS = (
    "hospitals",
    "descriptions",
    "mnist_no_pool",
    "fashion_no_pool",
    "flights",
    "flights_weather",
)
WHAT = ("run", "direct", "choose", "hospitals", "masks", "table")
SCORES = ("accuracy", "accuracy_over_owners", "balanced_accuracy_score", "auc")
ALONE = 20  # owners whose own model is scored


def root() -> Path:
    """Where runs go."""
    return Path(os.environ.get("MURMUR_RESULTS", "runs")) / "owners"


def run(names: Sequence[str]) -> None:
    """Every run of ``names`` that is not there yet, one process each."""
    for name in names:
        for budget in BUDGETS:
            for seed in SEEDS:
                folder = root() / f"{name}-{budget}-{seed}"
                if (folder / "metrics.json").exists():
                    continue
                words = [*words_of(name, budget, seed), *QUIET, "keep_checkpoints=false"]
                command = [sys.executable, "-m", "fl_app", *words, f"run_dir={folder}"]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                print(name, budget, seed, scores_of(folder), flush=True)


def direct(names: Sequence[str], budgets: Sequence[str], processes: int) -> None:
    """Every direct run of ``names`` on the test set that is not there yet; rows in direct.jsonl."""
    done = {(row["name"], row["budget"], row["seed"]) for row in direct_rows()}
    wanted = [case for case in itertools.product(names, budgets, SEEDS) if case not in done]
    root().mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for row in pool.map(direct_row, wanted):
            if row is None:
                continue
            with (root() / "direct.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(row["name"], row["budget"], row["seed"], row["scores"], flush=True)


def direct_rows() -> list[dict[str, Any]]:
    """The direct runs that are there."""
    path = root() / "direct.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def scores_of(folder: Path) -> dict[str, float]:
    """The last round's scores on the test set."""
    rows = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(rows[-1])
    return {name: last[name] for name in SCORES if name in last}


def references(name: str, seed: int) -> dict[str, dict[str, float]]:
    """What needs no federation, on the same features and test set, by what it is."""
    config = compose(words_of(name, "1", seed))
    people = population(config)
    rows = np.concatenate(people.shards)
    found = {"all in one place": _fitted(people, rows), "majority": _majority(people)}
    clients = experiment_rng(seed, "owners alone").permutation(len(people.shards))[:ALONE]
    alone = [_fitted(people, people.shards[int(client)]) for client in clients]
    names = alone[0].keys()
    found["one owner alone"] = {n: float(np.mean([each[n] for each in alone])) for n in names}
    if name.startswith("flights"):
        found["boosted trees"] = _trees(image_population(config))
    return found


def _fitted(people: Population, rows: NDArray[np.int64]) -> dict[str, float]:
    """Logistic regression on ``rows`` of the run's features."""
    from sklearn.linear_model import LogisticRegression

    train, test = people.dataset.train, people.dataset.test
    labels = train.labels[rows]
    classes = people.dataset.num_classes
    scores = np.zeros((len(test), classes))
    present = np.unique(labels)
    if len(present) == 1:
        scores[:, present[0]] = 1
        return _scored(people, scores)
    flat = few_or_all(train.images[rows].reshape(len(rows), -1))
    model = LogisticRegression(C=100.0, max_iter=200).fit(flat, labels)
    scores[:, model.classes_] = model.predict_proba(test.images.reshape(len(test), -1))
    return _scored(people, scores)


def _trees(people: Population) -> dict[str, float]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = np.concatenate(people.shards)
    train, test = people.dataset.train, people.dataset.test
    model = HistGradientBoostingClassifier(max_iter=300, random_state=0)
    model.fit(train.images[rows].reshape(len(rows), -1), train.labels[rows])
    return _scored(people, model.predict_proba(test.images.reshape(len(test), -1)))


def _majority(people: Population) -> dict[str, float]:
    counts = people.class_counts().sum(axis=0)
    scores = np.tile(counts, (len(people.dataset.test), 1)).astype(np.float64)
    return _scored(people, scores)


def _scored(people: Population, scores: NDArray[np.float64]) -> dict[str, float]:
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score

    from murmur.learning.metrics import over_owners

    labels = people.dataset.test.labels
    said = scores.argmax(axis=1)
    found = {"accuracy": float((said == labels).mean())}
    if people.dataset.test_owners is not None:
        found["accuracy_over_owners"] = over_owners(people.dataset.test_owners)(
            scores.astype(np.float32), labels
        )
    if people.dataset.num_classes == 2:
        found["balanced_accuracy_score"] = float(balanced_accuracy_score(labels, said))
        found["auc"] = float(roc_auc_score(labels, scores[:, 1]))
    return found


def table(names: Sequence[str], with_references: bool) -> None:
    """Print means over the seeds that are there, and their standard deviations."""
    print("| experiment | | accuracy | over owners | balanced | AUC | seeds |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        for budget in BUDGETS:
            folders = [root() / f"{name}-{budget}-{seed}" for seed in SEEDS]
            done = [scores_of(f) for f in folders if (f / "metrics.json").exists()]
            title = f"ε = {budget.replace('inf', '∞')}"
            _print(name, title, done)
            rows = [row for row in direct_rows() if (row["name"], row["budget"]) == (name, budget)]
            _print(name, f"{title}, direct", [row["scores"] for row in rows])
        if with_references:
            found = [references(name, seed) for seed in SEEDS[:1]]
            for what in found[0]:
                _print(name, what, [each[what] for each in found])


def _print(name: str, what: str, found: Sequence[dict[str, float]]) -> None:
    if not found:
        return
    cells = []
    for score in SCORES:
        values = [each[score] for each in found if score in each]
        text = ""
        if values:
            text = f"{np.mean(values):.3f}"
        if len(values) > 1:
            text += f" ± {np.std(values, ddof=1):.3f}"
        cells.append(text)
    print(f"| `{name}` | {what} | {' | '.join(cells)} | {len(found)} |", flush=True)


def main() -> None:
    """Run the experiments, or print the table of those that have run."""
    parser = argparse.ArgumentParser(prog="python -m research.owners", description=__doc__)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("names", nargs="*", default=list(EXPERIMENTS), metavar="EXPERIMENT")
    parser.add_argument("--references", action="store_true", help="fit what needs no federation")
    parser.add_argument("--budget", choices=BUDGETS, help="of the grid to choose in, or of direct")
    parser.add_argument("--processes", type=int, default=1, help="of choose and direct")
    options = parser.parse_args()
    budgets: Sequence[str] = BUDGETS
    if options.budget is not None:
        budgets = (options.budget,)
    if options.what == "run":
        run(options.names)
    elif options.what == "direct":
        direct(options.names, budgets, options.processes)
    elif options.what == "hospitals":
        hospitals(SEEDS)
    elif options.what == "masks":
        masks([name for name in options.names if name != "hospitals"])
    elif options.what == "choose":
        cases = [case for case in itertools.product(options.names, budgets) if case in GRIDS]
        choose(cases, SEEDS, options.processes)
    else:
        table(options.names, options.references)


if __name__ == "__main__":
    main()
