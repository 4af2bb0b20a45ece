"""How much one machine carries: clients in a round, and rounds of a run.

``python -m benchmarks.load clients|rounds [N]`` prints a row of the table "load and faults"
of ``docs/fire-drill.md``. Memory is the peak of resident pages of all processes.
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

MURMUR = str(Path(sys.executable).parent / "murmur")
MIB = 2**20
ONE_LABEL = ["strategy.K=1", "strategy.local.epochs=1", "privacy.noise=seeded", "tracking=none"]


def memory(processes: Sequence[psutil.Process]) -> float:
    """MiB that they hold now, shared pages counted once."""
    total = 0.0
    for each in processes:
        try:
            shares = re.findall(
                r"^Pss:\s+(\d+)", Path(f"/proc/{each.pid}/smaps_rollup").read_text(), re.M
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
        after += [memory([process])] * (rows - len(after))
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


KINDS: dict[str, tuple[Callable[[int], str], int]] = {
    "clients": (clients, 10_000),
    "rounds": (rounds, 400),
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
