"""Flower's grid as a run on devices needs it: replies that prove themselves, messages that return.

Two things are put around the grid that Flower gives to the ServerApp, each in a class that passes
on everything else. Both are about Flower 1.41, of which the tests say what they rely on.
"""

from __future__ import annotations

import math
import secrets
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

from flwr.app import Message
from flwr.serverapp import Grid

from murmur.round.task import PART_SECONDS

AGAIN = 0.5  # share of the wait after which whoever is silent is asked once more
FIRST_LOOK = 0.05  # seconds between the first looks for answers
LOOK_SECONDS = 3  # between later ones at most, as in Flower's own grid


class GridAround:
    """``grid``, but for what a subclass says."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def with_tokens(grid: Grid) -> Grid:
    """``grid``, which passes on only replies that hold their message's secret token.

    Flower matches a reply with its message by the message's id, a hash over content and time, and
    by the node that the reply says it is from, which it does not compare with the key that signed.
    Here each message carries 128 random bits as its group id: they go into that hash, and come back
    with the reply. So a node that was not asked, and has not seen the message, cannot answer in
    another's place.
    """
    return cast(Grid, _TokenGrid(grid))


class _TokenGrid(GridAround):
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, wait, and give back the replies with a valid token, with their own group ids."""
        asked = list(messages)
        groups: dict[str, tuple[int, str]] = {}
        for message in asked:
            token = secrets.token_hex(16)
            groups[token] = (message.metadata.dst_node_id, message.metadata.group_id)
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


def with_redelivery(grid: Grid) -> Grid:
    """``grid``, which asks once more whoever is silent for half of the time that it waits.

    Flower hands out each message, and each answer, once. Where a connection breaks off or a process
    ends before it has arrived, nobody is told, and a round would wait for nothing until its
    deadline. A device that is asked again gives its stored answer, or computes it under the charge
    that it has made: nothing is paid twice.

    Whom Flower reports as gone has answered, with that error. A reply names the message that was
    sent first. What is sent again is not in ``bytes_down``.

    It first looks for answers after half of the shortest time in which all have come until then.
    Between two looks it waits a quarter of what it has waited in all, ``LOOK_SECONDS`` at most:
    little is added to a short phase, of which a secure sum has five, and each look costs the
    SuperLink a request.
    """
    return cast(Grid, _RepeatingGrid(grid))


class _RepeatingGrid(GridAround):
    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._shortest = math.inf

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, wait at most ``timeout`` seconds, and give back one reply to each message."""
        begin = time.monotonic()
        open_ids = self._send(list(messages))
        names = {id(message): name for name, message in open_ids.items()}
        if timeout is None:
            repeat_after = None
        else:
            repeat_after = AGAIN * timeout
        replies = []
        if open_ids:
            time.sleep(self._first_look(timeout))
        while open_ids:
            for reply in self._pull(list(open_ids)):
                asked = open_ids.get(reply.metadata.reply_to_message_id)
                if asked is None:
                    continue  # its message was sent twice and is answered
                open_ids = {name: each for name, each in open_ids.items() if each is not asked}
                reply.metadata.__dict__["_reply_to_message_id"] = names[id(asked)]
                replies.append(reply)
            waited = time.monotonic() - begin
            if not open_ids:
                self._shortest = min(self._shortest, waited)
                break
            if timeout is not None and waited >= timeout:
                break
            if repeat_after is not None and waited >= repeat_after:
                again = [_copy(message) for message in open_ids.values()]
                open_ids |= dict(
                    zip(self._grid.push_messages(again), open_ids.values(), strict=True)
                )
                repeat_after = None
            time.sleep(min(max(FIRST_LOOK, waited / 4), LOOK_SECONDS))
        return replies

    def _pull(self, ids: Sequence[str]) -> list[Message]:
        """The replies that have come.

        Flower hands out a reply while parts of it are on their way, and looks for those again after
        a second; here it looks sooner.
        """
        module = sys.modules[type(self._grid).__module__]
        own = getattr(module, "pull_objects", None)
        if own is None:  # not the grid of a SuperLink
            return list(self._grid.pull_messages(ids))
        module.pull_objects = partial(own, initial_backoff=PART_SECONDS)  # type: ignore[attr-defined]
        try:
            return list(self._grid.pull_messages(ids))
        finally:
            module.pull_objects = own  # type: ignore[attr-defined]

    def _first_look(self, timeout: float | None) -> float:
        """Seconds until then."""
        if math.isinf(self._shortest):
            return 0.0
        limits = [self._shortest / 2, LOOK_SECONDS]
        if timeout is not None:
            limits.append(timeout)
        return min(limits)

    def _send(self, messages: Sequence[Message]) -> dict[str, Message]:
        """``messages`` by the ids under which they are sent."""
        if not messages:
            return {}
        return dict(zip(self._grid.push_messages(messages), messages, strict=True))


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
