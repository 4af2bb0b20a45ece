"""A key for a job: equal settings have equal keys, on every machine and engine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

# What a run's result does not depend on: where and how it runs, and what is said about it.
MACHINE = (
    "run_dir",
    "run_name",
    "results_dir",
    "sweep",
    "keep_checkpoints",
    "engine",
    "compute",  # but for rounding; see PRECISION
    "tracking",
    "about",
    "dataset.root",
    "dataset.cache",
    "dataset.download",
)
PRECISION = "compute.precision"  # bfloat16 is more than another rounding
FILES = ("dataset.path", "privacy.policy")  # work on another file is other work


def job_key(config: DictConfig, base: Path) -> str:
    """Ten hexadecimal digits for a composed ``config``; ``base``: where relative paths start."""
    settings = OmegaConf.to_container(config, resolve=True)
    assert isinstance(settings, dict)
    for name in MACHINE:
        node, last = _parent(settings, name)
        node.pop(last, None)
    precision = OmegaConf.select(config, PRECISION, default="fp32")
    if precision != "fp32":
        settings["precision"] = precision
    if not settings.get("audit", {}).get("canaries"):
        settings.pop("audit", None)
    for name in FILES:
        node, last = _parent(settings, name)
        if node.get(last) is not None:
            node[last] = str(base / Path(str(node[last])).expanduser())
    return digest(_plain(settings))


def digest(content: Any) -> str:
    """Ten hexadecimal digits of JSON content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _parent(settings: dict, name: str) -> tuple[dict, str]:
    *path, last = name.split(".")
    for step in path:
        settings = settings.get(step) or {}
    return settings, last


def _plain(value: Any) -> Any:
    """JSON content in which 5 and 5.0 are the same number."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else repr(value)
    return value
