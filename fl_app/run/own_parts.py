"""What a user brings to a run, refused before it where it cannot work: start, metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load_file

from fl_app.config.errors import ConfigError
from fl_app.config.own_classes import own_part
from murmur.learning.data.datasets import Dataset
from murmur.learning.metrics import Metric, metrics
from murmur.learning.training.trainer import Trainer
from strategies.base import CohortStrategy


def start_of(config: DictConfig, trainer: Trainer) -> NDArray[np.float32] | None:
    """The parameters (d,) in the file ``model.start``; None: the strategy's own."""
    path = config.model.get("start")
    if path is None:
        return None
    try:
        return trainer.flatten(load_file(Path(path).expanduser()))
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"model.start={path}: {error}") from error


def metrics_of(config: DictConfig, dataset: Dataset) -> dict[str, Metric]:
    """The scores that ``evaluation.metrics`` names, which can be taken on the test set.

    A user's own are for simulations only.
    """
    names = OmegaConf.to_container(config.evaluation.get("metrics") or OmegaConf.create([]))
    if not isinstance(names, list) or not all(isinstance(name, str | dict) for name in names):
        raise ConfigError(f"evaluation.metrics={names}: must be a list of names")
    own = own_part if config.federation.devices is None else _simulated_only
    try:
        return metrics(names, dataset.num_classes, own, dataset.test.labels)
    except ConfigError as error:
        raise ConfigError(f"evaluation.metrics={error}") from error
    except ValueError as error:
        raise ConfigError(f"evaluation.{error}") from error


def _simulated_only(name: str) -> None:
    raise ConfigError(f"{name}: scores of your own are for simulations, not for runs on devices")


def require_scored(strategy: CohortStrategy) -> None:
    """ConfigError where metrics are asked for and the strategy evaluates no global model."""
    if strategy.setup.metrics and type(strategy).evaluate is not CohortStrategy.evaluate:
        raise ConfigError(f"evaluation.metrics: {strategy.algorithm} has scores of its own")
