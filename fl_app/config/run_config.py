"""Flower's flat run-config and Hydra's overrides, each turned into the other."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def to_overrides(run_config: Mapping[str, Any]) -> list[str]:
    """Hydra overrides for a Flower run-config; the string ``overrides`` wins over the rest."""
    chosen = [
        f"{path}={run_config[key]}"
        for key, path in EVERYDAY_KEYS.items()
        if run_config.get(key) not in (None, "")
    ]
    return chosen + shlex.split(str(run_config.get("overrides", "")))


def require_plain(run_config: Mapping[str, Any]) -> None:
    """ValueError where a run-config would have a device read its environment (``${oc.env:...}``).

    What it reads could then leave the device in the text of a refusal.
    """
    # Only after quotes have been taken away: $''{ is ${ to a shell's rules.
    for word in to_overrides(run_config):
        if "$" in word or word.lstrip("+~").startswith("hydra"):
            raise ValueError("run-config: holds an interpolation or a setting of Hydra's own")


def to_run_config(overrides: Sequence[str]) -> dict[str, Any]:
    """The run-config that carries ``overrides``."""
    return {"overrides": shlex.join(overrides)}


def run_folder_path(run_dir: str | None, results_dir: str | None, run_id: int) -> Path:
    """Where a run's results go; server and clients of one Flower run agree on it.

    A relative path means nothing here: the apps run in whatever folder the SuperLink was started
    in. ``murmur`` always passes an absolute ``run_dir``; a bare ``flwr run`` has its run id.
    """
    if run_dir is not None:
        return Path(run_dir).expanduser().absolute()
    root = Path.home() / "murmur-runs" if results_dir is None else Path(results_dir).expanduser()
    return root.absolute() / f"run-{run_id}"
