"""From the command to the first round's row: every engine, and plain `flwr run`, side by side.

``python -m benchmarks.start --out FOLDER [--repeats 3]`` prints a table: wall seconds until the row
of round 1 is on disk, how many times sooner than `flwr run`, and processor seconds of all
processes that ran until then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.machine import describe_machine
from fl_app.config.groups import CONF
from fl_app.engines.deploy import copy_app
from fl_app.run.results import RunFolder

WORDS = ["federation.num_rounds=1", "privacy.noise=seeded", "tracking=none"]
SIDES = ("inline", "ray", "flwr run")
BIN = Path(sys.executable).parent


def command(side: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """What is typed, and its environment."""
    words = [*WORDS, f"run_dir={folder / 'run'}"]
    if side != "flwr run":
        workers = [] if side == "inline" else ["engine.workers=2"]
        return [str(BIN / "murmur"), f"engine={side}", *workers, *words], dict(os.environ)
    app = copy_app(CONF.parent, folder / "app")
    federation = "num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=2"
    typed = [str(BIN / "flwr"), "run", str(app), "--stream", "--federation-config", federation]
    environment = {
        **os.environ,
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": "39191",
        "FLWR_LOCAL_CONTROL_API_PORT": "39193",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    return [*typed, "--run-config", f'overrides="{" ".join(words)}"'], environment


def measure(side: str, folder: Path) -> tuple[float, float]:
    """Wall and processor seconds until round 1's row."""
    typed, environment = command(side, folder)
    mark = f"start-{os.getpid()}-{time.monotonic_ns()}"
    run, started = RunFolder(folder / "run"), time.monotonic()
    used: dict[int, float] = {}
    process = subprocess.Popen(
        typed,
        env={**environment, "BENCHMARK_START": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not any(row["round"] == 1 for row in run.rows()):
            if process.poll() not in (None, 0) or time.monotonic() - started > 300:
                raise SystemExit(f"{side}: failed; see {folder}")
            used |= processor_seconds(mark)
            time.sleep(0.05)
        seconds = time.monotonic() - started
        used |= processor_seconds(mark)
        process.wait(300)
        return seconds, sum(used.values())
    finally:
        for pid in processor_seconds(mark):
            psutil.Process(pid).kill()


def processor_seconds(mark: str) -> dict[int, float]:
    """By process id, of all that were started with ``mark`` in the environment."""
    found = {}
    for each in psutil.process_iter():
        try:
            if each.environ().get("BENCHMARK_START") == mark:
                spent = each.cpu_times()
                found[each.pid] = spent.user + spent.system
        except psutil.Error:
            continue
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the runs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    given = parser.parse_args()
    print(describe_machine(), f"load {os.getloadavg()[0]:.1f}", sep="; ")
    figures: dict[str, list[tuple[float, float]]] = {side: [] for side in given.sides}
    for number in range(given.repeats):
        for side in given.sides:
            folder = given.out / f"{side.replace(' ', '-')}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            figures[side].append(measure(side, folder))
    medians = {
        side: tuple(statistics.median(values) for values in zip(*found, strict=True))
        for side, found in figures.items()
    }
    print("| | wall, s | sooner than `flwr run` | processor, s |\n|---|---|---|---|")
    for side, (wall, processor) in medians.items():
        sooner = f"{medians['flwr run'][0] / wall:.1f}×" if "flwr run" in medians else ""
        print(f"| `{side}` | {wall:.1f} | {sooner} | {processor:.1f} |")


if __name__ == "__main__":
    main()
