"""A configuration chooses among the classes of conf/, each in the slot of its own group only.

Hydra imports and calls whatever a ``_target_`` names, and overrides come from whoever starts a run.
So a class is allowed only in the config group whose files name it: a class named in conf/model
can build a model, and nothing else. (A device accepts no ``_target_`` from a server at all:
``fl_app.device.agreement``.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
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


@functools.lru_cache(maxsize=4)
def _known(conf: Path) -> frozenset[Slot]:
    found: set[Slot] = set()
    for path in conf.rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        folder = path.parent.relative_to(conf).parts
        # Hydra's own marker: such a file holds paths from the top, others those of their group.
        place = "" if "@package _global_" in text else ".".join(folder)
        found.update(_slots(yaml.safe_load(text), place))
    return frozenset(found)
