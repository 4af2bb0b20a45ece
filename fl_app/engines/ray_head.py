"""Ray's head in a process of its own, with no more than workers need.

``python -P -m fl_app.engines.ray_head WORKERS PARENT FOLDER`` (``-P``: `engines/ray.py` must not
pass for Ray) starts Ray's processes without autoscaler, API server, log monitor and agents, prints
the address, and ends everything when `murmur` or one of the processes ends. This is the one module
that rests on Ray's private interfaces (2.55); where they are different it ends without an address,
and ``ray_start`` does without it.

Below is what sees to it that no process is left: whatever a run starts on this machine ends with
it. What survives a SIGKILL rests on Linux (`prctl(2)`); elsewhere only the children that are still
known are ended.
"""

import contextlib
import ctypes
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import psutil

from fl_app.config.errors import ConfigError
from fl_app.engines import ray_fork

# An agent's stand-in: Ray insists on processes, and needs nothing of them without runtime envs.
_AGENT = (
    f'{sys.executable} -I -S -c "import ctypes,time;ctypes.CDLL(None).prctl(1,9);time.sleep(10**9)"'
)
_PDEATHSIG = 1  # the options of prctl(2)
_SUBREAPER = 36
# Bytes that a socket's folder may have: Ray's longest path below it has 87, macOS allows 103.
LONGEST = 16
_SHORT = "/tmp"


def main(workers: int, parent: int, folder: str) -> None:
    """Start Ray, print its address (HOST:PORT), stay until something ends; nothing is left then.

    Args:
        workers: cores of this Ray.
        parent: the process id of the `murmur` that wants it.
        folder: where its sockets and logs lie; removed at the end.
    """
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    status = 0
    try:
        node = _start(workers, folder)
        print(node.gcs_address, flush=True)
        while not node.dead_processes() and os.getppid() == parent:
            time.sleep(0.5)
    except Exception:
        traceback.print_exc()
        status = 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_children(at_once=True)  # Ray's own take seconds to end, and keep nothing of ours
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(status)  # without Ray's own end, which waits


def _start(workers: int, folder: str) -> Any:
    """Ray's ``Node``, whose processes have been started; agents are stand-ins that sleep.

    An ImportError or AttributeError means another version's private interfaces: this process then
    ends without having printed an address.
    """
    names = ("_raylet", "_private.node", "_private.services", "_private.parameter")
    private: list[Any] = [importlib.import_module(f"ray.{name}") for name in names]
    _raylet, node, services, parameter = private
    start_process = services.start_ray_process

    def start_without_agents(command: list[str], *arguments: Any, **settings: Any) -> Any:
        plain = [
            f"{word.split('=', 1)[0]}={_AGENT}" if "_agent_command=" in word[:30] else word
            for word in command
        ]
        return start_process(plain, *arguments, **settings)

    services.start_ray_process = start_without_agents
    ports = {
        _raylet.METRICS_AGENT_PORT_NAME: -1,
        _raylet.METRICS_EXPORT_PORT_NAME: -1,
        _raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME: -1,
        _raylet.RUNTIME_ENV_AGENT_PORT_NAME: 1,
    }

    class Head(node.Node):  # type: ignore
        """Ray's node without its API server, and with ports for agents that are not there."""

        def start_api_server(self, **_: object) -> None:
            self._webui_url = ""

        def start_raylet(self, *arguments: Any, **settings: Any) -> None:
            for name, port in ports.items():
                _raylet.persist_port(self._session_dir, self._node_id, name, port)
            super().start_raylet(*arguments, **settings)

    settings = parameter.RayParams(
        num_cpus=workers,
        include_dashboard=False,
        include_log_monitor=False,
        no_monitor=True,
        setup_worker_path=ray_fork.__file__,
        temp_dir=folder,
    )
    return Head(settings, head=True, shutdown_at_exit=False, ray_init_cluster=True)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send signal ``number`` to this process when its parent ends.

    "Parent" is the thread that started it. A parent that has ended before this call is not
    noticed: by then ``os.getppid`` names another process.
    """
    _prctl(_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of whatever a descendant leaves behind, so that it can be ended.

    Without this an orphan goes to the system's first process, and ``end_children`` misses it. Only
    Linux knows it; elsewhere nothing happens.
    """
    _prctl(_SUBREAPER, 1)


def end_children(
    ours: Callable[[psutil.Process], bool] = lambda child: True, at_once: bool = False
) -> None:
    """End this process's descendants, and kill those that have not ended after three seconds.

    Orphans come to this process one after the other, so it looks until there are none.

    Args:
        ours: which descendants to end; all of them by default.
        at_once: kill them without asking, where they have nothing to put in order.
    """
    signals = ["kill", "kill", "kill"]
    if not at_once:
        signals.insert(0, "terminate")
    for send in signals:
        family = [child for child in psutil.Process().children(recursive=True) if ours(child)]
        if not family:
            return
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(child, send)()
        psutil.wait_procs(family, 3.0)


def socket_folder() -> str:
    """The folder for temporary files, or /tmp where its name leaves a socket's path no room.

    Only sockets and what belongs to them move; TMPDIR stays what it is for everything else.

    Raises:
        ConfigError: neither folder will do.
    """
    own = tempfile.gettempdir()
    for folder in (own, _SHORT):
        if len(os.fsencode(folder)) <= LONGEST and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise ConfigError(
        f"TMPDIR={own}: leaves no room for the names of sockets, and {_SHORT} cannot be written; "
        f"set it to a folder whose path has at most {LONGEST} characters"
    )


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
