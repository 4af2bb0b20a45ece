"""What the three lines cost a plain Flower app: ``python -m benchmarks.flower_app``.

``examples/plain_flower_app`` as it is and with its patch, one after the other on this machine:

* ``simulation``: ``flwr run`` on 10 simulated nodes.
* ``devices``: a SuperLink with TLS and node authentication, three SuperNodes, and beside each a
  resident process that answers with the app, which its owner has installed. None is locked in.

Seconds a round, the mean of those after the first, which starts the workers; evaluations included,
which the private app has only on the server. And the share of test digits that the last model gets
right. Prints Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
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


def main() -> None:
    """Measure what is asked for, or be one of the resident devices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="simulation, devices (default: both)")
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
    print("| where | plain | with the three lines | more | right, plain | right, with them |")
    print("|---|---|---|---|---|---|")
    for what in arguments.what or ("simulation", "devices"):
        with tempfile.TemporaryDirectory() as folder:
            plain, private = {"simulation": simulation, "devices": devices}[what](Path(folder))
        more = (
            f"{private.seconds - plain.seconds:.2f} s, {private.seconds / plain.seconds:.2f} times"
        )
        print(
            f"| {what} | {plain.seconds:.2f} s | {private.seconds:.2f} s | {more} | "
            f"{plain.right:.3f} | {private.right:.3f} |",
            flush=True,
        )


@dataclass(frozen=True)
class Found:
    """``seconds``: of a round. ``right``: the share of test digits that the model gets right."""

    seconds: float
    right: float


def apps(folder: Path) -> tuple[Path, Path]:
    """Two copies of the app: as it is, and with the patch."""
    plain = Path(shutil.copytree(APP, folder / "plain"))
    private = Path(shutil.copytree(APP, folder / "private"))
    subprocess.run(["git", "apply", "-p0", "three_lines.patch"], cwd=private, check=True)
    return plain, private


def simulation(folder: Path) -> tuple[Found, Found]:
    """On 10 simulated nodes: plain, private."""
    runs = SimulatedRuns(folder / "flwr")
    try:
        plain, private = (
            found(runs.lines(app, 10, f"num-server-rounds={ROUNDS}")) for app in apps(folder)
        )
    finally:
        runs.close()
    return plain, private


def devices(folder: Path) -> tuple[Found, Found]:
    """On three resident devices: plain, private."""
    plain, private = (resident(folder / app.name, app) for app in apps(folder))
    return plain, private


def resident(folder: Path, app: Path) -> Found:
    """What ``app`` does on three devices that answer with it."""
    with Federation(folder / "federation") as federation:
        federation.start_link()
        for number in range(3):
            own = federation.folder / f"owner-{number}"
            own.mkdir()
            (own / "policy.yaml").write_text(POLICY)
            config = {
                "partition-id": number,
                "num-partitions": 3,
                "murmur": str(own),
                "state": str(own),
            }
            device = [sys.executable, "-m", "benchmarks.flower_app", "--app", str(app)]
            federation.start_node(number, federation.enrol(number), config, device=device)
        wait_for(lambda: federation.online() == 3, 300, "three nodes")
        command = ["flwr", "run", str(app), NAME, "--stream", "--run-config"]
        command += [f"num-server-rounds={ROUNDS}"]
        return found(lines_of(command, federation.environment, folder))


def found(lines: Iterable[str]) -> Found:
    """Read out of a run's log as it comes in; RuntimeError where the run did not end."""
    begun = []
    told = []
    for line in lines:
        told.append(line)
        if "[ROUND " in line or "Strategy execution finished" in line:
            begun.append(time.monotonic())
    right = re.findall(r"'accuracy': (0\.\d+)", "".join(told))
    if len(begun) != ROUNDS + 1 or not right:
        raise RuntimeError("".join(told[-40:]))
    return Found((begun[-1] - begun[1]) / (ROUNDS - 1), float(right[-1]))


def answer(arguments: argparse.Namespace) -> None:
    """Be a device that answers with the ClientApp in a folder, whatever code a server sends."""
    from fl_app.device.flower_runtime import Runtime, Task, TaskInput
    from fl_app.device.serving import Device

    sys.path.insert(0, str(arguments.app))
    client = importlib.import_module("plain_app.client_app").app

    class Resident(Device):
        def answer(self, task: Task, task_input: TaskInput) -> Message:
            given = task_input.context
            run_config = dict(given.run_config)
            context = Context(given.run_id, given.node_id, self.owner, RecordDict(), run_config)
            return client(task_input.message, context)

    secret = arguments.superexec_auth_secret_file.read_bytes()
    owner = parse_config_args([arguments.node_config])
    Resident(owner).serve(Runtime(arguments.runtime_api_address, secret))


if __name__ == "__main__":
    main()
