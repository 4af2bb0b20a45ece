"""Runs whose processes are killed: what is left behind, and whether resuming gives the same result.

``python -m benchmarks.kills ray 28`` kills a process of a run, drawn at random, at a random
instant (SIGKILL), once for each of as many runs, over all algorithms; ``python -m benchmarks.kills
flower`` each kind of process of a run on Flower's own runtime once. Whatever is left is waited for
10 seconds at most; the run is then resumed and compared, bit for bit, with an uninterrupted one in
one process. Prints the rows of a table of ``docs/fire-drill.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.loopback import wait_for
from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder

MURMUR = str(Path(sys.executable).parent / "murmur")
MAIN = "murmur"  # what the user started
WITHIN = 10.0  # seconds in which everything must have ended
COMMON = [
    "federation.num_clients=4",
    "privacy.noise=seeded",
    "tracking=none",
]
# Every algorithm, made small.
RUNS = {
    "privatekt": ["strategy.local.epochs=1"],
    "nbafl": ["strategy.local.epochs=1", "federation.public=0"],
    "dpfl_bnn": ["model.channels=[]", "model.hidden=8"],
    "kd_dpfl": [
        "model=mlp",
        "model.hidden=[]",
        "strategy.grouping.top_k=1",
        "strategy.labelling.epochs=1",
    ],
    "clustering": [],
    "dp_fedavg": [],
    "dp_ftrl": [],
    "fedadam": [
        "protection=distributed",
        "protection.clipping.adaptive=true",
        "protection.clipping.bit_noise=20",
        "privacy.epsilon=100",
    ],
    "scaffold": [],
    "dpsgd_fedavg": ["model=mlp", "model.hidden=[]"],
    "fedavg": [],
    "fedprox": [],
    "centralised": ["federation.num_clients=1"],
    "local_only": [],
}
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


@dataclass(frozen=True)
class Kill:
    """``seconds``: until all had ended; None: the run went on. ``left``: processes after 10 s."""

    victim: str
    status: int
    seconds: float | None
    left: int
    same: bool


def words_of(strategy: str, rounds: int) -> list[str]:
    """The overrides of one small run."""
    chosen = [f"strategy={strategy}", f"federation.num_rounds={rounds}"]
    return [*COMMON, *chosen, *RUNS[strategy]]


def left_behind(folder: RunFolder) -> tuple[list[dict], dict, list[bytes]]:
    """All of a run's result that does not say when it was made."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in folder.rows()]
    metrics = {k: v for k, v in (folder.metrics() or {}).items() if k != "seconds"}
    files = [(folder.path / name).read_bytes() for name in ("model.safetensors", "privacy.json")]
    return rows, metrics, files


def kill(folder: Path, engine: str, words: Sequence[str], victim: str | None, seed: int) -> Kill:
    """Start a run, kill one of its processes, resume it; ``victim``: None draws one."""
    draw, run = random.Random(seed), RunFolder(folder / "run")
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
    replaced = engine == "ray" and chosen.startswith("worker")
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
    same = left_behind(run) == left_behind(whole)
    if not same:
        parts = zip(("rows", "metrics", "files"), left_behind(run), left_behind(whole), strict=True)
        for name, found, wanted in parts:
            if found != wanted:
                print(f"{name} differ:\n{found!r:.3000}\n{wanted!r:.3000}", file=sys.stderr)
    return Kill(chosen, status, None if finished else ended, len(left), same)


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


def table(engine: str, kills: Sequence[Kill]) -> Iterator[str]:
    """A row for each kind of process."""
    for victim in dict.fromkeys(each.victim for each in kills):
        chosen = [each for each in kills if each.victim == victim]
        took = [each.seconds for each in chosen if each.seconds is not None]
        cells = (
            f"`engine={engine}`: {victim}",
            str(len(chosen)),
            f"at most {max(took):.1f} s" if took else "the run went on",
            str(sum(each.left for each in chosen)),
            ", ".join(sorted({str(each.status) for each in chosen})),
            f"{sum(each.same for each in chosen)} of {len(chosen)}",
        )
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=sorted(PARTS))
    parser.add_argument("kills", nargs="?", type=int, default=0, help="at random; 0: one of each")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", help="one kind of process: a part of its name")
    chosen = parser.parse_args()
    each = [MAIN, *dict.fromkeys(PARTS[chosen.engine].values())]
    each = [name for name in each if (chosen.only or "") in name]
    victims: list[str | None] = [None] * chosen.kills if chosen.kills else [*each]
    done: list[Kill] = []
    for number, victim in enumerate(victims):
        words = words_of(list(RUNS)[number % len(RUNS)], chosen.rounds)
        with tempfile.TemporaryDirectory(prefix="murmur-kill-") as folder:
            done.append(kill(Path(folder), chosen.engine, words, victim, number))
        print(words[3], done[-1], file=sys.stderr, flush=True)
    print("| killed | times | all ended after | left after 10 s | status | the same result |")
    print("|---|---|---|---|---|---|")
    print("\n".join(table(chosen.engine, done)))


if __name__ == "__main__":
    main()
