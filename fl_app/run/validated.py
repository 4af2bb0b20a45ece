"""A run that is ready to start: all that its server and its clients are built from, made once.

``ValidatedRun`` reads the data, builds the model, the client half and the strategy, and refuses
what any of them refuses, before a file is written or anybody is asked. `murmur`, the jobs of a
sweep and ``fl_app.api`` get theirs from ``fl_app.run.prepare``; the ServerApp of `flwr run` makes
its own.
``fl_app.run.experiment`` runs it. Where clients answer in the same process, they answer with its
client half (``fl_app.engines.inline``).
"""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from fl_app.config.compose import compose
from fl_app.config.instantiate import build
from fl_app.config.settings import FederationSettings, PrivacySettings
from fl_app.run import hosts, server
from fl_app.run.data_card import DataCard, data_card
from fl_app.run.population import Population, population
from fl_app.run.results import RunFolder
from fl_app.run.scores import leading_score
from fl_app.run.tasks import require_task
from fl_app.tracking import Tracker
from murmur.privacy.accounting import Threat
from murmur.privacy.statement_text import THREATS
from murmur.round.site import SimulatedSite


class ValidatedRun:
    """A validated run.

    Its strategy has the state of one run, so it is run once at most.

    Args:
        config: the composed configuration.
        path: of the run's folder, which is not made here; None for a run that is only checked.
        overrides: Hydra's, which say the same on every machine and in every working directory:
            paths are absolute, ``auto`` is decided, folder and name of the run are among them.
            Engines hand them to other processes.

    Attributes:
        config, path, overrides: the arguments.
        federation, privacy: groups of the configuration, checked.
        tracker: is told of every row.
        population: who has which data.
        trainer: the model, with as many inference threads as this process has cores.
        clients: the client half, which remembers in the run's folder.
        strategy: the server half, with evaluation and canaries if switched on.
        start: (d,) float32, the parameters that ``model.start`` names; None: the strategy's own.
        is_started: whether it runs, or has run.

    Raises:
        ConfigError: the settings cannot be; the text names the key.
    """

    def __init__(
        self, config: DictConfig, path: Path | None = None, overrides: Sequence[str] = ()
    ) -> None:
        self.config = config
        self.path = path
        self.overrides = list(overrides)
        self.is_started = False
        require_task(config)
        self.federation: FederationSettings = build(config.federation, "federation")
        self.privacy: PrivacySettings = build(config.privacy, "privacy")
        self.tracker: Tracker = build(config.tracking, "tracking")
        self.population: Population = population(config)
        # The server computes while its clients wait.
        self.trainer = hosts.build_trainer(
            config, self.population.dataset, inference_threads=_cores()
        )
        hosts.require_usable(self.trainer)
        self.trainer.release_buffers()
        site = SimulatedSite.of(path or Path())
        key = hosts.record_key(config, site.folder)
        self.clients = hosts.ClientHalf.build(
            config, self.population, self.trainer, site.state_dir, key
        )
        self.strategy = server.build_strategy(
            config, self.population, self.trainer, self.clients.client
        )
        server.require_scored(self.strategy)
        self.start = server.start_of(config, self.trainer, self.population)

    @classmethod
    def of(cls, overrides: Sequence[str]) -> "ValidatedRun":
        """Returns the run of ``overrides``, which say where its folder is (``run_dir``)."""
        config = compose(overrides)
        return cls(config, Path(config.run_dir), overrides)

    @cached_property
    def folder(self) -> RunFolder:
        """The run's folder, made where it is missing.

        Raises:
            ConfigError: it cannot be made or written to.
        """
        assert self.path is not None, "this run was only checked"
        return RunFolder(self.path)

    @cached_property
    def card(self) -> DataCard:
        """The card of its data."""
        return data_card(self.config)

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.federation.num_rounds

    @property
    def adversary(self) -> str:
        """The adversary against whom its rows state ε, in words."""
        return THREATS[Threat(self.strategy.setup.budget.threat)]

    @property
    def score(self) -> str:
        """The leading score, by its name in a row."""
        return leading_score(self.config)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Labels of the server's test set."""
        return self.strategy.setup.test.labels

    def begin(self) -> None:
        """Note that this run starts; RuntimeError where it did before."""
        if self.is_started:
            raise RuntimeError("this run was started before: validate it anew")
        self.is_started = True

    def run(self) -> None:
        """Run to the end on the configured engine; an earlier attempt's error is forgotten first.

        Raises:
            RunError, ConfigError: the run ended early, for a reason that its user can mend.
        """
        self.folder.forget_error()
        build(self.config.engine, "engine").run(self)


def _cores() -> int:
    """Cores for this process; OMP_NUM_THREADS is how launchers share them out."""
    share = os.environ.get("OMP_NUM_THREADS", "")
    return int(share) if share.isdigit() and share != "0" else os.cpu_count() or 1
