"""Runs in one process that are killed before a chosen call, and resumed with two workers.

An instant is a number of calls that this project's functions make or get, C functions included, so
it can lie between any two writes, and a failure can be repeated. Each run is a process of its own,
forked from one that has imported and validated everything, and its SIGKILL is a real one.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import torch

from fl_app.config.groups import CONF
from fl_app.run.prepare import prepare, validated
from fl_app.run.results import RunFolder
from fl_app.tools.rerun import resume
from tests.federation.killed_runs import Kill, same_result, words_of

ROUNDS = 2
OURS = ("fl_app", "strategies", "clients", "murmur")
_FOLDERS = tuple(f"{CONF.parent}/{name}/" for name in OURS)
_NEVER = -1
# What runs are forked from must have started no threads, whatever the caller has.
_CLEAN = multiprocessing.get_context("forkserver")
_PRELOADED = ["tests.federation.killed_calls", "fl_app.server_app", "fl_app.client_app"]
_CLEAN.set_forkserver_preload(_PRELOADED)
_FORK = multiprocessing.get_context("fork")


def kills(strategy: str, count: int, folder: Path) -> Iterator[Kill]:
    """Kill ``count`` runs, each at an instant drawn by a fixed seed, and resume each."""
    here, there = _CLEAN.Pipe(duplex=False)
    process = _CLEAN.Process(target=_kills, args=(there, strategy, count, folder))
    process.start()
    there.close()
    for _ in range(count):
        yield here.recv()  # EOFError: the process that does it has failed, and said why
    process.join()


def _kills(there: Connection, strategy: str, count: int, folder: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    words, whole = ["engine=inline", *words_of(strategy, ROUNDS)], folder / "whole"
    validated(words)
    status, calls = _forked(_counted, words, whole, _NEVER)
    if status:
        raise RuntimeError(f"{strategy}: not even the uninterrupted run ends well")
    draw = random.Random(strategy)
    for number in range(count):
        path = folder / str(number)
        status, _ = _forked(_counted, words, path, draw.randrange(calls))
        finished = RunFolder(path).metrics() is not None
        again = 0 if finished else _forked(_resumed, path)[0]
        there.send(
            Kill(strategy, "murmur", status, None, 0, not again and same_result(path, whole))
        )


def _forked(target: Callable[..., int], *arguments: object) -> tuple[int, int]:
    """The exit status of a new process that calls ``target``, and what it returned."""
    here, there = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_returned, args=(there, target, *arguments))
    process.start()
    there.close()
    try:
        found = here.recv()
    except EOFError:
        found = 0
    process.join()
    return process.exitcode or 0, found


def _returned(there: Connection, target: Callable[..., int], *arguments: object) -> None:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    there.send(target(*arguments))


def _counted(words: Sequence[str], path: Path, fatal: int) -> int:
    """Run, and be killed before call ``fatal``; how many there were."""
    counter = itertools.count()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "c_call") or not frame.f_code.co_filename.startswith(_FOLDERS):
            return
        if next(counter) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    ready = prepare([*words, f"run_dir={path}"])
    threading.setprofile(look)
    sys.setprofile(look)
    ready.run()
    sys.setprofile(None)
    return next(counter)


def _resumed(path: Path) -> int:
    """Let `murmur resume` go on with other workers; the process ends with its status."""
    sys.exit(resume([str(path), "engine.workers=2"]))
