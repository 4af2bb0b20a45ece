"""A node: the process that hosts clients, asks their ledger and policy, and sums what they release.

One message from the server asks for any number of clients. For all of them the order is fixed:
policy, charge (one durable commit), local training, mechanism, sum, stored reply, and only then
do bytes leave. A client that refuses or fails is reported by id and reason, and costs the round
nothing else.
"""

from __future__ import annotations

import hashlib
import json
import threading
import traceback
from datetime import UTC, datetime
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from omegaconf import DictConfig
from safetensors.numpy import load, save

from clients.base import Client, LocalData, Task, TaskError
from fl_app.collecting import Collector, PlainSum, SideBySide
from fl_app.config import build
from fl_app.population import (
    Population,
    build_client,
    build_evaluator,
    build_trainer,
    population,
)
from fl_app.secure_node import SecureNode
from fl_app.settings import PrivacySettings
from fl_app.site import Site
from privacy.events import ComposedEvent, NonPrivateEvent
from privacy.ledger import Charge, Ledger, LedgerError
from privacy.noise import NoiseGenerator
from privacy.policy import Refusal
from privacy.secure_aggregation import SecureSumError


class Node:
    """Everything that lives once per process and thread, and serves every client asked for."""

    def __init__(self, config: DictConfig, site: Site) -> None:
        self.config, self.site, folder = config, site, site.folder
        folder.mkdir(parents=True, exist_ok=True)
        self.population: Population = population(config)
        privacy: PrivacySettings = build(config.privacy, "privacy")
        self.trainer = build_trainer(config, self.population.dataset)
        self.client: Client = build_client(
            config, self.population, self.trainer, folder / "clients"
        )
        self.evaluator = build_evaluator(
            config, self.population, self.trainer, folder / "clients" / "evaluation"
        )
        self.seeded = privacy.noise == "seeded"
        self.delta = privacy.delta
        self.policy = site.policy
        # Read once: a configuration's values are slow to reach, and every client's charge needs it.
        self.algorithm = str(config.strategy.name)
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.secure = SecureNode(
            privacy.secure_sums(), folder / "clients" / "secure_sum", self._hosts
        )

    def answer(self, content: RecordDict) -> RecordDict:
        """The reply to one message, for all the clients that it names.

        What returns is what the ledger has stored: no byte leaves that is not committed.
        """
        if self.secure.answers(content):
            return self.secure.answer(content)
        try:
            self.policy.require_valid(datetime.now(UTC))
            return self._answer(content)
        except (Refusal, LedgerError) as refusal:
            # An invalid policy or a ledger that cannot be trusted: nothing at all may leave.
            clients = [task.client for task in parse_tasks(content)]
            reasons = [str(refusal)] * len(clients)
            report: dict[str, Any] = {"clients": [], "refused": clients, "reasons": reasons}
            return RecordDict({"report": ConfigRecord({**report, "weight": 0, "packed": False})})

    def _answer(self, content: RecordDict) -> RecordDict:
        request = digest(content)
        stored = self.ledger.reply(request)
        if stored is not None:
            return decode_reply(stored)
        tasks = parse_tasks(content)
        collector = self._collector(content, self._role(tasks[0]))
        refused: dict[int, str] = {}
        charges: list[Charge] = []
        allowed = set()
        for task in tasks:
            try:
                charge = self._charge(task, request, collector)
            except Exception as error:
                refused[task.client] = self._reason(task, error)
                continue
            if charge is None:
                allowed.add(task.client)
            else:
                charges.append(charge)
        outcomes = self.ledger.charge(charges, admit=self._admit)
        for charge, outcome in zip(charges, outcomes, strict=True):
            if outcome.may_compute:
                allowed.add(int(charge.client))
            else:
                refused[int(charge.client)] = outcome.reason
        tasks = [task for task in tasks if task.client in allowed]
        reply = self._contribute(tasks, refused, collector)
        return decode_reply(self.ledger.store_reply(request, encode_reply(reply)))

    def _charge(self, task: Task, request: str, collector: Collector) -> Charge | None:
        """What answering costs; None for what a simulation only shows to its researcher."""
        event = self._role(task).event(task, self._data(task.client))
        if event is None:
            if not self.site.simulated:
                raise TaskError("reports without a charge exist in simulations only")
            return None
        event = collector.event(task.client, event)
        return Charge(task.client, self.site.run, task.round, task.purpose, request, event)

    def _admit(self, charge: Charge, spent: ComposedEvent) -> None:
        """What the device's owner says, asked under the ledger's lock; raises Refusal."""
        self.policy.check(
            algorithm=self.algorithm,
            event=charge.event,
            spent=spent,
            delta=self.delta,
            seeded_noise=self.seeded and not isinstance(charge.event, NonPrivateEvent),
            now=datetime.now(UTC),
        )

    def _contribute(
        self, tasks: list[Task], refused: dict[int, str], collector: Collector
    ) -> RecordDict:
        for task in tasks:
            try:
                data = self._data(task.client)
                role = self._role(task)
                codec = role.codec(task)
                release = role.answer(task, data, self._noise(task))
                packed, weight = codec.pack(release), role.weight(data)
                collector.add(task.client, codec, packed, weight)
            except Exception as error:
                refused[task.client] = self._reason(task, error)
        report: dict[str, Any] = {
            "clients": collector.clients,
            "refused": list(refused),
            "reasons": list(refused.values()),
            **collector.report(),
        }
        content = RecordDict({"report": ConfigRecord(report)})
        if collector.clients:
            content["contribution"] = collector.arrays()
        return content

    def _role(self, task: Task) -> Client:
        """What answers: the algorithm's client half, or the evaluation's."""
        if self.evaluator is not None and task.purpose in self.evaluator.purposes:
            return self.evaluator
        return self.client

    def _collector(self, content: RecordDict, role: Client) -> Collector:
        collector = self.secure.collector(content)
        # Where sums are secure, what is not masked stays refused.
        return SideBySide() if not role.summed and type(collector) is PlainSum else collector

    def _hosts(self, client: int) -> bool:
        return 0 <= client < len(self.population.shards)

    def _data(self, client: int) -> LocalData:
        if not self._hosts(client):
            raise ValueError(
                f"client={client}: this node hosts 0..{len(self.population.shards) - 1}"
            )
        train = self.population.dataset.train
        return LocalData(train.images, train.labels, self.population.shards[client])

    def _noise(self, task: Task) -> NoiseGenerator:
        if self.seeded:
            parts = (self.config.seed, task.purpose, task.round, task.client)
            return NoiseGenerator.seeded("client noise", *parts)
        return _noise_of_this_thread()

    def _reason(self, task: Task, error: Exception) -> str:
        """One line for the server; the traceback stays on this machine, in the run's folder.

        On a device only what does not depend on its data is told: refusals, and no error's text.
        """
        line = f"{type(error).__name__}: {error}"
        with open(self.site.folder / "errors.log", "a", encoding="utf-8") as log:
            log.write(f"round {task.round}, client {task.client}: {line}\n")
            log.write("".join(traceback.format_exception(error)) + "\n")
        if self.site.simulated or isinstance(error, (TaskError, Refusal, SecureSumError)):
            return line
        return "failed; its own log says why"


_local = threading.local()


def node_for(config: DictConfig, site: Site) -> Node:
    """The node of this thread; built anew only when another run's message arrives."""
    key = (site.folder, site.run)
    if getattr(_local, "key", None) != key:
        _local.node, _local.key = Node(config, site), key
    return _local.node


def _noise_of_this_thread() -> NoiseGenerator:
    if not hasattr(_local, "noise"):
        _local.noise = NoiseGenerator.from_os()
    return _local.noise


def parse_tasks(content: RecordDict) -> list[Task]:
    """One task for each client that a message names; ValueError if the message is malformed."""
    settings = dict(content.config_records["task"])
    number, clients = settings.pop("round"), settings.pop("clients")
    purpose = settings.pop("purpose", "train")
    if not isinstance(number, int) or number < 1:
        raise ValueError(f"round={number!r}: must be an integer of at least 1")
    if not isinstance(purpose, str):
        raise ValueError(f"purpose={purpose!r}: must be a word")
    if not isinstance(clients, list) or not clients or len(set(clients)) != len(clients):
        raise ValueError(f"clients={clients!r}: must be a list of distinct ids, at least one")
    arrays = {name: array.numpy() for name, array in content.array_records["model"].items()}
    model = arrays.pop("model")
    return [Task(number, int(client), model, arrays, settings, purpose) for client in clients]


def digest(content: RecordDict) -> str:
    """A hash of everything that a message asks for, the same for the same question."""
    state = hashlib.sha256()
    for name, record in sorted(content.array_records.items()):
        for key, array in sorted(record.items()):
            state.update(f"{name}/{key}/{array.dtype}/{array.shape}/{len(array.data)};".encode())
            state.update(array.data)
    for name, config in sorted(content.config_records.items()):
        state.update(f"{name}{sorted(config.items())!r};".encode())
    return state.hexdigest()


def encode_reply(reply: RecordDict) -> bytes:
    """A reply as bytes that need no unpickling."""
    arrays = reply.array_records.get("contribution")
    values = {name: np.ascontiguousarray(a.numpy()) for name, a in (arrays or {}).items()}
    return save(values, metadata={"report": json.dumps(dict(reply.config_records["report"]))})


def decode_reply(stored: bytes) -> RecordDict:
    """The inverse of ``encode_reply``."""
    header = json.loads(stored[8 : 8 + int.from_bytes(stored[:8], "little")])
    report = json.loads(header["__metadata__"]["report"])
    content = RecordDict({"report": ConfigRecord(report)})
    if arrays := load(stored):
        content["contribution"] = ArrayRecord({name: Array(a) for name, a in arrays.items()})
    return content
