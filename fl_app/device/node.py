"""A node: the process that hosts clients, asks their ledger and policy, and sums what they release.

One message from the server asks for any number of clients. For all of them the order is fixed:
policy, data, charge (one durable commit), local training, mechanism, sum, stored reply, and only
then do bytes leave. A client that refuses or fails is reported by id and reason, and costs the
round nothing else. On a device a charge is followed by an answer, whatever the data do to the
training.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray
from omegaconf import DictConfig

from clients.base import Client, LocalData, Task, TaskError
from fl_app.config.building import build
from fl_app.config.settings import ComputeSettings, FederationSettings, PrivacySettings
from fl_app.device.collector import Collector, PlainSum, Planned, SideBySide
from fl_app.device.data import OwnData, device_population
from fl_app.device.node_settings import NodeSettings, log_error
from fl_app.device.reply_bytes import decode_reply, encode_reply
from fl_app.device.secure_node import SecureNode
from fl_app.run.clients import build_client, build_evaluator, build_trainer, require_usable
from fl_app.run.population import Population, build_features, population
from murmur.learning.array_file import private_folder
from murmur.learning.process import has_compiler, keep_heap
from murmur.privacy.events import ComposedEvent, NonPrivateEvent
from murmur.privacy.ledger import Charge, Ledger, LedgerError
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.policy import Refusal
from murmur.round.task import REFUSED, digest, parse_tasks


class Node:
    """Everything that lives once per process and thread, and serves every client asked for."""

    def __init__(self, config: DictConfig, settings: NodeSettings) -> None:
        self.config, self.settings, folder = config, settings, settings.folder
        private_folder(folder)
        self.own_data: OwnData | None = None
        if settings.owner is None:
            self.population: Population = population(config)
        else:
            federation: FederationSettings = build(config.federation, "federation")
            terms = federation.device_terms()
            assert terms is not None
            features = build_features(config.features)
            self.population = device_population(settings.owner, terms, features)
            shown = features, self.population.fitted
            self.own_data = OwnData(settings.owner, terms, folder / "cache", *shown)
        privacy: PrivacySettings = build(config.privacy, "privacy")
        compute = _compute(config, settings)
        self.stack = compute.stack
        self.trainer = build_trainer(config, self.population.dataset, compute=compute)
        if settings.owner is not None:
            require_usable(self.trainer)  # a charge must buy something, whoever asks
        self.client: Client = build_client(config, self.population, self.trainer, settings.memory)
        self.evaluator = build_evaluator(
            config, self.population, self.trainer, settings.memory / "evaluation"
        )
        self.noise, self.seeded = privacy.noise, privacy.noise == "seeded"
        self.delta, self.rounds = privacy.delta, int(config.federation.num_rounds)
        self.policy = settings.policy
        # Read once: a configuration's values are slow to reach, and every client's charge needs it.
        self.algorithm = str(config.strategy.name)
        self.ledger = Ledger(folder / "ledger.sqlite", expected=settings.policy.ledger)
        self.secure = SecureNode(privacy.secure_sums(), settings, self._hosts)

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
            clients = [task.client for task in self._tasks(content)]
            reasons = [self.settings.refusal_for_server("everything", refusal)] * len(clients)
            report: dict[str, Any] = {"clients": [], "refused": clients, "reasons": reasons}
            return RecordDict({"report": ConfigRecord({**report, "weight": 0, "packed": False})})

    def _answer(self, content: RecordDict) -> RecordDict:
        request = digest(self.settings.run, self.algorithm, self.noise, content)
        stored = self.ledger.reply(request, self._allow)
        if stored is not None:
            return decode_reply(stored)
        tasks = self._tasks(content)
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
                about = f"round {charge.round}, client {charge.client}"
                why = Refusal(outcome.reason, outcome.code)
                refused[int(charge.client)] = self.settings.refusal_for_server(about, why)
        tasks = [task for task in tasks if task.client in allowed]
        reply = self._contribute(tasks, refused, collector)
        return decode_reply(self.ledger.store_reply(request, encode_reply(reply), self._allow))

    def _tasks(self, content: RecordDict) -> list[Task]:
        owner = self.settings.owner
        return parse_tasks(content, len(self.population.shards if owner is None else owner.clients))

    def _charge(self, task: Task, request: str, collector: Collector) -> Charge | None:
        """What answering costs; None for what a simulation only shows to its researcher."""
        role = self._role(task)
        if task.purpose not in role.purposes:
            raise TaskError(f"purpose={task.purpose}: must be one of {', '.join(role.purposes)}")
        if task.round > self.rounds:
            # A budget for the whole run is shared out over so many rounds.
            raise TaskError(f"round={task.round}: this run has {self.rounds} rounds")
        if not self._hosts(task.client):
            raise TaskError(f"client={task.client}: is not hosted here")
        event = role.event(task)
        if event is None:
            if not self.settings.simulated:
                raise TaskError("reports without a charge exist in simulations only")
            return None
        about = task.purpose, role.codec(task), event, role.weight(task.client), self.seeded
        event = collector.event(task.client, Planned(self.algorithm, *about))
        return Charge(task.client, self.settings.run, task.round, task.purpose, request, event)

    def _allow(self, charge: Charge, spent: ComposedEvent) -> None:
        """What the device's owner says now, of new and of stored answers; raises Refusal."""
        self.policy.check(
            algorithm=self.algorithm,
            event=charge.event,
            spent=spent,
            delta=self.delta,
            seeded_noise=self.seeded and not isinstance(charge.event, NonPrivateEvent),
            now=datetime.now(UTC),
        )

    def _admit(self, charge: Charge, spent: ComposedEvent) -> None:
        """The same, asked under the ledger's lock, and whether there are data; raises Refusal."""
        self._allow(charge, spent)
        try:
            self._data(int(charge.client))  # opened after the policy's word, before the charge
        except Exception as error:
            log_error(self.settings.folder, f"the data of client {charge.client}", error)
            raise Refusal(REFUSED, "refused") from error

    def _contribute(
        self, tasks: list[Task], refused: dict[int, str], collector: Collector
    ) -> RecordDict:
        for start in range(0, len(tasks), self.stack):
            group = tasks[start : start + self.stack]
            try:
                if self.stack > 1:
                    self._role(group[0]).train_ahead([(t, self._data(t.client)) for t in group])
            except Exception as error:
                refused.update((task.client, self._reason(task, error)) for task in group)
                continue
            for task in group:
                try:
                    self._release(task, collector)
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

    def _release(self, task: Task, collector: Collector) -> None:
        """One client's training, mechanism and part of the sum."""
        role = self._role(task)
        codec, release = role.codec(task), self._answer_of(role, task)
        collector.add(task.client, codec, codec.pack(release), role.weight(task.client))

    def _answer_of(self, role: Client, task: Task) -> NDArray:
        """The release; on a device that of blank records where its own cannot be computed.

        It was charged, and whether a client answers must not depend on its data.
        """
        try:
            return role.answer(task, self._data(task.client), self._noise(task))
        except Exception as error:
            if self.own_data is None:
                raise
            log_error(self.settings.folder, f"round {task.round}, client {task.client}", error)
            return role.answer(task, self.own_data.blank(task.client), self._noise(task))

    def _role(self, task: Task) -> Client:
        """What answers: the algorithm's client half, or the evaluation's."""
        if self.evaluator is not None and task.purpose in self.evaluator.purposes:
            return self.evaluator
        return self.client

    def _collector(self, content: RecordDict, role: Client) -> Collector:
        collector = self.secure.collector(content)
        # Under secure aggregation, unmasked contributions are rejected.
        return SideBySide() if not role.summed and type(collector) is PlainSum else collector

    def _hosts(self, client: int) -> bool:
        owner = self.settings.owner
        return client in (self.population.shards if owner is None else owner.clients)

    def _data(self, client: int) -> LocalData:
        if self.own_data is not None:
            return self.own_data.of(client)
        train = self.population.dataset.train
        return LocalData(train.images, train.labels, self.population.shards[client])

    def _noise(self, task: Task) -> NoiseGenerator:
        if self.seeded:
            parts = (self.config.seed, task.purpose, task.round, task.client)
            return NoiseGenerator.seeded("client noise", *parts)
        return _noise_of_this_thread()

    def _reason(self, task: Task, error: Exception) -> str:
        return self.settings.refusal_for_server(f"round {task.round}, client {task.client}", error)


def _compute(config: DictConfig, settings: NodeSettings) -> ComputeSettings:
    """What to compute with: a device's owner says so, and not the server."""
    if settings.owner is None:
        return build(config.compute, "compute")
    owner = settings.owner
    return ComputeSettings(owner.compute, fused=has_compiler(), precision=owner.precision)


_local = threading.local()


def node_for(config: DictConfig, settings: NodeSettings) -> Node:
    """The node of this thread, built anew for another run; always under the policy of now."""
    keep_heap()
    key = (settings.folder, settings.run, settings.owner, id(config))
    if getattr(_local, "key", None) != key:
        _local.node, _local.key = Node(config, settings), key
    _local.node.policy = settings.policy
    return _local.node


def _noise_of_this_thread() -> NoiseGenerator:
    if not hasattr(_local, "noise"):
        _local.noise = NoiseGenerator.from_os()
    return _local.noise
