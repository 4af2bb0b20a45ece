"""The workloads compared: Murmur's settings, and the same clients as files for the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_app.config.compose import compose
from fl_app.run.population import population


@dataclass(frozen=True)
class Workload:
    """What everybody does: ``settings`` for Murmur, and the same in the competitors' terms.

    ``model``: its name in ``benchmarks/competitors``. ``clients``: how many there are.
    """

    settings: tuple[str, ...]
    model: str
    clients: int
    batch_size: int
    learning_rate: float

    def options(self) -> list[str]:
        """Of a competitor's command line."""
        return [
            *("--model", self.model, "--batch-size", str(self.batch_size)),
            *("--learning-rate", str(self.learning_rate)),
        ]

    def flower_settings(self, data: Path, rounds: int) -> str:
        """Of the plain Flower app, as TOML."""
        return "".join(
            f"{name} = {value}\n"
            for name, value in {
                "data": f'"{data}"',
                "model": f'"{self.model}"',
                "num-rounds": rounds,
                "batch-size": self.batch_size,
                "learning-rate": self.learning_rate,
            }.items()
        )


def fedavg(model: str, clients: int, batch_size: int, *more: str) -> Workload:
    """One local epoch of plain SGD on every client, at learning rate 0.1."""
    settings = ("strategy=fedavg", f"federation.num_clients={clients}")
    local = f"strategy.local={{epochs: 1, steps: null, batch_size: {batch_size}, "
    return Workload(
        (*settings, f"{local}learning_rate: 0.1}}", *more), model, clients, batch_size, 0.1
    )


def mnist(model: str, clients: int, batch_size: int, *more: str) -> Workload:
    """MNIST's 60,000 examples shared by 100 clients, 600 each; fewer clients have 600, too."""
    unused = f"federation.public={max(0, 60_000 - 600 * clients)}"
    return fedavg(model, clients, batch_size, "dataset=mnist", unused, *more)


def cnn(clients: int) -> Workload:
    """The small CNN, 1→16→16 convolutions: ten steps an epoch."""
    return mnist("cnn", clients, 64, "model=cnn_16")


def mlp(clients: int, hidden: int = 256) -> Workload:
    """A multilayer perceptron with one hidden layer."""
    return mnist("mlp", clients, 32, "model=mlp", f"model.hidden=[{hidden}]")


DIGITS = fedavg("mlp", 40, 16, "dataset=digits", "federation.public=0", "model=mlp")
PRIVATEKT = Workload(("experiment=privatekt_mnist",), "privatekt", 80, 32, 0.05)

SWEEP = (
    *("sweep=bench", "engine=inline", "federation.num_rounds=1", "privacy.epsilon=1,4,16,64"),
    "experiment=digits_privatekt,digits_nbafl,digits_kd_dpfl,digits_dpfl_bnn,digits_dp_fedavg",
    "seed=1,2,3",
)  # research/five_algorithms.md, with one round each


def export(work: Workload, folder: Path) -> None:
    """The data, and who has which examples, as NumPy files that any environment can read.

    ``rows[offsets[k]:offsets[k + 1]]`` are client k's rows of ``train_*``; ``public``: the rows of
    the pool.
    """
    folder.mkdir(parents=True, exist_ok=True)
    people = population(compose(list(work.settings)))
    train, test = people.dataset.train, people.dataset.test
    shards = list(people.shards)
    rows = np.concatenate(shards)
    private = np.zeros(len(train), bool)
    private[rows] = True
    content = {
        "train_images": train.images,
        "train_labels": train.labels,
        "test_images": test.images,
        "test_labels": test.labels,
        "rows": rows,
        "offsets": np.cumsum([0, *(len(shard) for shard in shards)]),
        "public": np.flatnonzero(~private),
    }
    for name, values in content.items():
        np.save(folder / f"{name}.npy", np.ascontiguousarray(values))
