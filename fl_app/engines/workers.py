"""What the engines that start worker processes have in common."""

from __future__ import annotations

import os


class WorkerEngine:
    """``workers`` processes serve ``nodes`` virtual SuperNodes.

    ``workers``: None for one on each core. ``nodes``: None for one for each worker.
    ``gpus_per_worker``: the share of a GPU that each may use.
    """

    def __init__(
        self, workers: int | None = None, nodes: int | None = None, gpus_per_worker: float = 0.0
    ) -> None:
        for name, value in (("workers", workers), ("nodes", nodes)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1, or null")
        if gpus_per_worker < 0:
            raise ValueError(f"gpus_per_worker={gpus_per_worker}: must be at least 0")
        self.workers = workers or os.cpu_count() or 1
        self.nodes, self.gpus = nodes or self.workers, gpus_per_worker
