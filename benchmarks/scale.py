"""What grows with the number of clients: ``make bench BENCH=scale``.

    python -m benchmarks.scale [--only ROW ...] [--parent TREE]

Prints a table of ``ROWS``, each a ratio or a figure of processor seconds, peak memory, bytes or
seconds; beside a ratio of many clients to few stands its growth, as a power of n. Every run is a
command of its own. With ``--parent``, a checkout of another commit, its column is measured on this
machine as well; what it refuses is left out with a word.
"""

from __future__ import annotations

import argparse
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.processes import ROOT

FEW, MANY = 1_000, 1_000_000
MIB = 2**20
PLAIN = ["strategy=fedavg", "privacy=none", "model=linear", "tracking=none", "engine=inline"]
SMALL = [*PLAIN, "federation.public=0", "federation.num_rounds=2"]
WIDTHS = 1_340, 134_000  # of a hidden layer: 10⁵ and 10⁷ parameters on digits
NOISED = ["protection=distributed", "privacy.epsilon=8"]
PROTECTED = {
    "fedavg": [],
    "distributed": [*NOISED, "privacy.secure_aggregation=simulated"],
    "secure": [*NOISED, "privacy.secure_aggregation=on"],
}
CLIENTS, ROUNDS = 3, 3  # of these
TIMED = """import runpy, threading, time
from collections import Counter
from murmur.learning.training.trainer import Trainer
from murmur.round.host import Host
from murmur.round.phase import Phase
spent, rounds, running = Counter(), [], threading.local()
def timed(kind, name):
    plain = getattr(kind, name)
    def call(*given, **named):
        outer, running.inner = getattr(running, "inner", 0), 0
        begun = time.thread_time()
        try: return plain(*given, **named)
        finally:
            took = time.thread_time() - begun
            spent[kind] += took - running.inner  # a node may answer while its reply is taken
            running.inner = outer + took
            if name == "take":
                rounds.append(spent[Host] + spent[Phase])
                spent.clear()
    setattr(kind, name, call)
for kind, name in ((Trainer, "train"), (Host, "answer"), (Phase, "ask"), (Phase, "take")):
    timed(kind, name)
try: runpy.run_module("fl_app", run_name="__main__")
finally: print(min(rounds, default=float("nan")))"""
LONG = 1_000, 2_000  # rounds
TINY, ALL = 10_000, 100_000  # clients of 12 examples asked in a round
GRADIENT = """import torch
torch.set_num_threads(1)
model, images, labels = torch.nn.Linear(4, 10), torch.rand(12, 4), torch.zeros(12, dtype=int)
parameters, loss = list(model.parameters()), torch.nn.functional.cross_entropy
for _ in range({}): torch.autograd.grad(loss(model(images), labels), parameters)"""
COHORTS = 300, 3_000  # of secure sums
SIMULATED = 10  # rounds, since one is soon over
LATER = 1, 5  # rounds: what the later ones take, each
GROUPED, GROUPS = 200, 5  # clients, and into how many groups they are divided
PACKED = 20, 24, 40  # bits
PACKING = """
import time, numpy as np
from murmur.learning.process import keep_heap, take_over
from murmur.secure_sum import masks
take_over()
keep_heap()
words = np.arange({size}, dtype=masks.word({bits}))
def least(call):
    found = []
    for _ in range(5):
        begun = time.process_time()
        call()
        found.append(time.process_time() - begun)
    return min(found)
pack = least(lambda: masks.pack(words, {bits}))
print(pack / least(lambda: masks.add_mask(words, bytes(32))))
"""
SCHEDULE = (
    "from murmur.round.cohorts import Schedule as S; S('random', {}, 10**4, {}, 1).participations"
)


class RefusedError(Exception):
    """The code that is measured does not do this."""


@dataclass(frozen=True)
class Spent:
    """Of one command.

    Attributes:
        processor: seconds, of its children too.
        peak: resident memory of its largest process, in bytes.
        ended: by ``time.time``.
        last: the line that it printed last.
    """

    processor: float
    peak: int
    ended: float
    last: str


@dataclass(frozen=True)
class Bench:
    """Where commands run.

    Attributes:
        tree: the checkout whose code they run.
        folder: for data and runs, empty at first.
    """

    tree: Path
    folder: Path

    def spent(self, *words: str) -> Spent:
        """What ``python WORDS`` takes; RefusedError with its last line where it fails."""
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "OMP_NUM_THREADS": "1"}
        with open(self.folder / "output", "w+b") as output:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            ended = time.time()
            output.seek(0)
            said = output.read().decode().strip().splitlines() or ["nothing"]
        if process.returncode:
            raise RefusedError(said[-1][:100])
        return Spent(usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss, ended, said[-1])

    def run(self, name: str, *words: str) -> Spent:
        """A run of `murmur` in the folder ``name``, which it may share with none before it."""
        return self.spent("-m", "fl_app", *SMALL, *words, f"run_dir={self.folder / name}")

    def timed(self, name: str, *words: str) -> Spent:
        """As ``run``; ``last``: a round's seconds of processor for clients beyond training."""
        return self.spent("-c", TIMED, *SMALL, *words, f"run_dir={self.folder / name}")

    def tiny_data(self) -> list[str]:
        """Words for data of 2×2 pixels, with an example for each of ``MANY`` clients."""
        path = self.folder / "many.npz"
        if not path.exists():
            rng = np.random.default_rng(0)
            images = rng.random((MANY + MANY // 2, 1, 2, 2), dtype=np.float32)
            np.savez(path, images=images, labels=rng.integers(0, 10, len(images)))
        return ["dataset=npz", f"dataset.path={path}", "federation.clients_per_round=100"]


def growth(few: float, many: float, more: float = MANY / FEW) -> str:
    """The ratio of two figures, and as which power of n they grow.

    ``more``: how many times as large n is for the second.
    """
    ratio = many / few
    return f"{ratio:.2f}× (n^{math.log(ratio) / math.log(more):.2f})"


def set_up(bench: Bench, partition: str) -> str:
    """Processor time of a whole run of ``MANY`` clients over one of ``FEW``."""
    found = []
    for clients in (FEW, MANY):
        words = [f"partition={partition}", f"federation.num_clients={clients}"]
        name = f"{partition}-{clients}"
        found.append(bench.run(name, *bench.tiny_data(), *words).processor)
    return f"{growth(*found)}, {found[1]:.1f} s"


def virtual(bench: Bench) -> str:
    """Peak memory of a run of ``MANY`` virtual clients on MNIST over one of ``FEW``."""
    found = []
    for clients in (FEW, MANY):
        words = ["dataset=mnist", "partition=virtual", "federation.clients_per_round=100"]
        found.append(bench.run(f"v-{clients}", *words, f"federation.num_clients={clients}").peak)
    return f"{growth(*found)}, {found[1] / MIB:.0f} MiB"


def folder(bench: Bench) -> str:
    """Bytes of the folder of the run with ``MANY`` clients."""
    size = sum(path.stat().st_size for path in _of_many(bench).iterdir())
    return f"{size / 1e6:.2f} MB"


def report(bench: Bench) -> str:
    """`murmur report` of that run over that of one with ``FEW``: processor time, peak."""
    many = bench.spent("-m", "fl_app", "report", str(_of_many(bench)))
    few = bench.spent("-m", "fl_app", "report", str(bench.folder / f"iid-{FEW}"))
    return f"{growth(few.processor, many.processor)}, {growth(few.peak, many.peak)}"


def _of_many(bench: Bench) -> Path:
    if not (bench.folder / f"iid-{MANY}").exists():
        set_up(bench, "iid")
    return bench.folder / f"iid-{MANY}"


def schedule(bench: Bench) -> str:
    """Budget of 1,000 rounds of 10,000 drawn clients beside that of 10: processor seconds more."""
    spent = [bench.spent("-c", SCHEDULE.format(MANY, rounds)).processor for rounds in (10, 1000)]
    return f"+{spent[1] - spent[0]:.1f} s"


def refusal(bench: Bench) -> str:
    """Processor seconds until too many clients for MNIST are refused, with all imports."""
    begun = os.times()
    try:
        bench.run("refused", "dataset=mnist", f"federation.num_clients={MANY}")
    except RefusedError:
        ended = os.times()
        spent = ended.children_user + ended.children_system
        return f"{spent - begun.children_user - begun.children_system:.1f} s"
    raise RefusedError("it is not refused")


def prompt(bench: Bench) -> str:
    """Seconds from a run's results on disk to the end of the command, on Ray."""
    words = ["dataset=digits", "federation.num_clients=6", "engine=ray", "engine.workers=2"]
    ended = bench.run("ray", *words).ended
    return f"{ended - (bench.folder / 'ray' / 'metrics.json').stat().st_mtime:.1f} s"


def parameters(bench: Bench, protection: str) -> str:
    """What each of 10⁷ parameters adds: peak memory; processor time of a client beyond training.

    Beyond training is all that the node does for its answer (``Host.answer``) and the server to ask
    and to add up (``Phase.ask``, ``Phase.take``), less ``Trainer.train``, in the round that took
    the least; the model's update and evaluation are not a client's. It holds the kernel's time to
    find memory, which in a virtual machine may be most of it: what has been free there for two
    seconds is its host's again. So clients train for one step, and a round is soon over.
    """
    words = [*PROTECTED[protection], "dataset=digits", "model=mlp", "keep_checkpoints=false"]
    words += ["strategy.local.epochs=null", "strategy.local.steps=1"]
    words += [f"federation.num_clients={CLIENTS}", f"federation.num_rounds={ROUNDS}"]
    few, many = (
        bench.timed(f"{protection}-{width}", *words, f"model.hidden=[{width}]") for width in WIDTHS
    )
    more = (64 + 1 + 10) * (WIDTHS[1] - WIDTHS[0])  # weights to and from a hidden unit, its bias
    size = (many.peak - few.peak) / more
    beyond = (float(many.last) - float(few.last)) / more / CLIENTS
    return f"{size:.0f} B, {beyond * 1e9:.0f} ns"


def rounds(bench: Bench) -> str:
    """Processor time of a round of two tiny clients; that of `dp_fedavg` over `fedavg`'s."""
    words = ["dataset=digits", "federation.num_clients=100", "federation.clients_per_round=2"]
    cost = {}
    for strategy, budget in (("fedavg", "privacy=none"), ("dp_fedavg", "privacy.epsilon=8")):
        few, many = (
            bench.run(
                f"{strategy}-{count}",
                *words,
                f"strategy={strategy}",
                budget,
                f"federation.num_rounds={count}",
            )
            for count in LONG
        )
        cost[strategy] = (many.processor - few.processor) / (LONG[1] - LONG[0])
    return f"{cost['fedavg'] * 1e3:.0f} ms; {cost['dp_fedavg'] / cost['fedavg']:.1f}×"


def packing(bench: Bench) -> str:
    """Processor time to pack 10⁶ words at so many bits over that of expanding their mask."""
    ratios = []
    for bits in PACKED:
        ratios.append(float(bench.spent("-c", PACKING.format(size=10**6, bits=bits)).last))
    return ", ".join(f"{ratio:.1f}×" for ratio in ratios)


def sums(bench: Bench) -> str:
    """Processor time of a secure sum for each client and neighbour, of 3,000 over 300 clients."""
    few, many = (_of_a_neighbour(bench, clients) for clients in COHORTS)
    client, server = (
        growth(before, after, COHORTS[1] / COHORTS[0])
        for before, after in zip(few, many, strict=True)
    )
    return f"client {client}, server {server}"


def _of_a_neighbour(bench: Bench, clients: int) -> list[float]:
    """Microseconds of a client and, for it, of the server: a column of ``cohort_sums``."""
    row = bench.spent("-m", "benchmarks.cohort_sums", "--clients", str(clients)).last
    return [float(figure) for figure in row.split("|")[4].split("+")]


def masks(bench: Bench) -> str:
    """``real_and_simulated`` in words."""
    real, simulated = real_and_simulated(bench)
    return f"{real / simulated:.0f}× ({real:.1f} and {simulated:.2f} ms a client)"


def real_and_simulated(bench: Bench) -> tuple[float, float]:
    """Processor milliseconds of a client in a round of 1,000, masks being real and simulated."""
    words = ["dataset=digits", "protection=distributed", "federation.num_clients=1000"]
    words += ["privacy.secure_sum.server=honest"]

    def spent(mode: str, rounds: int) -> float:
        """Of so many rounds, and the start."""
        more = [f"privacy.secure_aggregation={mode}", f"federation.num_rounds={rounds}"]
        return bench.run(f"{mode}-{rounds}", *words, *more).processor

    one, many = spent("simulated", 1), spent("simulated", 1 + SIMULATED)
    simulated = (many - one) / SIMULATED
    return spent("on", 1) - one + simulated, simulated


def groups(bench: Bench) -> str:
    """``grouped`` in words."""
    several, one = grouped(bench)
    return f"{several / one:.2f}× ({several:.1f} and {one:.1f} ms a client)"


def grouped(bench: Bench) -> tuple[float, float]:
    """Processor milliseconds of a client against a server that lies: in groups, in one graph."""
    words = ["dataset=digits", "protection=distributed", f"federation.num_clients={GROUPED}"]
    words += ["privacy.secure_aggregation=on"]

    def spent(count: int) -> float:
        """Milliseconds of a client, in so many groups."""
        few, many = (
            bench.run(
                f"groups-{count}-{rounds}",
                *words,
                f"privacy.secure_sum.groups={count}",
                f"federation.num_rounds={rounds}",
            ).processor
            for rounds in LATER
        )
        return (many - few) / (LATER[1] - LATER[0]) / GROUPED * 1e3

    return spent(GROUPS), spent(1)


def million(bench: Bench) -> str:
    """A later round of `experiment=million`, for each of its 10⁴ clients; peak of the run."""
    few, many = (
        bench.spent(
            *("-m", "fl_app", "experiment=million", "engine=inline", "tracking=none"),
            *(f"federation.num_rounds={count}", f"run_dir={bench.folder / f'million-{count}'}"),
        )
        for count in LATER
    )
    each = (many.processor - few.processor) / (LATER[1] - LATER[0]) / 10_000
    return f"{each * 1e3:.2f} ms, {many.peak / MIB:.0f} MiB"


def step(bench: Bench) -> str:
    """Processor time of a tiny client with one step of SGD, over PyTorch's for that gradient."""
    many, few = (_asked(bench, f"step-{rounds}", TINY, rounds).processor for rounds in (6, 1))
    long, short = (bench.spent("-c", GRADIENT.format(n)).processor for n in (51_000, 1_000))
    own = (many - few) / 5 / TINY
    return f"{own * 1e3:.2f} ms, {own / (long - short) * 50_000:.1f}×"


def all_asked(bench: Bench) -> str:
    """Processor time of a round of ``ALL`` tiny clients; the ledger's bytes for each."""
    spent = [_asked(bench, f"all-{count}", count, 1).processor for count in (100, ALL)]
    sizes = [_size(bench.folder / f"all-{count}" / "ledger.sqlite") for count in (100, ALL)]
    return f"{spent[1] - spent[0]:.1f} s; {(sizes[1] - sizes[0]) / (ALL - 100):.1f} B"


def _size(ledger: Path) -> int:
    """Bytes of a database, with what still stood in its log."""
    with closing(sqlite3.connect(ledger)) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return ledger.stat().st_size


def _asked(bench: Bench, name: str, count: int, rounds: int) -> Spent:
    """A run in which ``count`` of ``ALL`` clients take one step in each round."""
    words = [*bench.tiny_data(), f"federation.num_clients={ALL}"]
    words += [f"federation.num_rounds={rounds}"]
    words += [f"federation.clients_per_round={count}", "strategy.local.epochs=1"]
    return bench.run(name, *words)


ROWS: dict[str, tuple[str, Callable[[Bench], str]]] = {
    "iid": ("10⁶ against 10³ clients, IID: the whole run's CPU", lambda b: set_up(b, "iid")),
    "dirichlet": ("the same, Dirichlet", lambda b: set_up(b, "dirichlet")),
    "virtual": ("10⁶ virtual clients on MNIST: peak against 10³", virtual),
    "folder": ("run folder at 10⁶ clients, cohort 100", folder),
    "report": ("`murmur report` of it against 10³: CPU, peak", report),
    "schedule": ("1,000 rounds of 10⁴ drawn clients beside 10", schedule),
    "refusal": ("too many clients for MNIST: CPU until the refusal", refusal),
    "step": ("a tiny client's step: CPU, and over PyTorch's for its gradient", step),
    "all_asked": ("10⁵ clients all asked in a round: CPU; ledger for each", all_asked),
    "rounds": ("what a round costs beside its clients; dp_fedavg's against fedavg's", rounds),
    **{
        name: (
            f"each of 10⁷ parameters, {name}: peak, CPU of a client beyond training",
            partial(parameters, protection=name),
        )
        for name in PROTECTED
    },
    "packing": ("packing 20, 24, 40 bits beside expanding the mask: CPU", packing),
    "sums": ("secure sums, CPU for each client and neighbour: n = 3,000 against 300", sums),
    "groups": (
        f"{GROUPED} clients against a server that lies: in {GROUPS} groups beside one graph",
        groups,
    ),
    "masks": ("a round of 1,000 by real secure sums against simulated ones: CPU", masks),
    "million": ("`experiment=million`: a round, CPU of a client; peak", million),
    "prompt": ("Ray: from results on disk to the prompt", prompt),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--parent", type=Path, metavar="TREE")
    options = parser.parse_args()
    trees = [ROOT]
    if options.parent is not None:
        trees.insert(0, options.parent.resolve())
    print(f"{describe_machine('torch', 'ray', 'numpy')}; load {os.getloadavg()[0]:.0f}\n")
    print(f"| |{' parent |' * (len(trees) - 1)} this commit |\n|---|{'---|' * len(trees)}")
    with tempfile.TemporaryDirectory() as place:
        benches = []
        for number, tree in enumerate(trees):
            benches.append(Bench(tree, Path(place) / str(number)))
            benches[-1].folder.mkdir()
        for name in options.only:
            title, measure = ROWS[name]
            figures = " | ".join(_tried(measure, each) for each in benches)
            print(f"| {title} | {figures} |", flush=True)


def _tried(measure: Callable[[Bench], str], bench: Bench) -> str:
    try:
        return measure(bench)
    except RefusedError as error:
        return f"left out: {error}"


if __name__ == "__main__":
    main()
