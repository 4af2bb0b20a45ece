"""PrivateKT's whole configuration beside its authors' log.

``python -m research.privatekt.whole RUN [--picture FILE]``, where RUN is the folder of ``murmur
engine=inline experiment=privatekt_mnist``, finished or not; ``murmur resume RUN`` goes on with it.
Prints Markdown: accuracy after the rounds that the authors' log is known for. Needs no data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.pictures import canvas, save
from benchmarks.runs import print_table
from fl_app.run.results import RunFolder

# Rounds from 1, where the log counts from 0.
THEIRS = {
    10: 0.298,
    25: 0.569,
    50: 0.761,
    100: 0.894,
    200: 0.929,
    300: 0.943,
    400: 0.943,
    500: 0.951,
}


def main() -> None:
    """Print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--picture", type=Path, help="also draw accuracy over rounds, as this file")
    options = parser.parse_args()
    rows = [row for row in RunFolder(options.run).rows() if "accuracy" in row]
    if not rows:
        parser.error(f"run={options.run}: has no finished round; name a run's folder")
    ours = {row["round"]: row["accuracy"] for row in rows}
    print_table(
        ["after round", "theirs", "ours"],
        [
            [str(number), f"{theirs:.3f}", f"{ours[number]:.3f}"]
            for number, theirs in THEIRS.items()
            if number in ours
        ],
    )
    last = max(ours)
    recent = [accuracy for number, accuracy in ours.items() if number > last - 5]
    print(f"\n{last} rounds; mean of the last {len(recent)}: {sum(recent) / len(recent):.4f}")
    if options.picture is not None:
        drawing, [axes] = canvas(width=6)
        axes.plot(list(ours), list(ours.values()), label="Murmur")
        axes.plot(list(THEIRS), list(THEIRS.values()), "o", label="the authors' log")
        axes.set(xlabel="round", ylabel="accuracy on the test set")
        axes.set(title="PrivateKT, the authors' whole configuration, MNIST")
        save(drawing, options.picture)


if __name__ == "__main__":
    main()
