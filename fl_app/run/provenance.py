"""Versions, commit and dates of a run (``provenance.json``), for reports and `murmur rerun`."""

import functools
import json
import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fl_app import DISTRIBUTION
from fl_app.config.plugins import VARIABLE
from murmur.files import replace_file

PROVENANCE = "provenance.json"
_LIBRARIES = (
    *("murmur-kernels", "flwr", "torch", "torchvision", "numpy", "scipy", "dp-accounting"),
    "opacus",
)


def note_start(folder: Path) -> None:
    """Write what is known when a run starts; a run that is resumed keeps its first start.

    Reports and `murmur rerun` read it. Nothing of it decides how a run goes.

    All else is what it is now: versions and commit are those that did the last part of the run.
    ``config_dirs`` are the folders of the user's own classes (``MURMUR_PLUGINS``).
    """
    known = read_provenance(folder)
    known.setdefault("started", _now())
    known |= {
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": commit(),
        "config_dirs": os.environ.get(VARIABLE, ""),
    }
    known.pop("finished", None)
    _write(folder, known)


def note_end(folder: Path) -> None:
    """Add when the run was finished; called before ``metrics.json`` is written."""
    _write(folder, {**read_provenance(folder), "finished": _now()})


def read_provenance(folder: Path) -> dict[str, Any]:
    """Reads the provenance of the run in ``folder``; {} if it is missing or damaged."""
    return read_mapping(folder / PROVENANCE)


def read_mapping(path: Path) -> dict[str, Any]:
    """Returns the JSON object in ``path``; {} where there is none, or the file is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@functools.lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the checkout that runs, with "+" where files differ; None without one."""
    home = Path(__file__).resolve().parents[2]
    if not (home / ".git").exists():
        return None
    words = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        said = subprocess.run(
            ["git", "-C", str(home), *words], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() or None


@functools.cache
def versions() -> dict[str, str | None]:
    """Of Murmur and its libraries, by name; None where one is not installed."""
    found: dict[str, str | None] = dict.fromkeys((DISTRIBUTION, *_LIBRARIES))
    for name in found:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(folder: Path, content: dict[str, Any]) -> None:
    replace_file(folder / PROVENANCE, json.dumps(content, indent=2).encode())
