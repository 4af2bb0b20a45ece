"""A message that nobody answers is sent once more: Flower may have lost it, or its answer.

Flower 1.41 hands out each message, and each answer, once. Where a connection breaks off or a
process ends before it has arrived, nobody is told, and a round would wait for nothing until its
deadline. A device that is asked again gives its stored answer, or computes it under the charge
that it has made: nothing is paid twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import cast

from flwr.app import Message
from flwr.serverapp import Grid

from murmur.round.grid_around import GridAround

AGAIN = 0.5  # share of the wait after which whoever is silent is asked once more
LOOK_SECONDS = 3  # between two looks for answers, as in Flower's own grid


def with_redelivery(grid: Grid) -> Grid:
    """``grid``, which asks once more whoever is silent for half of the time that it waits.

    Whom Flower reports as gone has answered, with that error. A reply names the message that was
    sent first. What is sent again is not in ``bytes_down``.
    """
    return cast(Grid, _RepeatingGrid(grid))


class _RepeatingGrid(GridAround):
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, wait at most ``timeout`` seconds, and give back one reply to each message."""
        begin = time.monotonic()
        open_ids = self._send(list(messages))
        names = {id(message): name for name, message in open_ids.items()}
        repeat_after = None if timeout is None else AGAIN * timeout
        replies = []
        while open_ids:
            for reply in self._grid.pull_messages(list(open_ids)):
                asked = open_ids.get(reply.metadata.reply_to_message_id)
                if asked is None:
                    continue  # its message was sent twice and is answered
                open_ids = {name: each for name, each in open_ids.items() if each is not asked}
                reply.metadata.__dict__["_reply_to_message_id"] = names[id(asked)]
                replies.append(reply)
            waited = time.monotonic() - begin
            if not open_ids or (timeout is not None and waited >= timeout):
                break
            if repeat_after is not None and waited >= repeat_after:
                open_ids |= self._send(list(open_ids.values()), again=True)
                repeat_after = None
            time.sleep(LOOK_SECONDS)
        return replies

    def _send(self, messages: Sequence[Message], again: bool = False) -> dict[str, Message]:
        """``messages`` by the ids under which they are sent now."""
        sent = [_copy(message) for message in messages] if again else messages
        return dict(zip(self._grid.push_messages(sent), messages, strict=True)) if sent else {}


def _copy(message: Message) -> Message:
    """The same question in a message of its own: Flower answers each message once."""
    about = message.metadata
    return Message(
        message.content,
        dst_node_id=about.dst_node_id,
        message_type=about.message_type,
        ttl=about.ttl,
        group_id=about.group_id,
    )
