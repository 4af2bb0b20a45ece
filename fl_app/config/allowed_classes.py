"""A configuration chooses among the classes of conf/, and calls an algorithm by its own name.

Hydra imports and calls whatever a ``_target_`` names, and overrides come from whoever starts a
run: on a device, from a server whose app bundle may be signed, but not what it adds to it. And a
device's owner sets limits by algorithm, so one algorithm must not go by the name of another.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TARGET = re.compile(r"_target_:\s*([\w.]+)")


def strange_class(config: Any, conf: Path) -> str | None:
    """The first ``_target_`` anywhere in ``config`` that no file of ``conf`` names, if there is."""
    known = _known(conf)
    return next((target for target in _targets(config) if target not in known), None)


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        for value in node.values():
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)


@functools.lru_cache(maxsize=4)
def _known(conf: Path) -> frozenset[str]:
    texts = (path.read_text(encoding="utf-8") for path in conf.rglob("*.yaml"))
    return frozenset(name for text in texts for name in _TARGET.findall(text))
