"""On Flower's simulation a node that fails ends the run; its clients have not failed.

Clients of a simulation answer or refuse: what Flower reports as a node's error comes from its own
runtime, such as a worker that has gone or a Ray that is shutting down. Counted, the round would be
one that no uninterrupted run has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from murmur.round.grid import GridAround
from murmur.round.task import RunError, printable_line


def without_lost_nodes(grid: Grid) -> Grid:
    """``grid``, which raises RunError where a reply is an error of the runtime."""
    return cast(Grid, _WholeGrid(grid))


class _WholeGrid(GridAround):
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send and wait; the replies, none of which is an error of the runtime."""
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        for reply in replies:
            if reply.has_error() and reply.error.code == ErrorCode.UNKNOWN:
                raise RunError(
                    f"Flower's simulation lost a node: {printable_line(reply.error.reason)}"
                )
        return replies
