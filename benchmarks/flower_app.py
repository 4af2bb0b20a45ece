"""What the three lines cost a plain Flower app: ``python -m benchmarks.flower_app``.

``examples/plain_flower_app`` as it is, with its patch, and with ``server="honest"`` in that, one
after the other on this machine:

* ``simulation``: ``flwr run`` on 10 simulated nodes.
* ``supernodes``: a SuperLink with TLS and node authentication, and three of Flower's own
  SuperNodes, which start the app that the run brings in a new process for each message.
* ``devices``: the same with `murmur supernode`, and beside each a resident process that answers
  with the app, which its owner has installed. None is locked in.
* ``guard``: the same three under ``murmur guard``, with the client's half as it is. Its devices
  answer at the instant that their policy fixes, here ``ANSWER_SECONDS``: a round takes that and the
  phases of the protocol.

Seconds a round, the mean of those after the first, which starts the workers; on devices also the
seconds of processor of all processes together, which other work on this machine hardly changes.
Nobody evaluates on clients, since only the plain app would. And the share of test digits that the
last model gets right. Prints Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.common.config import parse_config_args

from benchmarks.machine import describe_machine
from tests.federation.loopback import (
    NAME,
    PROJECT,
    Federation,
    SimulatedRuns,
    lines_of,
    wait_for,
)
from tests.murmur.flower.nodes import POLICY

APP = PROJECT / "examples" / "plain_flower_app"
ROUNDS = 6
CONFIG = f"num-server-rounds={ROUNDS} fraction-evaluate=0.0"
HONEST = "the same, `server=honest`"
ASSUMING = POLICY.replace("no_invented", "honest_server, no_invented")
ANSWER_SECONDS = 30
GUARD = f"""
guard:
  bundles: any
  data: []
  app_seconds: 25
  answer_seconds: {ANSWER_SECONDS}
  cpu_seconds: 100
  memory_mib: 2000
  disk_mib: 64
  processes: 100
  unprotected: refuse
"""


def main() -> None:
    """Measure what is asked for, or be one of the resident devices."""
    parser = argparse.ArgumentParser(description=__doc__)
    where = {
        "simulation": simulation,
        "supernodes": supernodes,
        "devices": devices,
        "guard": guard,
    }
    parser.add_argument("what", nargs="*", help=f"{', '.join(where)} (default: all)")
    parser.add_argument("--app", type=Path, help="be a device that answers with this app")
    parser.add_argument("--node-config", help="of this device")
    parser.add_argument("--runtime-api-address", help="its SuperNode's")
    parser.add_argument("--superexec-auth-secret-file", type=Path)
    arguments = parser.parse_args()
    if arguments.app:
        answer(arguments)
        return
    # The devices start in other folders, and find this file by it.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    print(f"{describe_machine('torch', 'flwr')}\n")
    print("| where | app | a round | of plain's | of processor | right |")
    print("|---|---|---|---|---|---|")
    for what in arguments.what or where:
        with tempfile.TemporaryDirectory() as folder:
            first = None
            for name, one in where[what](Path(folder)):
                first = first or one
                print(
                    f"| {what} | {name} | {one.seconds:.2f} s | "
                    f"{one.seconds / first.seconds:.2f} times | {one.processor:.1f} s | "
                    f"{one.right:.3f} |",
                    flush=True,
                )


@dataclass(frozen=True)
class Found:
    """``seconds``: of a round. ``processor``: of all processes in it; NaN where nobody counts.

    ``right``: the share of test digits that the model gets right.
    """

    seconds: float
    processor: float
    right: float


def app(folder: Path, *halves: str) -> Path:
    """A copy of the app in ``folder``, with the patch's lines for ``halves``: server, client."""
    shutil.copytree(APP, folder)
    for half in halves:
        command = ["git", "apply", "-p0", "--include", f"plain_app/{half}_app.py"]
        subprocess.run([*command, "three_lines.patch"], cwd=folder, check=True)
    return folder


def trusting(folder: Path) -> Path:
    """The app with the three lines, against a server that follows the protocol."""
    private = app(folder, "server", "client")
    path = private / "plain_app" / "server_app.py"
    path.write_text(path.read_text().replace("epsilon=", 'server="honest", epsilon='))
    return private


def simulation(folder: Path) -> Iterator[tuple[str, Found]]:
    """On 10 simulated nodes."""
    runs = SimulatedRuns(folder / "flwr")
    try:
        yield "plain", found(runs.lines(app(folder / "plain"), 10, CONFIG))
        private = app(folder / "private", "server", "client")
        yield "with the three lines", found(runs.lines(private, 10, CONFIG))
        yield HONEST, found(runs.lines(trusting(folder / "trusting"), 10, CONFIG))
    finally:
        runs.close()


def supernodes(folder: Path) -> Iterator[tuple[str, Found]]:
    """On three of Flower's own SuperNodes."""
    yield "plain", on_devices(folder / "four", app(folder / "plain"))
    private = app(folder / "private", "server", "client")
    yield "with the three lines", on_devices(folder / "five", private)
    yield HONEST, on_devices(folder / "six", trusting(folder / "trusting"))


def devices(folder: Path) -> Iterator[tuple[str, Found]]:
    """On three resident devices."""
    answers = [sys.executable, "-m", "benchmarks.flower_app", "--app"]
    plain = app(folder / "plain")
    yield "plain", on_devices(folder / "one", plain, lambda own: [*answers, str(plain)])
    private = app(folder / "private", "server", "client")
    yield (
        "with the three lines",
        on_devices(folder / "two", private, lambda own: [*answers, str(private)]),
    )
    honest = trusting(folder / "trusting")
    yield HONEST, on_devices(folder / "seven", honest, lambda own: [*answers, str(honest)])


def guard(folder: Path) -> Iterator[tuple[str, Found]]:
    """On three devices that lock the app in."""
    guarded = app(folder / "app", "server")
    command = ["murmur", "guard", "--device"]
    yield (
        "with the server's two",
        on_devices(folder / "three", guarded, lambda own: [*command, str(own)]),
    )


def on_devices(
    folder: Path, app: Path, command: Callable[[Path], Sequence[str]] | None = None
) -> Found:
    """What ``app`` does on three devices.

    ``command`` starts what answers, with its own folder; None: Flower's SuperNode does.
    """
    with Federation(folder, patient=True) as federation:
        federation.start_link()
        for number in range(3):
            own = federation.folder / f"owner-{number}"
            own.mkdir()
            (own / "policy.yaml").write_text(ASSUMING + GUARD)
            config = {
                "partition-id": number,
                "num-partitions": 3,
                "murmur": str(own),
                "state": str(own),
            }
            key = federation.enrol(number)
            if command is None:
                federation.start_node(number, key, config, runs_sent_code=True)
            else:
                federation.start_node(number, key, config, device=command(own))
        wait_for(lambda: federation.online() == 3, 300, "three nodes")
        run = ["flwr", "run", str(app), NAME, "--stream", "--run-config", CONFIG]
        lines = lines_of(run, federation.environment, app)
        return found(lines, federation.processor_seconds)


def found(lines: Iterable[str], spent: Callable[[], float] = lambda: math.nan) -> Found:
    """Read out of a run's log as it comes in; RuntimeError where the run did not end.

    ``spent``: seconds of processor until now.
    """
    begun = []
    used = []
    told = []
    for line in lines:
        told.append(line)
        if "[ROUND " in line or "Strategy execution finished" in line:
            begun.append(time.monotonic())
            used.append(spent())
    right = re.findall(r"'accuracy': (0\.\d+)", "".join(told))
    if len(begun) != ROUNDS + 1 or not right:
        raise RuntimeError("".join(told[-40:]))
    rounds = ROUNDS - 1
    return Found((begun[-1] - begun[1]) / rounds, (used[-1] - used[1]) / rounds, float(right[-1]))


def answer(arguments: argparse.Namespace) -> None:
    """Be a device that answers with the ClientApp in a folder, whatever code a server sends."""
    from fl_app.device.proof import proven_runtime
    from fl_app.device.service import Device
    from murmur.compat.flower_runtime import RuntimeTask, TaskInput

    sys.path.insert(0, str(arguments.app))
    client = importlib.import_module("plain_app.client_app").app

    class OpenDevice(Device):
        def answer(self, task: RuntimeTask, task_input: TaskInput) -> Message:
            given = task_input.context
            run_config = dict(given.run_config)
            context = Context(given.run_id, given.node_id, self.owner, RecordDict(), run_config)
            return client(task_input.message, context)

    secret = arguments.superexec_auth_secret_file.read_bytes()
    owner = parse_config_args([arguments.node_config])
    OpenDevice(owner).serve(proven_runtime(arguments.runtime_api_address, secret))


if __name__ == "__main__":
    main()
