"""What the three lines cost a plain Flower app in accuracy: ``python -m research.flower_app``.

MNIST, 60 images a client, a linear model (7,850 numbers), three rounds in which all clients take
part; (8, 1e-5)-DP for a whole client that is exchanged, against a server that sees sums. Each run
is the same app twice, plain and under ``private``, in this process. Sums are taken directly
(``simulated=True``), which changes no distribution. Before the first round ``private`` says what to
expect of its noise. Prints Markdown. Needs ``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp as PlainApp
from flwr.serverapp.strategy import FedAvg, Result

from benchmarks.machine import describe_machine
from fl_app.engines.inline import FIRST_NODE, InlineGrid
from murmur.compat.flower_messages import identify
from murmur.flower import ClientApp, private
from murmur.flower.server import Private
from murmur.learning.data.datasets import torchvision_dataset
from murmur.learning.data.examples import Dataset, Examples

EPSILON = 8.0
DELTA = 1e-5
ROUNDS = 3
IMAGES = 60  # of each client
# Of full-batch gradient descent on a client, and the norm to which its change is clipped: chosen
# with seed 0, on 10,000 training images that no client of those runs had. With other seeds some
# clients have some of them; the test set has chosen nothing.
STEPS = 5
RATE = 0.5
CLIP = 1.0


def main() -> None:
    """Run every number of clients with every seed, and print a row for each number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[100, 500])
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").addFilter(lambda line: "mean update" in line.getMessage())
    mnist = torchvision_dataset(name="MNIST", root=os.environ["MURMUR_DATA"])
    print(f"{describe_machine('torch', 'flwr')}\n")
    print("| clients | plain | with the three lines | each seed |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MURMUR_RESULTS"] = folder
        for clients in arguments.clients:
            print(row(mnist, clients, arguments.seeds, folder), flush=True)


def row(mnist: Dataset, clients: int, seeds: int, folder: str) -> str:
    """Mean accuracy of both over so many seeds, and of each protected run.

    ``folder``: for the trials' ledgers, which know all runs of this process by one name.
    """
    plain = []
    protected = []
    for seed in range(seeds):
        data = drawn(mnist.train, clients, seed)
        plain.append(accuracy(trained(FedAvg(), PlainApp, data), mnist.test))
        tempfile.tempdir = tempfile.mkdtemp(dir=folder)
        own = private(FedAvg(), epsilon=EPSILON, delta=DELTA, clip=CLIP, simulated=True)
        protected.append(accuracy(trained(own, ClientApp, data), mnist.test))
    single = ", ".join(f"{each:.3f}" for each in protected)
    return f"| {clients} | {np.mean(plain):.3f} | {np.mean(protected):.3f} | {single} |"


def drawn(train: Examples, clients: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Images (60, 784) and labels of each client; no image is two clients'."""
    order = np.random.default_rng(seed).permutation(len(train.labels))
    images = torch.tensor(train.images).reshape(-1, 784)
    labels = torch.tensor(train.labels)
    return [(images[own], labels[own]) for own in np.split(order[: clients * IMAGES], clients)]


def trained(
    strategy: FedAvg | Private,
    make: Callable[[], PlainApp],
    data: list[tuple[torch.Tensor, torch.Tensor]],
) -> Result:
    """Three rounds of ``strategy`` over a node for each client, whose app ``make`` begins."""
    app = make()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        images, labels = data[context.node_id - FIRST_NODE]
        net = torch.nn.Linear(784, 10)
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(labels)})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    begin = {"weight": torch.zeros(10, 784), "bias": torch.zeros(10)}
    identify()
    grid = InlineGrid(app, {}, len(data))
    return strategy.start(grid, ArrayRecord(begin), num_rounds=ROUNDS, timeout=600)


def accuracy(result: Result, test: Examples) -> float:
    """Of the last model, on the test set."""
    state = result.arrays.to_torch_state_dict()
    outputs = torch.tensor(test.images).reshape(-1, 784) @ state["weight"].T + state["bias"]
    return float((outputs.argmax(1).numpy() == test.labels).mean())


if __name__ == "__main__":
    main()
