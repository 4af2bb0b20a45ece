"""The simulated population: data set, public pool, and each client's share of the rest.

Server and nodes build the same population from the same configuration; a process does so once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from clients.base import Client, ClientSetup
from clients.protected_evaluation import EvaluationClient
from fl_app.config import ConfigError, build
from fl_app.settings import FederationSettings, PrivacySettings
from learning.datasets import DataError, Dataset
from learning.public_pool import split_public
from learning.seeding import experiment_rng
from learning.trainer import Trainer


@dataclass(frozen=True)
class Population:
    """``public`` (P, C, H, W): the pool without labels; ``shards``: rows of ``dataset.train``."""

    dataset: Dataset
    public: NDArray[np.float32]
    shards: list[NDArray[np.int64]]

    def client_sizes(self) -> tuple[int, ...]:
        """Examples of every client."""
        return tuple(len(rows) for rows in self.shards)

    def class_counts(self) -> NDArray[np.int64]:
        """Examples of each class at each client (clients, classes)."""
        labels, classes = self.dataset.train.labels, self.dataset.num_classes
        return np.stack([np.bincount(labels[rows], minlength=classes) for rows in self.shards])


def population(config: DictConfig) -> Population:
    """The population that ``config`` describes."""
    needed = {key: config[key] for key in ("dataset", "partition", "federation", "seed")}
    return _population(OmegaConf.to_yaml(OmegaConf.create(needed), resolve=True))


def build_trainer(config: DictConfig, dataset: Dataset) -> Trainer:
    """The model of ``config.model`` for this data set, ready to train."""
    try:
        return Trainer(build(config.model, "model"), dataset.input_shape, dataset.num_classes)
    except ValueError as error:
        raise ConfigError(f"model.{error}") from error


def build_client(
    config: DictConfig, people: Population, trainer: Trainer, state_folder: Path
) -> Client:
    """The client class of ``config.strategy``, with its tools and its budget."""
    setup = _client_setup(config, people, trainer, state_folder)
    return build(config.strategy.client, "strategy", setup)


def build_evaluator(
    config: DictConfig, people: Population, trainer: Trainer, state_folder: Path
) -> EvaluationClient | None:
    """The client half of ``config.evaluation``; None where nothing is evaluated on clients."""
    if config.evaluation.client is None:
        return None
    setup = _client_setup(config, people, trainer, state_folder)
    return build(config.evaluation.client, "evaluation", setup)


def _client_setup(
    config: DictConfig, people: Population, trainer: Trainer, state_folder: Path
) -> ClientSetup:
    privacy: PrivacySettings = build(config.privacy, "privacy")
    federation: FederationSettings = build(config.federation, "federation")
    return ClientSetup(
        trainer=trainer,
        public=people.public,
        test=(people.dataset.test.images, people.dataset.test.labels),
        budget=privacy.budget(federation.num_rounds),
        seed=config.seed,
        state_folder=state_folder,
        client_sizes=people.client_sizes(),
    )


@functools.lru_cache(maxsize=2)
def _population(description: str) -> Population:
    config = OmegaConf.create(description)
    federation: FederationSettings = build(config.federation, "federation")
    dataset = _dataset(OmegaConf.to_yaml(config.dataset))
    size = federation.public_size(len(dataset.train))
    if size >= len(dataset.train):
        raise ConfigError(
            f"federation.public={federation.public}: must leave private data; the training set "
            f"has {len(dataset.train)} examples"
        )
    public, private = split_public(
        len(dataset.train), size, experiment_rng(config.seed, "public pool")
    )
    if federation.num_clients > len(private):
        raise ConfigError(
            f"federation.num_clients={federation.num_clients}: more clients than the "
            f"{len(private)} private examples; lower it or federation.public"
        )
    partition = build(config.partition, "partition")
    try:
        shares = partition(
            dataset.train.labels[private],
            federation.num_clients,
            dataset.num_classes,
            experiment_rng(config.seed, "partition"),
        )
    except ValueError as error:
        raise ConfigError(f"partition: {error}") from error
    return Population(dataset, dataset.train.images[public], [private[share] for share in shares])


@functools.lru_cache(maxsize=2)
def _dataset(description: str) -> Dataset:
    try:
        return build(OmegaConf.create(description), "dataset")
    except DataError as error:
        raise ConfigError(f"dataset: {error}") from error
