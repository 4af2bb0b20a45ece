"""Commands as a user would type them, timed from the outside: seconds, processor time, memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fl_app.config.groups import CONF

ROOT = CONF.parent
POLL_SECONDS = 0.01


def run(command: Sequence[str], log: Path, **environment: str) -> dict:
    """Run to the end; the JSON object that the command printed last. RuntimeError if it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} ended with {done.returncode}; see {log}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def seconds(command: Sequence[str], log: Path) -> float:
    """How long a command takes. RuntimeError if it fails."""
    start = time.perf_counter()
    with open(log, "wb") as output:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {done.returncode}; see {log}")
    return time.perf_counter() - start


def rounds(
    command: Sequence[str], rows: Path, last: int, log: Path, timeout: float, **environment: str
) -> dict:
    """Start a command that appends a row to ``rows`` after each round, and time these from outside.

    Returns the seconds from the command to the end of the first round (``first``), those of each
    later one (``rounds``) and the accuracy after the last. Everything that the command started is
    then ended. RuntimeError if it fails or takes longer than ``timeout`` seconds.
    """
    ends: dict[int, float] = {}
    start = time.perf_counter()
    with open(log, "wb") as output, tagged(environment) as tag:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **tag},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while last not in ends:
            now = time.perf_counter()
            for row in _rows(rows):
                ends.setdefault(row["round"], now)
            # Checked after reading: a command that has ended has written all that it will.
            if last not in ends and (process.poll() is not None or now - start > timeout):
                process.kill()
                raise RuntimeError(f"{' '.join(command[:4])} failed or took too long; see {log}")
            time.sleep(POLL_SECONDS)
        process.wait(timeout)
    content = list(_rows(rows))
    return {
        "first": ends[1] - start,
        "rounds": [ends[number] - ends[number - 1] for number in range(2, last + 1)],
        "accuracy": content[-1].get("accuracy"),
    }


@contextmanager
def tagged(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Mark an environment, and at the end stop every process that still carries the mark.

    Flower's own command leaves its SuperLink running; on Linux its processes are found by it.
    """
    mark = f"benchmark-{os.getpid()}-{time.monotonic_ns()}"
    try:
        yield {**environment, "MURMUR_BENCHMARK": mark}
    finally:
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark.encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except OSError:
                continue  # it ended meanwhile, or is somebody else's


def _rows(path: Path) -> Iterator[dict]:
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)
