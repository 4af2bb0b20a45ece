"""The key of a job: equal settings have equal keys, on every machine."""

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
    "federation.offer_model",
    "federation.roster",  # for the run header alone
    "privacy.search",  # what a choice among runs costs
    "dataset.root",
    "dataset.cache",
    "dataset.download",
)
PRECISION = "compute.precision"  # bfloat16 is more than another rounding
FILES = ("dataset.path", "privacy.policy")  # work on another file is other work


def job_key(config: DictConfig, base: Path) -> str:
    """Ten hexadecimal digits for a composed ``config``: equal settings have equal keys.

    The key names a job's folder in a sweep, on every machine, so that the same command finds what
    is done. What a result does not depend on (``MACHINE``) is no part of it; a precision that
    changes results is, and so are the absolute paths of the files in ``FILES``.

    Args:
        config: the composed configuration.
        base: where relative paths start.
    """
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
    if settings.get("task") == "classification":  # as before there were others
        settings.pop("task")
    for name in FILES:
        node, last = _parent(settings, name)
        if node.get(last) is not None:
            node[last] = str(base / Path(str(node[last])).expanduser())
    return settings_digest(_plain(settings))


def settings_digest(content: Any) -> str:
    """The first ten hexadecimal digits of the SHA-256 of JSON content, its keys sorted."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _parent(settings: dict, name: str) -> tuple[dict, str]:
    """The mapping that holds the setting of this dotted ``name``, and the name's last part."""
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
        if value.is_integer():
            return int(value)
        return repr(value)
    return value
