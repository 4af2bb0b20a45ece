"""A configuration chooses among the classes of conf/, each in the slot of its own group only.

Hydra imports and calls whatever a ``_target_`` names, and overrides come from whoever starts a run.
So a class is allowed only in the config group whose files name it: a class named in conf/model
can build a model, and nothing else. (A device accepts no ``_target_`` from a server at all:
``fl_app.device.agreement``.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Slot = tuple[str, str]  # where in the configuration, and the class that is built there


def strange_class(config: Any, conf: tuple[Path, ...]) -> Slot | None:
    """The first slot of ``config`` with a class that no file below ``conf`` names there, if any."""
    known = frozenset().union(*map(_known, conf))
    for place, target in _slots(config, ""):
        group = place.rpartition(".")[2]  # ``strategy.server.server_step`` is filled by a group
        if (place, target) not in known and (group, target) not in known:
            return place, target
    return None


def _slots(node: Any, place: str) -> Iterator[Slot]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield place, str(node["_target_"])
        for key, value in node.items():
            yield from _slots(value, f"{place}.{key}".lstrip("."))
    elif isinstance(node, list):
        for value in node:
            yield from _slots(value, place)


@functools.lru_cache(maxsize=64)
def classes_of(conf: tuple[Path, ...], group: str, name: str) -> Mapping[str, str]:
    """The classes that ``name.yaml`` of ``group`` names, by where, and those of what it builds on.

    As Hydra composes them, which takes a hundred times as long; empty without such a file.
    """
    root = next((root for root in conf if (root / group / f"{name}.yaml").is_file()), None)
    if root is None:
        return {}
    content, slots = _read(root, root / group / f"{name}.yaml")
    defaults = content.get("defaults", [])
    found: dict[str, str] = {}
    for base in defaults if "_self_" in defaults else [*defaults, "_self_"]:
        if base == "_self_":
            found.update(slots)
        elif isinstance(base, str):
            found.update(classes_of(conf, group, base.removeprefix(f"/{group}/")))
    return found


@functools.lru_cache(maxsize=4)
def _known(conf: Path) -> frozenset[Slot]:
    return frozenset(slot for path in conf.rglob("*.yaml") for slot in _read(conf, path)[1])


def _read(conf: Path, path: Path) -> tuple[Any, list[Slot]]:
    """A file's content, and the classes that it names."""
    text = path.read_text(encoding="utf-8")
    content = yaml.safe_load(text) or {}
    # Hydra's own marker: such a file holds paths from the top, others those of their group.
    whole = "@package _global_" in text
    place = "" if whole else ".".join(path.parent.relative_to(conf).parts)
    return content, list(_slots(content, place))
