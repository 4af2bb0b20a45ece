"""Builds the host of a simulation's clients out of the configuration, and keeps one per thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from clients.base import Client
from clients.protected_evaluation import EvaluationClient
from fl_app.config.building import build
from fl_app.config.settings import ComputeSettings, PrivacySettings
from fl_app.run.clients import build_client, build_evaluator, build_trainer
from fl_app.run.population import Population, population
from murmur.learning.array_file import private_folder
from murmur.learning.data.examples import LocalData
from murmur.learning.process import keep_heap
from murmur.learning.training.trainer import Trainer
from murmur.privacy.ledger import Ledger
from murmur.round.host import (
    Data,
    DeviceHome,
    Host,
    RunTerms,
    SecureParties,
    SeededNoise,
    SimulatedHome,
    noise_of_this_thread,
)


@dataclass(frozen=True)
class SimulatedData:
    """The shares of a population that its clients hold."""

    population: Population

    def of(self, client: int) -> LocalData:
        """The rows of ``client``; KeyError if there is none of that id."""
        train = self.population.dataset.train
        return LocalData(train.images, train.labels, self.population.shards[client])

    def blank(self, client: int) -> None:
        """Nothing: a client that cannot train is refused, and its researcher is told why."""
        return None


class SimulatedHost(Host):
    """The host of virtual clients, and what it was built of.

    ``config``: the run's. ``home``: where its clients live.
    """

    home: SimulatedHome
    client: Client
    evaluator: EvaluationClient | None

    def __init__(self, config: DictConfig, home: SimulatedHome) -> None:
        self.config = config
        self.population = population(config)
        compute: ComputeSettings = build(config.compute, "compute")
        self.trainer = build_trainer(config, self.population.dataset, compute=compute)
        privacy: PrivacySettings = build(config.privacy, "privacy")
        sums = privacy.secure_sums()
        people = self.population.shards.keys()
        parties = SecureParties(home, people, sums.owner_rules(), sums.is_on)
        data = SimulatedData(self.population)
        values = values_of(config, home, self.population, self.trainer, data)
        super().__init__(home=home, hosted=people, secure=parties, stack=compute.stack, **values)


def values_of(
    config: DictConfig,
    home: SimulatedHome | DeviceHome,
    people: Population,
    trainer: Trainer,
    data: Data,
) -> dict[str, Any]:
    """What every host of a run is given beside its clients' places, by the name of its argument."""
    private_folder(home.folder)
    privacy: PrivacySettings = build(config.privacy, "privacy")
    noise = noise_of_this_thread
    if privacy.noise == "seeded":
        noise = SeededNoise(config.seed)
    return {
        "terms": RunTerms(
            algorithm=str(config.strategy.name),
            delta=privacy.delta,
            rounds=int(config.federation.num_rounds),
            noise=privacy.noise,
        ),
        "client": build_client(config, people, trainer, home.memory),
        "evaluator": build_evaluator(config, people, trainer, home.memory / "evaluation"),
        "data": data,
        "ledger": Ledger(home.folder / "ledger.sqlite", expected=home.policy.ledger),
        "noise": noise,
    }


_local = threading.local()


def host_for(config: DictConfig, home: Any, kind: Callable[[DictConfig, Any], Host]) -> Host:
    """The host of this thread, made by ``kind`` anew for another run.

    It is always under the policy of now: ``home`` is that of the message.
    """
    keep_heap()
    key = (kind, home.folder, home.run, getattr(home, "owner", None), id(config))
    if getattr(_local, "key", None) != key:
        _local.host = kind(config, home)
        _local.key = key
    _local.host.home = home
    return _local.host
