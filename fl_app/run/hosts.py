"""A run's clients as its configuration describes them, and the host that they live at.

``ClientHalf`` is what answers: a model, the client class of the strategy and that of an evaluation
on clients. A validated run has one (``fl_app.run.validated``), so that what a client would refuse
is refused before a run; where clients answer in the server's process, it is the one that answers.

``host_for`` is what the ClientApp calls for each message; it keeps one host per thread. It builds
it with ``SimulatedHost`` here or with ``fl_app.device.hosts.DeviceHost`` on a device; ``values_of``
holds what the two are given alike. Answering itself is ``murmur.round.host``.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from clients.base import Client, ClientSetup
from clients.protected_evaluation import EvaluationClient
from fl_app.config.client_half import settings_of, started_with
from fl_app.config.errors import ConfigError
from fl_app.config.instantiate import build
from fl_app.config.settings import ComputeSettings, FederationSettings, PrivacySettings
from fl_app.run.population import Population, population
from murmur.files import owner_only_folder
from murmur.learning.data.datasets import Dataset
from murmur.learning.data.examples import LocalData
from murmur.learning.process import has_compiler, tune_heap
from murmur.learning.training.precision import PrecisionError
from murmur.learning.training.trainer import Trainer
from murmur.learning.training.trial import try_out
from murmur.privacy.budget import Budget
from murmur.privacy.ledger import Ledger
from murmur.privacy.record_choice import RecordKey
from murmur.round import host
from murmur.round.client_state import ClientState
from murmur.round.cohorts import Schedule
from murmur.round.secure_party import SecureParties
from murmur.round.site import Data, DeviceSite, SimulatedSite
from murmur.round.task import RunFacts

_OURS = "murmur."
_MODELS = "murmur.learning.models."
_PRETRAINED = "murmur.learning.pretrained."


def build_trainer(
    config: DictConfig,
    dataset: Dataset,
    inference_threads: int = 1,
    compute: ComputeSettings | None = None,
) -> Trainer:
    """The model of ``config.model`` for this data set, ready to train.

    Args:
        config: the composed configuration; its groups model and compute are read.
        dataset: gives the input's shape and the number of classes; no example is read.
        inference_threads: batches of outputs that are computed at a time, for evaluation on the
            server. The results do not depend on it.
        compute: that of a device's owner; None: that of the configuration.

    Raises:
        ConfigError: there is no CUDA device or compiler that the settings ask for, or the model
            does not fit the data set or this machine.
    """
    if compute is None:
        compute = build(config.compute, "compute")
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "compute.device=cuda: PyTorch finds no CUDA device here; use compute=cpu, or, with "
            "engine=ray, give workers a share of a GPU (engine.gpus_per_worker=0.5)"
        )
    if compute.fused and not has_compiler():
        raise ConfigError(
            "compute.fused=True: needs murmur-kernels and llvmlite (in a checkout, `pip install "
            "./packages/murmur-kernels`); with compute.fused=false the result is the same but for "
            "rounding"
        )
    model = build_model(config.model)
    target = str(config.model._target_)
    is_ours = target.startswith(_MODELS) and not target.startswith(f"{_MODELS}text_")
    if dataset.texts and is_ours:
        raise ConfigError(
            "model: reads the numbers of words as magnitudes, from which it learns nothing; choose "
            "model=text_lstm or model=text_transformer, or features=encoder or "
            "features=words with a linear model"
        )
    try:
        _require_size(config, model, dataset)
        trainer = Trainer(
            model,
            dataset.input_shape,
            dataset.num_classes,
            device=compute.device,
            inference_threads=inference_threads,
            mixed_precision=compute.mixed_precision,
            exact_stack=compute.stack == 1,
            fused=compute.fused,
            precision=compute.precision,
            objective=dataset.objective,
        )
    except ValueError as error:
        group = {"model": "", "precision": "compute."}.get(str(error).partition("=")[0], "model.")
        raise ConfigError(f"{group}{error}") from error
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        if not target.startswith(_OURS):
            raise  # a bug of somebody's own, which needs its traceback
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{_settings_of(config)}: cannot be built ({reason}); choose smaller numbers"
        ) from error
    tune_heap(trainer.num_parameters)
    return trainer


def _require_size(config: DictConfig, model: Callable[..., nn.Module], dataset: Dataset) -> None:
    """Refuse a model whose parameters and gradient are larger than this machine's memory.

    They are counted without any memory, on PyTorch's meta device. Only models of ours are: others'
    may need numbers to be built, and those of ``pretrained`` read files.

    Raises:
        ConfigError: says with which settings.
    """
    target = str(config.model._target_)
    if not target.startswith(_OURS) or target.startswith(_PRETRAINED):
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with torch.device("meta"):
        module = model(dataset.input_shape, dataset.num_classes)
    count = sum(parameter.numel() for parameter in module.parameters())
    if 8 * count > memory:
        raise ConfigError(
            f"{_settings_of(config)}: {count:.2g} parameters and their gradient are more than this "
            f"machine's {memory / 2**30:.0f} GiB of memory; choose smaller numbers"
        )


def _settings_of(config: DictConfig) -> str:
    """The model's own settings, as they are typed."""
    named = [key for key in config.model if not str(key).startswith(("_", "start"))]
    return " ".join(f"model.{key}={config.model[key]}" for key in named)


def require_usable(trainer: Trainer) -> None:
    """Refuse a model that fails in a trial on made-up images, before any client is charged.

    Server and devices do this when they build a run (``murmur.learning.training.trial.try_out``).
    No data and no parameters but the initial ones take part, so a refusal tells nothing about data.

    Raises:
        ConfigError: the model fails, or training it leaves more behind than parameters.
    """
    try:
        try_out(trainer)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def build_model(node: DictConfig) -> Callable[..., nn.Module]:
    """Returns the factory of the model in ``conf/model``; the server sets initial parameters.

    Args:
        node: the group's settings; those whose names begin with ``start`` are left out, since the
            server sends the parameters that they lead to (``fl_app.run.server.start_of``).

    Returns:
        A function of (C, H, W) and the number of classes that gives the module.

    Raises:
        ConfigError: the class cannot be imported, or refuses a setting.
    """
    own = {key: value for key, value in node.items() if not str(key).startswith("start")}
    return build(OmegaConf.create(own), "model")


def build_client(
    config: DictConfig,
    people: Population,
    trainer: Trainer,
    state_folder: Path,
    record_key: RecordKey | None = None,
) -> Client:
    """The client class of ``config.strategy``, with its tools and its budget.

    Args:
        config: the composed configuration.
        people: the public pool, the test set and public sizes come from here. Clients' own rows are
            not given to the class but opened for each answer.
        trainer: of this process; the client class loads parameters into it.
        state_folder: where clients remember what a round leaves for the next one.
        record_key: under which records are hashed; None: one in ``state_folder``.

    Raises:
        ConfigError: a setting is refused, the class cannot keep the budget against the
            configured adversary (``privacy.threat``), the model keeps statistics over batches,
            which no mechanism of the strategy would protect, or this machine rounds the products
            that the strategy's clipping rests on.
    """
    setup = _client_setup(config, people, trainer, state_folder, record_key)
    try:
        client: Client = build(config.strategy.client, "strategy", setup, knobs=config.strategy)
    except PrecisionError as error:
        raise ConfigError(str(error)) from error
    if trainer.statistics and not client.keeps_statistics:
        raise ConfigError(
            f"model={type(trainer.flat.module).__name__}: keeps statistics over batches (batch "
            f"normalisation): training changes its buffer {trainer.statistics[0]}, which "
            f"strategy={config.strategy.name} neither sends nor protects; use group normalisation, "
            "or put the normalisation layers in evaluation mode (.eval())"
        )
    return client


def build_evaluator(
    config: DictConfig, people: Population, trainer: Trainer, state_folder: Path
) -> EvaluationClient | None:
    """The client half of ``config.evaluation``; None where nothing is evaluated on clients.

    Its answers are releases of their own, charged beside those of training. Arguments and errors
    as for ``build_client``, with a ``state_folder`` of its own.
    """
    if config.evaluation.client is None:
        return None
    setup = _client_setup(config, people, trainer, state_folder)
    return build(config.evaluation.client, "evaluation", setup, knobs=config.evaluation)


@dataclass(frozen=True)
class ClientHalf:
    """The client half of a run in one process.

    Attributes:
        trainer: the model that it trains.
        client: the strategy's client class.
        evaluator: that of an evaluation on clients; None where there is none.
    """

    trainer: Trainer
    client: Client
    evaluator: EvaluationClient | None

    @classmethod
    def build(
        cls,
        config: DictConfig,
        people: Population,
        trainer: Trainer,
        state_folder: Path,
        record_key: RecordKey | None = None,
    ) -> "ClientHalf":
        """Builds both classes. Arguments and errors as for ``build_client``."""
        return cls(
            trainer,
            build_client(config, people, trainer, state_folder, record_key),
            build_evaluator(config, people, trainer, state_folder / "evaluation"),
        )


def record_key(config: DictConfig, folder: Path) -> RecordKey:
    """Returns the key of records that a run of ``config`` uses where clients live in ``folder``.

    It is kept there; where ``privacy.noise=seeded`` it follows from the run's seed.
    """
    seed = config.seed if config.privacy.noise == "seeded" else None
    return RecordKey(folder / "records.key", seed)


def budget_and_schedule(config: DictConfig) -> tuple[Budget, Schedule]:
    """The budget of one client, and who is asked when.

    Server and clients each compute it from the configuration, and come to the same: the noise of a
    release follows from the budget, the number of rounds and the most that one client is asked.

    Raises:
        ConfigError: privacy or federation settings are out of range, or do not fit one another.
    """
    privacy: PrivacySettings = build(config.privacy, "privacy")
    federation: FederationSettings = build(config.federation, "federation")
    schedule = federation.schedule_of(config.seed)
    try:
        return privacy.budget(schedule), schedule
    except ValueError as error:
        raise ConfigError(f"federation.{error}") from error


def _client_setup(
    config: DictConfig,
    people: Population,
    trainer: Trainer,
    state_folder: Path,
    record_key: RecordKey | None = None,
) -> ClientSetup:
    test, (budget, schedule) = people.dataset.test, budget_and_schedule(config)
    return ClientSetup(
        trainer=trainer,
        public=people.public,
        test=(test.images, test.labels) if len(test) else None,
        budget=budget,
        seed=config.seed,
        state_dir=ClientState(state_folder),
        client_sizes=people.sizes,
        cohorts=schedule.cohorts(),
        record_key=record_key,
    )


BLOCK_CLIENTS = 1_024
"""Clients whose tiny models train at once on a CPU, to the same bits whatever this is."""


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


class SimulatedHost(host.Host):
    """The host of virtual clients, and what it was built of.

    It hosts every client of the run: the server may hand any of them to any node.

    Args:
        config: the run's, composed.
        site: the run's folder, in which its clients live.
        half: what answers; None: one of this host's own, as several threads need, which load
            parameters into their models at the same time.

    Attributes:
        client: the algorithm's client half.
        evaluator: that of an evaluation on clients; None where there is none.
        population: who has which data; shared by all hosts of a process.
        trainer: of ``half``.

    Raises:
        ConfigError: the settings cannot be.
    """

    site: SimulatedSite
    client: Client
    evaluator: EvaluationClient | None

    def __init__(
        self, config: DictConfig, site: SimulatedSite, half: ClientHalf | None = None
    ) -> None:
        self.config = config
        self.population = population(config)
        if half is None:
            trainer = build_trainer(config, self.population.dataset)
            key = record_key(config, site.folder)
            half = ClientHalf.build(config, self.population, trainer, site.state_dir, key)
        self.trainer = half.trainer
        privacy: PrivacySettings = build(config.privacy, "privacy")
        sums = privacy.secure_sums()
        people = range(len(self.population.shards))
        rules, started = sums.owner_rules(), started_with(config)
        parties = SecureParties(site, people, rules, sums.is_on, started=started)
        data = SimulatedData(self.population)
        values = values_of(config, site, half, data)
        compute: ComputeSettings = build(config.compute, "compute")
        stack = compute.stack
        if stack == 1 and self.trainer.stack is not None:
            stack = BLOCK_CLIENTS
        super().__init__(site=site, client_ids=people, secure=parties, stack=stack, **values)


def values_of(
    config: DictConfig,
    site: SimulatedSite | DeviceSite,
    half: ClientHalf,
    data: Data,
) -> dict[str, Any]:
    """Returns the arguments, by name, that every host of a run shares: all but its clients.

    Creates the site's folder and opens the ledger in it, which is bound to the one that the owner's
    policy names, if it names any.

    Noise comes from the operating system through a cryptographic generator, one for each thread.
    Where ``privacy.noise=seeded`` it follows from the run's seed: whoever knows that can remove it.
    So such a run's statement is void, and a device answers only if its policy allows it.

    Args:
        config: the run's, composed.
        site: where the clients live, with the owner's policy.
        half: what answers.
        data: opens the data of one client.

    Raises:
        ConfigError: the settings cannot be.
        LedgerError: the ledger is damaged, or is not the one that the policy names.
    """
    owner_only_folder(site.folder)
    privacy: PrivacySettings = build(config.privacy, "privacy")
    noise = host.noise_of_this_thread
    if privacy.noise == "seeded":
        noise = host.SeededNoise(config.seed)
    return {
        "facts": RunFacts(
            algorithm=str(config.strategy.name),
            delta=privacy.delta,
            rounds=int(config.federation.num_rounds),
            noise=privacy.noise,
            settings=settings_of(config),
        ),
        "client": half.client,
        "evaluator": half.evaluator,
        "data": data,
        "ledger": Ledger(site.folder / "ledger.sqlite", expected=site.policy.ledger),
        "noise": noise,
    }


_local = threading.local()


def host_for(
    config: DictConfig, site: Any, kind: Callable[[DictConfig, Any], host.Host]
) -> host.Host:
    """The host of this thread, made by ``kind`` anew for another run.

    A thread keeps one host: models and data then live from message to message. It is another run
    where kind, folder, run's name, owner's settings or the configuration's object differ; the host
    keeps its ``config``, so the object's identity cannot pass to another one.

    Args:
        config: the run's; ``compose`` gives the same object for the same overrides.
        site: of this message. A host that is kept gets it too, so that it answers under the
            owner's policy of now.
        kind: builds the host from ``config`` and ``site``.
    """
    key = (kind, site.folder, site.run, getattr(site, "owner", None), id(config))
    if getattr(_local, "key", None) != key:
        _local.host = kind(config, site)
        _local.key = key
    _local.host.site = site
    return _local.host
