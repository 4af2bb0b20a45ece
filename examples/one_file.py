"""A federated algorithm in one file: both halves, the settings, and a run in this process.

    python examples/one_file.py

Clients vote on the direction of the model's next step, as in signSGD with majority vote (Bernstein
et al., ICML 2018), but each round on a random block of the weights only, and every vote is kept
with probability ½ + γ. So a round costs a client the ε of one block. To make it a part of Murmur,
put the classes into `strategies/` and `clients/` and the settings into `conf/strategy/`.
"""

import tempfile
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from clients.base import Client, TaskError
from fl_app.config.compose import compose
from fl_app.engines.inline import run_config
from fl_app.run.results import RunFolder
from murmur.learning.codec import BitCodec
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.random import experiment_rng
from strategies.base import CohortStrategy

# γ is set below and keeps no budget, so none is promised: docs/new-algorithm.md has one that does.
WORDS = [
    *("dataset=digits", "features=none", "model=mlp", "federation.num_clients=60"),
    *("tracking=none", "privacy.epsilon=inf"),
]


class BlockVotes(CohortStrategy):
    """The server: names a block, counts the votes, steps along the majority."""

    algorithm = "majority votes on random blocks"

    def __init__(self, setup, *, block: int, gamma: float, step: float):
        super().__init__(setup)
        self.size, self.gamma, self.step = block, gamma, step

    def task(self, number, model):
        rng = experiment_rng(self.setup.seed, "block", number)
        self.block = rng.choice(len(model), self.size, replace=False)
        return {"block": self.block}, {}

    def codec(self):
        return BitCodec(self.size)

    def update(self, number, model, total, weight):
        direction = np.zeros_like(model)
        direction[self.block] = np.sign(2 * total - weight)
        return model + np.float32(self.step) * direction

    def release_event(self):
        return BinaryRandomizedResponse(self.gamma).event(self.size)


class BlockVotesClient(Client):
    """The client: one local epoch, then a randomised bit for each weight of the block."""

    def __init__(self, setup, *, block: int, gamma: float, learning_rate: float):
        super().__init__(setup)
        self.size, self.learning_rate = block, learning_rate
        self.mechanism = BinaryRandomizedResponse(gamma)

    def codec(self, task):
        return BitCodec(self.size)

    def event(self, task):
        model, block = self.require_model(task), task.arrays["block"]
        if block.shape != (self.size,) or block.min() < 0 or block.max() >= len(model):
            raise TaskError(f"block: must name {self.size} of the {len(model)} weights")
        return self.mechanism.event(self.size)

    def train(self, task, data):
        self.trainer.load(task.model)
        self.trainer.train(
            data.images,
            data.labels,
            indices=data.indices,
            epochs=1,
            batch_size=8,
            lr=self.learning_rate,
            rng=self.rng(task, "local training"),
        )
        block = task.arrays["block"]
        return self.trainer.parameters()[block] > task.model[block]

    def privatize(self, update, task, noise):
        return self.mechanism.privatize(update, noise)


SETTINGS = {
    "name": "block_votes",
    "server": {"_target_": f"{__name__}.BlockVotes", "block": 500, "gamma": 0.3, "step": 0.03},
    "client": {
        "_target_": f"{__name__}.BlockVotesClient",
        "block": 500,
        "gamma": 0.3,
        "learning_rate": 0.1,
    },
}


def main(folder: Path, *overrides: str) -> RunFolder:
    """Run it with Hydra ``overrides``; the run's folder."""
    config = compose([*WORDS, *overrides])
    run = RunFolder(folder)
    run_config(OmegaConf.create({**config, "strategy": SETTINGS}), run)
    return run


if __name__ == "__main__":
    run = main(Path(tempfile.mkdtemp()), "federation.num_rounds=30")
    for row in run.rows()[::10]:
        print(f"round {row['round']}: accuracy {row['accuracy']:.3f}")
    print((run.path / "privacy.txt").read_text())
