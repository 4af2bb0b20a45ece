"""The jobs of a plain sweep in processes of their own, as many as there are cores.

The processes are forks of one that has imported everything and has no threads (``forkserver``), so
a job costs no imports. One that dies costs its own job, which the same command does again.
"""

from __future__ import annotations

import json
import multiprocessing.util
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fl_app.engines.processes import socket_folder
from fl_app.sweep.sweep import Sweep, SweepFolder, note_lost_job, run_job

_IMPORTED = ["fl_app.run.prepare", "fl_app.client_app", "fl_app.server_app"]
_DONE = b"done"


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(sweep: Sweep) -> None:
    """Run what is unfinished to its end: on all cores, where each job keeps one of them busy."""
    if sweep.single:
        _run_on_all_cores(sweep.unfinished(), sweep.folder, Path.cwd())
        return
    for words in sweep.unfinished():
        run_job(words, sweep.folder, Path.cwd())


def _run_on_all_cores(jobs: Sequence[Sequence[str]], folder: SweepFolder, base: Path) -> None:
    count = min(cores(), len(jobs))
    threads = max(1, cores() // max(count, 1))
    waiting = deque(jobs)
    before, tempfile.tempdir = tempfile.tempdir, socket_folder()
    multiprocessing.util.get_temp_dir()  # chosen once, at its first use
    tempfile.tempdir = before
    workers = {w.pipe: w for w in (_Worker(folder, base, threads) for _ in range(count))}
    try:
        for worker in workers.values():
            worker.begin(waiting.popleft())
        while workers:
            for pipe in wait(list(workers)):
                assert isinstance(pipe, Connection)
                worker = workers.pop(pipe)
                if not worker.has_answered():
                    note_lost_job(worker.job, folder, base, worker.loss())
                    worker = _Worker(folder, base, threads) if waiting else worker
                if waiting:
                    worker.begin(waiting.popleft())
                    workers[worker.pipe] = worker
                else:
                    worker.end()
    finally:
        for worker in workers.values():
            worker.end()


class _Worker:
    """A process that does one job after the other."""

    def __init__(self, folder: SweepFolder, base: Path, threads: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, folder.path, base, threads), daemon=True
        )
        self.process.start()
        theirs.close()

    def begin(self, job: Sequence[str]) -> None:
        self.job = job
        self.pipe.send_bytes(json.dumps(list(job)).encode())

    def has_answered(self) -> bool:
        try:
            return self.pipe.recv_bytes() == _DONE
        except (EOFError, ConnectionError):
            return False

    def loss(self) -> RuntimeError:
        self.process.join()
        return RuntimeError(f"its process ended with status {self.process.exitcode}")

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, folder: Path, base: Path, threads: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for `murmur`, which ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    while True:
        try:
            job = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        run_job(job, SweepFolder(folder), base)
        pipe.send_bytes(_DONE)


def _end_with_parent() -> None:
    """End when `murmur` does: it is not the fork server that is killed, and that would go on."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
