"""What a device agrees to: its own conf/, in which a server sets what conf/ lists, within limits.

A device composes its configuration from the files that are installed on it and from its owner's
words. Of a server's run-config it reads two things: which strategy, model, features, protection,
evaluation and privacy file of conf/, and the values of the keys that ``server_may_set`` lists in
these files and in conf/config.yaml:

    server_may_set:
      strategy.local.epochs: [1, 100]         # an integer of 1 to 100; a real if a bound has a dot
      strategy.local.steps: [null, 1, 1000]   # the same, or null
      strategy.target: [hard, soft]           # one of these
      model.hidden: {each: [1, 4096], length: [0, 8]}   # a list
      federation.devices.public: "[0-9a-f]{64}"         # text that matches this expression

A server cannot choose a file without ``server_may_set``. Any other key that the client's half would
read is refused, and so is every ``_target_``; keys that only the server's half, a simulation or its
engine reads (results_dir, dataset, partition, an aggregation rule ...) are ignored.
``overrides_for_devices`` reduces a whole configuration to such overrides on the server, and
``require_same`` stops a run for which devices would compose a different configuration.

So the file is read from two sides: ``device_config`` and ``run_name`` on a device, for each message
and before anything is charged; the other two on the server, before a run begins. All of them meet
in ``_composed``.
"""

import copy
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fl_app.config import compose, errors, groups
from fl_app.config.client_half import READ, as_plain, leaves, with_knobs
from fl_app.config.overrides import flat, parsed, require_plain, to_overrides
from fl_app.device.node_settings import OwnerSettings

CHOICES = ("strategy", "model", "features", "protection", "evaluation", "privacy")
_DEVICES = "federation.devices."
_FORM = ("shape", "classes", "sizes", "label_range", "labels")  # of data, in an owner's words
_LONGEST = 100_000  # characters of a run-config
_ODD = object()  # a value that is none: a sweep, a deletion


def device_config(run_config: Mapping[str, Any], owner: OwnerSettings) -> DictConfig:
    """The configuration of a device for a server's run.

    Args:
        run_config: Flower's, as the server sent it.
        owner: what this device's owner says; of the data's form only the owner's words count.

    Raises:
        ConfigError: says which key is refused, and what a server may set.
    """
    require_plain(run_config)
    clients = len(owner.sizes) if owner.sizes else owner.num_clients
    form = tuple((key, getattr(owner, key)) for key in _FORM)
    config = _composed(tuple(to_overrides(run_config)), form, clients)
    _require_owners_task(config, owner)
    return config


def overrides_for_devices(config: DictConfig, choices: Mapping[str, str]) -> list[str]:
    """Overrides with which a device composes what ``config`` needs.

    Called where a run is submitted. Keys that already have the installed value are left out.

    Args:
        config: the server's, composed and finished.
        choices: the file of each group that ``config`` was composed from.

    Raises:
        ConfigError: no device can compose it; names the key.
    """
    chosen = tuple((group, choices[group]) for group in CHOICES)
    overrides = [f"{group}={name}" for group, name in chosen]
    base = _base(chosen)
    default = compose.finished(copy.deepcopy(base))
    for key, limit in _limits(base).items():
        value = OmegaConf.select(config, key)
        if key.startswith(_DEVICES) or value == OmegaConf.select(default, key):
            continue
        text = json.dumps(_within(key, as_plain(value), limit)).replace("Infinity", "inf")
        overrides.append(f"{key}={text}")
    require_same(config, overrides)
    return overrides


def require_same(config: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError unless devices, which read ``overrides``, would do what ``config`` says.

    Called where a run begins, so that a run does not begin in which every device refuses. Compared
    is what the client's half is built from; what devices' owners say of their data cannot be.

    Args:
        config: the server's.
        overrides: those of the run-config that devices get.

    Raises:
        ConfigError: names the first key that differs, and both values; or a device would refuse it.
    """
    there = dict(leaves(_composed(tuple(overrides))))
    here = dict(leaves(config))
    for key in sorted(there.keys() | here.keys()):
        if there.get(key) != here.get(key):
            raise errors.ConfigError(
                f"{key}={here.get(key)}: devices would have {there.get(key)}, since a server may "
                "not set it there (server_may_set in conf/), or the run was not started with "
                "`murmur engine=deploy`"
            )


def run_name(run_config: Mapping[str, Any], run_id: int) -> str:
    """The run's name in a device's ledger: its own, that of its folder, or Flower's number.

    A run keeps it when it is resumed. A server that gives two runs one name gains nothing by it,
    for what was charged under a name is answered again only if the request is the same.

    Args:
        run_config: Flower's, as the server sent it.
        run_id: Flower's number of the run.

    Raises:
        ConfigError: the run-config is too long, or names a class.
    """
    words = dict(_words(to_overrides(run_config)))
    for text in (words.get("run_name"), words.get("run_dir")):
        if isinstance(text, str) and PurePosixPath(text).name:
            return PurePosixPath(text).name
    return f"run-{run_id}"


@functools.lru_cache(maxsize=64)
def _composed(
    overrides: tuple[str, ...],
    form: tuple[tuple[str, Any], ...] = (),
    num_clients: int | None = None,
) -> DictConfig:
    """Composes what is installed here with a server's ``overrides``, where they are allowed.

    The rest are the owner's words. Cached, since a process may answer many messages of a run:
    whoever gets it must not change it.

    Args:
        overrides: as Hydra writes them.
        form: of the data, by key, in the owner's words; none on a server.
        num_clients: of the federation, by the owner; None: taken as the run says.

    Raises:
        ConfigError: a key is not a server's to set, a value is outside its limits, or the owner's
            federation has another number of clients.
    """
    words = dict(_words(overrides))
    base = _base(tuple((group, words.pop(group)) for group in CHOICES if group in words))
    limits = _limits(base)
    # Which keys the client's half is built from is known from its class alone: that is imported
    # only where a server sets more than is listed.
    read = _read(base) if words.keys() - limits.keys() else set()
    config = copy.deepcopy(base)
    terms: dict[str, Any] = dict.fromkeys(_FORM)
    terms |= {key: listed(value) for key, value in form}
    for key, value in words.items():
        if key in limits:
            allowed = _within(key, value, limits[key])
            if key.startswith(_DEVICES):
                terms[key.removeprefix(_DEVICES)] = allowed
            else:
                OmegaConf.update(config, key, allowed)
        elif any(_overlap(key, place) for place in read) or _is_unknown(key, base):
            raise errors.ConfigError(
                f"{key}: is not a server's to set on a device; it may set {', '.join(limits)}"
            )
    config.federation.devices = terms
    if num_clients not in (None, config.federation.num_clients):
        raise errors.ConfigError(
            f"federation.num_clients={config.federation.num_clients}: by its owner's word this "
            "device's federation has another number of clients"
        )
    return compose.finished(config)


def _require_owners_task(config: DictConfig, owner: OwnerSettings) -> None:
    """ConfigError where a run's task, or the range of its labels, is not the owner's."""
    kind = owner.objective.kind
    if config.task != kind:
        raise errors.ConfigError(
            f"task={config.task}: by its owner's word this device has labels of task={kind}"
        )
    told = as_plain(config.federation.devices.label_range)
    if told != listed(owner.label_range):
        raise errors.ConfigError(
            f"federation.devices.label_range={told}: by its owner's word this device's labels have "
            "another range"
        )


def listed(value: Any) -> Any:
    """``value`` as a configuration can hold it."""
    if isinstance(value, tuple):
        return list(value)
    return value


def _words(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Keys and plain values; a mapping counts as each of its keys.

    What Hydra would do with an override beside setting a value (sweep, deletion, package) becomes a
    value that no limit allows. ConfigError for more than 100,000 characters, and for a class.
    """
    if sum(map(len, overrides)) > _LONGEST:
        raise errors.ConfigError(f"run-config: longer than {_LONGEST} characters")
    for override in parsed(tuple(overrides)):
        odd = override.is_sweep_override() or override.is_delete() or override.package
        value = _ODD if odd else override.value()
        for key, leaf in flat({override.key_or_group: value}).items():
            if "_target_" in key.split("."):
                raise errors.ConfigError(f"{key:.80}: a device takes no class from outside")
            yield key, leaf


def _base(choices: tuple[tuple[str, Any], ...]) -> DictConfig:
    """conf/ as installed here, with a file chosen of some groups.

    ConfigError for a name that is not installed, and for a file that is for simulations only: one
    without ``server_may_set``.
    """
    for group, name in choices:
        known = groups.groups()[group]
        if type(name) is not str or name not in known:
            raise errors.ConfigError(
                f"{group}={name!s:.60}: unknown here; known are {', '.join(known)}"
            )
    base = compose.installed(tuple(f"{group}={name}" for group, name in choices))
    for group in CHOICES:
        if base[group].get(compose.SERVER_MAY_SET) is None:
            raise errors.ConfigError(f"{group}={dict(choices).get(group)}: is for simulations only")
    return base


def _limits(base: DictConfig) -> dict[str, Any]:
    """Returns what a server may set of the files in ``base``, by key (head of this file).

    The limits of conf/config.yaml, and those of each file that was chosen.
    """
    limits: dict[str, Any] = {}
    for node in (base, *(base[group] for group in CHOICES)):
        limits |= OmegaConf.to_container(node[compose.SERVER_MAY_SET])  # type: ignore[arg-type]
    return limits


def _read(base: DictConfig) -> set[str]:
    """Every place that the client's half is built from.

    Begins with the places that it is known to read, and follows each ``${...}`` in them.
    """
    plain = with_knobs(base)
    found = set(READ)
    waiting = list(READ)
    while waiting:
        node: Any = plain
        for part in waiting.pop().split("."):
            node = node.get(part) if isinstance(node, dict) else None
        new = set(re.findall(r"\$\{([\w.]+)\}", repr(node))) - found
        found |= new
        waiting.extend(new)
    return found


def _is_unknown(key: str, base: DictConfig) -> bool:
    """Tells whether a newer server knows an algorithm's setting that this device does not know.

    Refused rather than ignored: the device would do something else than the server expects.
    """
    known = OmegaConf.to_container(base)
    if key.partition(".")[0] not in CHOICES:
        return False
    for part in key.split("."):
        if not isinstance(known, dict) or part not in known:
            return True
        known = known[part]
    return False


def _overlap(key: str, place: str) -> bool:
    """Tells whether one of the two is, or lies under, the other."""
    return f"{key}.".startswith(f"{place}.") or f"{place}.".startswith(f"{key}.")


def _within(key: str, value: Any, limit: Any) -> Any:
    """``value`` if ``limit`` allows it, as it is; ConfigError says what is allowed.

    ``limit``: as ``server_may_set`` has it. Types count: 1.0 is no integer and True is no number.
    """
    if isinstance(limit, dict):
        low, high = limit["length"]
        if isinstance(value, list) and low <= len(value) <= high:
            return [_within(key, item, limit["each"]) for item in value]
        raise _refused(key, value, f"a list of {low} to {high}")
    if isinstance(limit, str):
        if isinstance(value, str) and re.fullmatch(limit, value):
            return value
        raise _refused(key, value, f"text that matches {limit}")
    if None in limit:
        if value is None:
            return None
        limit = [word for word in limit if word is not None]
    if len(limit) == 2 and all(type(bound) in (int, float) for bound in limit):
        low, high = limit
        kinds: tuple[type, ...] = (int, float)
        if type(low) is type(high) is int:  # an integer where both bounds are, else a real
            kinds = (int,)
        if type(value) in kinds and low <= value <= high:
            return value
        raise _refused(key, value, f"{kinds[-1].__name__} in {low} .. {high}")
    if any(type(value) is type(word) and value == word for word in limit):
        return value
    raise _refused(key, value, f"one of {', '.join(map(str, limit))}")


def _refused(key: str, value: Any, allowed: str) -> errors.ConfigError:
    given = "" if value is _ODD else f"={value!s:.60}"
    return errors.ConfigError(f"{key}{given}: on a device it must be {allowed}")
