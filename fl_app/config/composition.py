"""Composes the configuration from overrides, in the same way for every command.

``murmur``, ``murmur -m`` and ``flwr run --run-config`` all end in ``compose``. Wrong keys and
values fail here or in ``build``, before any work starts, as a ``ConfigError`` that names the key,
the value, what is allowed, and the nearest valid name.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fl_app.config.compute_choices import decide
from fl_app.config.errors import ConfigError, nearest
from fl_app.config.groups import OPTIONAL_GROUPS, Roots, groups, roots
from fl_app.config.overrides import one_line, parsed
from fl_app.config.run_checks import check_classes, check_run
from fl_app.config.run_config import to_overrides

_composing = threading.Lock()

SERVER_MAY_SET = "server_may_set"  # in files of conf/: see fl_app.device.agreement


def from_run_config(run_config: Mapping[str, Any]) -> DictConfig:
    """The configuration for a Flower run-config."""
    return compose(to_overrides(run_config))


def compose(overrides: Sequence[str]) -> DictConfig:
    """The whole configuration for Hydra ``overrides``, interpolations resolved and read-only."""
    return _compose(roots(), tuple(overrides))


@functools.lru_cache(maxsize=64)
def _compose(conf: Roots, overrides: tuple[str, ...]) -> DictConfig:
    words = parsed(overrides)
    if any(override.is_sweep_override() for override in words):
        raise ConfigError(
            "several values for one key need a sweep: use `murmur -m` "
            f"({', '.join(o.input_line or '' for o in words if o.is_sweep_override())})"
        )
    chosen = [o for o in words if _is_group(o)]
    for override in chosen:
        _check_choice(override)
    choices = tuple(o.input_line or "" for o in chosen)
    values = [o for o in words if not _is_group(o)]
    for override in values:
        _check_key(override, conf, choices)
    if any(_changes_keys(override) for override in values):
        return finished(_raw_compose(list(overrides)))
    # Hydra takes a fifth of a second for the files; the jobs of a sweep differ in values alone.
    config = copy.deepcopy(_template(conf, choices))
    for override in values:
        try:
            OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{override.input_line}: {one_line(error)}") from error
    return finished(config)


def choices(overrides: Sequence[str]) -> dict[str, str]:
    """Which file of each group of conf/ ``overrides`` choose, by themselves or an experiment."""
    words = tuple(o.input_line or "" for o in parsed(tuple(overrides)) if _is_group(o))
    return dict(_composed(roots(), words)[1])


def installed(choices: tuple[str, ...]) -> DictConfig:
    """The files of conf/ that ``choices`` name, as they stand; not to be changed."""
    return _base(roots(), choices)


def finished(config: DictConfig) -> DictConfig:
    """``config`` with interpolations resolved, its classes checked, read-only."""
    OmegaConf.set_struct(config, False)
    try:  # looking at a value resolves it
        _drop_limits(config)
        OmegaConf.resolve(config)
        decide(config)
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    check_run(config)
    check_classes(config)
    OmegaConf.set_readonly(config, True)
    return config


def load(path: Path) -> DictConfig:
    """A run's ``config.yaml``; ConfigError where it is damaged, or names what conf/ does not."""
    try:
        config = OmegaConf.load(path)
        if not isinstance(config, DictConfig) or not set(groups()) - OPTIONAL_GROUPS <= set(config):
            raise ConfigError(f"{path}: is no run's configuration; give a folder of `murmur`")
        return finished(config)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: cannot be read ({one_line(error)})") from error


def unlike_defaults(overrides: Sequence[str]) -> list[str]:
    """The words that give a setting a value of another kind than its default has."""
    words = parsed(overrides)
    base = _base(roots(), tuple(o.input_line or "" for o in words if _is_group(o)))
    odd = []
    for override in words:
        if _is_group(override) or override.is_delete():
            continue
        default = OmegaConf.select(base, override.key_or_group, default=None)
        if _kind(override.value()) != _kind(default):
            odd.append(override.input_line or "")
    return odd


def _kind(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    if isinstance(value, Mapping):
        return "mapping"
    return "list" if OmegaConf.is_list(value) else type(value).__name__


def _is_group(override: Override) -> bool:
    return override.key_or_group in groups()


def _check_choice(override: Override) -> None:
    choice, choices = override.value(), groups()[override.key_or_group]
    if choice is None and override.key_or_group in OPTIONAL_GROUPS:
        return
    if choice not in choices:
        raise ConfigError(f"{override.key_or_group}={choice}: unknown; {nearest(choice, choices)}")


def _changes_keys(override: Override) -> bool:
    """Whether a word does more than to give a value to a key that is there."""
    added = override.is_add() or override.is_force_add() or override.is_delete()
    return added or override.package is not None or override.key_or_group.startswith("hydra")


def _check_key(override: Override, conf: Roots, choices: tuple[str, ...]) -> None:
    key = override.key_or_group
    if override.is_add() or override.is_force_add() or key.startswith("hydra"):
        return
    known = _known_keys(conf, choices)
    if key not in known:
        value = override.get_value_string()
        raise ConfigError(f"{key}={value}: unknown key; {nearest(key, [*known, *groups()])}")


def known_keys() -> list[str]:
    """Every key of the default settings."""
    return _known_keys(roots(), ())


@functools.lru_cache(maxsize=64)
def _known_keys(conf: Roots, choices: tuple[str, ...]) -> list[str]:
    return list(key_names(OmegaConf.to_container(_base(conf, choices), resolve=False)))


def key_names(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of everything in a nested configuration, groups and values."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == SERVER_MAY_SET:
                continue
            yield f"{prefix}{key}"
            yield from key_names(value, f"{prefix}{key}.")


def _base(conf: Roots, choices: tuple[str, ...]) -> DictConfig:
    """The configuration of these choices in ``conf`` alone; only for looking up keys."""
    return _composed(conf, choices)[0]


@functools.lru_cache(maxsize=64)
def _composed(conf: Roots, choices: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
    """``_base``, and the file of each group that is in it."""
    config = _raw_compose(list(choices), hydra=True)
    with open_dict(config):
        chosen = config.pop("hydra").runtime.choices
    return config, {str(group): str(name) for group, name in chosen.items()}


@functools.lru_cache(maxsize=64)
def _template(conf: Roots, choices: tuple[str, ...]) -> DictConfig:
    """``_base`` to copy from, without what only devices read: a third of it."""
    config = copy.deepcopy(_base(conf, choices))
    with open_dict(config):
        _drop_limits(config)
    return config


def _drop_limits(config: DictConfig) -> None:
    for node in (config, *config.values()):
        if isinstance(node, DictConfig):
            node.pop(SERVER_MAY_SET, None)


def _raw_compose(overrides: list[str], hydra: bool = False) -> DictConfig:
    more = [f"file://{folder}" for folder in roots()[1:]]
    if more:
        overrides = [*overrides, f"hydra.searchpath={json.dumps(more)}"]
    # Hydra composes through a global object, which `murmur -m` is in the middle of using.
    with _composing:
        outer = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(version_base="1.3", config_dir=str(roots()[0])):
                return hydra_compose("config", overrides, return_hydra_config=hydra)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise ConfigError(one_line(error)) from error
        finally:
            GlobalHydra.instance().hydra = outer
