"""Starting Ray for this process: quickly where that works, else as `ray.init` does.

Quickly: Ray's head starts in a process of its own while this one imports PyTorch, and its workers
are forks of this process (``ray_head``, ``murmur.compat.ray_workers``). RAY_ADDRESS names a cluster
to use instead.
"""

import atexit
import contextlib
import logging
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fl_app.config.errors import ConfigError
from fl_app.engines.ray_head import socket_folder
from murmur.compat.ray_workers import SOCKET, start_template
from murmur.learning.process import is_ours
from murmur.processes import adopt_orphans, end_children

ANSWER_SECONDS = 6.0  # for a cluster that was named
_END_SECONDS = 2.0
START_TIMEOUT = 60.0  # seconds for the head's address; on a crowded machine Ray is slow
ENDED = "Ray has ended; `murmur resume RUN` goes on from here"
HOME = Path(__file__).resolve().parents[2]  # our own packages

# The environment of Ray's processes, unless the user has set it otherwise.
ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # workers are the work, not a guest
    # glibc's heap in huge pages: a training step's addresses are found faster.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray ends this process when its head is silent for so long; a crowded machine is slow.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class Head:
    """Ray's head for ``workers`` workers, and the template that they are forked from.

    One in a process at most. Everything ends with this process (``ray_head``). The `murmur` command
    ends where Ray does before it; inside somebody's program its run fails.

    Constructing one starts the head and returns at once; ``address`` waits for it.

    Args:
        workers: cores of this Ray.

    Attributes:
        folder: for sockets and logs, with a short name; removed by ``stop``.
        process: the head's.
        has_ended: whether Ray has ended before ``stop``; whoever waits for it waits for ever.

    Raises:
        ConfigError: no folder has a name short enough for sockets (``socket_folder``).
    """

    _shared: "Head | None" = None

    @classmethod
    def shared(cls, workers: int) -> "Head | None":
        """The head of this process, started on first use.

        None where Ray is imported already and has no head, or one of another size. A head that
        nobody has connected to yet is replaced by one of the size that is wanted.
        """
        other = cls._shared is not None and cls._shared.workers != workers
        if "ray" in sys.modules and (cls._shared is None or other):
            return None
        if cls._shared is not None and other:
            cls._shared.stop()
        if cls._shared is None:
            cls._shared = cls(workers)
        return cls._shared

    def __init__(self, workers: int) -> None:
        self.workers = workers
        adopt_orphans()
        self.folder = Path(tempfile.mkdtemp(prefix="murmur-ray-", dir=socket_folder()))
        self.has_ended = False
        self._stopping = False
        self._template: int | None = None
        words = [str(workers), str(os.getpid()), str(self.folder)]
        with open(self.folder / "head.log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fl_app.engines.ray_head", *words],
                env={**os.environ, **_lacking(own=True), SOCKET: str(self.folder / "template")},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for this process, which ends the others
            )
        atexit.register(self.stop)

    def address(self) -> str | None:
        """Where Ray answers (HOST:PORT); None where it did not start this way.

        To be called once. It forks the template first, so what this process has imported by then is
        what workers need not import, and waits ``START_TIMEOUT`` seconds at most for the head. From
        then on a thread notes it if the head ends before ``stop``.
        """
        self._template = start_template(str(self.folder / "template"), _import_for_workers)
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT)
        if not ready:
            return None
        address = self.process.stdout.readline().strip()
        if not address:
            return None
        threading.Thread(target=self._watch, daemon=True).start()
        return address

    def ends(self) -> bool:
        """Tells whether Ray is ending; a worker's connection is lost some seconds before."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        return self.process.poll() is not None

    def _watch(self) -> None:
        self.process.wait()
        if self._stopping:
            return
        self._end_template()
        shutil.rmtree(self.folder, ignore_errors=True)
        if is_ours():  # Ray's own end would wait for ever
            print(f"murmur: {ENDED}", file=sys.stderr)
            os._exit(1)
        self.has_ended = True
        if "ray" in sys.modules:
            atexit.unregister(sys.modules["ray"].shutdown)  # which would wait for what is gone

    def stop(self) -> None:
        """End the head, Ray's processes and the workers; their folder goes.

        Also called when the process exits. The head has ten seconds to end.
        """
        self._stopping = True
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self._end_template()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.stop)
        type(self)._shared = None

    def _end_template(self) -> None:
        """And its workers with it."""
        if self._template is not None:
            template = self._template
            end_children(lambda child: template in (child.pid, child.ppid()))


def _import_for_workers() -> None:
    """Imports what a worker needs, so that its forks need not."""
    import fl_app.client_app
    import fl_app.run.hosts  # noqa: F401


def require_alive() -> None:
    """Raises ConfigError where this process's Ray has ended, which it can begin only once."""
    if Head._shared is not None and Head._shared.has_ended:
        raise ConfigError(
            "engine=ray: Ray has ended in this process; use engine=inline, or a process of its own"
        )


def require_cluster(address: str | None) -> None:
    """Raises ConfigError unless somebody answers at HOST:PORT or ray://HOST:PORT.

    Ray would wait for ten minutes, and more. What it looks up itself (``auto``), and an encrypted
    cluster, is left to it.

    Args:
        address: of the cluster; None names none.
    """
    host = str(address).removeprefix("ray://")
    if ":" not in host or "://" in host or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    import grpc

    direct = [("grpc.enable_http_proxy", 0)]  # as Ray
    with grpc.insecure_channel(host, options=direct) as channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER_SECONDS)
        except grpc.FutureTimeoutError:
            why = f"nobody answers within {ANSWER_SECONDS:g} seconds"
            raise _no_cluster(address, why) from None


def _no_cluster(address: str | None, why: object) -> ConfigError:
    return ConfigError(
        f"RAY_ADDRESS={address}: no Ray cluster there ({' '.join(str(why).split())}); name its "
        "HOST:PORT, or set none for a Ray of this machine"
    )


_password: dict[str, str] = {}  # of the cluster of this process


def has_password() -> bool:
    """Tells whether this process keeps others out of its cluster, or names somebody else's."""
    return bool(_password) or bool({"RAY_ADDRESS", "RAY_AUTH_MODE"} & os.environ.keys())


def _lacking(own: bool) -> dict[str, str]:
    """Returns what Ray's environment is to have and the user has not set.

    Args:
        own: whether the cluster is this process's own: nobody else on this machine or network may
            run code in its workers.
    """
    wanted = dict(ENVIRONMENT)
    if own:
        if not _password:
            _password.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        wanted.update(_password, RAY_TMPDIR=socket_folder())
    return {name: value for name, value in wanted.items() if name not in os.environ}


@contextlib.contextmanager
def _environment(own: bool) -> Iterator[None]:
    """Ray's environment while Ray is imported and connects, when it is read."""
    before = dict(os.environ)
    os.environ.update(_lacking(own))
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


def start_ray(address: str | None, workers: int) -> Any:
    """Connects the module ``ray``, and returns it.

    A process that is connected already stays as it is.

    Args:
        address: a cluster's (HOST:PORT, ray://HOST:PORT or auto); None: one of this process.
        workers: cores of the one that is started here.

    Raises:
        ConfigError: there is no cluster at ``address``.
    """
    connected = sys.modules.get("ray")
    if connected is not None and connected.is_initialized():
        return connected
    require_cluster(address)
    place = address
    if address is None and (head := Head.shared(workers)) is not None:
        place = head.address()
        if place is None:
            head.stop()
    new: dict[str, Any] = {}
    if place is None:
        place = "local"
        new = {"num_cpus": workers, "include_dashboard": False}
    before = signal.getsignal(signal.SIGTERM)
    with _environment(own=address is None), warnings.catch_warnings(), contextlib.chdir(HOME):
        import ray

        # Ray puts the folder that this happens in on its workers' import path: not a user's,
        # whose files may have the names of ours.
        warnings.simplefilter("ignore", FutureWarning)  # of Ray's plans, not of this use
        try:
            ray.init(address=place, log_to_driver=False, logging_level=logging.ERROR, **new)
        except (ConnectionError, ValueError) as error:
            if address is None:
                raise
            raise _no_cluster(address, error) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray's own ends without cleaning up
    return ray
