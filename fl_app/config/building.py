"""Instantiates the component that a configuration names, and checks its settings' types.

A knob is written once. What a constructor takes by the name of a knob of its group it gets, so that
conf/ needs no line ``K: ${strategy.K}`` for it. A parameter whose type is a class of settings
(``murmur.common.settings``) is made of the mapping of that name, or, where there is none, of the
knobs that its fields are named for. What the yaml gives by itself goes before.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass as is_settings

from fl_app.config.errors import ConfigError, nearest

# How a component's error for a setting begins: the setting's name, mostly with its value.
_REFUSAL = re.compile(r"[\w.,@ -]+(=|:)")


def build(
    node: DictConfig | ListConfig, path: str, *args: Any, knobs: Any = None, **extra: Any
) -> Any:
    """Call ``node._target_`` with the node's settings, their types checked against its signature.

    ``path`` is where the user finds the settings, for error messages. ``knobs``: the group in which
    ``node`` stands, from which its constructor takes what it has a name for. Settings that name a
    class themselves (a choice from another group, of the same name) are built first.
    """
    settings = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_dict(node) else node
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}={settings}: must be a group's settings, not a value")
    if "_target_" not in settings:
        raise ConfigError(f"{path}: names no class (`_target_`)")
    if knobs is not None:
        group: Any = OmegaConf.to_container(knobs, resolve=True)
        settings |= {name: group[name] for name in knobs_of(settings, group, path)}
    return _build(settings, path, *args, **extra)


def knobs_of(settings: Mapping[Any, Any], group: Mapping[str, Any], path: str) -> list[str]:
    """Names of the knobs of ``group`` that the class of ``settings`` takes beside these."""
    hints = _hints(_locate(str(settings["_target_"]), path))
    taken: list[str] = []
    for name, hint in hints.items():
        if name in settings:
            continue
        made_of = [name]
        if is_settings(hint) and name not in group:
            made_of = [field.name for field in dataclasses.fields(hint)]
        taken += [knob for knob in made_of if knob in group]
    return taken


def _hints(factory: Any) -> dict[str, Any]:
    """The types of a callable's parameters, by name."""
    if is_settings(factory):
        return typing.get_type_hints(factory, include_extras=True)
    function = factory.__init__ if inspect.isclass(factory) else factory
    hints = typing.get_type_hints(function, include_extras=True)
    names = list(inspect.signature(factory).parameters)
    return {name: hints.get(name, Any) for name in names}


def _build(settings: Mapping[Any, Any], path: str, *args: Any, **extra: Any) -> Any:
    known = {str(key): value for key, value in settings.items()}
    target, partial = str(known.pop("_target_")), bool(known.pop("_partial_", False))
    factory = _locate(target, path)
    for name in [name for name, value in known.items() if _names_a_class(value)]:
        extra[name] = _build(known.pop(name), name)
    known = _with_settings(factory, known, path)
    _check_types(factory, known, path)

    def call(*more: Any, **named: Any) -> Any:
        try:
            inspect.signature(factory).bind(*args, *more, **known, **extra, **named)
        except TypeError as error:
            raise ConfigError(f"{path}: {error}") from error
        try:
            return factory(*args, *more, **known, **extra, **named)
        except ValueError as error:
            if _REFUSAL.match(str(error)) is None:
                raise  # a bug in the class's own code, which needs its traceback
            raise ConfigError(f"{path}.{error}") from error

    return call if partial else call()


def _with_settings(factory: Any, known: Mapping[str, Any], path: str) -> dict[str, Any]:
    """``known`` with a value of its class for each parameter whose type is one of settings."""
    found = dict(known)
    for name, hint in _hints(factory).items():
        if not is_settings(hint):
            continue
        if name in known:
            found[name] = _build_settings(hint, known[name], f"{path}.{name}")
            continue
        fields = {field.name for field in dataclasses.fields(hint)} & known.keys()
        if fields:
            found[name] = _build_settings(hint, {key: found.pop(key) for key in fields}, path)
    return found


def _build_settings(kind: Any, values: Any, path: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{path}={values}: must be a group's settings, not a value")
    try:
        return kind(**_with_settings(kind, values, path))
    except TypeError as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}.{error}") from error


def _names_a_class(value: Any) -> bool:
    return isinstance(value, dict) and "_target_" in value


def _locate(target: str, path: str) -> Any:
    try:
        return get_object(target)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{path}._target_={target}: cannot be imported ({error})") from error


def _check_types(factory: Any, settings: Mapping[str, Any], path: str) -> None:
    function = factory.__init__ if inspect.isclass(factory) else factory
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key, value in settings.items():
        if key not in parameters and not takes_any:
            raise ConfigError(f"{path}.{key}={value}: unknown; {nearest(key, parameters)}")
        hint = hints.get(key, Any)
        if is_settings(hint):
            continue  # has checked itself
        try:
            TypeAdapter(hint, config={"strict": True}).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            name = getattr(hint, "__name__", None) or str(hint)
            if typing.get_origin(hint) is not None or "|" in str(hint):
                name = str(hint)
            raise ConfigError(f"{path}.{key}={value}: must be {name} ({reason})") from error
