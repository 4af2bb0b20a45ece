"""The files of conf/: the groups and their choices, the classes that they name, their help text.

Everything here reads files as text or as plain YAML. What Hydra makes of them, which takes a
hundred times as long, is ``fl_app.config.compose``.

Hydra imports and calls whatever a ``_target_`` names, and overrides come from whoever starts a run.
So a configuration chooses among the classes that conf/ names, each in the slot of its own group
only: a class named in conf/model can build a model, and nothing else. (A device accepts no
``_target_`` from a server at all: ``fl_app.device.agreement``.)
"""

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fl_app.config.errors import ConfigError, nearest
from fl_app.config.plugins import conf_folders

CONF = Path(__file__).resolve().parents[2] / "conf"
OPTIONAL_GROUPS = {"experiment", "debug"}  # overlays, of which none need be chosen
STRATEGY_GROUPS = {"aggregation": "robust"}  # in the defaults of some strategies only, and of which

Roots = tuple[Path, ...]  # our conf/ first, then those of the user's own folders
Slot = tuple[str, str]  # where in the configuration, and the class that is built there

_GLOBAL = "@package _global_"  # Hydra's marker of a file whose keys begin at the top
_NO_SETTINGS = ("about", "advise", "client", "server", "server_may_set")
_NOT_SHOWN = re.compile(
    r"^(# \||# @|_\w+_:).*\n|^( *)(server_may_set|advise|server|client):.*\n(\2 +.*\n)*",
    re.MULTILINE,
)
_DEFAULT = re.compile(r"^  - (\w+): (\w+)$", re.MULTILINE)


def roots() -> Roots:
    """Our conf/, then those of the user's own folders (``--config-dir``).

    Raises:
        ConfigError: one of these folders cannot be used (``plugins.conf_folders``).
    """
    return (CONF, *conf_folders(CONF))


def groups() -> Mapping[str, list[str]]:
    """Returns every config group and its choices, sorted: ``{"model": ["bnn", ...], ...}``."""
    return _groups(roots())


@functools.lru_cache(maxsize=16)
def _groups(conf: Roots) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(folder.name for folder in conf[0].iterdir() if folder.is_dir()):
        found[name] = sorted(choice for root in conf for choice in _choices(root / name))
    return found


def _choices(folder: Path) -> list[str]:
    """Returns the choices in a group's folder; files in folders below it as ``folder/name``."""
    return sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.yaml"))


def strange_class(config: Any, conf: Roots) -> Slot | None:
    """The first slot of a plain ``config`` with a class that no file below ``conf`` names there.

    Returns:
        The slot, such as ``("model", "os.system")``; None where every class is in its place.
    """
    known = frozenset().union(*map(_known, conf))
    for place, target in _slots(config, ""):
        group = place.rpartition(".")[2]  # ``strategy.server.server_step`` is filled by a group
        if (place, target) not in known and (group, target) not in known:
            return place, target
    return None


def _slots(node: Any, place: str) -> Iterator[Slot]:
    """Every ``_target_`` in nested mappings and lists, with the dotted key where it stands."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield place, str(node["_target_"])
        for key, value in node.items():
            yield from _slots(value, f"{place}.{key}".lstrip("."))
    elif isinstance(node, list):
        for value in node:
            yield from _slots(value, place)


@functools.lru_cache(maxsize=64)
def classes_of(conf: Roots, group: str, name: str) -> Mapping[str, str]:
    """The classes that ``name.yaml`` of ``group`` names, by where, and those of what it builds on.

    Follows the file's defaults list as Hydra does; empty where there is no such file.
    """
    root = next((root for root in conf if (root / group / f"{name}.yaml").is_file()), None)
    if root is None:
        return {}
    content, slots = _read(root, root / group / f"{name}.yaml")
    defaults = content.get("defaults", [])
    if "_self_" not in defaults:
        defaults = [*defaults, "_self_"]
    found: dict[str, str] = {}
    for base in defaults:
        if base == "_self_":
            found.update(slots)
        elif isinstance(base, str):
            found.update(classes_of(conf, group, base.removeprefix(f"/{group}/")))
    return found


@functools.lru_cache(maxsize=4)
def keys_by_choice(conf: Roots) -> Mapping[str, list[str]]:
    """Every dotted key that a file of a group sets, with the choices whose files do.

    Such as ``partition.alpha``: ``partition=dirichlet`` and others.
    """
    found: dict[str, list[str]] = {}
    for root in conf:
        for group, names in _groups((root,)).items():
            for name in names if group not in OPTIONAL_GROUPS else ():
                for key in _keys(_content(root, root / group / f"{name}.yaml")):
                    found.setdefault(key, []).append(f"{group}={name}")
    return found


def _content(conf: Path, path: Path) -> dict[str, Any]:
    """Returns the settings of a file, from the top of the configuration."""
    content = dict(_read(conf, path)[0])
    content.pop("defaults", None)
    if _GLOBAL in path.read_text(encoding="utf-8"):
        return content
    return {path.parent.relative_to(conf).parts[0]: content}


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of the values in nested mappings, but for what nobody sets."""
    for key, value in node.items():
        if key in _NO_SETTINGS or str(key).startswith("_"):
            continue
        if isinstance(value, dict) and value:
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@functools.lru_cache(maxsize=4)
def _known(conf: Path) -> frozenset[Slot]:
    return frozenset(slot for path in conf.rglob("*.yaml") for slot in _read(conf, path)[1])


def _read(conf: Path, path: Path) -> tuple[Any, list[Slot]]:
    """A file's content, and the classes that it names."""
    import yaml  # which `murmur --help` does without

    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without libyaml there is no C
    text = path.read_text(encoding="utf-8")
    content = yaml.load(text, SafeLoader) or {}
    # Hydra's own marker: such a file holds paths from the top, others those of their group.
    place = ""
    if _GLOBAL not in text:
        place = ".".join(path.parent.relative_to(conf).parts)
    return content, list(_slots(content, place))


def help_text(tools: Mapping[str, str]) -> str:
    """Returns the text of `murmur --help`: tools, and groups with their choices.

    Args:
        tools: one line about each tool, by its name.
    """
    defaults = dict(_DEFAULT.findall((CONF / "config.yaml").read_text(encoding="utf-8")))
    parts = [
        "murmur key=value ...       one run: a group's choice (strategy=nbafl) or a value (seed=2)",
        "murmur -m key=a,b ...      a sweep over values",
        "murmur key=value ... -c job    print the configuration that would run",
        "murmur ... --config-dir DIR    with your own classes: DIR/conf, and Python files by it",
        "murmur ... --wide              tables are not cut at the screen's edge",
        "murmur --help KEY          a group (partition), a choice (strategy=votes), a value (seed)",
        "",
        *(f"murmur {name:<12} {what}" for name, what in tools.items()),
        "\nGroups and their choices, the default in brackets:\n",
    ]
    for group, names in groups().items():
        default = defaults.get(group)
        shown = [f"[{name}]" if name == default else name for name in names]
        parts.append(f"  {group}: {', '.join(shown)}")
    return "\n".join(parts)


def help_about(word: str) -> str:
    """Returns the text of `murmur --help KEY` for a group, one of its choices, or a value.

    Args:
        word: such as ``partition``, ``partition=dirichlet``, ``partition.alpha`` or ``seed``.

    Raises:
        ConfigError: there is no such thing.
    """
    root = (CONF / "config.yaml").read_text(encoding="utf-8")
    defaults = dict(_DEFAULT.findall(root))
    group, _, name = word.partition("=")
    if group in groups() and (not name or name in groups()[group]):
        parts = []
        if not name:
            parts = [f"{group}={each:<20} {_summary(group, each)}" for each in groups()[group]]
            name = defaults.get(group, "")
        if name:
            parts.append(f"\n# {group}={name}, {group}.KEY=VALUE\n{_text(group, name)}")
        return "\n".join(parts).lstrip("\n")
    choices = keys_by_choice(roots()).get(word, [])
    group, _, last = word.partition(".")
    if not choices and not last and re.search(rf"^{re.escape(word)}:", root, re.MULTILINE):
        return "\n".join(_lines_about(root, word))
    if not choices:
        known = [*groups(), *keys_by_choice(roots())]
        raise ConfigError(f"{word}: is no group and no setting; {nearest(word, known)}")
    found = []
    for choice in choices:
        lines = _lines_about(_text(*choice.split("=")), word.rpartition(".")[2])
        found += [f"{choice}: {line}" for line in lines]
    return "\n".join(found)


def _text(group: str, name: str) -> str:
    """A choice's file, without what only devices, pages and Murmur itself read."""
    files = [root / group / f"{name}.yaml" for root in roots()]
    text = next(path for path in files if path.exists()).read_text(encoding="utf-8")
    return _NOT_SHOWN.sub("", text).strip()


def _summary(group: str, name: str) -> str:
    """The first comment of a choice's file."""
    lines = _text(group, name).splitlines()
    return next((line.removeprefix("# ") for line in lines if line.startswith("# ")), "")


def _lines_about(text: str, key: str) -> list[str]:
    """The lines that set ``key``, with their comments."""
    named = re.compile(rf"(^|[ {{,]){re.escape(key)}:")
    return [line.strip() for line in text.splitlines() if named.search(line)]
