"""``murmur audit``: attack one release of a configuration or a run, and say what ε that measured.

The neighbours are one client's data and the same images with every label moved on by one, which
replace-one adjacency allows. Both are trained on once; the release is then drawn many times, and
a distinguisher that knows both un-noised results tries to tell them apart (``privacy.audit``).
What it achieves is a lower bound on ε, with 99.9% confidence: above the proven figure it shows a
broken mechanism, far below it an attack that is not the worst one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, LocalData, Task
from fl_app.config.composition import compose, load
from fl_app.config.errors import ConfigError
from fl_app.device.node import Node
from fl_app.device.node_settings import NodeSettings
from fl_app.run.experiment import Experiment
from fl_app.run.progress import show_epsilon
from fl_app.run.results import RunFolder
from privacy.accounting import epsilon
from privacy.audit import Audit, audit
from privacy.noise import NoiseGenerator
from privacy.statement import Statement
from strategies.base import CohortStrategy

SCOUTS = 500  # releases of each neighbour that choose the distinguisher's direction


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur audit``; the exit status."""
    options = _parser().parse_args(argv)
    folder = Path(options.words[0]) if options.words and Path(options.words[0]).is_dir() else None
    config = load(folder / "config.yaml") if folder is not None else compose(options.words)
    statement = None if folder is None else read_statement(folder / "privacy.json")
    strategy = Experiment(config).strategy
    delta = float(config.privacy.delta)
    with tempfile.TemporaryDirectory() as scratch:
        node = Node(config, NodeSettings.simulation(Path(scratch)))
        found = attack(node.client, first_task(strategy), node_data(node), options.runs, delta)
    proven = epsilon(strategy.release_event(), delta).epsilon
    print(
        f"{strategy.algorithm}, one release, {options.runs} runs of each neighbour, δ = {delta:g}"
    )
    print(f"proven ε    {show_epsilon(proven if np.isfinite(proven) else 'infinity')}")
    print(f"measured ε  at least {found.epsilon:.3g} ({found.confidence:.1%} confidence)")
    if folder is not None and statement is not None:
        record(RunFolder(folder), statement, found)
    if found.epsilon > proven:
        print("The attack beats the proof: the mechanism or the proof is broken.", file=sys.stderr)
        return 1
    return 0


def attack(client: Client, task: Task, data: LocalData, runs: int, delta: float) -> Audit:
    """Release ``runs`` times from each of two neighbours and tell the releases apart."""
    neighbour = replace(data, labels=(data.labels + 1) % client.trainer.num_classes)
    update, other = client.train(task, data), client.train(task, neighbour)
    codec = client.codec(task)

    def draw(value: NDArray, count: int) -> Iterator[NDArray[np.int64]]:
        for _ in range(count):
            release = client.privatize(value, task, noise)
            yield codec.expand(codec.pack(release), 1).ravel()

    noise = NoiseGenerator.from_os()
    direction = _direction(draw(update, SCOUTS), draw(other, SCOUTS))
    one = np.array([release @ direction for release in draw(update, runs)])
    two = np.array([release @ direction for release in draw(other, runs)])
    return audit(one, two, delta)


def _direction(
    ones: Iterator[NDArray[np.int64]], others: Iterator[NDArray[np.int64]]
) -> NDArray[np.float64]:
    """Where the two neighbours' releases differ on average, in eighths of the largest difference.

    For independent noise of one scale this is the likelihood ratio's direction. It is chosen on
    draws of its own, so that the audit's own draws stay fresh; the rounding removes what is only
    noise, and keeps the values of discrete releases few.
    """
    gaps = (one - other for one, other in zip(ones, others, strict=True))
    difference = np.asarray(sum(gaps) / SCOUTS, np.float64)
    largest = np.abs(difference).max()
    return np.rint(8 * difference / largest) / 8 if largest > 0 else difference


def first_task(strategy: CohortStrategy) -> Task:
    """What the strategy asks client 0 in round 1."""
    model = strategy.initial_parameters()
    arrays, settings = strategy.task(1, model)
    return Task(1, 0, model, arrays, settings)


def node_data(node: Node) -> LocalData:
    """Client 0's data."""
    train = node.population.dataset.train
    return LocalData(train.images, train.labels, node.population.shards[0])


def read_statement(path: Path) -> Statement:
    """A run's privacy statement; ConfigError where it is missing or damaged."""
    try:
        return Statement.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ConfigError(f"{path}: cannot be read ({error!r}); run the run again") from error


def record(folder: RunFolder, statement: Statement, found: Audit) -> None:
    """Write the measured ε beside the claimed and the proven one."""
    first, *rest = statement.guarantees
    measured = replace(first, measured=found.epsilon)
    folder.save_statement(replace(statement, guarantees=(measured, *rest)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="murmur audit", description="Attack one release and measure its ε from below."
    )
    parser.add_argument("words", nargs="*", metavar="RUN | key=value")
    parser.add_argument("--runs", type=int, default=20_000, help="releases of each neighbour")
    return parser
