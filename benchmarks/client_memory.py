"""What a device needs: ``python -m benchmarks.client_memory [--rounds N] [--folder DISK]``.

For each algorithm the real ClientApp answers one message in a process of its own, as Flower starts
it on a device, with one thread on one core, and with a device's files: one client's share of MNIST
(``MURMUR_DATA``), its copy of the public pool, its owner's policy. Prints Markdown: resident memory
(MiB) with PyTorch alone, with the application, and at its peak (VmHWM), processor time, bytes of
the message and of the answer, bytes of the device's state; then the ledger's growth and the size of
an installation without extras.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
from packaging.requirements import Requirement

from benchmarks.machine import describe_machine
from fl_app import DISTRIBUTION

# Words of the run and what a message carries beside the model.
RUNS: dict[str, list[str]] = {
    "PrivateKT, MLP 784-128-10": ["experiment=privatekt_mnist_mlp"],
    "PrivateKT, CNN of 2 layers": ["experiment=privatekt_mnist_cnn"],
    "PrivateKT, the authors' CNN": ["experiment=privatekt_mnist"],
    "DPFL-BNN, 81,848 bits": ["experiment=dpfl_bnn_mnist_iid", "privacy.secure_aggregation=off"],
}
POLICY = """
expires: 2099-01-01
servers: any
algorithms: [privatekt, dpfl_bnn]
mechanisms: {randomized_response: {max_epsilon: 3.0}, randomized_bits: {max_gamma: 0.2}}
epsilon_per_release: 1e6
epsilon_per_lifetime: 1e9
delta: 1.0e-5
threat: local
minimum_surviving_clients: 2
allow_seeded_noise: false
allow_non_private: false
"""
# What a device must not have to import.
FOREIGN = ("ray", "matplotlib", "flwr.simulation", "tomli_w", "hypothesis", "strategies.base")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="releases for the ledger's growth")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be used")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer is not None:
        print(json.dumps(answer(arguments.answer)))
        return
    print(f"{describe_machine('torch', 'flwr')}\n")
    print("| run | PyTorch, MiB | imported | peak | processor, s | down, kB | up, kB | state, kB |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        for place, (name, words) in enumerate(RUNS.items()):
            found = measured(Path(temporary) / str(place), words)
            memories = [f"{found[key]:.0f}" for key in ("pytorch", "imported", "peak")]
            sizes = [f"{found[key] / 1e3:.1f}" for key in ("down", "up", "state")]
            cells = [name, *memories, f"{found['seconds']:.1f}", *sizes]
            print("| " + " | ".join(cells) + " |", flush=True)
        growth, wall = ledger_growth(Path(temporary) / "ledger.sqlite", arguments.rounds)
    print(f"\nLedger: {growth:.0f} bytes for each release ({arguments.rounds} of them); {wall}")
    packages = install_sizes(DISTRIBUTION)
    graphics = sum(size for name, size in packages.items() if name.startswith(("nvidia", "triton")))
    print(
        f"Installation without extras: {sum(packages.values()) / 2**20:.0f} MiB in {len(packages)} "
        f"packages; {graphics / 2**20:.0f} MiB of it are for GPUs (nvidia-*, triton), "
        f"{packages['torch'] / 2**20:.0f} MiB PyTorch."
    )


def measured(folder: Path, words: list[str]) -> dict[str, float]:
    """A device's files in ``folder``, and what answering round 1 took."""
    prepare(folder, words)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks.client_memory", "--answer", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    files = (path for path in (folder / "state").rglob("*") if path.is_file())
    return {**found, "state": sum(path.stat().st_size for path in files)}


def prepare(folder: Path, words: list[str]) -> None:
    """What the owner and the server would have put there: data, pool, policy, run, message."""
    from fl_app.config.compose import choices, compose
    from fl_app.config.instantiate import build
    from fl_app.config.settings import pool_digest
    from fl_app.device.agreement import overrides_for_devices
    from fl_app.run.population import population
    from murmur.learning.training.trainer import Trainer

    folder.mkdir()
    words = [*words, "federation.clients_per_round=null"]  # a client answers in its rounds only
    people = population(compose([*words, "engine=inline"]))
    rows, train = people.shards[0], people.dataset.train
    np.savez(folder / "data.npz", images=train.images[rows], labels=train.labels[rows])
    np.savez(folder / "public.npz", images=people.public)
    (folder / "policy.yaml").write_text(POLICY)
    pool = pool_digest(people.public) if len(people.public) else None
    told = [] if pool is None else [f"federation.devices.public={pool}"]
    config = compose(words)
    trainer = Trainer(
        build(config.model, "model"), people.dataset.input_shape, people.dataset.num_classes
    )
    np.save(folder / "model.npy", trainer.initial(np.random.default_rng(0)))
    overrides = overrides_for_devices(config, choices(words))
    run = {
        "words": [*overrides, *told, "run_dir=/run-1"],
        "labels": int(config.strategy.get("K", 0)),
        "shape": ",".join(map(str, people.dataset.input_shape)),
        "classes": people.dataset.num_classes,
    }
    (folder / "run.json").write_text(json.dumps(run))


def answer(folder: Path) -> dict[str, float]:
    """In the device's process: answer one message; memory in MiB, time, and bytes both ways."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import torch  # noqa: F401 - by far the largest, so it is measured by itself

    pytorch = memory("VmRSS")
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    import fl_app.device.hosts  # noqa: F401 - what the first message that computes imports
    from fl_app.client_app import app

    imported = memory("VmRSS")
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    run_config, content = server_request(folder)
    message = Message(content, dst_node_id=1, message_type="train", group_id="1")
    message.metadata.__dict__["_message_id"] = "m1"
    context = Context(1, 1, owner(folder), RecordDict(), run_config)
    began = time.process_time()
    reply = app(message, context)
    seconds = time.process_time() - began
    if reply.has_error() or not reply.content["report"]["clients"]:
        raise RuntimeError(f"the client refused: {reply}\n{_log(folder)}")
    if foreign := [name for name in FOREIGN if name in sys.modules]:
        raise RuntimeError(f"a device's process has imported {foreign}")
    return {
        "pytorch": pytorch,
        "imported": imported,
        "peak": memory("VmHWM"),
        "seconds": seconds,
        "down": wire(content),
        "up": wire(reply.content),
    }


def owner(folder: Path) -> dict[str, Any]:
    """The node-config of the device whose files ``prepare`` has put into ``folder``."""
    run = json.loads((folder / "run.json").read_text())
    files = {"data": "data.npz", "public": "public.npz", "policy": "policy.yaml", "state": "state"}
    places = {word: str(folder / file) for word, file in files.items()}
    return {"clients": "0", "shape": run["shape"], "classes": run["classes"], **places}


def server_request(folder: Path, number: int = 1) -> tuple[dict[str, Any], Any]:
    """The run-config of the run in ``folder``, and what its server asks in round ``number``."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from fl_app.config.overrides import to_run_config

    run = json.loads((folder / "run.json").read_text())
    arrays: dict[str, Any] = {"model": Array(np.load(folder / "model.npy"))}
    if run["labels"]:
        arrays["indices"] = Array(np.arange(run["labels"]))
    task = ConfigRecord({"round": number, "clients": [0]})
    return to_run_config(run["words"]), RecordDict({"model": ArrayRecord(arrays), "task": task})


def wire(content: Any) -> int:
    """Bytes of arrays and records as they travel."""
    arrays = sum(len(a.data) for record in content.array_records.values() for a in record.values())
    return arrays + sum(len(record.deflate()) for record in content.config_records.values())


def memory(field: str) -> float:
    """``field`` of /proc/self/status in MiB: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}: memory is measured on Linux only")


def ledger_growth(path: Path, rounds: int) -> tuple[float, str]:
    """Bytes that a release adds to the ledger for good, and how long all of them took."""
    from murmur.privacy.events import RandomizedResponseEvent, RepeatedEvent
    from murmur.privacy.ledger import Charge, Ledger

    event = RepeatedEvent(RandomizedResponseEvent(2.5, 10), 2)
    began = time.perf_counter()

    def release(ledger: Ledger, number: int) -> None:
        request = hashlib.sha256(str(number).encode()).hexdigest()
        ledger.charge([Charge(0, "run-1", number, "train", request, event)])
        ledger.store_reply(request, bytes(300))

    sizes = []
    for numbers in (range(1, 51), range(51, 51 + rounds)):
        with Ledger(path) as ledger:
            for number in numbers:
                release(ledger, number)
        sizes.append(path.stat().st_size)  # closed: the write-ahead log is in it
    return (sizes[1] - sizes[0]) / rounds, f"{time.perf_counter() - began:.1f} s in all."


def install_sizes(name: str) -> dict[str, int]:
    """Bytes of the files of ``name`` and of each package that it needs, without extras."""
    sizes: dict[str, int] = {}
    seen = set()
    waiting = [(name, frozenset[str]())]
    while waiting:
        wanted, extras = waiting.pop()
        plain = wanted.lower().replace("_", "-")
        if (plain, extras) in seen:
            continue
        seen.add((plain, extras))
        try:
            found = distribution(wanted)
        except PackageNotFoundError:
            continue
        sizes[plain] = _bytes_of(found)
        for text in found.requires or ():
            needed = Requirement(text)
            markers = [{"extra": extra} for extra in ("", *extras)]
            if needed.marker is None or any(needed.marker.evaluate(m) for m in markers):
                waiting.append((needed.name, frozenset(needed.extras)))
    return sizes


def _bytes_of(found: Any) -> int:
    places = (Path(str(found.locate_file(file))) for file in found.files or ())
    return sum(place.stat().st_size for place in places if place.is_file())


def _log(folder: Path) -> str:
    log = folder / "state" / "errors.log"
    return log.read_text() if log.exists() else ""


if __name__ == "__main__":
    main()
