"""A picture of a sweep or a run: ``python -m research.sweep_picture KEY SWEEP --picture FILE``.

Against KEY, such as ``privacy.epsilon``: the accuracy of the last five rounds, over seeds. With
KEY ``round``: accuracy, or another ``--scores`` of the rounds, after each round. A line for each
value of ``--lines KEY``. Prints the same as a table, and the seconds of the runs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.pictures import band, canvas, curve, save
from fl_app.run.load import Run, load_runs
from fl_app.run.progress import format_epsilon
from murmur_report.settings import final, value_of


def by_value(runs: Sequence[Run], key: str | None) -> dict[str, list[Run]]:
    """The runs with each value of ``key``, in the order of the sweep; all of them without a key."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault("" if key is None else value_of(run, key), []).append(run)
    return found


def after_rounds(runs: Sequence[Run], score: str) -> dict[int, list[float]]:
    """Round -> ``score`` of the runs, for rounds that have it in all of them."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for row in run.rows:
            if score in row:
                found.setdefault(row["round"], []).append(row[score])
    return {number: each for number, each in sorted(found.items()) if len(each) == len(runs)}


def main() -> None:
    """Draw, and print what is drawn."""
    parser = argparse.ArgumentParser(prog="python -m research.sweep_picture")
    parser.add_argument("key", help="what is along the axis, or `round`")
    parser.add_argument("sweep", type=Path, help="the sweep's folder")
    parser.add_argument("--lines", metavar="KEY", help="a line for each value of this")
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--x", help="label of the axis; default: KEY")
    parser.add_argument("--name", help="what --lines' values are called; default: KEY")
    parser.add_argument("--title", default="")
    parser.add_argument(
        "--scores", nargs="+", default=["accuracy"], metavar="NAME", help="for `round`: of its rows"
    )
    parser.add_argument(
        "--log", action="store_true", help="a logarithmic axis, marked at KEY's values"
    )
    options = parser.parse_args()
    runs = [run for run in load_runs(options.sweep).runs if run.state == "finished"]
    if not runs:
        parser.error(f"{options.sweep}: holds no finished run; `murmur resume` goes on with one")
    figure, [axes] = canvas()
    for line, mine in by_value(runs, options.lines).items():
        label = _label(options.lines, options.name, line) if line else None
        print(f"\n{label or options.title}")
        if options.key == "round":
            for score in options.scores:
                samples = after_rounds(mine, score)
                named = label if len(options.scores) == 1 else score
                band(axes, list(samples), list(samples.values()), named)
                print(f"{score} after the last round: {_spread(samples[max(samples)])}")
            continue
        scores = {
            value: [score for run in found if (score := final(run, "accuracy")) is not None]
            for value, found in by_value(mine, options.key).items()
        }
        curve(axes, list(scores), list(scores.values()), label)
        for value, found in scores.items():
            print(f"| {_shown(value)} | {_spread(found)} | {len(found)} seeds |")
    several = len(options.scores) > 1
    axes.set(xlabel=options.x or options.key)
    axes.set(ylabel="score" if several else "accuracy on the test set")
    axes.set_title(options.title)
    if options.log:
        values = [float(value) for value in by_value(runs, options.key)]
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    seconds = [run.metrics["seconds"] for run in runs if run.metrics]
    print(f"\n{len(runs)} runs of {statistics.median(seconds):.0f} s each (median), one thread")
    print(describe_machine("torch"))
    save(figure, options.picture)


def _label(key: str, name: str | None, value: str) -> str:
    """``ε = 5``; of a group (``strategy``, ``experiment``) the choice alone."""
    return f"{name or key} = {_shown(value)}" if "." in key else value


def _shown(value: str) -> str:
    return format_epsilon("infinity") if value == "inf" else value


def _spread(found: Sequence[float]) -> str:
    mean = f"{statistics.mean(found):.3f}"
    return f"{mean} ± {statistics.stdev(found):.3f}" if len(found) > 1 else mean


if __name__ == "__main__":
    main()
