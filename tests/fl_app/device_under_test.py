"""A device for tests: its owner's files, and the real ClientApp that a server's messages reach."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fl_app.run.hosts
from fl_app.client_app import app
from fl_app.config.overrides import to_run_config
from fl_app.config.settings import pool_digest
from fl_app.device.agreement import device_config
from fl_app.device.node_settings import OwnerSettings
from fl_app.run.hosts import build_model
from murmur.learning.training.trainer import Trainer
from murmur.privacy.ledger import Ledger
from murmur.round.host import Host
from murmur.round.task import error_log

MINE = (3, 7)  # ids of the clients that live here, out of CLIENTS
CLIENTS, POOL = 12, 20
SIZES = [300 if client == 3 else 30 for client in range(CLIENTS)]  # client 3 is a large one

STRICT = """
expires: 2099-01-01
servers: any
algorithms: [privatekt, votes, nbafl, kd_dpfl, dpfl_bnn, dpsgd_fedavg, class_statistics,
  class_moments, gradient_rounds]
mechanisms:
  randomized_response: {max_epsilon: 6.0}
  randomized_bits: {max_gamma: 0.15}
  discrete_gaussian: {min_noise_multiplier: 0.3}
  gaussian: {min_noise_multiplier: 0.3}
  laplace: {min_noise_multiplier: 0.5}
epsilon_per_release:
  {privatekt: 9, votes: 9, nbafl: 9, kd_dpfl: 9, dpfl_bnn: 1e5, dpsgd_fedavg: 9,
   class_statistics: 9, class_moments: 9, gradient_rounds: 9}
epsilon_per_lifetime: 1e6
unit: record
assumptions: [bounded_change]
delta: 1.0e-5
threat: local
minimum_surviving_clients: 2
allow_seeded_noise: false
allow_non_private: false
"""
OPEN = """
expires: 2099-01-01
servers: any
algorithms: [fedavg, dp_fedavg, clustering, scaffold]
mechanisms: {laplace: {min_noise_multiplier: 0.1}, discrete_gaussian: {min_noise_multiplier: 0.3}}
epsilon_per_release: inf
epsilon_per_lifetime: inf
unit: record
assumptions: [bounded_change]
delta: 1.0e-5
threat: local
minimum_surviving_clients: 2
allow_seeded_noise: false
allow_non_private: true
"""


class Device:
    """One SuperNode's worth of files in ``folder``, under the owner's ``policy`` (YAML)."""

    def __init__(self, folder: Path, policy: str = STRICT) -> None:
        rng = np.random.default_rng(5)
        pool = rng.random((POOL, 1, 8, 8), np.float32)
        np.savez(folder / "public.npz", images=pool)
        for client in MINE:
            images = rng.random((SIZES[client], 8, 8, 1), np.float32)
            np.savez(folder / f"{client}.npz", images=images, labels=np.arange(SIZES[client]) % 10)
        (folder / "policy.yaml").write_text(policy)
        self.folder, self.digest = folder, pool_digest(pool)
        self.state = folder / "state"
        self.node_config: dict[str, Any] = {
            "clients": ",".join(map(str, MINE)),
            "data": str(folder / "{client}.npz"),
            "public": str(folder / "public.npz"),
            "shape": "1,8,8",
            "classes": 10,
            "sizes": ",".join(map(str, SIZES)),
            "policy": str(folder / "policy.yaml"),
            "state": str(self.state),
        }

    def words(self, *overrides: str) -> list[str]:
        """What an honest server submits, and ``overrides``."""
        return [
            "strategy=privatekt",  # where a test chooses no other
            f"federation.num_clients={CLIENTS}",
            f"federation.public={POOL}",
            f"federation.devices.public={self.digest}",
            "federation.num_rounds=50",
            "run_dir=/nowhere/run-a",
            *overrides,
        ]

    def ask(
        self,
        words: list[str],
        content: RecordDict,
        kind: str = "train",
        *,
        fresh: bool = True,
        **run_config: str,
    ) -> Message:
        """What comes back through the ClientApp; ``fresh``: from a process as good as new."""
        if fresh:
            fl_app.run.hosts._local.__dict__.clear()
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        message = Message(content, dst_node_id=1, message_type=kind, group_id="1")
        message.metadata.__dict__["_message_id"] = "m1"
        context = Context(
            run_id=1,
            node_id=1,
            node_config=self.node_config,
            state=RecordDict(),
            run_config={**to_run_config(words), **run_config},
        )
        ray = sys.modules.pop("ray", None)  # of other tests; a device's process never starts it
        try:
            return app(message, context)
        finally:
            if ray is not None:
                sys.modules["ray"] = ray

    def log(self) -> str:
        """What its owner can read of what went wrong; no server hears it."""
        path = error_log(self.state)
        return path.read_text() if path.exists() else ""

    def charged(self) -> list[tuple]:
        """Every charge in the ledger: client, run, round, purpose, event."""
        path = self.state / "ledger.sqlite"
        if not path.exists():
            return []
        with Ledger(path, create=False) as ledger:
            ledger.verify()
            found = [e for e in ledger.entries() if e.client is not None]
            return [(e.client, e.run, e.round, e.purpose, e.body) for e in found]


def report(reply: Message) -> dict[str, Any]:
    """Who answered and who refused; a node that failed as a whole refused for everybody."""
    if reply.has_error():
        return {"clients": [], "refused": list(MINE), "reasons": [reply.error.reason]}
    return dict(reply.content.config_records["report"])


def question(
    model: np.ndarray,
    *,
    round: Any = 1,
    clients: Any = MINE,
    purpose: Any = None,
    arrays: dict[str, np.ndarray] | None = None,
    **settings: Any,
) -> RecordDict:
    """A message as ``CohortStrategy`` sends it."""
    sent = {"model": model, **(arrays or {})}
    task: dict[str, Any] = {"round": round, "clients": clients, **settings}
    if isinstance(clients, tuple):
        task["clients"] = list(clients)
    if purpose is not None:
        task["purpose"] = purpose
    task = {key: value for key, value in task.items() if value is not None}
    return RecordDict(
        {
            "model": ArrayRecord({name: Array(values) for name, values in sent.items()}),
            "task": ConfigRecord(task),
        }
    )


def model_size(words: list[str]) -> int:
    """Parameters of the model that a run is about."""
    return _size(tuple(words))


@functools.lru_cache
def _size(words: tuple[str, ...]) -> int:
    model = device_config(
        to_run_config(words), OwnerSettings(clients=(), data=None, public=None)
    ).model
    return Trainer(build_model(model), (1, 8, 8), 10).num_parameters


def answer_without_data(monkeypatch, release):
    """Let each charged client release ``release(half, task)`` in place of what it has learnt."""

    def released(host, task, waiting, data):
        half = host._half(task)
        codec = half.codec(task)
        waiting.append((task, codec, codec.pack(release(half, task))))

    monkeypatch.setattr(Host, "_release", released)
