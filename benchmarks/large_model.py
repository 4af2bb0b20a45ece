"""What a round with a large model takes.

    python -m benchmarks.large_model [inline] [ray] [devices] [--layers NUMBER]

One round of six clients under distributed noise, summed by secure sums with real masks, on digits
that they share:

* ``inline``: in one process.
* ``ray``: on two workers.
* ``devices``: a SuperLink with TLS and node authentication, and for each client a SuperNode and a
  device beside it.

The model has hidden layers of 4,096 units, as wide as a device takes them; four of them, the
default, have 5·10⁷ parameters, 200 MB. Prints Markdown: seconds from the command to its end, and
the peaks of the proportional set size (PSS: memory that processes share is divided among them),
which is looked at four times a second: of all processes together, and of the largest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.machine import describe_machine
from benchmarks.processes import ROOT
from fl_app.tools.export import export
from tests.federation.loopback import Federation, wait_for

CLIENTS = 6
UNITS, LAYERS = 4096, 4
WORDS = [
    *("strategy=fedavg", "protection=distributed", "privacy.secure_aggregation=on"),
    *("privacy.epsilon=8", "dataset=digits", f"federation.num_clients={CLIENTS}"),
    *("federation.public=100", "federation.num_rounds=1", "strategy.local.epochs=1"),
    *("federation.round_timeout=3000", "tracking=none", "model=mlp"),
]
POLICY = """
expires: 2099-01-01
servers: any
algorithms: [fedavg]
mechanisms: {discrete_gaussian: {min_noise_multiplier: 0.01}}
epsilon_per_release: 8
epsilon_per_lifetime: 8
delta: 1.0e-5
threat: secure_aggregation
minimum_surviving_clients: 2
assumptions: [no_invented_clients]
allow_seeded_noise: false
allow_non_private: false
"""
MARK = "LARGE_MODEL"  # in the environment of every process that counts
LOOK_SECONDS = 0.25


class Peak:
    """Of the proportional set sizes of all processes whose environment holds ``mark``.

    Attributes:
        total: of all of them together, in bytes.
        largest: of one.
    """

    def __init__(self, mark: str) -> None:
        self.total = self.largest = 0
        self._mark = mark
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at them while the block is at work."""
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            sizes = [self._size_of(process) for process in psutil.process_iter()]
            self.total = max(self.total, sum(sizes))
            self.largest = max(self.largest, *sizes, 0)

    def _size_of(self, process: psutil.Process) -> int:
        """Its PSS in bytes, where there is none what it alone has; 0 without the mark."""
        try:
            if process.environ().get(MARK) != self._mark:
                return 0
            memory = process.memory_full_info()
        except (psutil.Error, OSError):
            return 0
        return getattr(memory, "pss", memory.uss)


def simulated(engine: list[str], folder: Path, words: list[str]) -> None:
    """A run of `murmur` on ``engine``; RuntimeError with what it said where it fails."""
    command = [sys.executable, "-m", "fl_app", *engine, *words, f"run_dir={folder / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def devices(folder: Path, words: list[str]) -> None:
    """The same on devices; RuntimeError with what everybody has said where it fails."""
    with Federation(folder) as federation:
        export(folder / "data", words, shards=True)
        policy = folder / "owners.yaml"
        policy.write_text(POLICY)
        federation.start_link()
        for client in range(CLIENTS):
            key = federation.enrol(client)
            owner = {**federation.device(client), "policy": str(policy)}
            federation.start_node(client, key, owner)
        wait_for(lambda: federation.online() == CLIENTS, 300, "the devices")
        if federation.murmur(*federation.words, *words, f"run_dir={folder / 'run'}").wait():
            raise RuntimeError(federation.story())


WAYS: dict[str, Callable[[Path, list[str]], None]] = {
    "inline": lambda *where: simulated(["engine=inline"], *where),
    "ray": lambda *where: simulated(["engine=ray", "engine.workers=2"], *where),
    "devices": devices,
}


def main() -> None:
    """Print a row for each way that is asked for; all of them by default."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("way", nargs="*", help=f"{', '.join(WAYS)} (default: all)")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"hidden, of {UNITS} units each")
    options = parser.parse_args()
    if unknown := set(options.way) - set(WAYS):
        parser.error(f"{', '.join(sorted(unknown))}: must be of {', '.join(WAYS)}")
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(_paths())}
    words = [*WORDS, f"model.hidden={[UNITS] * options.layers}".replace(" ", "")]
    print(f"{describe_machine('torch', 'ray', 'flwr')}; load {os.getloadavg()[0]:.0f}\n")
    size = (64 + 1) * UNITS + (options.layers - 1) * (UNITS + 1) * UNITS + (UNITS + 1) * 10
    print(f"{CLIENTS} clients, {size:,} parameters\n")  # of images of 8×8 pixels in 10 classes
    print("| where | seconds | all processes, GB | the largest, GB |\n|---|---|---|---|")
    for way in options.way or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ[MARK] = folder
            peak, begun = Peak(folder), time.monotonic()
            with peak.watching():
                WAYS[way](Path(folder), words)
            seconds = time.monotonic() - begun
            sizes = f"{peak.total / 1e9:.2f} | {peak.largest / 1e9:.2f}"
            print(f"| {way} | {seconds:.0f} | {sizes} |", flush=True)


def _paths() -> list[str]:
    """Where processes that start elsewhere find this project."""
    return [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]


if __name__ == "__main__":
    main()
