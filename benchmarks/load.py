"""How much one machine carries: clients in a round, devices beside each other, rounds of a run.

``python -m benchmarks.load clients|rounds|devices [N]`` prints a row of the table "load and faults"
of ``benchmarks/fire-drill.md``. Memory of runs is what they alone hold; of devices the peak of all
processes together, with pages that they share counted once.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from fl_app.run.results import RunFolder
from fl_app.tools.export import export
from tests.federation.loopback import Federation, wait_for

MURMUR = str(Path(sys.executable).parent / "murmur")
MIB = 2**20
ONE_LABEL = [
    "strategy=privatekt",
    "strategy.K=1",
    "strategy.local.epochs=1",
    "privacy.noise=seeded",
    "tracking=none",
]


def memory(processes: Sequence[psutil.Process], kind: str = "Pss") -> float:
    """MiB that they hold now: ``Pss`` counts shared pages once, ``Anonymous`` leaves files out."""
    total = 0.0
    for each in processes:
        try:
            shares = re.findall(
                rf"^{kind}:\s+(\d+)", Path(f"/proc/{each.pid}/smaps_rollup").read_text(), re.M
            )
            total += sum(map(int, shares)) / 1024
        except (psutil.Error, OSError):
            continue  # it ended meanwhile
    return total


def watched(words: Sequence[str], folder: RunFolder) -> tuple[list[float], float]:
    """Run `murmur`; its memory (MiB) when each round was over, and the seconds in all."""
    begun, after = time.monotonic(), list[float]()
    command = [MURMUR, "engine=inline", *words, f"run_dir={folder.path}"]
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(0.05)
        rows = len(folder.rows()) if folder.rows_path.exists() else 0
        after += [memory([process], "Anonymous")] * (rows - len(after))
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return after, time.monotonic() - begun


def clients(count: int) -> str:
    """``count`` clients of MNIST in each of two rounds."""
    words = [*ONE_LABEL, "dataset=mnist", "federation.public=1000", "federation.num_rounds=2"]
    words += [f"federation.num_clients={count}", f"federation.clients_per_round={count}"]
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        after, _ = watched(words, folder)
        row = folder.rows()[-1]
        answered, took = row["answered"], row["seconds"]
    return f"clients per round | {answered:,}: {took:.0f} s, {max(after):,.0f} MiB | all answered"


def rounds(count: int) -> str:
    """``count`` rounds of a small run: memory early and late."""
    words = [*ONE_LABEL, "federation.num_clients=4", f"federation.num_rounds={count}"]
    with tempfile.TemporaryDirectory() as place:
        after, took = watched(words, RunFolder(Path(place) / "run"))
    early, late = after[count // 4], after[-2]
    found = f"{count} in {took:.0f} s: {early:.0f} MiB after {count // 4}, {late:.0f} at the end"
    growth = (late - early) / (count - count // 4) * 1024
    return f"rounds without growth | {found} | {growth:.1f} KiB a round"


def devices(count: int) -> str:
    """``count`` SuperNodes with a device each, TLS and node authentication; two rounds of all."""
    words = [*ONE_LABEL, "privacy.epsilon=2", "dataset=digits", "federation.public=200"]
    words += [f"federation.num_clients={count}", "federation.num_rounds=2"]
    words += ["federation.quorum=1.0", "federation.round_timeout=900"]
    with tempfile.TemporaryDirectory() as place, Federation(Path(place)) as federation:
        export(federation.folder / "data", words, shards=True)
        federation.start_link()
        begun = time.monotonic()
        for client in range(count):
            key = federation.enrol(client)
            federation.start_node(client, key, federation.device(client))
        wait_for(lambda: federation.online() == count, 900, f"{count} nodes")
        online = time.monotonic() - begun
        folder = RunFolder(Path(place) / "run")
        run = federation.murmur(*federation.words, *words, f"run_dir={folder.path}")
        most = 0.0
        while run.poll() is None:
            time.sleep(1.0)
            most = max(most, memory(psutil.Process().children(recursive=True)))
        rows = folder.rows()[1:]
        if not rows or any(row["failed"] for row in rows):
            raise RuntimeError(f"{[row['failed'] for row in rows]}\n{federation.log('murmur')}")
    answered = min(row["answered"] for row in rows)
    times = " and ".join(f"{row['seconds']:.0f}" for row in rows)
    found = f"{answered} of {count} answered: online in {online:.0f} s, rounds in {times} s"
    beside = "TLS, node authentication, a `murmur device` for each"
    return f"SuperNodes on one machine | {found}, {most:,.0f} MiB in all | {beside}"


KINDS: dict[str, tuple[Callable[[int], str], int]] = {
    "clients": (clients, 10_000),
    "rounds": (rounds, 400),
    "devices": (devices, 8),
}


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("count", type=int, nargs="?", metavar="N")
    chosen = parser.parse_args()
    measure, usual = KINDS[chosen.kind]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"| {measure(chosen.count or usual)} |", flush=True)


if __name__ == "__main__":
    main()
