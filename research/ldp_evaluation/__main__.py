"""Protected evaluation, its figures: ``python -m research.ldp_evaluation``; prints Markdown.

1. Trains ``experiment=ldp_evaluation_seed_compat`` twice, with LAPLACE and with NOT_ENCRYPT (or
   reads ``--runs``, the folders of two such runs): loss of both over the rounds, silhouette clean
   and protected, and that of the second training's last model.
2. Takes the last model's vectors of all its clients and protects them by every mechanism, for
   both units, over ε: score, the null of pure noise beside it, share of labels kept.

Both go into one figure, the second into one table. Needs ``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from benchmarks.pictures import canvas, save
from fl_app.config.compose import compose
from fl_app.engines.inline import InlineEngine
from fl_app.run.hosts import build_trainer
from fl_app.run.population import population
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.algorithms.protected_evaluation import (
    PRIVACY,
    UNITS,
    Decoded,
    Protection,
    ResultSettings,
    project,
)
from murmur.learning.clustering import assignments
from murmur.learning.metrics import CLUSTERINGS, Verdict, judge
from murmur.privacy.noise import NoiseGenerator

EXPERIMENT = "experiment=ldp_evaluation_seed_compat"
TRAININGS = ("LAPLACE", "NOT_ENCRYPT")  # values of evaluation.encrypt.privacy_eval_type
EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 230_260.0)
MECHANISMS = [name for name in PRIVACY if name != "none"]
REPEATS = 5  # draws of noise, and of the null


@dataclass(frozen=True)
class Row:
    """One setting: means over the draws."""

    mechanism: str
    unit: str
    epsilon: float
    processing: str
    score: float
    null: float
    retention: float
    beats: int


def vectors_of(folder: RunFolder, words: Sequence[str]) -> tuple[NDArray[np.float64], int]:
    """Every client's clean vector (clients, k) under the run's last model; its fewest records."""
    config = compose([EXPERIMENT, *words])
    people = population(config)
    trainer = build_trainer(config, people.dataset)
    checkpoint = folder.load_checkpoint()
    if checkpoint is None:
        raise SystemExit(f"{folder.path}: holds no checkpoint; run with keep_checkpoints=true")
    trainer.load(checkpoint.run.model)
    images = people.dataset.train.images
    rows = [assignments(trainer, images[shard]).mean(axis=0) for shard in people.shards]
    return np.stack(rows), min(people.client_sizes())


def study(clean: NDArray[np.float64], records: int, metric: str) -> Iterator[Row]:
    """Every mechanism, unit and ε; vectors also projected onto the simplex."""
    for mechanism in MECHANISMS:
        for unit in UNITS:
            if unit == "record" and mechanism == "krr":
                continue  # the argmax of a mean can turn with one record: nothing is gained
            for epsilon in EPSILONS:
                how = {"privacy": mechanism, "epsilon": epsilon, "unit": unit, "records": records}
                settings = ResultSettings.of(how, None)
                it = settings.protection(clean.shape[1])
                for processing in ("none", "project") if mechanism == "laplace" else ("none",):
                    verdicts = list(_verdicts(it, clean, metric, processing))
                    yield Row(
                        mechanism,
                        unit,
                        epsilon,
                        processing,
                        float(np.mean([v.score for v in verdicts])),
                        float(np.mean([v.null for v in verdicts])),
                        float(np.mean([v.retention for v in verdicts])),
                        sum(v.beats_noise for v in verdicts),
                    )


def _verdicts(
    it: Protection, clean: NDArray[np.float64], metric: str, processing: str
) -> Iterator[Verdict]:
    # Seeded: a study of noise on pictures that everybody has, not a release.
    def read(rows: NDArray[np.int64]) -> Decoded:
        return project(it.decode(rows)) if processing == "project" else it.decode(rows)

    nulls = [
        read(it.pure_noise(len(clean), NoiseGenerator.seeded("study null", draw)))
        for draw in range(REPEATS)
    ]
    for draw in range(REPEATS):
        found = read(it.privatize_rows(clean, NoiseGenerator.seeded("study", draw)))
        yield judge(metric, found.vectors, found.labels, nulls, clean)


def print_rounds(rows: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> None:
    """The document's figure as a table; ``other`` are the rounds of the unprotected training."""
    names = ["loss", "clean_score", "protected_score", "noise_score", "label_retention"]
    names += ["rank_correlation"]
    head = "| round | loss, unprotected | loss | clean | protected | noise | labels kept |"
    print(head + " rank correlation |")
    print("| --- " * (len(names) + 2) + "|")
    for row, unprotected in zip(rows, other, strict=True):
        cells = [_number(unprotected["loss"]), *(_number(row.get(name)) for name in names)]
        print(f"| {row['round']} | {' | '.join(cells)} |")


def print_study(rows: Sequence[Row], clean: Verdict) -> None:
    """One line for each mechanism, unit and processing; a cell for each ε."""
    print(f"\nClean score: {clean.clean:.3f} over {clean.clients} clients (no release).")
    print("Cells: score (null of pure noise) labels kept; **bold** where all draws beat noise.\n")
    print("| | " + " | ".join(f"ε={e:g}" for e in EPSILONS) + " |")
    print("|" + " --- |" * (len(EPSILONS) + 1))
    lines: dict[str, list[str]] = {}
    for row in rows:
        name = f"{row.mechanism}, {row.unit}"
        name += ", projected" if row.processing == "project" else ""
        cell = f"{row.score:.3f} ({row.null:.3f}) {row.retention:.0%}"
        lines.setdefault(name, []).append(f"**{cell}**" if row.beats == REPEATS else cell)
    for name, cells in lines.items():
        print(f"| {name} | {' | '.join(cells)} |")


def draw(
    rounds: Sequence[dict[str, Any]], rows: Sequence[Row], clean: float, metric: str, path: Path
) -> None:
    """Rounds on the left; score over ε, with its null, and labels kept on the right."""
    figure, [first, second, third] = canvas(3, width=4.3, height=3.8)
    loss = first.twinx()
    numbers = [row["round"] for row in rounds]
    [falling] = loss.plot(numbers, [row["loss"] for row in rounds], color="0.6")
    loss.set_ylabel("loss")
    for name, style in (("clean_score", "k-"), ("protected_score", "C3o"), ("noise_score", "C0:")):
        label = name.replace("_score", "").replace("noise", "pure noise")
        first.plot(numbers, [row.get(name, np.nan) for row in rounds], style, label=label, ms=4)
    first.set(title="Document's setting, ε=230260", xlabel="round", ylabel=metric)
    handles, labels = first.get_legend_handles_labels()
    first.legend([*handles, falling], [*labels, "loss (right axis)"], fontsize=8)
    chosen = [
        ("laplace", "client", "none", "C3"),
        ("laplace", "client", "project", "C1"),
        ("laplace", "record", "none", "C2"),
        ("split", "client", "none", "C4"),
        ("split", "record", "none", "C0"),
    ]
    for mechanism, unit, processing, colour in chosen:
        line = [
            r for r in rows if (r.mechanism, r.unit, r.processing) == (mechanism, unit, processing)
        ]
        name = f"{mechanism}, {unit}" + (", projected" if processing == "project" else "")
        second.semilogx(EPSILONS, [r.score for r in line], colour, marker="o", ms=3, label=name)
        second.semilogx(EPSILONS, [r.null for r in line], colour, ls=":")
    second.axhline(clean, color="k", lw=0.8)
    second.set(title="Score over ε; dotted: pure noise; black: clean", xlabel="ε of one result")
    for place, mechanism in enumerate(MECHANISMS):
        for unit, style in (("client", "-"), ("record", "--")):
            line = [
                r for r in rows if (r.mechanism, r.unit, r.processing) == (mechanism, unit, "none")
            ]
            if line:
                kept = [r.retention for r in line]
                third.semilogx(EPSILONS, kept, f"C{place}{style}", label=f"{mechanism}, {unit}")
    third.set(title="Labels kept", xlabel="ε of one result", ylim=(0, 1.02))
    save(figure, path)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def main() -> None:
    """Everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=Path, nargs=2, help=f"folders of finished runs: {', '.join(TRAININGS)}"
    )
    pictures = Path(__file__).parent / "img"
    parser.add_argument("--out", type=Path, default=pictures / "ldp_evaluation.png")
    parser.add_argument("--metric", choices=CLUSTERINGS, default="silhouette")
    parser.add_argument(
        "overrides", nargs="*", help="of the experiment; the same as those of --runs"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folders = [
            RunFolder(path) for path in options.runs or map(Path(parent).joinpath, TRAININGS)
        ]
        if options.runs is None:
            for folder, kind in zip(folders, TRAININGS, strict=True):
                words = [f"evaluation.encrypt.privacy_eval_type={kind}", f"run_dir={folder.path}"]
                run = ValidatedRun.of([EXPERIMENT, *options.overrides, *words])
                InlineEngine(workers=1).run(run)
        rounds, unprotected = (folder.rows() for folder in folders)
        (clean, records), (other, _) = (vectors_of(it, options.overrides) for it in folders)
    print_rounds(rounds, unprotected)
    score = judge(options.metric, other, other.argmax(axis=1), [], other).clean
    print(f"\nLast model of the unprotected training: {_number(score)} over {len(other)} clients.")
    rows = list(study(clean, records, options.metric))
    truth = judge(options.metric, clean, clean.argmax(axis=1), [], clean)
    print_study(rows, truth)
    draw(rounds, rows, truth.clean, options.metric, options.out)
    print(f"\n{describe_machine('numpy', 'scikit-learn', 'torch')}; figure: {options.out}")


if __name__ == "__main__":
    main()
