"""A client of a run as its configuration describes it: model, budget, tools, and its two halves.

The two halves are the client class of the strategy and that of an evaluation on clients. The
server builds them too (``fl_app.run.server``), so that what a client would refuse is refused before
a run; hosts in simulation and on devices build them to answer (``fl_app.run.hosts``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from clients.base import Client, ClientSetup
from fl_app.config.building import build
from fl_app.config.errors import ConfigError
from fl_app.config.settings import ComputeSettings, FederationSettings, PrivacySettings
from fl_app.run.population import Population
from murmur.learning.data.datasets import Dataset
from murmur.learning.process import has_compiler
from murmur.learning.training.trainer import Trainer
from murmur.learning.training.trial import try_out
from murmur.privacy.budget import Budget
from murmur.round.client_state import ClientState
from murmur.round.cohorts import Schedule

if TYPE_CHECKING:
    from clients.protected_evaluation import EvaluationClient

_MODELS = "murmur.learning.models."


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
            does not fit the data set.
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
            "compute.fused=True: needs llvmlite (pip install 'murmur-fl[fast]'); with "
            "compute.fused=false the result is the same but for rounding"
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
        return Trainer(
            model,
            dataset.input_shape,
            dataset.num_classes,
            device=compute.device,
            inference_threads=inference_threads,
            mixed_precision=compute.mixed_precision,
            fused=compute.fused,
            precision=compute.precision,
        )
    except ValueError as error:
        group = {"model": "", "precision": "compute."}.get(str(error).partition("=")[0], "model.")
        raise ConfigError(f"{group}{error}") from error


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
    """What makes the model of ``conf/model``'s settings; where it starts is the server's affair.

    Args:
        node: the group's settings; those whose names begin with ``start`` are left out, since the
            server sends the parameters that they lead to (``own_parts.start_of``).

    Returns:
        A function of (C, H, W) and the number of classes that gives the module.

    Raises:
        ConfigError: the class cannot be imported, or refuses a setting.
    """
    own = {key: value for key, value in node.items() if not str(key).startswith("start")}
    return build(OmegaConf.create(own), "model")


def build_client(
    config: DictConfig, people: Population, trainer: Trainer, state_folder: Path
) -> Client:
    """The client class of ``config.strategy``, with its tools and its budget.

    Args:
        config: the composed configuration.
        people: the public pool, the test set and public sizes come from here. Clients' own rows are
            not given to the class but opened for each answer.
        trainer: of this process; the client class loads parameters into it.
        state_folder: where clients remember what a round leaves for the next one.

    Raises:
        ConfigError: a setting is refused, the class cannot keep the budget against the
            configured adversary (``privacy.threat``), or the model keeps statistics over batches,
            which no mechanism of the strategy would protect.
    """
    setup = _client_setup(config, people, trainer, state_folder)
    client: Client = build(config.strategy.client, "strategy", setup, knobs=config.strategy)
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
    config: DictConfig, people: Population, trainer: Trainer, state_folder: Path
) -> ClientSetup:
    test, (budget, schedule) = people.dataset.test, budget_and_schedule(config)
    return ClientSetup(
        trainer=trainer,
        public=people.public,
        test=(test.images, test.labels) if len(test) else None,
        budget=budget,
        seed=config.seed,
        memory=ClientState(state_folder),
        client_sizes=people.sizes,
        cohorts=schedule.cohorts(),
    )
