"""Ray's workers as forks of a process that has imported everything.

Ray starts a worker by running the file that its node calls ``setup_worker_path``; ours is this
one. It hands the worker's command line and environment to the template, a fork of `murmur` that
waits at a socket, and the template forks once more and becomes the worker: without the seconds that
importing PyTorch takes. Where there is no template, the worker is started as Ray would.

The template must not have imported ray, whose threads do not survive a fork, and it is run as a
file, so this module imports nothing of the project at its head.
"""

import gc
import json
import os
import runpy
import signal
import socket
import sys

SOCKET = "MURMUR_RAY_TEMPLATE"  # the environment variable with the socket's path
_MOST = 2**20  # bytes of a request
_LOOK_SECONDS = 0.5  # how often the template looks whether `murmur` is there


def start_template(path: str) -> int | None:
    """Fork the template, which answers at the socket ``path``, and serves until it is killed.

    Returns:
        Its process id; None where it cannot be had: Ray or CUDA, neither of which survives a fork,
        is in use in this process.
    """
    torch = sys.modules.get("torch")
    if "ray" in sys.modules or (torch is not None and torch.cuda.is_initialized()):
        return None
    import fl_app.client_app
    import fl_app.run.hosts  # noqa: F401

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
    """Let go of all that is `murmur`'s, then fork a worker for each request.

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
        while part := request.recv(_MOST):
            content += part
        if os.fork() == 0:
            request.close()
            listener.close()
            _become_worker(json.loads(content))
        request.close()


def _become_worker(request: dict) -> None:
    """Run Ray's worker in this process, with the command line and environment that Ray gave."""
    from fl_app.engines.ray_head import die_with_parent

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
    """Ask the template for a worker, and wait until it has forked.

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
    """What Ray starts: ask the template for the worker, or become Ray's own setup."""
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
