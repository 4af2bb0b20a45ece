"""Runs of several processes that are killed at random instants, and resumed each time they end."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from tests.federation.killed_runs import Kill, same_result, words_of
from tests.federation.loopback import wait_for

MURMUR = str(Path(sys.executable).parent / "murmur")
MAIN = "murmur"  # what the user started
WITHIN = 10.0  # seconds in which everything must have ended
PATIENCE = 240.0  # seconds for a run to start, or to go on
# Processes of the ray engine by a word of the command line; the first that fits.
PARTS = {
    "engines.ray_head": "Ray's head",
    "gcs/gcs_server": "gcs",
    "raylet/raylet": "raylet",
    "ray::": "worker",
    "engine=ray": "worker or its template",
}


def kills(
    folder: Path,
    strategy: str,
    count: int,
    victims: tuple[str, ...] = (),
    seed: int = 0,
) -> list[Kill]:
    """Kill a process of a run ``count`` times, each time after one to three more rounds.

    A run that has ended is resumed; one that has finished is followed by another. ``victims``:
    what to kill, in this order; without them each is drawn among all that live.
    """
    draw = random.Random(seed)
    done: list[Kill] = []
    for number in range(count):
        if len(done) < count:
            place = folder / str(number)
            done += _kills(place, strategy, count - len(done), victims[len(done) :], draw)
    return done


def _kills(
    folder: Path,
    strategy: str,
    count: int,
    victims: tuple[str, ...],
    draw: random.Random,
) -> list[Kill]:
    """As many kills as one run lets have, but ``count`` at most."""
    words = words_of(strategy, max(60, 4 * count))
    whole, run = RunFolder(folder / "whole"), RunFolder(folder / "run")
    plain = ValidatedRun.of([*words, "engine=inline", f"run_dir={whole.path}"])
    InlineEngine(nodes=2).run(plain)
    last = len(whole.rows()) - 1
    how = ["engine=ray", "engine.workers=2"]
    living = Living([*how, *words, f"run_dir={run.path}"], folder / "out")
    done: list[Kill] = []
    while len(done) < count:
        living.wait_for_round(run, min(len(run.rows()) + draw.randrange(1, 4), last))
        time.sleep(draw.random() * 0.3)
        names = dict(living.named())
        if run.metrics() is not None or not names:
            break
        chosen = victims[len(done)] if victims else draw.choice(sorted(set(names.values())))
        draw.choice([process for process, name in names.items() if name == chosen]).kill()
        if chosen.startswith("worker"):  # it is replaced
            living.wait_for_round(run, min(len(run.rows()) + 1, last))
            done.append(Kill(strategy, chosen, None, None, 0, same=False))
            continue
        seconds, left, status = living.end()
        done.append(Kill(strategy, chosen, status, seconds, left, same=False))
        if run.metrics() is not None:
            break
        living = Living(["resume", str(run.path), *how], folder / "out")
    living.finish(run)
    same = same_result(run.path, whole.path)
    return [replace(each, same=same) for each in done]


@dataclass
class Living:
    """A `murmur` that was started with ``words``, and all that it has started."""

    words: list[str]
    output: Path
    murmur: psutil.Popen = field(init=False)
    mark: str = field(init=False)

    def __post_init__(self) -> None:
        self.mark = f"kills-{os.getpid()}-{time.monotonic_ns()}"
        with open(self.output, "ab") as output:
            self.murmur = psutil.Popen(
                [MURMUR, *self.words],
                env={**os.environ, "MARK": self.mark},
                stdout=output,
                stderr=output,
            )

    def wait_for_round(self, run: RunFolder, rows: int) -> None:
        """Wait until the run has so many rows, or has ended."""
        wait_for(
            lambda: len(run.rows()) >= rows or self.murmur.poll() is not None, PATIENCE, "a round"
        )

    def named(self) -> Iterator[tuple[psutil.Process, str]]:
        """Those that live and have a name."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                name = next((name for word, name in PARTS.items() if word in line), None)
                if process.pid == self.murmur.pid:
                    yield process, MAIN
                elif name is not None:
                    yield process, name

    def processes(self) -> Iterator[psutil.Process]:
        """Every process that lives with the mark in its environment."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                dead = process.status() == psutil.STATUS_ZOMBIE
                if not dead and process.environ().get("MARK") == self.mark:
                    yield process

    def end(self) -> tuple[float | None, int, int]:
        """Wait until all have ended: after how many seconds, how many had not, the status."""
        begun, seconds = time.monotonic(), None
        while seconds is None and time.monotonic() - begun < WITHIN:
            self.murmur.poll()
            if list(self.processes()):
                time.sleep(0.1)
            else:
                seconds = time.monotonic() - begun
        left = list(self.processes())
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        return seconds, len(left), int(self.murmur.wait())

    def finish(self, run: RunFolder) -> None:
        """Wait for the end of the run, which must be a good one."""
        self.murmur.wait(PATIENCE)
        if run.metrics() is None:
            raise RuntimeError(self.output.read_text(errors="replace")[-3000:])
