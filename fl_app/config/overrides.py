"""Hydra's overrides: reading them, the jobs of a sweep, Flower's run-config, paths as values.

Nothing here composes a configuration or imports anything heavy.
"""

import functools
import itertools
import os
import re
import shlex
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from fl_app.config.errors import ConfigError, nearest
from fl_app.config.groups import groups

# Flower's run-config is flat; these of its keys have a name of their own (see pyproject.toml).
EVERYDAY_KEYS = {
    "strategy": "strategy",
    "dataset": "dataset",
    "partition": "partition",
    "epsilon": "privacy.epsilon",
    "num-rounds": "federation.num_rounds",
    "num-clients": "federation.num_clients",
    "seed": "seed",
}

# Settings that are paths: as typed they start in the folder where the command was typed.
PATHS = (
    "dataset.root",
    "dataset.path",
    "dataset.cache",
    "dataset.test_path",
    "dataset.tokenizer",
    "features.encoder",
    "features.weights",
    "model.base.weights",
    "model.start",
    "model.weights",
    "federation.enrolled",
    "federation.server_key",
    "federation.peers",
    "federation.roster",
    "privacy.policy",
)
# Of these, what may be a name instead: on the hub of Hugging Face, of a package, or a word.
NAMES = ("dataset.path", "dataset.tokenizer", "features.encoder", "model.start")
# A file or a run may be called 7, 1e5 or true, and keeps its name.
_TEXTS = {*PATHS, "run_dir", "run_name", "results_dir", "sweep"}


_AT_HOME = re.compile(r"(?P<key>[\w.@+/]+)=(?P<place>~\w*(/[^,]*)?)")
_NESTED = set("([{")


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Hydra's reading of ``overrides``.

    Raises:
        ConfigError: a word is not of the form ``key=value``.
    """
    return [_parse(word) for word in overrides]


@functools.lru_cache(maxsize=4096)
def _parse(override: str) -> Override:
    if sys.flags.optimize and _NESTED & set(override):
        raise ConfigError(
            f"{override}: cannot be read where PYTHONOPTIMIZE is set, since Hydra's reader rests "
            "on Python's assertions; unset it"
        )
    home = _AT_HOME.fullmatch(override)
    if home is not None:  # as a shell would have it, which expands it in front of a word only
        place = os.path.expanduser(home["place"]).replace("'", "\\'")
        override = f"{home['key']}='{place}'"
    try:
        found = OverridesParser.create().parse_overrides([override])[0]
        if found.key_or_group in _TEXTS and isinstance(found.value(), (int, float)):
            key, _, typed = override.partition("=")
            return OverridesParser.create().parse_overrides([f"{key}='{typed}'"])[0]
        return found
    except HydraException as error:
        raise ConfigError(
            f"{override}: cannot be read; write key=value, several values for `murmur -m` as "
            "key=A,B, and a value with commas, brackets or blanks in quotes: \"key='VALUE'\""
        ) from error


def one_line(error: Exception) -> str:
    """An error's text on one line, runs of blanks as one."""
    return " ".join(str(error).split())


# The jobs of a sweep


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Every job of a sweep over listed values and ranges, in the order in which Hydra runs them.

    Intervals are left out: they belong to an optimiser's sweeper, which draws the values.

    Raises:
        ConfigError: ``glob`` stands at no group, or matches none of its choices.
    """
    choices: list[list[str]] = []
    for override in parsed(overrides):
        if override.is_interval_sweep():
            continue
        if override.is_sweep_override():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in _values(override)])
        else:
            choices.append([override.input_line or ""])
    return [list(job) for job in itertools.product(*choices)]


def _values(override: Override) -> Iterable[str]:
    """Returns the values of a sweep; ``glob`` chooses among a group's files, as Hydra's does."""
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


# Flower's run-config


def to_overrides(run_config: Mapping[str, Any]) -> list[str]:
    """Hydra overrides for a Flower run-config; the string ``overrides`` wins over the rest.

    Args:
        run_config: Flower's. ``EVERYDAY_KEYS`` are read, where they are not empty, then the string
            ``overrides``, which a shell's rules of quoting divide into words.

    Raises:
        ConfigError: a key is none of these, or the string ends inside quotes.
    """
    for key in run_config:
        if key not in EVERYDAY_KEYS and key != "overrides":
            raise ConfigError(
                f"{key}={run_config[key]}: is no key of the run-config; "
                f"{nearest(key, EVERYDAY_KEYS)}; all other settings: overrides='KEY=VALUE ...'"
            )
    chosen: list[str] = []
    for key, path in EVERYDAY_KEYS.items():
        if run_config.get(key) not in (None, ""):
            chosen.append(f"{path}={run_config[key]}")
    given = str(run_config.get("overrides", ""))
    try:
        words = shlex.split(given)
    except ValueError:
        raise ConfigError(
            f"overrides={given}: ends inside quotes, or with a backslash; close what is open"
        ) from None
    return [*chosen, *words]


def in_typed_keys(message: str, run_config: Mapping[str, Any]) -> str:
    """``message``, an error's, behind the key of the run-config that it is about, if it is."""
    for key, path in EVERYDAY_KEYS.items():
        value = run_config.get(key)
        if value not in (None, "") and key != path and message.startswith(f"{path}="):
            return f"{key}={value}: {message}"
    return message


def to_run_config(overrides: Sequence[str]) -> dict[str, Any]:
    """The run-config that carries ``overrides``; ``to_overrides`` gives the same words back."""
    return {"overrides": shlex.join(overrides)}


def require_plain(run_config: Mapping[str, Any]) -> None:
    """Refuse a run-config that would have a device read its environment (``${oc.env:...}``).

    A server wrote it. What an interpolation reads could leave the device in the text of a refusal.
    Called on devices before anything is composed.

    Raises:
        ValueError: it holds an interpolation, or a setting of Hydra's own.
    """
    # Only after quotes have been taken away: $''{ is ${ to a shell's rules.
    for word in to_overrides(run_config):
        if "$" in word or word.lstrip("+~").startswith("hydra"):
            raise ValueError("run-config: holds an interpolation or a setting of Hydra's own")


# Where runs go, and paths as the values of overrides


def run_folder_path(run_dir: str | None, results_dir: str | None, run_id: int) -> Path:
    """Where a run's results go; server and clients of one Flower run agree on it.

    A relative path means nothing here: the apps run in whatever folder the SuperLink was started
    in. ``murmur`` always passes an absolute ``run_dir``; a bare ``flwr run`` has its run id.

    Raises:
        ConfigError: ``run_dir`` ends in no name, by which devices would know a resumed run.
    """
    if run_dir is not None:
        if not Path(run_dir).name:
            raise ConfigError(f"run_dir={run_dir}: must end in the folder's name")
        return Path(run_dir).expanduser().absolute()
    root = Path.home() / "murmur-runs"
    if results_dir is not None:
        root = Path(results_dir).expanduser()
    return root.absolute() / f"run-{run_id}"


def results_root(results_dir: str | None) -> Path:
    """``results_dir``, or `runs` in the working directory; absolute."""
    if results_dir is None:
        return Path("runs").absolute()
    return Path(results_dir).expanduser().absolute()


def new_run_dir(results_dir: str | None, run_name: object = None) -> Path:
    """Where a run goes that names no folder; nothing is made.

    Args:
        results_dir: that holds it.
        run_name: of the run, and so of its folder; None: a name that no folder has yet, from the
            time and a random number.

    Raises:
        ConfigError: ``run_name`` cannot name a folder.
    """
    if run_name is not None:
        if not is_file_name(str(run_name)):
            raise ConfigError(
                f"run_name={run_name}: must be a name of letters, digits, '.', '_' and '-', since "
                "it names the folder; or set run_dir=PATH beside it"
            )
        return results_root(results_dir) / str(run_name)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return results_root(results_dir) / f"{stamp}-{uuid.uuid4().hex[:6]}"


def is_file_name(name: str) -> bool:
    """Returns True if ``name`` has only letters, digits, '.', '_' and '-', and is no way up."""
    return name.strip(".") != "" and all(c.isalnum() or c in "._-" for c in name)


def absolute_paths(config: DictConfig, base: Path) -> list[str]:
    """Overrides that pin the paths which the user typed: the apps run in another folder.

    What may be a name instead (``NAMES``) is pinned only where such a path exists.

    Args:
        config: the composed configuration.
        base: the folder where the command was typed.
    """
    words: list[str] = []
    for key in PATHS:
        typed = OmegaConf.select(config, key)
        if typed is None:
            continue
        path = base / typed
        if key in NAMES and not path.exists():
            continue
        words.append(f"{key}={quoted(path)}")
    return words


def quoted(path: Path) -> str:
    """A path as the value of an override, whatever characters it has."""
    text = str(path)
    plain = text.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum()
    if plain and text != "null":
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def flat(nest: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key, each behind ``prefix``; empty groups stay visible."""
    leaves: dict[str, Any] = {}
    for key, value in nest.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{name}.")
        else:
            leaves[name] = value
    return leaves


def flat_texts(nest: Mapping[str, Any]) -> dict[str, str]:
    """``flat``, with values as texts; None is ``null``."""
    texts: dict[str, str] = {}
    for key, value in flat(nest).items():
        texts[key] = "null" if value is None else str(value)
    return texts
