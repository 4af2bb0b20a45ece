"""What made a run: versions, commit, dates, the user's own folders. ``provenance.json``.

``Experiment`` notes start and end; reports and `murmur rerun` read it. Nothing of it decides how a
run goes.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fl_app import DISTRIBUTION
from fl_app.config.own_classes import VARIABLE
from murmur.learning.array_file import replace_file

NAME = "provenance.json"
_LIBRARIES = ("flwr", "torch", "torchvision", "numpy", "scipy", "dp-accounting", "opacus")


def note_start(folder: Path) -> None:
    """Write what is known when a run starts; a run that is resumed keeps its first start.

    All else is what it is now: versions and commit are those that did the last part of the run.
    ``config_dirs`` are the folders of the user's own classes (``MURMUR_PLUGINS``).
    """
    known = read(folder)
    known.setdefault("started", _now())
    known |= {
        "versions": {name: _version(name) for name in (DISTRIBUTION, *_LIBRARIES)},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": commit(),
        "config_dirs": os.environ.get(VARIABLE, ""),
    }
    known.pop("finished", None)
    _write(folder, known)


def note_end(folder: Path) -> None:
    """Add when the run was finished; called before ``metrics.json`` is written."""
    _write(folder, {**read(folder), "finished": _now()})


def read(folder: Path) -> dict[str, Any]:
    """What is known of the run in ``folder``; {} where nothing is, or the file is damaged."""
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@functools.lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the checkout that runs, with "+" where files differ; None without one."""
    home = Path(__file__).resolve().parents[2]
    if not (home / ".git").exists():
        return None
    try:
        said = [
            subprocess.run(
                ["git", "-C", str(home), *words], capture_output=True, text=True, timeout=10
            )
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.TimeoutExpired):
        return None
    if any(process.returncode for process in said):
        return None
    return said[0].stdout.strip() + ("+" if said[1].stdout.strip() else "")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(folder: Path, content: dict[str, Any]) -> None:
    replace_file(folder / NAME, json.dumps(content, indent=2).encode())
