"""What the server's signatures cost: ``python -m benchmarks.signed_runs [CLIENTS] [ROUNDS]``.

One process does the rounds of a simulation in turns, with signed questions and without. Clients do
nothing but draw a few noised bits, so that a round is about as short as it can be. What was asked
is logged for the statement, as in any run that signs. The ratio is the median of those of
neighbouring turns, which share the machine's moods.
"""

import logging
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from clients.base import Client
from fl_app.testing import Federation, random_data
from murmur.learning.codec import BitCodec
from murmur.privacy.budget import Budget
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.run_header import RunHeader, ServerKey
from murmur.round.asked_log import AskedLog
from murmur.round.signed import QuestionSigner
from strategies.base import CohortStrategy

BITS = 64
NOISE = BinaryRandomizedResponse(0.3)
TURNS = 9


class Bits(CohortStrategy):
    """Counts noised bits, from which it learns nothing."""

    algorithm = "noised bits"

    def codec(self):
        """A bit for each label."""
        return BitCodec(BITS)

    def update(self, number, model, total, weight):
        """The same model."""
        return model

    def release_event(self):
        """Of all bits."""
        return NOISE.event(BITS)


class BitsClient(Client):
    """Says whether it has each label."""

    def codec(self, task):
        """As the server's."""
        return BitCodec(BITS)

    def event(self, task):
        """As the server's."""
        return NOISE.event(BITS)

    def train(self, task, data):
        """The bits."""
        return np.isin(np.arange(BITS), data.labels[data.indices])

    def privatize(self, update, task, noise):
        """The noised bits."""
        return NOISE.privatize(update, noise)


def seconds(clients: int, rounds: int, signed: bool) -> float:
    """The processor time of a round, in a federation of its own."""
    budget = Budget(1e6, 1e-5, rounds=rounds)
    with tempfile.TemporaryDirectory() as folder:
        data = [random_data(4, seed=1)] * clients
        federation = Federation(Path(folder), Bits, BitsClient, data, budget=budget)
        if signed:
            strategy, key = federation.strategy, ServerKey.generate()
            header = RunHeader(
                name="benchmark",
                server=key.public_key,
                algorithm=strategy.algorithm,
                unit=strategy.unit,
                adjacency=strategy.adjacency,
                delta=budget.delta,
                threat=budget.threat,
                schedule={},
                secret=False,
                phases=tuple(strategy.rounds.planned_phases(["train"])),
                settings={f"setting {number}": float(number) for number in range(60)},
            )
            signer = QuestionSigner(key, header)
            signer.log = AskedLog(Path(folder) / "asked.jsonl")
            strategy.rounds.sign(signer)
        begin = time.process_time()
        federation.run()
        return (time.process_time() - begin) / rounds


def main(clients: int = 1000, rounds: int = 20) -> None:
    """Print medians of several turns, with and without."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    seconds(clients, 2, signed=True)  # imports, and what is made once
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(TURNS):
        for signed in (False, True):
            found[signed].append(seconds(clients, rounds, signed))
    plain, signed_too = median(found[False]), median(found[True])
    ratios = [after / before for before, after in zip(found[False], found[True], strict=True)]
    print(
        f"{clients} clients: {1000 * plain:.1f} ms of processor time a round without signatures, "
        f"{1000 * signed_too:.1f} ms with; ratio {median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
