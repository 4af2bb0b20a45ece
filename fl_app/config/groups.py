"""The groups of conf/ and the files in each: what can be chosen, ours and the user's own."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from fl_app.config.help_text import CONF
from fl_app.config.plugins import conf_folders

Roots = tuple[Path, ...]

OPTIONAL_GROUPS = {"experiment", "debug"}  # overlays, of which none need be chosen


def roots() -> Roots:
    """Our conf/, then those of the user's own folders."""
    return (CONF, *conf_folders(CONF))


def groups() -> Mapping[str, list[str]]:
    """Every config group and its choices; conf/hydra is about Hydra itself, not about a run."""
    return _groups(roots())


@functools.lru_cache(maxsize=16)
def _groups(conf: Roots) -> dict[str, list[str]]:
    names = sorted(f.name for f in conf[0].iterdir() if f.is_dir() and f.name != "hydra")
    return {
        name: sorted(str(path.with_suffix("")) for root in conf for path in _yaml(root / name))
        for name in names
    }


def _yaml(folder: Path) -> Iterator[Path]:
    return (path.relative_to(folder) for path in folder.rglob("*.yaml"))
