"""A secret token in each message: a node that was not asked cannot answer in another's place.

Flower 1.41 matches a reply with its message by the message's id, a hash over content and time,
and by the node that the reply says it is from, which it does not compare with the key that signed.
Here each message carries 128 random bits as its group id: they go into that hash, and come back
with the reply. Who has not seen the message knows neither.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import cast

from flwr.app import Message
from flwr.serverapp import Grid

from murmur.round.grid_around import GridAround


def with_tokens(grid: Grid) -> Grid:
    """``grid``, which passes on only replies that hold their message's token."""
    return cast(Grid, _TokenGrid(grid))


class _TokenGrid(GridAround):
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, wait, and give back the replies with a valid token, with their own group ids."""
        asked, groups = list(messages), {}
        for message in asked:
            token = secrets.token_hex(16)
            groups[token] = message.metadata.dst_node_id, message.metadata.group_id
            message.metadata.group_id = token
        valid = []
        for reply in self._grid.send_and_receive(asked, timeout=timeout):
            token = reply.metadata.group_id
            node, group = groups.get(token, (None, ""))
            if node == reply.metadata.src_node_id:
                del groups[token]  # one reply to one message
                reply.metadata.group_id = group
                valid.append(reply)
        return valid
