"""What a federation of many clients costs one machine: rows of benchmarks/scaling.md.

    python -m benchmarks.scaling memory|statement|server|superlink

``memory``: a run's peak with 1,000 to 100,000 virtual clients, 1,000 of them a round.
``statement``: drawing a cohort, the run's statement and its file, for up to a million clients.
``server``: one device's request and answer, as the server packs and adds them, by the model's size.
``superlink``: processor time of Flower's SuperLink for one look of a SuperNode for work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Wire

from benchmarks.machine import describe_machine
from murmur.learning.codec import WeightCodec
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.events import RandomizedResponseEvent
from murmur.privacy.guarantee import Exposure, by_participations
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.statement import Statement
from murmur.round.aggregator import Aggregator
from murmur.round.cohorts import Schedule
from murmur.round.question import Question
from murmur.round.setup import SumSetup
from murmur.round.summation import PlainSummation
from murmur.round.task import read_report
from tests.federation.loopback import POLL_SECONDS, Federation, wait_for

COHORT, MIB = 1000, 2**20
MODELS = {"linear on 8×8": 650, "MLP 784–256–10": 203_530, "PrivateKT's CNN": 1_682_890}
RUN = ["engine=inline", "strategy=fedavg", "privacy=none", "dataset=npz", "federation.public=0"]
RUN += ["model=mlp", "tracking=none", f"federation.clients_per_round={COHORT}"]
NODES, WATCHED = 4, 60.0  # SuperNodes, and the seconds for which the SuperLink is watched


def memory() -> Iterator[str]:
    """Peak resident memory of two rounds, for each number of clients, in a process of its own."""
    yield "| virtual clients | peak, MiB | over the first |\n|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        path, rng = Path(folder) / "many.npz", np.random.default_rng(0)
        images = rng.random((130_000, 1, 8, 8), dtype=np.float32)
        np.savez(path, images=images, labels=rng.integers(0, 10, len(images)))
        first = None
        for clients in (1_000, 10_000, 100_000):
            words = [*RUN, f"dataset.path={path}", f"federation.num_clients={clients}"]
            command = [sys.executable, "-m", "benchmarks.probes", "memory", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peak = json.loads(done.stdout.splitlines()[-1])["peak"]
            first = first or peak
            yield f"| {clients:,} | {peak:.0f} | {peak / first:.2f} |"


def statement() -> Iterator[str]:
    """Processor seconds and sizes by the number of clients, all of whom took part 0 to 4 times."""
    yield "| clients | drawing a cohort, s | statement, s | its file, MB |\n|---|---|---|---|"
    event = RandomizedResponseEvent(2.5, 10)
    for clients in (10_000, 100_000, 1_000_000):
        drawing = spent(partial(Schedule("random", clients, COHORT, 1, 1).cohort, 1, _no_noise))

        def made(clients: int = clients) -> str:
            released = {str(client): client % 5 for client in range(clients)}
            seen = by_participations(event, released)
            exposure = Exposure(Threat.LOCAL, "a curious server", event, seen)
            about = ("privatekt", Unit.CLIENT, Adjacency.REPLACE_ONE, 1e-5, [exposure])
            return json.dumps(Statement.of(*about).to_dict(), indent=2)

        size = len(made()) / 1e6
        yield f"| {clients:,} | {drawing:.4f} | {spent(made, 1):.2f} | {size:.1f} |"


def _no_noise(purpose: str, number: int) -> NoiseGenerator:
    raise RuntimeError("a public cohort draws no noise")


def server() -> Iterator[str]:
    """Processor milliseconds for one device's request and answer, and bytes of one."""
    yield "| model | bytes each way | request, ms | answer, ms |\n|---|---|---|---|"
    report = ConfigRecord({"clients": [0], "refused": list[int](), "weight": 1, "packed": True})
    report["reasons"] = list[str]()
    for name, size in MODELS.items():
        model = np.random.default_rng(0).random(size, np.float32)
        task = ConfigRecord({"round": 1, "clients": [0]})
        request = RecordDict({"model": ArrayRecord({"model": Array(model)}), "task": task})
        contribution = ArrayRecord({"sum": Array(model)})
        answer = RecordDict({"contribution": contribution, "report": report})
        sent = _sent(answer)
        question = Question("train", 1, [0], model, WeightCodec(size), None)
        summed = PlainSummation(
            Aggregator(SumSetup(seed=0, num_clients=1), 1, "benchmark"), question
        )

        def add(sent: bytes = sent, summed: PlainSummation = summed) -> None:
            content = recorddict_from_proto(Wire.FromString(sent))
            read_report(content.config_records["report"], [0])
            summed.accept([0], content)

        asking = spent(partial(_sent, request))
        yield f"| {name} | {len(sent):,} | {1e3 * asking:.2f} | {1e3 * spent(add):.2f} |"


def _sent(content: RecordDict) -> bytes:
    return recorddict_to_proto(content).SerializeToString()


def superlink() -> Iterator[str]:
    """Processor milliseconds of the SuperLink for each look, from SuperNodes that have no work."""
    yield "| SuperNodes | looks a second | a look, ms | memory, MiB |\n|---|---|---|---|"
    with tempfile.TemporaryDirectory() as place, Federation(Path(place)) as federation:
        federation.start_link()
        link = psutil.Process(federation.started[0].pid)
        alone = busy(link)
        for node in range(NODES):
            key = federation.enrol(node)
            federation.start_node(node, key, {}, runs_sent_code=True)
        wait_for(lambda: federation.online() == NODES, 600, f"{NODES} nodes")
        looks = NODES / POLL_SECONDS  # at most: on a busy machine they look less often
        each = 1e3 * (busy(link) - alone) / looks
        held = sum(p.memory_info().rss for p in [link, *link.children(recursive=True)]) / MIB
        yield f"| {NODES} | {looks:.0f} | {each:.2f} | {held:.0f} |"


def busy(process: psutil.Process) -> float:
    """Processor seconds of ``process`` and its children for each second of the next minute."""

    def seconds() -> float:
        all_times = [p.cpu_times() for p in [process, *process.children(recursive=True)]]
        return sum(times.user + times.system for times in all_times)

    before, began = seconds(), time.monotonic()
    time.sleep(WATCHED)
    return (seconds() - before) / (time.monotonic() - began)


def spent(call: Callable[[], object], repeats: int = 20) -> float:
    """Processor seconds of one call, the least of ``repeats``."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return min(found)


KINDS = {each.__name__: each for each in (memory, statement, server, superlink)}


def main() -> None:
    """Print the rows of one kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    print(f"{describe_machine('flwr', 'numpy')}\n")
    for line in KINDS[parser.parse_args().kind]():
        print(line, flush=True)


if __name__ == "__main__":
    main()
