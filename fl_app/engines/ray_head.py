"""Ray's head in a process of its own, with no more than workers need.

``python -P -m fl_app.engines.ray_head WORKERS PARENT FOLDER`` (``-P``: `engines/ray.py` must not
pass for Ray) starts Ray's processes without autoscaler, API server, log monitor and agents, prints
the address, and ends everything when `murmur` or one of the processes ends. This is the one module
that rests on Ray's private interfaces (2.55); where they are different it ends without an address,
and ``ray_start`` does without it.
"""

import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from typing import Any

from fl_app.engines import ray_fork
from fl_app.engines.processes import adopt_orphans, die_with_parent, end_children, orphaned

# An agent's stand-in: Ray insists on processes, and needs nothing of them without runtime envs.
_AGENT = (
    f'{sys.executable} -I -S -c "import ctypes,time;ctypes.CDLL(None).prctl(1,9);time.sleep(10**9)"'
)


def main(workers: int, parent: int, folder: str) -> None:
    """Start Ray, print its address (HOST:PORT), stay until something ends; nothing is left then.

    Args:
        workers: cores of this Ray.
        parent: the process id of the `murmur` that wants it.
        folder: where its sockets and logs lie; removed at the end.
    """
    die_with_parent(signal.SIGTERM)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    status = 0
    try:
        node = _start(workers, folder)
        print(node.gcs_address, flush=True)
        while not node.dead_processes() and not orphaned(parent):
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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
