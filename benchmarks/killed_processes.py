"""Runs of several processes, one of which is killed at a random instant, and resumed."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.killed_runs import Kill, same_result, words_of
from benchmarks.loopback import wait_for
from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder

MURMUR = str(Path(sys.executable).parent / "murmur")
MAIN = "murmur"  # what the user started
WITHIN = 10.0  # seconds in which everything must have ended
# By a word of the command line; the first that fits.
PARTS = {
    "ray": {
        "engines.ray_head": "Ray's head",
        "gcs/gcs_server": "gcs",
        "raylet/raylet": "raylet",
        "ray::": "worker",
        "engine=ray": "worker or its template",
    },
    "flower": {
        "engines.family": "the guard",
        "private_superlink": "SuperLink",
        "flower-superexec": "SuperExec",
        "flwr-simulation": "simulation (ServerApp)",
        "gcs/gcs_server": "gcs",
        "raylet/raylet": "raylet",
        "ray::ClientAppActor": "worker (ClientApp)",
        "flwr run": "flwr",
    },
}


def kill(
    folder: Path, engine: str, strategy: str, rounds: int, victim: str | None, seed: int
) -> Kill:
    """Start a run, kill one of its processes, resume it; ``victim``: None draws one."""
    draw, run = random.Random(seed), RunFolder(folder / "run")
    words = words_of(strategy, rounds)
    whole = RunFolder(folder / "whole")
    InlineEngine(nodes=2).run([*words, "engine=inline", f"run_dir={whole.path}"], whole)
    mark = f"kills-{os.getpid()}-{seed}-{time.monotonic_ns()}"
    command = [MURMUR, f"engine={engine}", "engine.workers=2", *words, f"run_dir={run.path}"]
    with open(folder / "out", "wb") as output:
        murmur = psutil.Popen(
            command, env={**os.environ, "MARK": mark}, stdout=output, stderr=output
        )
    rows = draw.randrange(1, 4)
    wait_for(lambda: len(run.rows()) >= rows or murmur.poll() is not None, 240, "a round")
    time.sleep(draw.random() * 0.3)
    family = dict(named(marked(mark), engine, murmur.pid))
    chosen = victim or draw.choice(sorted(set(family.values())))
    process = draw.choice([p for p, name in family.items() if name == chosen])
    process.kill()
    begun, ended = time.monotonic(), None
    replaced = chosen.startswith("worker")
    while time.monotonic() - begun < (240 if replaced else WITHIN):
        murmur.poll()
        if not list(marked(mark)):
            ended = time.monotonic() - begun
            break
        time.sleep(0.1)
    left = list(marked(mark))
    for each in left:
        with contextlib.suppress(psutil.Error):
            each.kill()
    status = murmur.wait()
    finished = run.metrics() is not None
    if not finished:
        # Flower's runtime takes a minute to start; the engines go on with each other's runs.
        again = ["engine=inline", "engine.nodes=2"] if engine == "flower" else ["engine.workers=2"]
        command = [MURMUR, "resume", str(run.path), *again]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
    same = same_result(run.path, whole.path)
    return Kill(strategy, chosen, status, None if finished else ended, len(left), same)


def marked(mark: str) -> Iterator[psutil.Process]:
    """Every process that lives with ``mark`` in its environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            dead = process.status() == psutil.STATUS_ZOMBIE
            if not dead and process.environ().get("MARK") == mark:
                yield process


def named(
    processes: Iterator[psutil.Process], engine: str, murmur: int
) -> Iterator[tuple[psutil.Process, str]]:
    """Those that have a name; the ``murmur`` that was started is told by its id."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            name = next((name for word, name in PARTS[engine].items() if word in line), None)
            if process.pid == murmur:
                yield process, MAIN
            elif name is not None:
                yield process, name
