"""The ray engine: the ServerApp in this process, the ClientApp in Ray's workers.

No SuperLink between: messages go straight to actors that have imported everything once and stay for
the process's next run. The apps are those of every engine and sums do not depend on grouping, so
the results are those of `flwr run` (``flower``) bit for bit.
"""

from __future__ import annotations

import os
from queue import SimpleQueue
from typing import Any

from flwr.app import Context, Message

from fl_app.config import plugins
from fl_app.engines.inline import identify, serve
from fl_app.engines.ray_start import Head, naming_address, require_named_cluster, start_ray
from fl_app.engines.workers import WorkerEngine
from fl_app.run.results import RunFolder

# Times that a message goes to a worker again after one died with it; its clients pay once.
RETRIES = 5


class RayEngine(WorkerEngine):
    """Runs the apps in Ray's workers."""

    def begin(self) -> None:
        """Start Ray's head, which takes seconds, while the run is still being validated."""
        require_named_cluster()
        if not self.gpus and RayPool.kind is None and "RAY_ADDRESS" not in os.environ:
            Head.shared(self.workers)

    def run(self, overrides: list[str], folder: RunFolder) -> None:
        """Run to the end; an exception of the server passes through."""
        pool = RayPool.shared(self.workers, self.gpus)
        serve(overrides, max(self.nodes, folder.shares()), self.workers, pool.answer)


class Worker:
    """What lives in an actor: the ClientApp, imported once."""

    def __init__(self) -> None:
        from fl_app.client_app import app

        identify()
        self._app = app

    def answer(self, message: Message, context: Context) -> Message:
        """The ClientApp's reply."""
        return self._app(message, context)

    def process(self) -> int:
        """The process id."""
        return os.getpid()


class RayPool:
    """``workers`` actors of one core each and ``gpus`` GPUs each; RAY_ADDRESS names a cluster.

    Ray starts an actor that died anew, and hands it the message that it died with.
    """

    kind: tuple[int, float, str] | None = None  # of the one of this process
    _shared: RayPool | None = None

    @classmethod
    def shared(cls, workers: int, gpus: float) -> RayPool:
        """The one of this process; started anew only for another size or other plug-ins."""
        # Workers know the folders that were named when they started.
        kind = (workers, gpus, os.environ.get(plugins.VARIABLE, ""))
        if cls._shared is None or cls.kind != kind:
            if cls._shared is not None:
                cls._shared.stop()
            cls._shared, cls.kind = cls(workers, gpus), kind
        return cls._shared

    def __init__(self, workers: int, gpus: float) -> None:
        # Not a cluster that happens to run on this machine: only one that was named.
        with naming_address() as address:
            self._ray = start_ray(address, workers)
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": RETRIES}
        actor: Any = self._ray.remote(**options)(Worker)
        self.actors = [actor.remote() for _ in range(workers)]
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for one in self.actors:
            self._idle.put(one)

    def answer(self, message: Message, context: Context) -> Message:
        """The reply of a worker that is free."""
        worker = self._idle.get()
        try:
            return self._ray.get(worker.answer.remote(message, context))
        finally:
            self._idle.put(worker)

    def stop(self) -> None:
        """End the actors, and Ray if it was started here."""
        for actor in self.actors:
            self._ray.kill(actor)
        self._ray.shutdown()
        if Head._shared is not None:
            Head._shared.stop()
        RayPool._shared = RayPool.kind = None
