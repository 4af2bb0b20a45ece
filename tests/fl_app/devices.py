"""A device for tests: its node-config, a policy file, and a few digits of its own."""

from pathlib import Path
from typing import Any

import numpy as np

from fl_app.config.settings import pool_digest
from murmur.learning.data.datasets import digits

POOL = digits().train.images[:100]
# What a run says of such devices' data.
DIGITS = [
    "engine=deploy",
    "engine.superlink=none",
    "federation.public=100",
    "federation.devices.shape=[1,8,8]",
    "federation.devices.classes=10",
    f"federation.devices.public={pool_digest(POOL)}",
]


def device_config(folder: Path, clients: int | str = 0, examples: int = 30) -> dict[str, Any]:
    """The node-config of a device whose files, policy.yaml among them, are in ``folder``."""
    train = digits().train
    own = slice(200, 200 + examples)
    np.savez(folder / "data.npz", images=train.images[own], labels=train.labels[own])
    np.savez(folder / "public.npz", images=POOL)
    return {
        "clients": clients,
        "data": str(folder / "data.npz"),
        "public": str(folder / "public.npz"),
        "shape": "1,8,8",
        "classes": 10,
        "policy": str(folder / "policy.yaml"),
        "state": str(folder / "state"),
    }
