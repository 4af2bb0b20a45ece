"""One run of Murmur in this process, looked at from inside: overhead, privacy's share, memory.

    python -m benchmarks.probes {overhead,privacy,memory,processor} key=value ...

Prints one line of JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from benchmarks import client_memory, privacy_share
from benchmarks.privacy_share import timed
from clients.fedavg import FedAvgClient
from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from strategies.base import CohortStrategy

ROUNDS = 2


def overhead(settings: list[str]) -> dict[str, float]:
    """What a round takes beside its clients' training and the evaluation of the model.

    ``share``: of the round; ``per_client``: seconds; of the last round, since the first one
    builds what a process keeps.
    """
    spent: dict[str, float] = {"work": 0.0}
    marks: list[float] = []

    def row_written(*_: object) -> None:
        marks.append(spent["work"])

    with (
        timed(FedAvgClient, "train", "work", spent),
        timed(CohortStrategy, "evaluate", "work", spent),
        after(RunFolder, "append_row", row_written),
    ):
        rows = _run([*settings, f"federation.num_rounds={ROUNDS}"])
    work = marks[-1] - marks[-2]
    last = rows[-1]
    rest = last["seconds"] - work
    return {
        "share": rest / last["seconds"],
        "per_client": rest / last["answered"],
        "round": last["seconds"],
    }


@contextmanager
def after(owner: type, name: str, call: Callable[..., None]) -> Iterator[None]:
    """Call ``call`` after each ``owner.name`` while the context lasts."""
    original = getattr(owner, name)

    def wrapper(*args, **kwargs):
        result = original(*args, **kwargs)
        call(*args)
        return result

    with mock.patch.object(owner, name, wrapper):
        yield


def privacy(settings: list[str]) -> dict[str, float]:
    """The share of mechanism, policy, ledger and accounting in PrivateKT's rounds."""
    spent, whole = privacy_share.measure([*settings, f"federation.num_rounds={ROUNDS + 1}"])
    return {"share": sum(spent.values()) / whole, **{k: v / whole for k, v in spent.items()}}


def memory(settings: list[str]) -> dict[str, float]:
    """Peak resident memory of the whole process, server and node, in MiB."""
    _run([*settings, f"federation.num_rounds={ROUNDS}"])
    # Not the operating system's maximum, which counts what the parent held when it forked.
    return {"peak": client_memory.memory("VmHWM")}


def processor(settings: list[str]) -> dict[str, list[float]]:
    """Processor seconds of each round, of server and clients together."""
    marks: list[float] = []
    with after(RunFolder, "append_row", lambda *_: marks.append(time.process_time())):
        _run([*settings, f"federation.num_rounds={ROUNDS}"])
    return {"rounds": [later - earlier for earlier, later in itertools.pairwise(marks)]}


def _run(settings: list[str]) -> list[dict]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch) / "run")
        InlineEngine().run(ValidatedRun.of([*settings, f"run_dir={folder.path}"]))
        return folder.rows()


def main() -> None:
    """The probe named first."""
    name, *settings = sys.argv[1:]
    probes = {"overhead": overhead, "privacy": privacy, "memory": memory, "processor": processor}
    print(json.dumps(probes[name](settings)))


if __name__ == "__main__":
    main()
