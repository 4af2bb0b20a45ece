"""What a start consists of: every process of a command, when it began and what it computed.

    python -m benchmarks.start_profile key=value ...

Runs ``murmur`` with these settings (one round of digits unless they say otherwise) and prints, for
the moment when the first round has ended, a Markdown row for each process that used a third of a
second of processor time or more.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.machine import describe_machine
from benchmarks.workloads import DIGITS
from fl_app.run.results import RunFolder

POLL_SECONDS = 0.05
MIN_SECONDS = 0.3


@dataclass(frozen=True)
class Process:
    """``begin``: seconds after the command; ``computed``: seconds of processor time so far."""

    name: str
    begin: float
    computed: float


def processes(start: float) -> dict[int, Process]:
    """All that this process has started, by process id; ``start``: since the epoch."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error), child.oneshot():
            words, spent = child.cmdline(), child.cpu_times()
            begin = max(0.0, child.create_time() - start)
            found[child.pid] = Process(_name(words), begin, spent.user + spent.system)
    return found


def first_round(command: list[str], folder: RunFolder) -> tuple[float, list[Process]]:
    """Seconds from the command to the end of its first round, and what ran until then."""
    start = time.time()
    seen: dict[int, Process] = {}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not any(row["round"] == 1 for row in folder.rows()):
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
            seen |= processes(start)
            time.sleep(POLL_SECONDS)
        return time.time() - start, list(seen.values())
    finally:
        process.wait()


def _name(words: list[str]) -> str:
    programs = [Path(word).name for word in words if not word.startswith("-")]
    if len(programs) > 1 and programs[0].startswith("python"):
        del programs[0]
    return programs[0].strip() if programs else "ended"


def main() -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch) / "run")
        settings = [*DIGITS.settings, "federation.num_rounds=1", *sys.argv[1:]]
        murmur = str(Path(sys.executable).parent / "murmur")
        seconds, seen = first_round([murmur, *settings, f"run_dir={folder.path}"], folder)
    print(describe_machine("torch", "flwr", "ray"))
    print(f"\n{' '.join(sys.argv[1:])}: first round after {seconds:.1f} s\n")
    print("| process | begins, s | processor time, s |\n|---|---|---|")
    for each in sorted(seen, key=lambda one: one.begin):
        if each.computed >= MIN_SECONDS:
            print(f"| {each.name} | {each.begin:.1f} | {each.computed:.1f} |")
    print(f"| all | | {sum(each.computed for each in seen):.1f} |")


if __name__ == "__main__":
    main()
