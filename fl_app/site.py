"""Where a node lives: in a simulation, or on a device with an owner.

On a device nothing that the server sends decides whose policy holds or which files are written:
both come from the node-config, which only the device's owner can set
(``flower-supernode --node-config 'policy="/etc/murmur/policy.yaml" state="/var/lib/murmur"'``).
Without a policy a device refuses everything.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fl_app.run_config import run_folder_path
from privacy.policy import Policy

SIMULATED = "simulated"  # in the node-config of the inline engine's nodes


@dataclass(frozen=True)
class Site:
    """``folder``: ledger, clients' state and error log. ``run``: the run's name in the ledger.

    ``simulated``: clients are virtual, and nobody's data but the researcher's is at stake.
    """

    folder: Path
    run: str
    policy: Policy
    simulated: bool

    @classmethod
    def simulation(cls, folder: Path, policy: str | None = None) -> Site:
        """Virtual clients of one run, in its folder; ``policy``: as if a device had this one."""
        rules = Policy.simulation() if policy is None else Policy.load(policy)
        return cls(folder, folder.name, rules, simulated=policy is None)

    @classmethod
    def device(cls, node_config: Mapping[str, Any], run_id: int) -> Site:
        """A device, whose owner has set ``policy`` and ``state`` in its node-config."""
        path = node_config.get("policy")
        if path is None:
            rules = Policy("this device's node-config", "it names no policy file (policy=PATH)")
        else:
            rules = Policy.load(str(path))
        folder = Path(str(node_config.get("state", Path.home() / ".murmur" / "device")))
        return cls(folder.expanduser().absolute(), f"run-{run_id}", rules, simulated=False)


def site_of(config: DictConfig, node_config: Mapping[str, Any], run_id: int) -> Site:
    """The site that this process's node is at."""
    if not _is_simulated(node_config):
        return Site.device(node_config, run_id)
    folder = run_folder_path(config.run_dir, config.results_dir, run_id)
    return Site.simulation(folder, config.privacy.policy)


def _is_simulated(node_config: Mapping[str, Any]) -> bool:
    """Whether the engine, and not a device's owner, started this node.

    Flower's simulation runs clients in Ray actors; a SuperNode's process never starts Ray.
    """
    if node_config.get(SIMULATED) is True:
        return True
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()
