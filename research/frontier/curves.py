"""Accuracy against a proven total ε: ``python -m research.frontier.curves --rows FILE``.

For every cell (a method, a setting and an ε) its candidates are compared on validation data, and
the best one runs on the test set with each seed. Every row is a run of Murmur itself, appended to
FILE as a line of JSON; a row that is there already is not run again. Then the tables are printed
(Markdown). ``--only REGEX`` measures the cells whose name (METHOD | SETTING | ε) it finds,
``--processes N`` at once, ``--minutes M`` starts no row after so many, ``--show`` measures nothing,
``--picture FILE`` draws what was measured, and ``--page FILE`` writes the tables into a page,
between its marks. ``measured.jsonl`` beside this file has the rows of the README there. Needs
``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from benchmarks import pictures
from research.frontier.rows import (
    CENTRAL,
    EPSILONS,
    LOCAL,
    METHODS,
    PANELS,
    SETTINGS,
    SUMS,
    Cell,
    Row,
    cells,
)

MEASURED = Path(__file__).with_name("measured.jsonl")
BEGIN, END = "<!-- of research/frontier/measured.jsonl -->", "<!-- until here -->"
PICTURED = (
    "mnist 1000, dirichlet 0.5",
    "mnist 100, dirichlet 0.1",
    "fashion_mnist 1000, dirichlet 0.5",
    "digits 60, iid",
    "digits 60, dirichlet 0.5",
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
    "gradient rounds": "X",
    "gradient rounds, no pool": "*",
    "disjoint": "s",
    "DP-FedAvg": "D",
    "DP-SGD": "P",
}
LINES = {"centralised": ":", "FedAvg": "-."}
SORTED = tuple(sorted(EPSILONS))
FINITE = SORTED[:-1]
Done = Mapping[str, dict[str, Any]]  # rows by name


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Rows that were measured, by name."""
    if not path.exists():
        return {}
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["name"]: row for row in found}


def measure(path: Path, only: str, minutes: float, processes: int) -> None:
    """Run what is missing of the cells that ``only`` finds: candidates first, then the chosen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    wanted = [cell for cell in cells() if re.search(only, cell.name)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        _measure(path, [row for cell in wanted for row in cell.rows()], pool, end)
        done = load(path)
        best = {cell: chosen(done, cell) for cell in wanted}
        tests = [cell.tests(name) for cell, name in best.items() if name is not None]
        _measure(path, [row for rows in zip(*tests, strict=True) for row in rows], pool, end)


def _measure(path: Path, rows: Sequence[Row], pool: Executor, end: float) -> None:
    """``rows`` that are missing, those first whose features the others need."""
    done = load(path)
    missing = [row for row in rows if row.name not in done]
    first = {row.features: row for row in reversed(missing)}
    others = [row for row in missing if first[row.features] is not row]
    for part in (first.values(), others):
        futures = [pool.submit(_run_until, row, end) for row in part]
        for future in as_completed(futures):
            found = future.result()
            if found is None:
                continue
            print(
                f"{found['name']}: {found['accuracy']:.4f} in {found['seconds']:.0f} s", flush=True
            )
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")


def _run_until(row: Row, end: float) -> dict[str, Any] | None:
    """The row's figures; None after ``end``, of the monotonic clock that processes share."""
    return row.run() if time.monotonic() < end else None


def compared(done: Done, cell: Cell) -> dict[str, float]:
    """Accuracy on validation data by candidate, as far as measured."""
    found = {row.candidate: done.get(row.name) for row in cell.rows()}
    return {name: row["accuracy"] for name, row in found.items() if row is not None}


def chosen(done: Done, cell: Cell) -> str | None:
    """The candidate that is best on validation data; None until all of them are compared."""
    found = compared(done, cell)
    if len(found) < len(cell.rows()):
        return None
    return max(found, key=lambda name: found[name])


def outcomes(done: Done, cell: Cell) -> list[float]:
    """Accuracies of what was chosen on the test set, one for each seed that was measured."""
    best = chosen(done, cell)
    if best is None:
        return []
    rows = [done.get(row.name) for row in cell.tests(best)]
    return [row["accuracy"] for row in rows if row is not None]


def tested(done: Done) -> dict[tuple[str, str], dict[float, list[float]]]:
    """Accuracies on the test set by (setting, method) and ε."""
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for cell in cells():
        by_epsilon = found.setdefault((cell.setting, cell.method), {})
        by_epsilon[cell.epsilon] = outcomes(done, cell)
    return found


def show_frontier(done: Done) -> None:
    """What each threat allows, with a pool and without: the algorithm too is chosen beforehand."""
    epsilons = _measured(tested(done))
    print("\n| threat | pool | setting | " + _titles(epsilons) + " |")
    print("|---|---|---|" + "---|" * len(epsilons))
    for panel in (SUMS, LOCAL, CENTRAL):
        for pool in (True, False):
            for setting in SETTINGS:
                methods = [n for n, m in METHODS.items() if (m.panel, m.pool) == (panel, pool)]
                best = [_best(done, [Cell(n, setting, e) for n in methods]) for e in epsilons]
                if not any(best):
                    continue
                shown = " | ".join(_named(done, cell) for cell in best)
                print(f"| {panel} | {'yes' if pool else 'no'} | {setting} | {shown} |")


def _best(done: Done, alternatives: Iterable[Cell]) -> Cell | None:
    """The cell whose chosen candidate is best on validation data; None: not all are compared."""
    known = [cell for cell in alternatives if cell.rows()]
    if not known or any(chosen(done, cell) is None for cell in known):
        return None
    return max(known, key=lambda cell: max(compared(done, cell).values()))


def _named(done: Done, cell: Cell | None) -> str:
    if cell is None or not outcomes(done, cell):
        return "–"
    return f"{_cell(outcomes(done, cell))}, {cell.method.partition(',')[0]}"


def _measured(found: Mapping[tuple[str, str], dict[float, list[float]]]) -> list[float]:
    """The ε of which something is known, in order."""
    return [e for e in SORTED if any(values.get(e) for values in found.values())]


def _titles(epsilons: Sequence[float]) -> str:
    return " | ".join(f"ε = {e:g}" if e < math.inf else "no noise" for e in epsilons)


def show(done: Done) -> None:
    """Every method, one table for each threat and unit.

    A cell has the accuracy on the test set, then that on validation data, then what it chose.
    """
    found = tested(done)
    for panel in PANELS:
        lines = {
            key: values
            for key, values in found.items()
            if METHODS[key[1]].panel == panel and any(values.values())
        }
        if not lines:
            continue
        epsilons = _measured(lines)
        print(f"\n| {panel} | {_titles(epsilons)} |\n|---|" + "---|" * len(epsilons))
        for setting, method in lines:
            shown = [_explained(done, Cell(method, setting, e)) for e in epsilons]
            print(f"| {method}: {setting} | " + " | ".join(shown) + " |")


def _explained(done: Done, cell: Cell) -> str:
    values = outcomes(done, cell)
    if not values:
        return "–"
    best = chosen(done, cell)
    assert best is not None
    return f"{_cell(values)}; {compared(done, cell)[best]:.3f}; {best}"


def show_costs(done: Done) -> None:
    """Median seconds of a run, and what one client sends, by algorithm and number of clients."""
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for cell in cells():
        by_size = measured.setdefault(cell.method, {})
        best = chosen(done, cell)
        rows = [done.get(row.name) for row in cell.tests(best)] if best is not None else []
        by_size.setdefault(_size(cell.setting), []).extend(row for row in rows if row is not None)
    measured = {method: by for method, by in measured.items() if any(by.values())}
    found = {size for by_size in measured.values() for size, runs in by_size.items() if runs}
    sizes = [size for size in dict.fromkeys(map(_size, SETTINGS)) if size in found]
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
    if method == "centralised" or METHODS[method].direct:  # no messages
        return seconds
    sent = sorted({f"{run['bytes_up_per_client'] / 1000:.1f}" for run in runs}, key=float)
    return f"{seconds}, {'–'.join(dict.fromkeys((sent[0], sent[-1])))}"


def show_asked(done: Done) -> None:
    """The algorithm that validation data prefer beside what was to be reached at least."""
    print("\n| threat, setting | ε | at least | reached | by |\n|---|---|---|---|---|")
    for (panel, setting), least in ASKED.items():
        names = [name for name, method in METHODS.items() if method.panel == panel]
        for epsilon, value in least.items():
            cell = _best(done, [Cell(name, setting, epsilon) for name in names])
            if cell is not None:
                said = _cell(outcomes(done, cell))
                where = f"{panel}, {setting} | {epsilon:g}"
                print(f"| {where} | {value or '–'} | {said} | {cell.method} |")


def show_choice(done: Done) -> None:
    """Accuracy on validation data by candidate, best first."""
    print("\n| | on validation data |\n|---|---|")
    for cell in sorted(cells(), key=lambda cell: (cell.method, cell.setting, cell.epsilon)):
        found = compared(done, cell)
        if not found:
            continue
        ranked = sorted(found, key=lambda name: -found[name])
        said = ", ".join(f"{name} {found[name]:.3f}" for name in ranked)
        print(f"| {cell.method}: {cell.setting}, ε = {cell.epsilon:g} | {said} |")


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread} ({len(values)})"


def tables(done: Done) -> str:
    """All tables of what was measured, in Markdown."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for table in (show_frontier, show_asked, show, show_costs, show_choice):
            table(done)
    return said.getvalue().strip()


def with_tables(page: str, done: Done) -> str:
    """``page`` with the tables of ``done`` between its marks."""
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n\n{tables(done)}\n\n{END}{tail}"


def draw(path: Path, picture: Path) -> None:
    """Accuracy against ε, a panel for each threat and unit: colours are settings, marks methods.

    A panel of which nothing was measured is left out.

    Lines without protection: dotted, all examples in one place; dash-dotted, FedAvg.
    """
    found = {key: values for key, values in tested(load(path)).items() if any(values.values())}
    known = {METHODS[method].panel for _, method in found}
    panels = [panel for panel in PANELS[:-1] if panel in known]
    figure, axes = pictures.canvas(len(panels), 3.4, 4.2)
    chosen_settings = [name for name in PICTURED if any(name == setting for setting, _ in found)]
    colours = {setting: f"C{number}" for number, setting in enumerate(chosen_settings)}
    marks = {name: mark for name, mark in MARKS.items() if any(name == m for _, m in found)}
    for axis, panel in zip(axes, panels, strict=True):
        for setting, colour in colours.items():
            drawn = {m: v for (s, m), v in found.items() if s == setting}
            curves = [m for m in drawn if METHODS[m].panel == panel and m in marks]
            for method in curves:
                points = [e for e in FINITE if drawn[method].get(e)]
                means = [statistics.mean(drawn[method][e]) for e in points]
                axis.plot(points, means, marker=marks[method], ms=5, color=colour)
            for method, style in LINES.items() if curves else ():
                if line := drawn.get(method, {}).get(math.inf):
                    axis.axhline(statistics.mean(line), ls=style, lw=1, color=colour)
        unit = "one example" if panel.startswith("records") else "one client's whole data"
        axis.set(xscale="log", xlabel=f"total ε, δ = 1e-5, {unit}", title=panel, ylim=(0, 1.02))
        axis.set_xticks(FINITE, [f"{e:g}" for e in FINITE])
        axis.set_xticks([], minor=True)
    axes[0].set_ylabel("test accuracy")
    named = [Line2D([], [], color=colour, lw=3, label=name) for name, colour in colours.items()]
    named += [Line2D([], [], color="k", marker=m, ls="", label=name) for name, m in marks.items()]
    named += [Line2D([], [], color="k", ls=s, label=name) for name, s in LINES.items()]
    figure.legend(handles=named, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    pictures.save(figure, picture)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", default="", metavar="REGEX", help="cells whose name it finds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no row after these")
    parser.add_argument("--processes", type=int, default=1, help="how many rows at once")
    parser.add_argument("--show", action="store_true", help="print the tables, run nothing")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw what was measured")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the tables into it")
    arguments = parser.parse_args()
    if not arguments.show:
        measure(arguments.rows, arguments.only, arguments.minutes, arguments.processes)
    done = load(arguments.rows)
    print(tables(done))
    if arguments.page is not None:
        page = with_tables(arguments.page.read_text(encoding="utf-8"), done)
        arguments.page.write_text(page, encoding="utf-8")
    if arguments.picture is not None:
        draw(arguments.rows, arguments.picture)


if __name__ == "__main__":
    main()
