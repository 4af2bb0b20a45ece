"""Accuracy against a proven total ε: ``python -m research.frontier.curves --rows FILE``.

Every row is a run of Murmur itself in this process, appended to FILE as a line of JSON; a row that
is there already is not run again. ``--only REGEX`` runs the rows whose name (METHOD | SETTING | ε |
SEED) it finds, ``--show`` prints the tables (Markdown), ``--picture FILE`` draws them, and
``--choose`` compares ``candidates`` on validation data. Needs
``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from benchmarks import pictures
from research.frontier.candidates import CANDIDATES, COMPARED, Candidates
from research.frontier.rows import (
    EPSILONS,
    METHODS,
    PANELS,
    SEEDS,
    SETTINGS,
    Row,
    rows,
)

PICTURED = (
    "mnist 1000, dirichlet 0.5",
    "mnist 100, dirichlet 0.1",
    "fashion_mnist 1000, dirichlet 0.5",
    "digits 60, iid",
    "pneumonia_mnist 25",
)
# What was to be reached at least, by ε, in the mean of three seeds; 0: whatever it is, say it.
ASKED: dict[tuple[str, str], dict[float, float]] = {
    ("local", "digits 60, iid"): {4: 0.60, 8: 0.70},
    ("local", "digits 60, dirichlet 0.5"): {8: 0.55},
    ("local", "mnist 1000, dirichlet 0.5"): {2: 0.96, 8: 0.97},
    ("local", "mnist 100, dirichlet 0.1"): {2: 0, 8: 0},
    ("local", "fashion_mnist 1000, dirichlet 0.5"): {1: 0, 2: 0, 8: 0},
    ("sums only", "digits 60, iid"): {4: 0.81, 8: 0.86},
    ("sums only", "digits 60, dirichlet 0.5"): {8: 0.82},
    ("sums only", "mnist 1000, dirichlet 0.5"): {1: 0.97, 2: 0.97, 8: 0.975},
    ("sums only", "mnist 100, dirichlet 0.1"): {2: 0.95, 8: 0.97},
    ("sums only", "fashion_mnist 1000, dirichlet 0.5"): {1: 0.80, 2: 0.82, 8: 0.85},
}
MARKS = {  # of the methods that are drawn
    "class statistics": "o",
    "votes": "^",
    "averaged updates": "v",
    "disjoint": "s",
    "DP-FedAvg": "D",
    "DP-SGD": "P",
}
LINES = {"centralised": ":", "FedAvg": "-."}
DRAWN_PANELS = PANELS[:-1]
FINITE = EPSILONS[:-1]


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Rows that were measured, by name."""
    if not path.exists():
        return {}
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["name"]: row for row in found}


def measure(
    path: Path, jobs: Mapping[str, Callable[[], dict[str, Any]]], minutes: float = math.inf
) -> None:
    """Run what is missing, by name, for so many minutes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done, end = load(path), time.monotonic() + 60 * minutes
    for name, run in jobs.items():
        if name in done:
            continue
        if time.monotonic() > end:
            break
        found = run() | {"name": name}
        print(f"{name}: {found['accuracy']:.4f} in {found['seconds']:.0f} s", flush=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")


def candidates(only: str) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is compared on validation data, by row and candidate."""
    score = "federation.score=validation"
    return {
        f"{row.name} | {name}": partial(row.run, [*words, score])
        for row in _compared(only)
        for name, words in _candidates(row).items()
    }


def _candidates(row: Row) -> Candidates:
    return CANDIDATES.get(row.method, {}).get(SETTINGS[row.setting].clients, {})


def _compared(only: str) -> list[Row]:
    """Rows with a budget, and those of methods that have none."""
    return [
        row
        for row in rows(only)
        if row.setting in COMPARED
        and (row.epsilon < math.inf or METHODS[row.method].panel == "no protection")
    ]


def cells(path: Path) -> dict[tuple[str, str], dict[float, list[float]]]:
    """Accuracies by (setting, method) and ε."""
    done = load(path)
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for row in rows():
        if row.name in done:
            by_epsilon = found.setdefault((row.setting, row.method), {})
            by_epsilon.setdefault(row.epsilon, []).append(done[row.name]["accuracy"])
    return found


def show(path: Path) -> None:
    """The tables, one for each threat and unit."""
    found = cells(path)
    for panel in PANELS:
        lines = {key: value for key, value in found.items() if METHODS[key[1]].panel == panel}
        if not lines:
            continue
        shown = EPSILONS if panel != "no protection" else EPSILONS[-1:]
        titles = [f"ε = {e:g}" if e < math.inf else "no noise" for e in shown]
        print(f"\n| {panel} | " + " | ".join(titles) + " |")
        print("|---|" + "---|" * len(shown))
        for (setting, method), values in lines.items():
            cells_shown = [_cell(values.get(e, [])) for e in shown]
            print(f"| {method}: {setting} | " + " | ".join(cells_shown) + " |")


def show_costs(path: Path) -> None:
    """Median seconds of a run, and what one client sends, by algorithm and number of clients."""
    done = load(path)
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows():
        if row.name in done:
            by_size = measured.setdefault(row.method, {})
            by_size.setdefault(_size(row.setting), []).append(done[row.name])
    sizes = list(dict.fromkeys(_size(setting) for setting in SETTINGS))
    print("\n| seconds, kB a client sends | " + " | ".join(sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for method, by_size in measured.items():
        shown = [_cost(by_size.get(size, []), method) for size in sizes]
        print(f"| {method} | " + " | ".join(shown) + " |")


def _size(setting: str) -> str:
    return setting.split(",")[0]


def _cost(runs: list[dict[str, Any]], method: str) -> str:
    if not runs:
        return "–"
    seconds = f"{statistics.median(run['seconds'] for run in runs):.0f} s"
    if method == "centralised":  # where no client sends anything
        return seconds
    sent = sorted({f"{run['bytes_up_per_client'] / 1000:.1f}" for run in runs}, key=float)
    return f"{seconds}, {'–'.join(dict.fromkeys((sent[0], sent[-1])))}"


def show_asked(path: Path) -> None:
    """The best mean of all seeds beside what was to be reached at least."""
    found = cells(path)
    print("\n| threat, setting | ε | at least | reached | by |\n|---|---|---|---|---|")
    for (panel, setting), least in ASKED.items():
        for epsilon, value in least.items():
            means = {
                method: statistics.mean(values[epsilon])
                for (name, method), values in found.items()
                if (name, METHODS[method].panel) == (setting, panel)
                and len(values.get(epsilon, [])) == len(SEEDS)
            }
            best = max(means, key=lambda method: means[method], default="–")
            said = f"{means[best]:.3f}" if means else "–"
            print(f"| {panel}, {setting} | {epsilon:g} | {value or '–'} | {said} | {best} |")


def show_choice(path: Path, only: str) -> None:
    """Mean accuracy on validation data by candidate, best first."""
    done = load(path)
    found: dict[str, dict[str, list[float]]] = {}
    for row in _compared(only):
        title = f"{row.method}: {row.setting}, ε = {row.epsilon:g}"
        for name in _candidates(row):
            if (known := done.get(f"{row.name} | {name}")) is not None:
                found.setdefault(title, {}).setdefault(name, []).append(known["accuracy"])
    print("\n| | on validation data (seeds) |\n|---|---|")
    for title, values in found.items():
        means = sorted(((statistics.mean(v), len(v), name) for name, v in values.items()))
        said = ", ".join(f"{name} {mean:.3f} ({n})" for mean, n, name in reversed(means))
        print(f"| {title} | {said} |")


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread} ({len(values)})"


def draw(path: Path, picture: Path) -> None:
    """Accuracy against ε, a panel for each threat and unit: colours are settings, marks methods.

    Lines without protection: dotted, all examples in one place; dash-dotted, FedAvg.
    """
    found = cells(path)
    figure, axes = pictures.canvas(len(DRAWN_PANELS), 3.4, 4.2)
    colours = {setting: f"C{number}" for number, setting in enumerate(PICTURED)}
    for axis, panel in zip(axes, DRAWN_PANELS, strict=True):
        for setting, colour in colours.items():
            drawn = {m: v for (s, m), v in found.items() if s == setting}
            curves = [m for m in drawn if METHODS[m].panel == panel and m in MARKS]
            for method in curves:
                points = [e for e in FINITE if e in drawn[method]]
                means = [statistics.mean(drawn[method][e]) for e in points]
                axis.plot(points, means, marker=MARKS[method], ms=5, color=colour)
            for method, style in LINES.items() if curves else ():
                if line := drawn.get(method, {}).get(math.inf):
                    axis.axhline(statistics.mean(line), ls=style, lw=1, color=colour)
        unit = "one example" if panel.startswith("records") else "one client's whole data"
        axis.set(xscale="log", xlabel=f"total ε, δ = 1e-5, {unit}", title=panel, ylim=(0, 1.02))
        axis.set_xticks(FINITE, [f"{e:g}" for e in FINITE])
        axis.set_xticks([], minor=True)
    axes[0].set_ylabel("test accuracy")
    named = [Line2D([], [], color=colour, lw=3, label=name) for name, colour in colours.items()]
    named += [Line2D([], [], color="k", marker=m, ls="", label=name) for name, m in MARKS.items()]
    named += [Line2D([], [], color="k", ls=s, label=name) for name, s in LINES.items()]
    figure.legend(handles=named, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    pictures.save(figure, picture)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name it finds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no row after these")
    parser.add_argument("--show", action="store_true", help="print the tables, run nothing")
    parser.add_argument("--choose", action="store_true", help="compare candidates instead")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw what was measured")
    arguments = parser.parse_args()
    if arguments.choose:
        measure(arguments.rows, candidates(arguments.only), arguments.minutes)
        show_choice(arguments.rows, arguments.only)
        return
    if not arguments.show:
        jobs = {row.name: row.run for row in rows(arguments.only)}
        measure(arguments.rows, jobs, arguments.minutes)
    show(arguments.rows)
    show_asked(arguments.rows)
    show_costs(arguments.rows)
    if arguments.picture is not None:
        draw(arguments.rows, arguments.picture)


if __name__ == "__main__":
    main()
