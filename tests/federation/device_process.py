"""What it takes to answer a message: ``python -m tests.federation.device_process [--messages N]``.

A SuperNode's runtime API on loopback, and beside it what takes its messages: ``murmur device``,
then Flower's own SuperExec, which unpacks and runs the bundle in a new process for each message.
Both answer the same messages (PrivateKT, MLP, one client's share of MNIST in ``MURMUR_DATA``) with
one thread. Prints Markdown: seconds from the message to its reply, of the first and the median of
the others; proportional memory (PSS, MiB) of all processes beside the SuperNode, waiting and at
most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.client_memory import RUNS, owner, prepare, server_request
from benchmarks.machine import describe_machine
from tests.federation.loopback import BIN, PROJECT
from tests.federation.supernode import SECRET, SuperNode

RUN = "PrivateKT, MLP 784-128-10"
WARM_UP_SECONDS = 30.0
PATIENCE = 120.0  # seconds for a reply


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=6, help="for each (default: 6)")
    arguments = parser.parse_args()
    print(f"{describe_machine('torch', 'flwr')}\n")
    print("| answers | first message, s | later, s | waiting, MiB | at most, MiB |")
    print("|---|---|---|---|---|")
    for name, begin in (("`murmur device`", device), ("Flower's SuperExec", superexec)):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "device"
            prepare(folder, RUNS[RUN])
            seconds, waiting, most = measured(*begin(folder), folder, arguments.messages)
        later = statistics.median(seconds[1:])
        print(
            f"| {name} | {seconds[0]:.1f} | {later:.1f} | {waiting:.0f} | {most:.0f} |", flush=True
        )


def device(folder: Path) -> tuple[SuperNode, list[str]]:
    """A SuperNode that runs nothing, and the command that answers it."""
    supernode = SuperNode()
    secret = folder / "secret"
    secret.write_bytes(SECRET)
    pairs = owner(folder).items()
    words = " ".join(f"{word}={json.dumps(value)}" for word, value in pairs)
    command = [str(BIN / "murmur"), "device", "--node-config", words]
    command += ["--superexec-auth-secret-file", str(secret)]
    return supernode, [*command, "--runtime-api-address", supernode.address]


def superexec(folder: Path) -> tuple[SuperNode, list[str]]:
    """A SuperNode whose bundle is this project, and Flower's command that runs it."""
    from flwr.cli.build import build_fab_from_disk

    from fl_app.engines.deploy import copy_app

    bundle = build_fab_from_disk(copy_app(PROJECT, folder / "app"))
    supernode = SuperNode(bundle, secret=None)
    address = ["--insecure", "--runtime-api-address", supernode.address]
    return supernode, [str(BIN / "flower-superexec"), *address]


def measured(
    supernode: SuperNode, command: list[str], folder: Path, messages: int
) -> tuple[list[float], float, float]:
    """Seconds for each message; MiB while it waits, and at most."""
    run_config, _ = server_request(folder)
    supernode.run(run_config, config=owner(folder))
    environment = {**os.environ, "FLWR_HOME": str(folder / "flwr"), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    environment |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
    log = folder / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        time.sleep(WARM_UP_SECONDS)
        waiting, most, done = resident(process.pid), [0.0], threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                most[0] = max(most[0], resident(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        seconds = []
        for number in range(1, messages + 1):
            _, content = server_request(folder, number)
            began = time.monotonic()
            supernode.ask(content)
            if (reply := supernode.reply(PATIENCE)).has_error():
                raise RuntimeError(f"{reply.error.reason}: {log.read_text()[-2000:]}")
            seconds.append(time.monotonic() - began)
            time.sleep(2)  # what has answered must have ended
        done.set()
        watcher.join()
        return seconds, waiting, most[0]
    finally:
        for number in reversed(list(tree(process.pid))):
            os.kill(number, 15)
        process.wait()
        supernode.close()


def resident(root: int) -> float:
    """Proportional set size of a process and all that it has started, in MiB."""
    total = 0
    for number in tree(root):
        try:
            text = Path(f"/proc/{number}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended meanwhile
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def tree(root: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield root
    for place in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = place.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from tree(int(child))


if __name__ == "__main__":
    main()
