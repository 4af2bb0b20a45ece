"""The server's half of a run, built out of the configuration: its strategy, start and scores.

``build_strategy``, in this order: the setup that every strategy is given; the strategy; what joins
it (an evaluation on clients, an audit's canaries).

``start_of`` gives the first global model, ``metrics_of`` the further scores on the test set: what a
user brings is refused before a run where it cannot work. Neither reads a client's data, so neither
costs privacy: a start comes from a file, from the names of classes or from their public shares.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load_file

from clients.base import Client
from fl_app.config.client_half import started_with
from fl_app.config.errors import ConfigError
from fl_app.config.instantiate import build, is_refusal, require
from fl_app.config.plugins import own_part
from fl_app.config.settings import FederationSettings, PrivacySettings
from fl_app.run.canaries import CanaryClients
from fl_app.run.hosts import budget_and_schedule
from fl_app.run.population import Population
from fl_app.run.scores import row_scores
from murmur.algorithms.gradient_rounds import start_from_names
from murmur.format import format_number
from murmur.learning.data.datasets import Dataset
from murmur.learning.linear_model import Head
from murmur.learning.metrics import Metric, metrics, over_owners
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.guarantee import departures
from murmur.round.placement import ClientPlacement, DevicePlacement, Enrolment, SimulatedPlacement
from murmur.round.setup import ServerSetup
from strategies.base import CohortStrategy

_EPSILON_TOLERANCE = 1e-6


def build_strategy(
    config: DictConfig, population: Population, trainer: Trainer, client: Client
) -> CohortStrategy:
    """The strategy, with its evaluation and an audit's canaries where they are switched on.

    Args:
        config: the composed configuration.
        population: gives the pool, the test set and public sizes. A strategy sees no client's rows.
        trainer: the server's.
        client: of the same run, with which canaries answer.

    Raises:
        ConfigError: whatever the strategy would refuse: a setting, a budget that the algorithm
            cannot keep against this adversary, a cohort too small for secure sums.
    """
    federation: FederationSettings = build(config.federation, "federation")
    privacy: PrivacySettings = build(config.privacy, "privacy")
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
        started=started_with(config),
    )
    strategy: CohortStrategy = build(
        config.strategy.server, "strategy", setup, knobs=config.strategy
    )
    _require_within_budget(strategy)
    if config.evaluation.server is not None:
        try:
            strategy.rounds.switch_on(
                build(config.evaluation.server, "evaluation", setup, knobs=config.evaluation)
            )
        except ValueError as error:
            raise ConfigError(f"evaluation.{error}") from error
    if config.audit.canaries:
        _add_canaries(config, client, strategy)
    _require_secure_sums(setup, strategy)
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
    require("audit.canaries", config.audit.canaries, int)
    try:
        strategy.rounds.canaries = CanaryClients(client, strategy, config.audit.canaries)
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
    if not budget.is_private or budget.paper_semantics:
        return
    try:
        planned = planned_epsilon(strategy)
    except ValueError as error:
        if is_refusal(error):  # no noise is large enough
            raise ConfigError(f"strategy={strategy.setup.strategy}: {error}") from error
        raise
    if planned > budget.epsilon * (1 + _EPSILON_TOLERANCE):
        why = departures(strategy.claims().planned(), budget.protected, strategy.adjacency)
        because = f", since {' and '.join(why)}" if why else ""
        raise ConfigError(
            f"privacy.epsilon={budget.epsilon:g}: {strategy.algorithm} would spend "
            f"{format_number(planned)} of a {budget.unit} by the end{because}; its noise does not "
            "follow from this budget, as that of Murmur's algorithms does (in a class of your own: "
            "`setup.budget`); set privacy.epsilon=inf to promise none"
        )


def planned_epsilon(strategy: CohortStrategy) -> float:
    """ε of the whole run for the budget's unit and the strategy's neighbours.

    Against the budget's threat, under all assumptions.
    """
    budget = strategy.setup.budget
    return epsilon(
        strategy.claims().planned(),
        budget.delta,
        Threat(budget.threat),
        strategy.adjacency,
        unit=budget.protected,
        assumptions=None,
    ).epsilon


def start_of(
    config: DictConfig, trainer: Trainer, people: Population
) -> NDArray[np.float32] | None:
    """The parameters (d,) that ``model.start`` names; None: the strategy's own.

    Args:
        config: its groups model and features are read.
        trainer: of the server, with the model that is to start there.
        people: names of the classes, and what texts are read with.

    Raises:
        ConfigError: the file cannot be read or is of another model; the model is not linear where
            ``names`` or ``rates`` ask for one; names or shares are missing.
    """
    path = config.model.get("start")
    require("model.start", path, str | None)
    if path in (None, "zero"):
        return None
    try:
        if path == "names":
            return _named(config, Head(trainer, "model.start=names"), people)
        if path == "rates":
            return _rated(config, Head(trainer, "model.start=rates"))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        return trainer.flat.flatten(load_file(Path(path).expanduser()))
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"model.start={path}: {error}") from error


def _named(config: DictConfig, head: Head, people: Population) -> NDArray[np.float32]:
    """Where a linear model starts from the classes' names (``gradient_rounds.start_from_names``).

    The weights of a class point to the features of the line of text that describes it, have length
    ``model.start_length``, and no constant. ValueError where a class has no line, or the features
    read no texts.
    """
    lines = OmegaConf.to_container(config.features.get("names") or OmegaConf.create({}))
    texts = getattr(people.fitted, "texts", None)
    classes = people.dataset.classes or ()
    if texts is None:
        raise ValueError("model.start=names: needs features that read texts; set features=encoder")
    if not isinstance(lines, dict):
        raise ValueError(f"features.names={lines}: must be a mapping, a line for each class")
    for name in classes:
        if not isinstance(lines.get(name), str):
            raise ValueError(
                f"features.names: has no line for the class {name!r}; write one line of text for "
                f"each of {', '.join(classes)}"
            )
    start = start_from_names(texts([lines[name] for name in classes]), config.model.start_length)
    return head.joined(start[1:], start[0]).astype(np.float32)


def _rated(config: DictConfig, head: Head) -> NDArray[np.float32]:
    """Where a linear model starts from the classes' public shares, whatever the features.

    Its constant is the logarithm of ``model.start_rates``, so that it predicts these shares for
    every image. ValueError unless there is a share above 0 for each class, and they add up to 1.
    """
    rates = np.array(config.model.start_rates or [], np.float64)
    if rates.shape != (head.classes,) or not (rates > 0).all() or abs(rates.sum() - 1) > 1e-6:
        raise ValueError(
            f"model.start_rates={rates.tolist()}: must be a share above 0 for each of "
            f"{head.classes} classes, together 1"
        )
    nothing = np.zeros((head.features, head.classes))
    return head.joined(nothing, np.log(rates)).astype(np.float32)


def metrics_of(config: DictConfig, dataset: Dataset) -> dict[str, Metric]:
    """The scores that ``evaluation.metrics`` names, which can be taken on the test set.

    They are functions of logits (N, classes) and labels (N,) that give a number. Where it is known
    whose each test example is, ``accuracy_over_owners`` joins them unasked. A user's own are for
    simulations only.

    Those that rows carry by themselves (``scores.row_scores``) may be named too, and are left out;
    in tasks without classes there are no others.

    Args:
        config: its groups evaluation and federation are read.
        dataset: whose test set is scored; every score is tried with its labels here.

    Returns:
        The scores by the name that they have in a row.

    Raises:
        ConfigError: a name is unknown, or its function gives no number or not the same twice.
    """
    names = config.evaluation.get("metrics") or []
    if OmegaConf.is_list(names):
        names = OmegaConf.to_container(names)
    if not isinstance(names, list) or not all(isinstance(name, str | dict) for name in names):
        raise ConfigError(f"evaluation.metrics={names}: must be a list of names")
    usual = row_scores(config)
    if not dataset.objective.has_classes:
        others = [str(name) for name in names if name not in usual]
        if others:
            raise ConfigError(
                f"evaluation.metrics={others[0]}: is of classes; task={config.task} has "
                f"{', '.join(usual)}"
            )
        return {}
    if "auc" in names and dataset.num_classes != 2:
        raise ConfigError("evaluation.metrics=auc: is of two classes; take roc_auc_score")
    names = [name for name in names if name not in usual]
    own = own_part if config.federation.devices is None else _simulated_only
    try:
        found = metrics(names, dataset.num_classes, own, dataset.test.labels)
        if dataset.test_owners is not None:
            found["accuracy_over_owners"] = over_owners(dataset.test_owners)
        return found
    except ConfigError as error:
        raise ConfigError(f"evaluation.metrics={error}") from error
    except ValueError as error:
        raise ConfigError(f"evaluation.{error}") from error


def _simulated_only(name: str) -> None:
    raise ConfigError(f"{name}: scores of your own are for simulations, not for runs on devices")


def require_scored(strategy: CohortStrategy) -> None:
    """Refuse metrics where the strategy has an ``evaluate`` of its own, which knows none of them.

    Raises:
        ConfigError: there are metrics, also ``accuracy_over_owners``, and such a strategy.
    """
    if strategy.setup.metrics and type(strategy).evaluate is not CohortStrategy.evaluate:
        raise ConfigError(f"evaluation.metrics: {strategy.algorithm} has scores of its own")
