"""What builds the server's half of a run, its strategy, out of the configuration.

In this order: the client halves, to refuse what clients would refuse; the setup that every strategy
is given; the strategy; what joins it (an evaluation on clients, an audit's canaries).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from clients.base import Client
from fl_app.config.building import build
from fl_app.config.errors import ConfigError
from fl_app.config.settings import FederationSettings, PrivacySettings
from fl_app.run.canaries import CanaryClients
from fl_app.run.clients import budget_and_schedule, build_client, build_evaluator
from fl_app.run.own_parts import metrics_of
from fl_app.run.population import Population
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Threat, Unit, epsilon
from murmur.round.placement import ClientPlacement, DevicePlacement, Enrolment, SimulatedPlacement
from murmur.round.setup import ServerSetup
from strategies.base import CohortStrategy

_ROUNDING = 1e-6


def build_strategy(config: DictConfig, population: Population, trainer: Trainer) -> CohortStrategy:
    """The strategy, with its evaluation and an audit's canaries where they are switched on.

    Args:
        config: the composed configuration.
        population: gives the pool, the test set and public sizes. A strategy sees no client's rows.
        trainer: the server's.

    Raises:
        ConfigError: whatever the strategy, or any client, would refuse: a setting, a budget that
            the algorithm cannot keep against this adversary, a cohort too small for secure sums.
    """
    federation: FederationSettings = build(config.federation, "federation")
    privacy: PrivacySettings = build(config.privacy, "privacy")
    # Only to refuse what the clients would refuse, before any work starts.
    client = build_client(config, population, trainer, Path())
    build_evaluator(config, population, trainer, Path())
    budget, schedule = budget_and_schedule(config)
    units = federation.num_clients
    if privacy.unit == "record" and population.sizes:
        units = sum(population.sizes)
    try:
        privacy.require_delta(units)
    except ValueError as error:
        raise ConfigError(f"privacy.{error}") from error
    setup = ServerSetup(
        trainer=trainer,
        public=population.public,
        test=population.dataset.test,
        budget=budget,
        seed=config.seed,
        num_clients=federation.num_clients,
        cohort_size=federation.cohort_size,
        quorum=federation.quorum,
        client_sizes=population.sizes,
        seeded_noise=privacy.noise == "seeded",
        secure_sums=replace(privacy.secure_sums(), peers=federation.peers),
        round_timeout=federation.round_timeout,
        placement=_placement(federation),
        schedule=schedule,
        metrics=metrics_of(config, population.dataset),
        split=population.split_by_rows,
        warnings=population.warnings,
        strategy=str(config.strategy.name),
    )
    strategy: CohortStrategy = build(
        config.strategy.server, "strategy", setup, knobs=config.strategy
    )
    if config.evaluation.server is not None:
        try:
            strategy.switch_on(
                build(config.evaluation.server, "evaluation", setup, knobs=config.evaluation)
            )
        except ValueError as error:
            raise ConfigError(f"evaluation.{error}") from error
    if config.audit.canaries:
        _add_canaries(config, client, strategy)
    _require_secure_sums(setup, strategy)
    _require_within_budget(strategy)
    return strategy


def _placement(federation: FederationSettings) -> ClientPlacement:
    """Which node is asked for which client: any node in a simulation, enrolled ones on devices.

    ConfigError where clients are on devices and no table says which key hosts which clients.
    """
    if federation.devices is None:
        return SimulatedPlacement()
    if federation.enrolled is None:
        raise ConfigError(
            "federation.enrolled=null: on devices it must name the table of the nodes' keys "
            "and clients; `murmur enrol` makes it"
        )
    try:
        enrolment = Enrolment.load(federation.enrolled)
    except ValueError as error:
        raise ConfigError(f"federation.enrolled={error}") from error
    return DevicePlacement(enrolment, federation.quorum, federation.round_timeout)


def _add_canaries(config: DictConfig, client: Client, strategy: CohortStrategy) -> None:
    """Let an audit's canary clients take part; ConfigError where they cannot."""
    if config.federation.devices is not None:
        raise ConfigError("audit=canaries: joins simulations only; set audit=none")
    try:
        strategy.canaries = CanaryClients(client, strategy, config.audit.canaries)
    except ValueError as error:
        raise ConfigError(f"audit.{error}") from error


def _require_secure_sums(setup: ServerSetup, strategy: CohortStrategy) -> None:
    """ConfigError where this cohort cannot sum securely: it tries the terms of a smallest group."""
    settings, size = setup.secure_sums, setup.cohort_size
    if settings.is_on:
        try:
            settings.terms("check", 0, range(size // settings.groups), 1, 1)
        except ValueError as error:
            raise ConfigError(f"privacy.secure_sum with a cohort of {size}: {error}") from error


def _require_within_budget(strategy: CohortStrategy) -> None:
    """ConfigError where the whole run would cost a unit more than the budget, by its own events.

    Murmur's own strategies calibrate to the budget; this is for those that do not read it.
    """
    budget = strategy.setup.budget
    if not budget.is_private or budget.paper:
        return
    planned = planned_epsilon(strategy)
    if planned > budget.epsilon * (1 + _ROUNDING):
        raise ConfigError(
            f"privacy.epsilon={budget.epsilon:g}: {strategy.algorithm} would spend "
            f"{planned:,.4g} of a {budget.unit} by the end; its noise must follow from the budget "
            "(`setup.budget`), or set privacy.epsilon=inf to promise none"
        )


def planned_epsilon(strategy: CohortStrategy) -> float:
    """ε of the whole run for the budget's unit, against its threat, under all assumptions."""
    budget = strategy.setup.budget
    return epsilon(
        strategy.planned(),
        budget.delta,
        Threat(budget.threat),
        strategy.adjacency,
        unit=Unit(budget.unit),
        assumptions=None,
    ).epsilon
