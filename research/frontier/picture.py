"""The README's picture: accuracy over ε against a server that sees sums only, of digits.

    python -m research.frontier.picture docs/img

It is drawn from the rows in ``measured.jsonl`` beside this file: class statistics (ours),
averaged updates with the same noise (the best plain alternative), and averaged updates without any.
Bars are the standard deviation of three seeds. Writes ``sums.svg`` and ``sums-dark.svg``; what is
drawn stands in each as its description.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from research.frontier.curves import MEASURED, Done, load, tested

EPSILONS = (1, 2, 4, 8)
SETTINGS = {
    "digits 60, iid": "60 owners, alike",
    "digits 60, dirichlet 0.5": "60 owners that differ (Dirichlet 0.5)",
}
OURS = "class statistics"
PLAIN = "averaged updates"
# ink, ours, plain: of the report's style sheet
COLOURS = {
    "sums.svg": ("#1b1f24", "#0a63ad", "#b34700"),
    "sums-dark.svg": ("#e8ebef", "#6cb4f2", "#ff9d5c"),
}
Points = dict[str, dict[str, list[list[float]]]]


def points(done: Done) -> Points:
    """Setting -> method -> [ε, mean, standard deviation]; without noise ε is 0."""
    found = tested(done)
    return {
        setting: {
            method: [
                [0 if e == math.inf else e, statistics.mean(values), statistics.stdev(values)]
                for e in (*EPSILONS, math.inf)
                if (values := found[setting, method][e])
            ]
            for method in (OURS, PLAIN)
        }
        for setting in SETTINGS
    }


def draw(drawn: Points, out: Path, colours: tuple[str, ...]) -> None:
    """A panel for each partition: our line, the plain one, and what is reached without privacy."""
    ink, ours, plain = colours
    plt.rcParams.update({"font.size": 11, "svg.hashsalt": "murmur", "text.color": ink})
    figure, panels = plt.subplots(1, 2, figsize=(8, 4), sharey=True, layout="constrained")
    for axes, (setting, title) in zip(panels, SETTINGS.items(), strict=True):
        for method, colour, label in (
            (OURS, ours, "Murmur: class statistics"),
            (PLAIN, plain, "averaged updates, same noise"),
        ):
            places, means, spreads = zip(*(p for p in drawn[setting][method] if p[0]), strict=True)
            axes.errorbar(
                *(places, means, spreads),
                **{"color": colour, "marker": "o", "linewidth": 2.2, "capsize": 3, "label": label},
            )
        [without] = [p for p in drawn[setting][PLAIN] if not p[0]]
        style = {"color": ink, "linewidth": 1, "linestyle": (0, (2, 3))}
        axes.axhline(without[1], label="averaged updates without privacy", **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(EPSILONS, [f"{value:g}" for value in EPSILONS])
        axes.set_ylim(0, 1)
        axes.set_xlabel("ε of the whole run, for all that one owner holds", color=ink)
        axes.set_title(title, color=ink, fontsize=11)
        axes.tick_params(colors=ink)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(ink)
    panels[0].set_ylabel("test accuracy", color=ink)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9.5, frameon=False)
    metadata = {"Date": None, "Description": json.dumps(drawn)}
    figure.savefig(out, transparent=True, metadata=metadata)
    plt.close(figure)


def main() -> None:
    """Draw both variants into the folder that is named."""
    folder = Path(sys.argv[1])
    drawn = points(load(MEASURED))
    for name, colours in COLOURS.items():
        draw(drawn, folder / name, colours)


if __name__ == "__main__":
    main()
