"""Starting Ray for this process: quickly where that works, else as `ray.init` does.

Quickly: Ray's head starts in a process of its own while this one imports PyTorch, and its workers
are forks of this process (``ray_head``, ``ray_fork``). RAY_ADDRESS names a cluster to use instead.
"""

from __future__ import annotations

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

from fl_app.config import plugins
from fl_app.config.errors import ConfigError
from fl_app.engines.family import adopt_orphans, end_children
from fl_app.engines.ray_fork import SOCKET, start_template
from fl_app.engines.sockets import socket_folder

ANSWER_SECONDS = 6.0  # for a cluster that was named
START_TIMEOUT = 60.0  # seconds for the head's address; on a crowded machine Ray is slow

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
    """Ray's head for ``workers`` workers, and the template that they are forked from."""

    _shared: Head | None = None

    @classmethod
    def shared(cls, workers: int) -> Head | None:
        """The one of this process, started on first use; None where another kind is in use."""
        kind = (workers, os.environ.get(plugins.VARIABLE, ""))
        if cls._shared is not None and cls._shared.kind != kind and "ray" not in sys.modules:
            cls._shared.stop()  # nobody has connected to it
        if cls._shared is None:
            cls._shared = cls(workers)
        return cls._shared if cls._shared.kind == kind else None

    def __init__(self, workers: int) -> None:
        # Workers know the folders of plug-ins that were named when their head started.
        self.kind = (workers, os.environ.get(plugins.VARIABLE, ""))
        _set_environment(own=True)
        adopt_orphans()
        self.folder = Path(tempfile.mkdtemp(prefix="murmur-ray-", dir=socket_folder()))
        self._stopping = False
        self._template: int | None = None
        words = [str(workers), str(os.getpid()), str(self.folder)]
        with open(self.folder / "head.log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fl_app.engines.ray_head", *words],
                env={**os.environ, SOCKET: str(self.folder / "template")},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for this process, which ends the others
            )
        atexit.register(self.stop)

    def address(self) -> str | None:
        """Where Ray answers; None where it did not start this way."""
        self._template = start_template(str(self.folder / "template"))
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT)
        address = self.process.stdout.readline().strip() if ready else ""
        if address:
            threading.Thread(target=self._watch, daemon=True).start()
        return address or None

    def _watch(self) -> None:
        """End this process when Ray ends before it: who waits for an answer would wait for ever."""
        self.process.wait()
        if not self._stopping:
            print("murmur: Ray has ended; `murmur resume RUN` goes on from here", file=sys.stderr)
            self._end_template()
            shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(1)

    def stop(self) -> None:
        """End the head, Ray's processes and the workers."""
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


@contextlib.contextmanager
def naming_address() -> Iterator[str | None]:
    """RAY_ADDRESS, None where it is not set; inside, what cannot be reached is a ConfigError."""
    address = os.environ.get("RAY_ADDRESS")
    try:
        yield address
    except (ConnectionError, ValueError) as error:
        if address is None:
            raise
        raise ConfigError(
            f"RAY_ADDRESS={address}: no Ray cluster there ({' '.join(str(error).split())}); name "
            "its HOST:PORT, or unset the variable for a Ray of this machine"
        ) from error


def require_named_cluster() -> None:
    """ConfigError where RAY_ADDRESS names nothing."""
    with naming_address() as address:
        if address is not None:
            require_cluster(address)


def require_cluster(address: str) -> None:
    """ConnectionError unless somebody answers at HOST:PORT or ray://HOST:PORT.

    Ray would wait for ten minutes, and more. What it looks up itself (``auto``), and an encrypted
    cluster, is left to it.
    """
    host = address.removeprefix("ray://")
    if ":" not in host or "://" in host or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    import grpc

    direct = [("grpc.enable_http_proxy", 0)]  # as Ray
    with grpc.insecure_channel(host, options=direct) as channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER_SECONDS)
        except grpc.FutureTimeoutError:
            raise ConnectionError(f"nobody answers within {ANSWER_SECONDS:g} seconds") from None


def _set_environment(own: bool) -> None:
    """Before Ray is imported, which reads it once; ``own``: the cluster is to be this process's."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if own:  # nobody else on this machine or network may run code in our workers
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault("RAY_TMPDIR", socket_folder())


def start_ray(address: str | None, workers: int | None = None) -> Any:
    """The module ``ray``, connected to the cluster at ``address``, or with None to a new one.

    ``workers``: cores of a new one; None: all of this machine's. A process that is connected
    already stays as it is.
    """
    if address is not None:
        require_cluster(address)
    _set_environment(own=address is None)
    head = None
    if address is None and workers is not None and "ray" not in sys.modules:
        head = Head.shared(workers)
        address = None if head is None else head.address()
        if head is not None and address is None:
            head.stop()
    import ray

    if not ray.is_initialized():
        local = {"num_cpus": workers, "include_dashboard": False}
        new: dict[str, Any] = local if address is None else {}
        on_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of Ray's plans, not of this use
            ray.init(
                address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **new
            )
        if on_main:
            signal.signal(signal.SIGTERM, before)  # Ray's own ends without cleaning up
    return ray
