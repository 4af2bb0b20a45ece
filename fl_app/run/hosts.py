"""Builds the host of a simulation's clients out of the configuration, and keeps one per thread.

``host_for`` is what the ClientApp calls for each message. It builds a host with ``SimulatedHost``
here or with ``fl_app.device.hosts.DeviceHost`` on a device; ``values_of`` holds what the two are
given alike. Answering itself is ``murmur.round.host``.
"""

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
    """The shares of a population that its clients hold: the ``Data`` of a simulated host."""

    population: Population

    def of(self, client: int) -> LocalData:
        """The rows of ``client``, as indices into the arrays of all; KeyError for an unknown id."""
        train = self.population.dataset.train
        return LocalData(train.images, train.labels, self.population.shards[client])

    def blank(self, client: int) -> None:
        """Nothing: a client that cannot train is refused, and its researcher is told why."""
        return None


class SimulatedHost(Host):
    """The host of virtual clients, and what it was built of.

    It hosts every client of the run: the server may hand any of them to any node.

    Args:
        config: the run's, composed.
        home: the run's folder, in which its clients live.

    Attributes:
        client: the algorithm's client half.
        evaluator: that of an evaluation on clients; None where there is none.
        population: who has which data; shared by all hosts of a process.
        trainer: of this host alone, since threads load parameters into it at the same time.

    Raises:
        ConfigError: the settings cannot be.
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
        people = range(len(self.population.shards))
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
    """What every host of a run is given beside its clients' places, by the name of its argument.

    Creates the home's folder and opens the ledger in it, which is bound to the one that the owner's
    policy names, if it names any.

    Noise comes from the operating system through a cryptographic generator, one for each thread.
    Where ``privacy.noise=seeded`` it follows from the run's seed: whoever knows that can remove it.
    So such a run's statement is void, and a device answers only if its policy allows it.

    Args:
        config: the run's, composed.
        home: where the clients live, with the owner's policy.
        people: who has which data.
        trainer: of the host.
        data: opens the data of one client.

    Raises:
        ConfigError: the settings cannot be.
        LedgerError: the ledger is damaged, or is not the one that the policy names.
    """
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

    A thread keeps one host: models and data then live from message to message. It is another run
    where kind, folder, run's name, owner's settings or the configuration's object differ; the host
    keeps its ``config``, so the object's identity cannot pass to another one.

    Args:
        config: the run's; ``compose`` gives the same object for the same overrides.
        home: of this message. A host that is kept gets it too, so that it answers under the
            owner's policy of now.
        kind: builds the host from ``config`` and ``home``.
    """
    keep_heap()
    key = (kind, home.folder, home.run, getattr(home, "owner", None), id(config))
    if getattr(_local, "key", None) != key:
        _local.host = kind(config, home)
        _local.key = key
    _local.host.home = home
    return _local.host
