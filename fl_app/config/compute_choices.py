"""``auto`` in conf/compute: decided once, where a run is composed, and the same for all workers.

What is compiled sums in another order than PyTorch does. So the decision is recorded in
config.yaml and handed to every process among the overrides, instead of being each machine's own.
"""

from __future__ import annotations

from omegaconf import DictConfig

from learning.training.fused_kernels import available


def decide(config: DictConfig) -> None:
    """Replace ``auto`` in a writable configuration by what this installation has."""
    compute = config.get("compute")
    if isinstance(compute, DictConfig) and compute.get("fused") == "auto":
        compute.fused = available()


def decided(config: DictConfig) -> list[str]:
    """Overrides that say the same on every machine."""
    return [f"compute.fused={str(config.compute.fused).lower()}"]
