"""Ray's node with no more than workers need, and its workers as forks of a warm process.

Ray starts a worker by running the file that its node calls ``setup_worker_path``; ours is this
one. It hands the worker's command line and environment to the template, a fork of `murmur` that
waits at a socket, and the template forks once more and becomes the worker: without the seconds that
importing PyTorch takes. Where there is no template, the worker is started as Ray would.

The template must not have imported ray, whose threads do not survive a fork. This module is run as
a file, so it imports nothing of the project at its head.

By Ray's public interface, ``runtime_env={"py_executable": ...}``, the same start takes 1.69 times
the processor time, where 1.15 was the limit: so what is private to Ray stays, and stands here.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

SOCKET = "MURMUR_RAY_TEMPLATE"  # the environment variable with the socket's path
_MAX_REQUEST_BYTES = 2**20
_LOOK_SECONDS = 0.5  # between two looks of the template whether `murmur` is there
# An agent's stand-in: Ray insists on processes, and needs nothing of them without runtime envs.
_AGENT = (
    f'{sys.executable} -I -S -c "import ctypes,time;ctypes.CDLL(None).prctl(1,9);time.sleep(10**9)"'
)


def start_node(workers: int, folder: str) -> Any:
    """Starts the processes of a Ray node, and returns Ray's ``Node``; agents are stand-ins.

    Ray 2.55 starts an API server, a log monitor and two agents with each node, which take seconds
    and serve nobody here, and no public setting leaves out the agents; its workers import
    everything anew.

    Args:
        workers: cores of this Ray.
        folder: where its sockets and logs lie.

    Raises:
        ImportError, AttributeError: another version of Ray, whose private interfaces differ.
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
        setup_worker_path=__file__,
        temp_dir=folder,
    )
    return Head(settings, head=True, shutdown_at_exit=False, ray_init_cluster=True)


def start_template(path: str, warm_up: Callable[[], None]) -> int | None:
    """Forks the template, which answers at the socket ``path``, and serves until it is killed.

    Args:
        path: of the socket.
        warm_up: imports what workers need not import again.

    Returns:
        Its process id; None where it cannot be had: Ray or CUDA, neither of which survives a fork,
        is in use in this process.
    """
    torch = sys.modules.get("torch")
    if "ray" in sys.modules or (torch is not None and torch.cuda.is_initialized()):
        return None
    warm_up()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    parent = os.getpid()
    child = os.fork()
    if child:
        listener.close()
        return child
    try:
        _become_template(listener, parent)
    finally:
        os._exit(0)


def _become_template(listener: socket.socket, parent: int) -> None:
    """Lets go of all that is `murmur`'s, then forks a worker for each request.

    Returns when the process ``parent`` has ended. The kernel's own signal would come when the
    thread ends that forked.
    """
    # What murmur had opened keeps its numbers; collected here, it would close others' files.
    gc.freeze()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for murmur, which ends us
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    # Standard output and error must stay open descriptors: Ray writes to them.
    sys.stdout, sys.stderr = (os.fdopen(one, "w", closefd=False) for one in (1, 2))
    # Files of the run, and their locks, are not ours.
    os.closerange(3, listener.fileno())
    os.closerange(listener.fileno() + 1, 4096)
    listener.settimeout(_LOOK_SECONDS)
    while os.getppid() == parent:
        try:
            request, _ = listener.accept()
        except TimeoutError:
            continue
        request.settimeout(None)
        content = b""
        while part := request.recv(_MAX_REQUEST_BYTES):
            content += part
        if os.fork() == 0:
            request.close()
            listener.close()
            _become_worker(json.loads(content))
        request.close()


def _become_worker(request: dict) -> None:
    """Runs Ray's worker in this process, with the command line and environment that Ray gave."""
    from murmur.processes import die_with_parent

    die_with_parent()  # the template, which ends with `murmur`: nobody goes on without it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        os._exit(0)


def _request(arguments: list[str]) -> None:
    """Asks the template for a worker, and waits until it has forked.

    Args:
        arguments: the worker's command line, the file to run first. The environment goes with it.

    Raises:
        OSError: nobody answers at the socket.
        KeyError: no socket is named (``SOCKET``).
    """
    with socket.socket(socket.AF_UNIX) as template:
        template.connect(os.environ[SOCKET])
        request = {"arguments": arguments, "environment": dict(os.environ)}
        template.sendall(json.dumps(request).encode())
        template.shutdown(socket.SHUT_WR)
        template.recv(1)  # until it has forked


def _main() -> None:
    """Asks the template for a worker, or becomes Ray's own setup: Ray starts this."""
    # Ray's words: flags for Python, the worker's file, its options, and two for the setup itself.
    words = [word for word in sys.argv[1:] if not word.startswith("--serialized-runtime-env")]
    words = [word for word in words if not word.startswith("--language=")]
    while words and words[0].startswith("-"):
        words.pop(0)
    if not words:
        raise SystemExit("a worker of Ray: its command line names no file to run")
    try:
        if words[0].endswith("default_worker.py"):
            return _request(words)
    except (OSError, KeyError):
        pass
    plain = os.path.join(os.path.dirname(words[0]), "setup_worker.py")
    os.execv(sys.executable, [sys.executable, plain, *sys.argv[1:]])


if __name__ == "__main__":
    _main()
