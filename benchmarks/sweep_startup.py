"""What a job of a sweep costs beyond its work, cold and warm, on each engine.

``python -m benchmarks.sweep_startup --out FOLDER``: a sweep of jobs of one round each, per engine.
Work is the run's own clock (``seconds`` in metrics.json: rounds and evaluation); start-up is the
rest of the time between the ends of two jobs. The first job is the cold one: imports, Ray, torch.
``inline`` runs its jobs side by side; it gets one core, so that one ends before the next begins.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.machine import describe_machine

JOB = ["federation.num_clients=4", "federation.num_rounds=1", "strategy.local.epochs=1"]
ENGINES = {
    "inline": ["engine=inline"],
    "ray": ["engine=ray", "engine.workers=2"],
}


def measure(name: str, jobs: int, folder: Path) -> tuple[list[float], float]:
    """Seconds beyond the work for each of ``jobs`` jobs in order; processor seconds of them all.

    The processor time is that of the sweep's process and what it waited for, work included; Ray's
    own processes are not in it.
    """
    seeds = ",".join(str(seed) for seed in range(1, jobs + 1))
    command = [sys.executable, "-m", "fl_app.cli", "-m", *JOB, *ENGINES[name], f"seed={seeds}"]
    if name == "inline":
        command = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), *command]
    started = time.time()
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen([*command, f"results_dir={folder}"], stdout=nowhere)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"the sweep in {folder} failed")
    ends, work = [started], []
    [sweep] = folder.glob("sweep-*")
    for job in json.loads((sweep / "sweep.json").read_text())["jobs"]:
        metrics = sweep / job["key"] / "metrics.json"
        ends.append(metrics.stat().st_mtime)
        work.append(json.loads(metrics.read_text())["seconds"])
    between = [later - earlier for earlier, later in itertools.pairwise(ends)]
    beyond = [total - own for total, own in zip(between, work, strict=True)]
    return beyond, usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="an empty folder for the runs")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{describe_machine('flwr', 'ray', 'torch')}; load {load:.0f} at the start\n")
    print(
        "| engine | first job, s | later jobs, median, s | later jobs, most, s "
        "| processor seconds for one more job, work included |"
    )
    print("|---|---|---|---|---|")
    for number, name in enumerate(options.engines):
        out = options.out.absolute() / str(number)
        _, base = measure(name, 1, out / "one")
        (first, *later), total = measure(name, options.jobs, out / "all")
        later.sort()
        print(
            f"| {name} | {first:.1f} | {later[len(later) // 2]:.2f} | {later[-1]:.2f} "
            f"| {(total - base) / (options.jobs - 1):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
