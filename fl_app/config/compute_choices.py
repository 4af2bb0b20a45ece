"""``auto`` in conf/compute: decided once, where a run is composed, and the same for all workers.

What is compiled sums in another order than PyTorch does. So the decision is recorded in
config.yaml and handed to every process among the overrides, instead of being each machine's own.
"""

from __future__ import annotations

from typing import Literal

from omegaconf import DictConfig

from murmur.learning.process import has_bfloat16, has_compiler, has_kernels


def decide(config: DictConfig) -> None:
    """Replace ``auto`` in a writable configuration by what installation and processor have."""
    compute = config.get("compute")
    if not isinstance(compute, DictConfig):
        return
    if compute.get("fused") == "auto":
        compute.fused = has_compiler()
    if compute.get("precision") == "auto":
        compute.precision = fastest_precision()


def decided(config: DictConfig) -> list[str]:
    """Overrides that say the same on every machine."""
    compute = config.compute
    return [f"compute.fused={str(compute.fused).lower()}", f"compute.precision={compute.precision}"]


def fastest_precision() -> Literal["fp32", "bf16"]:
    """Bf16 where this processor computes in it and the kernels that do are installed."""
    if has_kernels() and has_bfloat16():
        return "bf16"
    return "fp32"
