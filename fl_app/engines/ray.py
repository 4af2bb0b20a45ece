"""The ray engine: the ServerApp in this process, the ClientApp in Ray's workers.

No SuperLink between: messages go straight to actors that have imported everything once and stay for
the process's next run. The apps are those of every engine and sums do not depend on grouping, so
the results are those of `flwr run` bit for bit.
"""

import os
import sys
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, Context, Error, Message
from flwr.common.constant import ErrorCode

from fl_app.config import plugins
from fl_app.config.errors import ConfigError
from fl_app.engines import ray_start
from fl_app.engines.inline import serve
from murmur.compat.flower_messages import identify
from murmur.learning.process import take_over
from murmur.round.task import RunError, in_words
from murmur.settings import Count, NotNegative, settings

if TYPE_CHECKING:
    from fl_app.run.validated import ValidatedRun

# Times that a message goes to a worker again after one died with it; its clients pay once, since
# a client that has answered finds its answer in its ledger.
RETRIES = 5
LARGE_ARRAY = 2**20  # bytes from which on an array that several nodes are sent is sent once
_PLACING = Lock()
_LOOK_SECONDS = 1.0  # how often who waits for an answer looks whether Ray is there


@settings
class RayEngine:
    """``conf/engine/ray``.

    Attributes:
        workers: processes of one core each; None: one for each core of this machine.
        nodes: virtual SuperNodes that share a cohort; None: one for each worker.
        gpus_per_worker: the share of a GPU that each worker reserves, such as 0.5.
    """

    workers: Count | None = None
    nodes: Count | None = None
    gpus_per_worker: NotNegative = 0.0

    @property
    def count(self) -> int:
        """Number of workers: as set, or the cores of this machine."""
        return self.workers or os.cpu_count() or 1

    def begin(self) -> None:
        """Start Ray's head, which takes seconds, while the run is still being validated.

        Not where a cluster is named, where workers share a GPU, or where a pool is there already.

        Raises:
            ConfigError: RAY_ADDRESS names nothing that answers, or somebody else has imported Ray.
        """
        ray_start.require_alive()
        ray_start.require_cluster(os.environ.get("RAY_ADDRESS"))
        if "ray" in sys.modules and not ray_start.has_password():
            raise ConfigError(
                "engine=ray: Ray was imported in this process before Murmur could set a password "
                "for its workers; use engine=inline, or a process of its own"
            )
        plain = not self.gpus_per_worker and "RAY_ADDRESS" not in os.environ
        if plain and RayPool._shared is None:
            ray_start.Head.shared(self.count)

    def run(self, run: "ValidatedRun") -> None:
        """Run to the end; an exception of the server passes through.

        A run that was interrupted goes on with as many nodes as shared its cohort then, or more
        where more are set. The workers stay for the process's next run.

        Args:
            run: whose folder a cluster's machines must see under the same path.

        Raises:
            ConfigError: RAY_ADDRESS names no cluster.
        """
        pool = RayPool.shared(self.count, self.gpus_per_worker)
        nodes = max(self.nodes or self.count, run.folder.shares())
        from ray.util import deregister_serializer, register_serializer

        register_serializer(Array, serializer=_in_place, deserializer=_read)
        try:
            serve(run, nodes, self.count, pool.answer)
        finally:
            deregister_serializer(Array)  # in a notebook somebody may send his own


class Worker:
    """An actor's ClientApp, imported once.

    Args:
        folders: the user's own folders (``MURMUR_PLUGINS``) as the command knows them: a worker
            may be a fork of an older process, or run on another machine.
    """

    def __init__(self, folders: str) -> None:
        os.environ[plugins.VARIABLE] = folders
        take_over()
        from ray.util import register_serializer

        from fl_app.client_app import app

        identify()
        register_serializer(Array, serializer=_in_parts, deserializer=_read)
        self._app = app

    def answer(self, message: Message, context: Context) -> Message:
        """The ClientApp's reply."""
        return self._app(message, context)

    def process(self) -> int:
        """The process id, for tests that kill it."""
        return os.getpid()


def _in_parts(array: Array) -> tuple:
    """Returns the parts of ``array``; its bytes as an array of NumPy's, which Ray leaves in place.

    A worker sends them in its place: Ray's memory has them as soon as they are copied once.
    """
    return array.dtype, array.shape, array.stype, np.frombuffer(array.data, np.uint8)


def _in_place(array: Array) -> Any:
    """Returns where the parts of a large ``array`` lie, the same in every message of a server.

    They are put into Ray's memory once, and stay for as long as the server has the array.
    """
    if len(array.data) < LARGE_ARRAY:
        return _in_parts(array)
    import ray

    with _PLACING:  # threads send the same array to nodes at a time
        if not hasattr(array, "_place"):
            array._place = ray.put(_in_parts(array))  # type: ignore[attr-defined]
    return array._place  # type: ignore[attr-defined]


def _read(sent: Any) -> Array:
    """Reads the inverse of both; ``data`` is Ray's memory, in which nobody can write."""
    if not isinstance(sent, tuple):
        import ray

        sent = ray.get(sent)
    dtype, shape, stype, data = sent
    array = Array(dtype, shape, stype, b"")
    array.data = data.data  # type: ignore[assignment]  # all that read it take any buffer
    return array


class RayPool:
    """``workers`` actors of one core each and ``gpus`` GPUs each; RAY_ADDRESS names a cluster.

    Ray starts an actor that died anew, and hands it the message that it died with, ``RETRIES``
    times.

    Attributes:
        kind: workers, GPUs each, folders of classes.
        actors: Ray's handles, one for each worker.
    """

    _shared: "RayPool | None" = None  # of this process

    @classmethod
    def shared(cls, workers: int, gpus: float) -> "RayPool":
        """The pool of this process; started anew for another size or other folders of classes."""
        kind = (workers, gpus, os.environ.get(plugins.VARIABLE, ""))
        if cls._shared is not None and cls._shared.kind != kind:
            cls._shared.stop()
        if cls._shared is None:
            cls._shared = cls(*kind)
        return cls._shared

    @classmethod
    def end(cls) -> None:
        """Stop the pool of this process, if there is one."""
        if cls._shared is not None:
            cls._shared.stop()

    def __init__(self, workers: int, gpus: float, folders: str) -> None:
        self.kind = (workers, gpus, folders)
        # Not a cluster that happens to run on this machine: only one that was named.
        self._ray = ray_start.start_ray(os.environ.get("RAY_ADDRESS"), workers)
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": RETRIES}
        actor: Any = self._ray.remote(**options)(Worker)
        self.actors = [actor.remote(folders) for _ in range(workers)]
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for one in self.actors:
            self._idle.put(one)

    def answer(self, message: Message, context: Context) -> Message:
        """The reply of a worker that is free; waits for one, so threads may call it at a time.

        A worker that died with a message too often is a lost node, as in Flower's own simulation;
        what the ClientApp raises passes through.
        """
        worker = self._idle.get()
        errors = self._ray.exceptions
        try:
            return self._get(worker.answer.remote(message, context))
        except errors.RayTaskError:
            raise
        except errors.RayError as error:
            lost = Error(ErrorCode.UNKNOWN, in_words(error))
            return Message(lost, reply_to=message)
        finally:
            self._idle.put(worker)

    def _get(self, reply: Any) -> Message:
        """A worker's reply; RunError where Ray itself has ended, in somebody's program."""
        head = ray_start.Head._shared
        errors = self._ray.exceptions
        while True:
            try:
                return self._ray.get(reply, timeout=_LOOK_SECONDS)
            except errors.GetTimeoutError:
                if head is not None and head.has_ended:
                    raise RunError(ray_start.ENDED) from None
            except errors.RayTaskError:
                raise
            except errors.RayError:
                if head is not None and head.ends():
                    raise RunError(ray_start.ENDED) from None
                raise

    def stop(self) -> None:
        """End the actors; leave Ray and end its head, if that was begun here."""
        for actor in self.actors:
            self._ray.kill(actor)
        self._ray.shutdown()
        if ray_start.Head._shared is not None:
            ray_start.Head._shared.stop()
        RayPool._shared = None
