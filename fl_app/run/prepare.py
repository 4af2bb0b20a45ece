"""From what was typed to a run that is ready to start, and what to say of it before.

The command, the jobs of a sweep, `murmur resume` and ``fl_app.api`` all come through ``prepare``:
a ``ValidatedRun`` with a folder of its own.

What is said is no promise about accuracy (``strategies.forecast``). What a linear model reaches
without noise is estimated on the server's test set; to score settings before a run, `murmur advise
settings` takes labelled public data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from omegaconf import DictConfig, OmegaConf

from fl_app.config.compose import compose, decided, key_names, suited
from fl_app.config.errors import ConfigError
from fl_app.config.instantiate import build
from fl_app.config.overrides import absolute_paths, new_run_dir, quoted
from fl_app.run.data_card import DataCard, data_card
from fl_app.run.population import image_population, population
from fl_app.run.scores import leading_score
from murmur.learning.metrics import chance, linear_score
from murmur.learning.process import has_kernels
from murmur.privacy.accounting import Threat
from murmur.privacy.budget import Budget
from murmur.privacy.statement_text import THREATS, UNITS

if TYPE_CHECKING:
    from fl_app.run.validated import ValidatedRun
    from murmur.learning.data.examples import Examples
    from strategies.forecast import Forecast


def prepare(
    overrides: Sequence[str],
    path: Path | None = None,
    base: Path | None = None,
) -> ValidatedRun:
    """Validate the whole configuration, then make the folder.

    Data that cannot be read or shared out are refused first. Then what the engine needs is started,
    before anything slow is imported: importing PyTorch and validating take as long as an engine.

    A folder that holds a run already is taken up if that run may go on with these settings.

    Args:
        overrides: Hydra's.
        path: the run's folder; None: as configured (``run_dir``), or a new one in ``results_dir``.
        base: where typed paths start; None: the working directory.

    Raises:
        ConfigError: the settings are wrong or the engine cannot start, before anything is written;
            or the folder cannot be written, is in use by another process, or holds a run that
            cannot go on.
    """
    words = _settled(overrides, path, base or Path.cwd())
    with _in_typed_words(words) as config:
        image_population(config)
        build(config.engine, "engine").begin()
        population(config)  # data that do not fit are refused before PyTorch is imported
        from fl_app.run.experiment import Experiment
        from fl_app.run.validated import ValidatedRun

        run = ValidatedRun(config, Path(config.run_dir), words)
    with run.folder.claim():
        Experiment(run).checkpoint()
        run.folder.save_overrides(words)
    return run


def _settled(overrides: Sequence[str], path: Path | None, base: Path) -> list[str]:
    """Returns overrides that say the same as ``overrides`` on every machine and in every folder.

    Args:
        overrides: as typed.
        path: the run's folder; None: as configured, or a new one.
        base: where typed paths start.
    """
    config = compose(overrides)
    if path is None:
        if config.run_dir is None:
            path = new_run_dir(config.results_dir, config.run_name)
        else:
            path = Path(config.run_dir)
    path = (base / path).resolve()  # "." has no name
    words = [word for word in suited(overrides) if not word.startswith("run_dir=")]
    words += [*absolute_paths(config, base), *decided(config), f"run_dir={quoted(path)}"]
    if config.run_name is None:
        words.append(f"run_name={quoted(Path(path.name))}")  # a copy of the folder stays this run
    return words


def card_of(overrides: Sequence[str]) -> DataCard:
    """The card of the data that ``overrides`` describe; ConfigError where they are wrong."""
    with _in_typed_words(overrides) as config:
        return data_card(config)


def validated(overrides: Sequence[str]) -> ValidatedRun:
    """Returns the run that ``overrides`` describe, without a folder.

    Raises:
        ConfigError: they are wrong. Components check their own settings; any other exception is a
            bug of theirs.
    """
    with _in_typed_words(overrides) as config:
        population(config)  # data that do not fit are refused before PyTorch is imported
        from fl_app.run.validated import ValidatedRun

        return ValidatedRun(config)


@contextmanager
def _in_typed_words(overrides: Sequence[str]) -> Iterator[DictConfig]:
    """The configuration; what refuses it inside is about keys and values as they were typed."""
    config = compose(overrides)
    try:
        yield config
    except ConfigError as error:
        raise ConfigError(_with_typed_key(str(error), config)) from error


def _with_typed_key(message: str, config: DictConfig) -> str:
    """``message`` about the key as a user types it: a component names its own setting only.

    conf/ makes ``strategy.client.epochs`` of ``strategy.local.epochs``, and a component says
    ``epochs``. The key is replaced only where one of the configuration's keys is meant without
    doubt; else the message stays as it is.
    """
    said = re.match(r"([\w.]+)(?:=([^:]*))?(?=:)", message)
    plain = OmegaConf.to_container(config, resolve=True)
    if said is None or not isinstance(plain, dict):
        return message
    keys = [key for key in key_names(plain) if not re.match(r"strategy\.(client|server)\.", key)]
    group, _, name = said[1].rpartition(".")
    meant = [key for key in keys if key == name or key.endswith(f".{name}")]
    # Two groups may have a key of that name, and one group two of them: then the value tells.
    meant = [key for key in meant if key.startswith(group.split(".")[0])] or meant
    if len(meant) > 1:
        meant = [key for key in meant if str(OmegaConf.select(config, key)) == said[2]]
    if said[1] in keys or len(meant) != 1:
        return message
    return meant[0] + message[said.end(1) :]


def opening_lines(run: ValidatedRun) -> list[str]:
    """The lines that a run begins with: its budget, what it will reach, and its warnings."""
    lines = [budget_line(run.strategy.setup.budget)]
    forecast = forecast_of(run)
    if forecast is not None:
        lines.append(f"expected: {forecast.text()}")
    people = run.population
    on_card = run.card.left_out
    notes = [note for note in people.dataset.notes if note not in on_card]
    warnings = [*notes, *people.warnings, *run.strategy.warnings()]
    if not has_kernels():
        warnings.append(
            "murmur-kernels is not installed: PyTorch's autograd trains, more slowly; in a "
            "checkout, `pip install ./packages/murmur-kernels`"
        )
    if forecast is not None:
        said = replace(forecast, chance=None, clean=None).text()  # is in what is expected
        warnings = [text for text in warnings if text != said]
    return lines + [f"note: {text}" for text in warnings]


def budget_line(budget: Budget) -> str:
    """Describes in one sentence the promise of ``privacy.epsilon`` in this run."""
    if not budget.is_private:
        return "budget: none (privacy.epsilon=inf); the statement says what is proven"
    if budget.paper_semantics:
        return (
            f"budget: ε = {budget.epsilon:g} as the paper counts it (privacy=paper), in itself no "
            "promise against anybody"
        )
    return (
        f"budget: ε = {budget.epsilon:g} at δ = {budget.delta:g} for the whole run and "
        f"{UNITS[budget.protected]}, against {THREATS[Threat(budget.threat)]} ({budget.threat})"
    )


def forecast_of(run: ValidatedRun) -> Forecast | None:
    """Returns what noise leaves of the leading score; None: nothing is protected, or unknown.

    What is known of that was measured on classes (``strategies.forecast``).
    """
    strategy = run.strategy
    forecast = strategy.forecast()
    if forecast is None or not strategy.setup.budget.is_private:
        return None
    if not run.trainer.objective.has_classes:
        return None
    test = strategy.setup.test
    clean = None
    if leading_score(run.config) == "auc":
        score, name, guessed = "auc", "AUC ", 0.5
    else:
        score, name, guessed = "accuracy", "", chance(test.labels)
    if not forecast.is_drowned and run.trainer.num_parameters == _linear(test):
        clean = linear_score(test.images, test.labels, score)
    return replace(forecast, chance=guessed, clean=clean, score=name)


def _linear(test: Examples) -> int:
    """How many parameters a linear model of these features has."""
    numbers = int(np.prod(test.images.shape[1:]))
    return (numbers + 1) * (int(test.labels.max(initial=0)) + 1)
