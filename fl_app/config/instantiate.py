"""Builds the component that a configuration names, and says in one sentence what it refuses.

``build(config.privacy, "privacy")`` imports the class or function that ``_target_`` names, checks
the settings against its annotations, and calls it. Types and ranges stand where the parameters do,
as pydantic reads them:

    @settings    # of murmur.settings, or any function or class
    class Example:
        quorum: Annotated[float, Field(gt=0, le=1)]
        nodes: Annotated[int, Field(ge=1)] | None = None
        noise: Literal["os", "seeded"] = "os"

What needs more than one setting is checked in ``__post_init__``, which raises a ValueError that
begins with the setting: ``"clients_per_round=99: must lie in 1..40"``. All of it becomes a
``ConfigError`` "group.key=value: what is allowed": here, and nowhere else.

A constructor receives what it names: a parameter with the name of a setting of its group gets that
setting, so conf/ needs no line ``K: ${strategy.K}``. A parameter whose type is a class of settings
(``murmur.settings.settings``) is made of the mapping of its name or, where there is none, of the
settings that the class's fields name. Keys under ``server:`` or ``client:`` take precedence.
"""

import dataclasses
import functools
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
from fl_app.config.plugins import is_own, own_part
from murmur.settings import allowed_by, field_hints

_REFUSAL = re.compile(r"[\w.,@ -]+(=|:)")


def build(
    node: DictConfig | ListConfig, path: str, *args: Any, knobs: Any = None, **extra: Any
) -> Any:
    """Call ``node._target_`` with the node's settings.

    Settings that name a class themselves (a choice from another group, of the same name) are
    built first. With ``_partial_: true`` the result is a function that takes the rest.

    Args:
        node: a group's settings.
        path: where the user finds them, such as ``privacy``; for error messages.
        *args: given to the component before its settings.
        knobs: the group in which ``node`` stands, from which the component takes what it has a
            name for.
        **extra: given to it beside its settings.

    Raises:
        ConfigError: the class cannot be imported, or a setting is unknown or refused.
        ValueError: from the component, about none of its settings: a bug of its own.
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


def class_of(node: DictConfig, path: str) -> Any:
    """The class or function that ``node._target_`` names; ConfigError where there is none."""
    return _locate(str(node._target_), path)


def knobs_of(settings: Mapping[Any, Any], group: Mapping[str, Any], path: str) -> list[str]:
    """Names of the knobs of ``group`` that the class of ``settings`` takes beside these.

    ``build`` passes them on. A device asks the same (``fl_app.device.agreement``), to know which of
    a server's settings would reach its client class.

    Args:
        settings: of the component, with ``_target_``.
        group: the group in which they stand.
        path: where the user finds it, for errors.

    Raises:
        ConfigError: the class cannot be imported.
    """
    taken: list[str] = []
    for name, hint in _hints(_locate(str(settings["_target_"]), path)).items():
        if name in settings:
            continue
        made_of = [name]
        if is_settings(hint) and name not in group:
            made_of = [field.name for field in dataclasses.fields(hint)]
        taken += [knob for knob in made_of if knob in group]
    return taken


def _build(settings: Mapping[Any, Any], path: str, *args: Any, **extra: Any) -> Any:
    known = {str(key): value for key, value in settings.items()}
    factory = _locate(str(known.pop("_target_")), path)
    partial = bool(known.pop("_partial_", False))
    parts = [
        name for name, value in known.items() if isinstance(value, dict) and "_target_" in value
    ]
    for name in parts:
        extra[name] = _build(known.pop(name), name)
    known = _with_settings(factory, known, path)
    _check(factory, known, path)

    def call(*more: Any, **named: Any) -> Any:
        try:
            inspect.signature(factory).bind(*args, *more, **known, **extra, **named)
        except TypeError as error:
            raise ConfigError(f"{path}: {error}") from error
        try:
            return factory(*args, *more, **known, **extra, **named)
        except ValueError as error:
            if not is_refusal(error):
                raise  # a bug in the component's own code, which needs its traceback
            raise ConfigError(f"{path}.{error}") from error

    return call if partial else call()


def is_refusal(error: ValueError) -> bool:
    """Returns True if ``error`` is about a setting of a component, not a bug in it.

    The message then begins with the setting's name, mostly with its value.
    """
    return _REFUSAL.match(str(error)) is not None


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


def _locate(target: str, path: str) -> Any:
    """Returns the object that ``_target_`` names; with a leading dot, from a folder of the user's.

    It imports whatever it is given. ``compose.check_classes`` has made sure before that a
    configuration names only classes that a file of conf/ names.
    """
    if target.startswith("."):
        try:
            return own_part(target)
        except ConfigError as error:
            raise ConfigError(f"{path}._target_={error}") from error
    try:
        return get_object(target)
    except (ImportError, ValueError) as error:
        advice = ""
        if is_own(target):
            advice = f"; a class of your own folder begins with a dot: .{target}"
        raise ConfigError(
            f"{path}._target_={target}: cannot be imported ({error}){advice}"
        ) from error


def _check(factory: Any, settings: Mapping[str, Any], path: str) -> None:
    """ConfigError for a setting that ``factory`` does not have, or whose annotation forbids it."""
    parameters = inspect.signature(factory).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    hints = _hints(factory)
    for key, value in settings.items():
        if key not in parameters and not takes_any:
            raise ConfigError(f"{path}.{key}={value}: unknown; {nearest(key, parameters)}")
        hint = hints.get(key, Any)
        if not is_settings(hint):  # which has checked itself
            require(f"{path}.{key}", value, hint)


def _hints(factory: Any) -> dict[str, Any]:
    """The annotation of each parameter, with its range, by name; Any where there is none."""
    if is_settings(factory):
        return field_hints(factory)
    function = factory
    if inspect.isclass(factory):
        function = factory.__init__
    hints = typing.get_type_hints(function, include_extras=True)
    return {name: hints.get(name, Any) for name in inspect.signature(factory).parameters}


def require(key: str, value: Any, hint: Any) -> None:
    """Refuse ``value`` unless ``hint`` allows it; nothing is converted.

    An integer passes for a float, as pydantic's strict mode has it; a bool for neither.

    Args:
        key: as the user types it.
        value: what was typed.
        hint: a type, with ``Annotated`` and pydantic's ``Field`` for a range.

    Raises:
        ConfigError: "key=value: must be ...".
    """
    try:
        _adapter(hint).validate_python(value)
    except ValidationError as error:
        faults = [fault["type"] for fault in error.errors()]
        raise ConfigError(f"{key}={value}: must {allowed_by(hint, faults)}") from error


def _adapter(hint: Any) -> TypeAdapter:
    """Returns what checks values against ``hint``; to make one takes half a millisecond."""
    try:
        return _kept_adapter(hint)
    except TypeError:  # a class of the user's own may have hints that cannot be hashed
        return _kept_adapter.__wrapped__(hint)


@functools.lru_cache(maxsize=1024)
def _kept_adapter(hint: Any) -> TypeAdapter:
    return TypeAdapter(hint, config={"strict": True})
