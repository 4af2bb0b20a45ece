"""Hydra's overrides: reading them, and the jobs that a sweep makes of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Every job of a sweep over comma-separated values and ranges, in the order Hydra runs them."""
    choices = []
    for override in parsed(overrides):
        if override.is_interval_sweep():
            continue  # belongs to an optimiser's sweeper, which draws the values
        if override.is_sweep_override():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in _values(override)])
        else:
            choices.append([override.input_line or ""])
    return [list(job) for job in itertools.product(*choices)]


def _values(override: Override) -> Iterable[str]:
    """Those of a sweep; ``glob`` chooses among the files of a group, as Hydra's does."""
    wanted = override.value()
    if not isinstance(wanted, Glob):
        return override.sweep_string_iterator()
    group = override.key_or_group
    if group not in groups():
        raise ConfigError(f"{group}: is no group of choices, of which glob(...) is; list values")
    found = wanted.filter(groups()[group])
    if not found:
        raise ConfigError(
            f"{override.input_line}: matches none of {group}'s choices; known are "
            f"{', '.join(groups()[group])}"
        )
    return found


def swept(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that hold for every job, and those that give several values."""
    fixed: list[str] = []
    varied: list[str] = []
    for override in parsed(overrides):
        (varied if override.is_sweep_override() else fixed).append(override.input_line or "")
    return fixed, varied


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Hydra's reading of ``overrides``."""
    return [_parse(word) for word in overrides]


@functools.lru_cache(maxsize=4096)
def _parse(override: str) -> Override:
    try:
        return OverridesParser.create().parse_overrides([override])[0]
    except HydraException as error:
        raise ConfigError(f"{one_line(error)}; write key=value") from error


def one_line(error: Exception) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())
