"""NbAFL's figures, one command each: ``python -m research.nbafl FIGURE``.

Prints a Markdown table (mean and standard deviation over seeds) and draws the picture, a line for
each of ``--modes``: what bounds the change by one record (``privacy.sensitivity``).

* ``epsilon``: accuracy against ε. * ``clients``: against N at fixed m. * ``rounds``: against T,
  with the advisor's optimum. * ``scheduling``: against K. * ``clip``: against C. * ``proximal``:
  against μ.
* ``proven``: what the paper's calibration proves of its own settings (no training, no picture).
* ``sensitivity``: the two modes that rest on no assumption, at ε = 8 (no picture).

All but the last run the experiments ``conf/experiment/nbafl_*.yaml`` in this process, and need
``MURMUR_DATA``. Runs go into ``--runs FILE``; those that are there are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from benchmarks.machine import describe_machine
from benchmarks.pictures import canvas, curve, save
from benchmarks.runs import RunFile, print_table, run_once, spread
from fl_app.config.compose import compose
from fl_app.engines.inline import InlineEngine
from fl_app.run.hosts import build_trainer
from fl_app.run.population import population
from fl_app.run.progress import format_epsilon
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.learning.data.examples import split_public
from murmur.privacy.accounting import gaussian
from murmur.random import experiment_rng

TRAINING_SET, EXAMPLES = 60_000, 100


@dataclass(frozen=True)
class Figure:
    """One figure: ``experiment`` once for each of ``values``, set by ``overrides``."""

    experiment: str
    label: str
    values: tuple[str, ...]
    overrides: Callable[[str], list[str]]


def _key(name: str) -> Callable[[str], list[str]]:
    return lambda value: [f"{name}={value}"]


def _clients(value: str) -> list[str]:
    left_out = TRAINING_SET - EXAMPLES * int(value)
    return [f"federation.num_clients={value}", f"federation.public={left_out}"]


FIGURES = {
    "epsilon": Figure("nbafl_epsilon", "ε", ("50", "60", "100", "inf"), _key("privacy.epsilon")),
    "clients": Figure("nbafl_clients", "clients N", ("50", "60", "80", "100"), _clients),
    "rounds": Figure(
        "nbafl_rounds",
        "rounds T",
        ("5", "10", "15", "20", "30", "40", "60"),
        _key("federation.num_rounds"),
    ),
    "scheduling": Figure(
        "nbafl_scheduling",
        "clients per round K",
        ("5", "10", "20", "30", "40", "45", "50"),
        _key("federation.clients_per_round"),
    ),
    "clip": Figure(
        "nbafl_clip", "clip C", ("2", "5", "10", "15", "20", "40"), _key("strategy.clip")
    ),
    "proximal": Figure("nbafl_mnist", "μ", ("0", "0.1", "1", "10"), _key("strategy.proximal_mu")),
}
# The paper's calibration is for the paper's sensitivity; the other two are proven.
MODES = {
    "paper": [],
    "dpsgd": ["privacy.sensitivity=dpsgd", "privacy.calibration=proven", "strategy.exposures=null"],
    "worst": ["privacy.sensitivity=worst", "privacy.calibration=proven", "strategy.exposures=null"],
}
HEAD = (
    "accuracy",
    "loss",
    "ε claimed",
    "ε if assumed, outsider",
    "ε if assumed, server",
    "ε proven",
    "seconds",
)


@dataclass(frozen=True)
class Point:
    """What the runs with one value gave, by seed; ε of the first."""

    value: str
    accuracies: tuple[float, ...]
    losses: tuple[float, ...]
    epsilons: tuple[str, ...]
    seconds: float

    def row(self) -> list[str]:
        """Cells of the table."""
        return [
            self.value,
            spread(self.accuracies),
            spread(self.losses),
            *self.epsilons,
            f"{self.seconds:.0f}",
        ]


def draw(
    figure: Figure,
    modes: Sequence[str],
    seeds: Sequence[int],
    extra: list[str],
    file: RunFile,
    picture: Path,
) -> None:
    """Run a figure's jobs, print its table, draw it."""
    points = {
        mode: [
            _point(figure, value, seeds, [*MODES[mode], *extra], file) for value in figure.values
        ]
        for mode in modes
    }
    for mode, found in points.items():
        print(f"\nsensitivity: {mode}\n")
        print_table([figure.label, *HEAD], [point.row() for point in found])
    advised = _advised(figure, extra) if figure is FIGURES["rounds"] else None
    if advised is not None:
        print(f"\nThe advisor's optimum, from 10 rounds without noise: T = {advised}.")
    print(f"\nseeds {list(seeds)}; {describe_machine('torch')}")
    _plot(figure, points, advised, picture)


def _point(
    figure: Figure, value: str, seeds: Sequence[int], extra: list[str], file: RunFile
) -> Point:
    words = [f"experiment={figure.experiment}", *figure.overrides(value), *extra]
    runs = [
        file.get({"words": words, "seed": seed}, partial(_measure, [*words, f"seed={seed}"]))
        for seed in seeds
    ]
    return Point(
        value,
        tuple(run["accuracy"] for run in runs),
        tuple(run["loss"] for run in runs),
        tuple(runs[0]["epsilons"]),
        statistics.mean(run["seconds"] for run in runs),
    )


def _measure(words: Sequence[str]) -> dict[str, Any]:
    """Scores after the last round; ε as shown: claimed, assumed (outsider, server), proven."""
    run = run_once(["keep_checkpoints=false", *words])
    by_threat = {guarantee["threat"]: guarantee for guarantee in run["guarantees"]}
    server = by_threat["local"]
    outsider = by_threat.get("outsider", server)
    shown = [
        (outsider, "claimed_total"),
        (outsider, "assumed_total"),
        (server, "assumed_total"),
        (server, "proven_total"),
    ]
    last = run["rows"][-1]
    return {
        "accuracy": last["accuracy"],
        "loss": last.get("loss", float("inf")),
        "epsilons": [format_epsilon(guarantee[name]) for guarantee, name in shown],
        "seconds": run["metrics"]["seconds"],
    }


def _run(overrides: list[str]) -> tuple[RunFolder, tempfile.TemporaryDirectory]:
    parent = tempfile.TemporaryDirectory()
    folder = RunFolder(Path(parent.name) / "run")
    InlineEngine(workers=1).run(ValidatedRun.of([*overrides, f"run_dir={folder.path}"]))
    return folder, parent


def _advised(figure: Figure, extra: list[str]) -> int:
    from fl_app.tools.advise_rounds import advise

    return advise([f"experiment={figure.experiment}", *extra], estimate_rounds=10).rounds.best


def _plot(
    figure: Figure, points: dict[str, list[Point]], advised: int | None, picture: Path
) -> None:
    drawing, [axes] = canvas()
    for mode, found in points.items():
        label = mode if len(points) > 1 else None
        curve(axes, [p.value for p in found], [p.accuracies for p in found], label)
    if advised is not None:
        axes.axvline(advised, linestyle="--", color="tab:gray", label=f"advised: {advised}")
    axes.set(xlabel=figure.label, ylabel="accuracy on the test set", title=figure.experiment)
    save(drawing, picture)


def proven() -> None:
    """Claimed against proven, from the calibration of one release alone."""
    print("| ε claimed | ε proven |\n| --- | --- |")
    constant, delta = gaussian.classical_constant(0.01), 0.01
    for nominal in (0.5, 1.0, 50.0, 60.0, 100.0):
        print(f"| {nominal:g} | {gaussian.epsilon_of_mu(nominal / constant, delta):.4g} |")


def sensitivity(seeds: Sequence[int], extra: Sequence[str]) -> None:
    """``dpsgd`` against ``worst``, on images left out of training and on the test set."""
    print("| sensitivity | validation accuracy | test accuracy | ε proven |\n" + "| --- " * 4 + "|")
    for mode in ("dpsgd", "worst"):
        words = ["strategy=nbafl", "privacy=paper", f"privacy.sensitivity={mode}"]
        words += ["privacy.epsilon=8", *extra]
        words += ["keep_checkpoints=true"]
        validated, tested, proven = [], [], "none"
        for seed in seeds:
            run, folder = _run([*words, f"seed={seed}"])
            validated.append(_validation_accuracy(run, compose([*words, f"seed={seed}"])))
            metrics = run.metrics() or {}
            tested.append(metrics["accuracy"])
            proven = format_epsilon(metrics["epsilon_proven"])
            folder.cleanup()
        print(f"| {mode} | {spread(validated)} | {spread(tested)} | {proven} |", flush=True)


def _validation_accuracy(run: RunFolder, config: DictConfig) -> float:
    """Of the final model on the images that became public, whose labels no client trained on."""
    train = population(config).dataset.train
    rng = experiment_rng(config.seed, "public pool")
    left_out, _ = split_public(len(train.labels), config.federation.public, rng)
    trainer = build_trainer(config, population(config).dataset)
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    trainer.load(checkpoint.run.model)
    return trainer.evaluate(train.images[left_out], train.labels[left_out]).accuracy


def main() -> None:
    """One figure by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figure", choices=(*FIGURES, "proven", "sensitivity"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["paper"])
    parser.add_argument("--runs", type=Path, help="file of the runs")
    parser.add_argument("--name", help="of the picture; default: nbafl_FIGURE")
    pictures = Path(__file__).parent / "img"
    parser.add_argument("--out", type=Path, default=pictures, help="folder of the picture")
    parser.add_argument("overrides", nargs="*", default=[], help="further Hydra overrides")
    options = parser.parse_intermixed_args()
    if options.figure == "proven":
        proven()
        return
    if options.figure == "sensitivity":
        sensitivity(options.seeds, options.overrides)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = RunFile(options.runs or Path(folder) / "runs.jsonl")
        picture = options.out / f"{options.name or 'nbafl_' + options.figure}.png"
        figure = FIGURES[options.figure]
        draw(figure, options.modes, options.seeds, options.overrides, file, picture)


if __name__ == "__main__":
    main()
