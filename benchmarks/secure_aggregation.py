"""What a secure sum costs, beside Flower's SecAgg+: ``python -m benchmarks.secure_aggregation``.

Both sum the same vectors of bits over the same number of clients with the same share of holders as
threshold; both run their real code on both sides, with Flower messages handed over in memory. Time
inside the clients' handlers counts as theirs, the rest as the server's. Bytes are those of the
messages as Flower serialises them, requests to train excluded in both.

The two are not alike in everything. Flower's quantises reals to 22 bits and sums modulo 2^32, sent
as 64-bit integers, from masks of 32-bit seeds; here masks have 256-bit seeds, the list of survivors
is confirmed in a phase of its own, and clients write their state to disk between phases.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from murmur.learning.codec import BitCodec
from murmur.privacy.events import NonPrivateEvent
from murmur.round.aggregator import Aggregator
from murmur.round.collectors import collector_for
from murmur.round.question import Outcome, Question
from murmur.round.replies import sealed, unsealed
from murmur.round.secure_party import SecureParties
from murmur.round.secure_summation import SecureSummation
from murmur.round.setup import SumSetup
from murmur.round.site import SimulatedSite
from murmur.round.task import RunFacts
from murmur.secure_sum.settings import SecureSumSettings

Handler = Callable[[Message], RecordDict]


@dataclass
class Cost:
    """What one sum cost: seconds by ``clock``, and bytes of all clients together."""

    name: str
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    up: int = 0
    down: int = 0
    exact: bool = False
    clock: Callable[[], float] = time.perf_counter


class MemoryGrid:
    """Hands messages to ``handler`` and keeps the accounts; the rest of a Grid is not needed."""

    def __init__(self, cost: Cost, handler: Handler) -> None:
        self.cost, self.handler = cost, handler
        self.paused = 0.0  # spent in here: none of it is the server's

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """The replies of all nodes that do reply."""
        begun = self.cost.clock()
        replies: list[Message] = []
        for message in messages:
            arrived = recorddict_to_proto(message.content)
            self.cost.down += len(arrived.SerializeToString())
            # A copy for each: Flower's client takes apart the record that it is handed.
            message = Message(recorddict_from_proto(arrived), message.metadata.dst_node_id, "train")
            message.metadata.__dict__["_message_id"] = str(len(replies))
            start = self.cost.clock()
            try:
                content = self.handler(message)
            except DroppedOutError:
                continue
            self.cost.client_seconds += self.cost.clock() - start
            self.cost.up += len(recorddict_to_proto(content).SerializeToString())
            replies.append(Message(content, reply_to=message))
        self.paused += self.cost.clock() - begun
        return replies


class DroppedOutError(Exception):
    """The client says nothing any more."""


def ours(
    vectors: NDArray[np.bool_],
    dropped: set[int],
    settings: SecureSumSettings,
    folder: Path,
    count: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Cost:
    """One secure sum of this project's, over ``count`` nodes; None: one for each client."""
    cost = Cost(
        "this project" + (f", {settings.neighbours} neighbours" * bool(settings.neighbours)),
        clock=clock,
    )
    n, codec = len(vectors), BitCodec(vectors.shape[1])
    rules = settings.owner_rules()
    run = RunFacts("benchmark", delta=0.0, rounds=1)
    asked = {node + 1: list(range(node, n, count or n)) for node in range(count or n)}
    nodes = {
        node: SecureParties(SimulatedSite.of(folder / str(node)), range(n), rules, settings.is_on)
        for node in asked
    }
    grid = MemoryGrid(cost, lambda message: nodes[message.metadata.dst_node_id].answer(
        message.content))  # fmt: skip
    setup = SumSetup(seed=0, num_clients=n, secure_sums=settings, round_timeout=60.0)
    asked_for = Question("train", 1, range(n), np.zeros(0, np.float32), codec, NonPrivateEvent)
    outcome = Outcome(1, asked=asked)
    begun = clock()
    secure = SecureSummation(Aggregator(setup, n, "benchmark"), asked_for, NonPrivateEvent())
    invited = secure.prepare(outcome, grid)  # type: ignore[arg-type]
    for node, clients in invited.items():
        content = RecordDict()
        secure.invite(clients, content)
        pause = clock()
        cost.down += len(recorddict_to_proto(content).SerializeToString())
        left = [client for client in clients if client not in dropped]
        if not left:
            grid.paused += clock() - pause
            continue
        start = clock()
        collector = collector_for(nodes[node], content, asked_for.kind, run, lambda: False)
        for client in left:
            collector.add(client, codec, codec.pack(vectors[client]), 1)
        collector.keep()
        masked = unsealed(sealed(collector, {})).array_records["contribution"]
        cost.client_seconds += clock() - start
        cost.up += len(recorddict_to_proto(RecordDict({"c": masked})).SerializeToString())
        grid.paused += clock() - pause
        secure.accept(left, RecordDict({"contribution": masked}))
    secure.finish(outcome)
    found = secure.added
    cost.server_seconds = clock() - begun - grid.paused
    cost.exact = bool(np.array_equal(found.total, vectors[found.clients].sum(axis=0)))
    return cost


class FlowersMean(FedAvg):
    """Takes the mean that Flower's workflow found."""

    mean: NDArray | None = None

    def configure_fit(self, server_round, parameters, client_manager):  # type: ignore[no-untyped-def]
        """Ask every client."""
        return [(proxy, FitIns(parameters, {})) for proxy in client_manager.proxies]

    def aggregate_fit(self, server_round, results, failures):  # type: ignore[no-untyped-def]
        """All results hold the same mean."""
        (self.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


@dataclass
class Proxies:
    """Flower's client manager as far as the workflow needs it."""

    proxies: list

    def num_available(self) -> int:
        """How many clients there are."""
        return len(self.proxies)


@dataclass(frozen=True)
class Proxy:
    """A client by its node id."""

    node_id: int


def flowers(vectors: NDArray[np.bool_], dropped: set[int], threshold: float) -> Cost:
    """One sum of Flower's SecAgg+, all clients being neighbours."""
    cost, n = Cost("Flower's SecAgg+"), len(vectors)
    contexts = {c: Context(1, c + 1, {}, RecordDict(), {}) for c in range(n)}

    def fit(message: Message, context: Context) -> Message:
        client = message.metadata.dst_node_id - 1
        if client in dropped:
            raise DroppedOutError
        parameters = ndarrays_to_parameters([vectors[client].astype(np.float32)])
        result = FitRes(Status(Code.OK, ""), parameters, 1, {})
        return Message(compat.fitres_to_recorddict(result, True), reply_to=message)

    def handle(message: Message) -> RecordDict:
        context = contexts[message.metadata.dst_node_id - 1]
        return secaggplus_mod(message, context, fit).content

    grid = MemoryGrid(cost, handle)
    strategy = FlowersMean()
    context = LegacyContext(
        Context(1, SUPERLINK_NODE_ID, {}, RecordDict(), {}),
        strategy=strategy,
        client_manager=Proxies([Proxy(c + 1) for c in range(n)]),  # type: ignore[arg-type]
    )
    context.state.config_records["config"] = ConfigRecord({"current_round": 1})
    context.state.array_records["parameters"] = compat.parameters_to_arrayrecord(
        Parameters([], "numpy.ndarray"), True
    )
    workflow = SecAggPlusWorkflow(1.0, threshold, max_weight=1.0, clipping_range=1.0)
    begun = time.perf_counter()
    workflow(grid, context)  # type: ignore[arg-type]
    cost.server_seconds = time.perf_counter() - begun - grid.paused
    left = [c for c in range(n) if c not in dropped]
    if strategy.mean is not None:
        found = np.rint(strategy.mean * len(left))
        cost.exact = bool(np.array_equal(found, vectors[left].sum(axis=0)))
    return cost


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--length", type=int, default=81_958)
    parser.add_argument("--dropouts", type=int, nargs="*", default=[0, 5])
    parser.add_argument("--threshold", type=float, default=0.67)
    parser.add_argument("--neighbours", type=int, default=20)
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id = TaskIdentity.run_id = 1
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    n = chosen.clients
    vectors = np.random.default_rng(1).random((n, chosen.length)) < 0.5
    machine = describe_machine("flwr", "cryptography", "pycryptodome")
    print(f"{n} clients, {chosen.length:,} bits each, threshold {chosen.threshold:g}; {machine}\n")
    print("| dropouts | | client, s | server, s | client sends, bytes | client receives | exact |")
    print("|---|---|---|---|---|---|---|")
    for count in chosen.dropouts:
        dropped = set(range(count))
        for settings in (
            SecureSumSettings("on", threshold=chosen.threshold),
            SecureSumSettings("on", threshold=chosen.threshold, neighbours=chosen.neighbours),
        ):
            with tempfile.TemporaryDirectory() as folder:
                report(count, n, ours(vectors, dropped, settings, Path(folder)))
        report(count, n, flowers(vectors, dropped, chosen.threshold))


def report(dropouts: int, n: int, cost: Cost) -> None:
    """One row."""
    print(
        f"| {dropouts} | {cost.name} | {cost.client_seconds / n:.3f} | {cost.server_seconds:.2f} "
        f"| {cost.up // n:,} | {cost.down // n:,} | {'yes' if cost.exact else 'no'} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
