"""A network that can be cut: a TCP proxy on this machine, between a SuperNode and its SuperLink.

While it is cut nothing passes and nobody is told: connections stay open and silent, as when
packets are lost, and what was on its way arrives once the network is back.
"""

from __future__ import annotations

import contextlib
import socket
import threading


class Network:
    """Whoever connects to ``port`` is connected to ``target`` (a port here)."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._whole = threading.Event()
        self._whole.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing passes."""
        self._whole.clear()

    def restore(self) -> None:
        """Everything passes again."""
        self._whole.set()

    def close(self) -> None:
        """End all connections."""
        for each in (self._listener, *self._sockets):
            _end(each)
        self._listener.close()
        self.restore()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._whole.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            near.close()
            return  # nobody is there
        with near, far:
            self._sockets += [near, far]
            back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
            back.start()
            self._pump(near, far)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass on what comes until either side is gone; then end both."""
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                self._whole.wait()
                sink.sendall(content)
        _end(source)
        _end(sink)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
