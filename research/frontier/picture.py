"""The README's picture: accuracy over ε against a server that sees sums only, on three data sets.

    python -m research.frontier.picture docs/img

It is drawn from the table of docs/frontier.md, so that both say the same: class statistics (ours),
averaged updates with the same noise (the best plain alternative), and averaged updates without any.
Writes ``sums.svg`` and ``sums-dark.svg``. Colour is the method, the mark is the data set.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frontier.md"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
SETTINGS = {
    "digits 60, dirichlet 0.5": ("digits, 60 owners", "o"),
    "mnist 100, dirichlet 0.5": ("MNIST, 100 owners", "s"),
    "fashion_mnist 100, dirichlet 0.5": ("Fashion-MNIST, 100 owners", "^"),
}
OURS = "class statistics"
PLAIN = "averaged updates"
# ink, ours, plain: of the report's style sheet
COLOURS = {
    "sums.svg": ("#1b1f24", "#0a63ad", "#b34700"),
    "sums-dark.svg": ("#e8ebef", "#6cb4f2", "#ff9d5c"),
}


def measured(page: str) -> dict[tuple[str, str], list[float]]:
    """The rows of the page's first table for sums only that begins at ε = 0.5.

    Returns:
        (method, setting) -> mean accuracy at each of ``EPSILONS``, then without noise.
    """
    table = page.partition("| sums only | ε = 0.5")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines():
        named = re.match(r"\| ([^:|]+): ([^|]+) \|", line)
        if named:
            cells = line.split("|")[2:-1]
            found[named[1], named[2]] = [float(cell.split()[0]) for cell in cells]
    return found


def draw(rows: dict[tuple[str, str], list[float]], out: Path, colours: tuple[str, ...]) -> None:
    """One panel: for each data set our line, the plain one, and what is reached without privacy."""
    ink, ours, plain = colours
    plt.rcParams.update({"font.size": 11, "svg.hashsalt": "murmur", "text.color": ink})
    figure, axes = plt.subplots(figsize=(7.2, 4.8), layout="constrained")
    for setting, (name, mark) in SETTINGS.items():
        best = rows[OURS, setting]
        line: dict[str, Any] = {"marker": mark, "linewidth": 2.2, "markersize": 6}
        axes.plot(EPSILONS, best[:-1], color=ours, **line)
        axes.plot(EPSILONS, rows[PLAIN, setting][:-1], color=plain, **line)
        without = rows[PLAIN, setting][-1]
        axes.axhline(without, color=ink, linewidth=1, linestyle=(0, (2, 3)))
        axes.plot([], [], color=ink, marker=mark, linestyle="none", label=name)
    axes.plot([], [], color=ours, linewidth=2.2, label="Murmur: class statistics")
    axes.plot([], [], color=plain, linewidth=2.2, label="averaged updates, same noise")
    axes.plot([], [], color=ink, linewidth=1, linestyle=(0, (2, 3)), label="without privacy")
    axes.set_xscale("log", base=2)
    axes.set_xticks(EPSILONS, [f"{value:g}" for value in EPSILONS])
    axes.set_ylim(0, 1)
    axes.set_xlabel("ε of the whole run, for everything that one owner holds", color=ink)
    axes.set_ylabel("test accuracy", color=ink)
    axes.tick_params(colors=ink)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(ink)
    figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=9.5)
    figure.savefig(out, transparent=True, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draw both variants into the folder that is named."""
    folder = Path(sys.argv[1])
    rows = measured(PAGE.read_text(encoding="utf-8"))
    for name, colours in COLOURS.items():
        draw(rows, folder / name, colours)


if __name__ == "__main__":
    main()
