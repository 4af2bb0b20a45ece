"""Devices under the Guard for tests: their policies, and a federation with some of them."""

import os

import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from murmur.compat.flower_runtime import NodeTransport, RuntimeTask, TaskInput
from murmur.flower import private
from murmur.privacy.ledger import Ledger
from murmur_guard import sandbox
from murmur_guard.guard import Guard
from tests.murmur.flower.nodes import POLICY, Nodes, app_of, record

lacking = sandbox.missing()
needs_lock = pytest.mark.skipif(bool(lacking), reason=lacking)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes to another account")

SUPERLINK = "superlink.example:9092"
GUARD = """
guard:
  bundles: any
  data: [DATA]
  writes: []
  app_seconds: SECONDS
  answer_seconds: 400
  cpu_seconds: 100
  memory_mib: 2000
  disk_mib: 64
  processes: 60
  unprotected: refuse
"""
TASK = RuntimeTask("", NodeTransport, "", 1, for_client=True)


class Clock:
    """Stands still, but for who sleeps."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def device(folder, seconds=60.0, rows="1,2,3\n3,2,1\n", policy=POLICY, **changes):
    """A guarded device's folder, with data beside it."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "table.csv").write_text(rows)
    own = folder / "device"
    own.mkdir(exist_ok=True)
    text = GUARD.replace("DATA", str(data)).replace("SECONDS", str(seconds))
    for key, value in changes.items():
        lines = [f"  {key}: {value}" if f" {key}:" in line else line for line in text.splitlines()]
        text = "\n".join(lines)
    (own / "policy.yaml").write_text(policy.replace("honest_app", "none_such") + text)
    return own


def guard_of(folder, clock=None, **node_config):
    clock = clock or Clock()
    config = {"data": str(folder.parent / "data"), **node_config}
    return Guard(folder, config, clock, clock.sleep)


class Federation(Nodes):
    """Three nodes: guarded ones with ``archives``, and others whose app is our own, in process."""

    def __init__(self, folder, archives, **settings):
        super().__init__(self.answer, 3, devices=folder)
        self.archives = archives
        self.asked_messages = []
        self.superlink = SUPERLINK
        self.clocks = {}
        self.guards = {}
        self.plain = app_of(lambda place: lambda arrays: arrays)
        for place in range(len(archives)):
            own = device(folder / f"guarded-{place}", **settings)
            self.clocks[place] = Clock()
            config = {"partition-id": place, "num-partitions": 3}
            self.guards[place] = guard_of(own, self.clocks[place], **config)

    def answer(self, message, context):
        self.asked_messages.append(message)
        place = context.node_config["partition-id"]
        if place not in self.guards:
            return self.plain(message, context)
        asked = TaskInput(message, context, "", "", self.archives[place], self.superlink)
        return self.guards[place].answer(TASK, asked)


def started(grid, model, rounds=1, config=None, **terms):
    budget = {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0, **terms}
    strategy = private(FedAvg(fraction_evaluate=float("evaluate" in terms)), **budget)
    return strategy.start(
        grid, record(model), num_rounds=rounds, timeout=100, train_config=config or ConfigRecord()
    )


def charges(guard):
    with Ledger(guard.folder / "ledger.sqlite", expected=None) as ledger:
        return ledger.releases()
