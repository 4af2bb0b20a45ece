"""Ray workers that stay warm from job to job of a sweep.

`flwr run` starts a server process, Ray and its workers anew for every run, and each imports torch.
In a sweep the ServerApp runs in the sweep's own process instead, and its messages go to Ray actors
that have imported everything once. The apps are the same and sums do not depend on grouping, so
the results are those of `flwr run` bit for bit.
"""

from __future__ import annotations

import logging
import os
import warnings
from queue import SimpleQueue
from typing import Any

from flwr.app import Context, Message

from fl_app.engines.inline import identify, serve

# The environment of Ray's workers, unless the user has set it otherwise.
WORKERS = {
    "RAY_worker_niceness": "0",  # they are the work, not a guest
    # glibc's heap in huge pages: a training step's addresses are found faster.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def start_ray(address: str, num_cpus: int | None = None) -> Any:
    """The module ``ray``, connected: to the cluster at ``address``, or with ``local`` to a new one.

    ``num_cpus``: cores of a new one; None: all of this machine's. A process that is connected
    already stays as it is.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray ends this process when its head is silent for so long; a crowded machine is slow.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
    for name, value in WORKERS.items():
        os.environ.setdefault(name, value)
    import ray

    if not ray.is_initialized():
        local = {"num_cpus": num_cpus, "include_dashboard": False}
        new: dict[str, Any] = local if address == "local" else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of Ray's plans, not of this use
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **new)
    return ray


class Worker:
    """What lives in an actor: the ClientApp, imported once."""

    def __init__(self) -> None:
        from fl_app.client_app import app

        identify()
        self._app = app

    def answer(self, message: Message, context: Context) -> Message:
        """The ClientApp's reply."""
        return self._app(message, context)


class RayPool:
    """``workers`` actors of one core each and ``gpus`` GPUs each; RAY_ADDRESS names a cluster."""

    _shared: RayPool | None = None

    @classmethod
    def shared(cls, workers: int, gpus: float) -> RayPool:
        """The one of this process; started anew only where its size changes."""
        if cls._shared is None or cls._shared.size != (workers, gpus):
            if cls._shared is not None:
                cls._shared.stop()
            cls._shared = cls(workers, gpus)
        return cls._shared

    def __init__(self, workers: int, gpus: float) -> None:
        self.size = (workers, gpus)
        # Not a cluster that happens to run on this machine: only one that was named.
        self._ray = start_ray(os.environ.get("RAY_ADDRESS", "local"), workers)
        actor: Any = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1)(Worker)
        self._actors = [actor.remote() for _ in range(workers)]
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for one in self._actors:
            self._idle.put(one)

    def run(self, overrides: list[str], nodes: int) -> None:
        """One run; an exception of the server passes through."""
        serve(overrides, nodes, self.size[0], self._answer)

    def stop(self) -> None:
        """End the actors, and Ray if it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()
        type(self)._shared = None

    def _answer(self, message: Message, context: Context) -> Message:
        worker = self._idle.get()
        try:
            return self._ray.get(worker.answer.remote(message, context))
        finally:
            self._idle.put(worker)
