"""The wrapper of a Flower ``Grid``, as a run on devices and a simulation need it.

On devices (``DeviceGrid``) each reply proves that it answers its message, and a message is sent
again to whoever is silent. In a simulation (``StrictGrid``) a lost node ends the run.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from murmur.compat.flower_messages import set_answered_id

REPEAT_FRACTION = 0.5  # of the wait, after which whoever is silent is asked once more
FIRST_LOOK_SECONDS = 0.05  # between the first looks for answers
MAX_LOOK_SECONDS = 3  # between later ones, as in Flower's own grid
SIMULATION_LOOK_SECONDS = 0.01  # between two looks of a simulation


def empty_run() -> Run:
    """Returns a run without an app, for a grid that no SuperLink stands behind."""
    return Run.create_empty(run_id=1)


def look_often(grid: Grid) -> None:
    """Shortens the time between two looks for replies of a simulation by ``flwr run``.

    Flower 1.41 and 1.42 wait 0.1 s, a tenth of a small round. Other grids stay as they are.
    """
    if hasattr(grid, "pull_interval"):
        grid.pull_interval = SIMULATION_LOOK_SECONDS


class GridWrapper:
    """A grid that passes on to ``grid`` all that a subclass leaves."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


class StrictGrid(GridWrapper):
    """A simulation's grid, in which a lost node is the end of the run.

    Clients of a simulation answer or refuse. Flower 1.41 and 1.42 report a worker that has gone, or
    a Ray that is shutting down, as an error of the node. Counted as failures of clients, those
    would make a round that no uninterrupted run has.

    Args:
        grid: Flower's.
        lost: Makes the exception that a lost node raises, from Flower's reason.
    """

    def __init__(self, grid: Grid, lost: Callable[[str], Exception]) -> None:
        super().__init__(grid)
        self._lost = lost

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Sends ``messages`` at once; going through the replies raises where a node was lost."""
        return self._checked(self._grid.send_and_receive(messages, timeout=timeout))

    def _checked(self, replies: Iterable[Message]) -> Iterator[Message]:
        for reply in replies:
            if reply.has_error() and reply.error.code == ErrorCode.UNKNOWN:
                raise self._lost(reply.error.reason or "")
            yield reply


@dataclass(frozen=True)
class _Question:
    """A message that was sent, and its secret.

    Attributes:
        message: As it was sent first, its token in the place of the caller's group id.
        group: The caller's group id, which the reply gets back.
        token: Known to the asked node alone.
    """

    message: Message
    group: str
    token: str

    @classmethod
    def of(cls, message: Message) -> "_Question":
        """Puts a new token into ``message``."""
        question = cls(message, message.metadata.group_id, secrets.token_hex(16))
        message.metadata.group_id = question.token
        return question

    def is_answered_by(self, reply: Message) -> bool:
        """Tells whether ``reply`` holds the token, and says that it is from the asked node."""
        about = reply.metadata
        return (about.group_id, about.src_node_id) == (
            self.token,
            self.message.metadata.dst_node_id,
        )

    def again(self) -> Message:
        """Returns the same question in a message of its own: Flower answers each message once."""
        about = self.message.metadata
        return Message(
            self.message.content,
            dst_node_id=about.dst_node_id,
            message_type=about.message_type,
            ttl=about.ttl,
            group_id=about.group_id,
        )


def _is_from_superlink(reply: Message) -> bool:
    """Tells whether ``reply`` is the SuperLink's own word that a node, or its answer, is gone."""
    return reply.has_error() and reply.metadata.src_node_id == SUPERLINK_NODE_ID


class DeviceGrid(GridWrapper):
    """A grid of devices: replies prove themselves, and messages that were lost are sent again.

    **Tokens.** Flower 1.41 and 1.42 match a reply with its message by the message's id, a hash over
    content and time, and by the node that the reply says it is from, which they do not compare with
    the key that signed. Here each message carries 128 random bits as its group id: they go into
    that hash, and come back with the reply. So a node that was not asked, and has not seen the
    message, cannot answer in another's place. A reply without its token is dropped.

    **Redelivery.** Flower hands out each message, and each answer, once. Where a connection breaks
    off or a process ends before it has arrived, nobody is told, and a round would wait for nothing
    until its deadline. Whoever is silent for half of the time is asked once more. A device that is
    asked again gives its stored answer, or computes it under the charge that it has made: nothing
    is paid twice. A node that the SuperLink reports as gone is waited for no longer. A reply names
    the message that was sent first. What is sent again is not in ``bytes_down``.

    **Looks.** It first looks for answers after half of the shortest time in which all have come
    until then. Between two looks it waits a quarter of what it has waited in all, three seconds at
    most: little is added to a short phase, of which a secure sum has five, and each look costs the
    SuperLink a request.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._shortest = math.inf

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Sends ``messages`` at once; gives one reply to each that comes within ``timeout``."""
        questions = [_Question.of(message) for message in messages]
        sent = self._send([question.message for question in questions])
        waiting = dict(zip(sent, questions, strict=True))
        return self._receive(waiting, time.monotonic(), timeout)

    def _receive(
        self, waiting: dict[str, _Question], begin: float, timeout: float | None
    ) -> Iterator[Message]:
        """Yields the replies as they come, to questions that were sent at ``begin``, by their ids.

        Time in which whoever takes the replies is at work on them does not count.
        """
        first_ids = {question.token: name for name, question in waiting.items()}
        repeat_after = math.inf
        if timeout is not None:
            repeat_after = REPEAT_FRACTION * timeout
        if waiting:
            time.sleep(self._first_look(timeout))
        while waiting:
            found = self._look(list(waiting))
            waited = time.monotonic() - begin
            while found:
                reply = found.pop(0)
                question = waiting.get(reply.metadata.reply_to_message_id)
                if question is None:
                    continue  # its message was sent twice and is answered
                is_answer = question.is_answered_by(reply)
                if not is_answer and not _is_from_superlink(reply):
                    continue  # a forgery
                waiting = {name: each for name, each in waiting.items() if each is not question}
                if is_answer:
                    set_answered_id(reply, first_ids[question.token])
                    reply.metadata.group_id = question.group
                    yield reply
            if not waiting:
                self._shortest = min(self._shortest, waited)
                break
            if timeout is not None and waited >= timeout:
                break
            if waited >= repeat_after:
                silent = list(waiting.values())
                sent = self._send([question.again() for question in silent])
                waiting |= dict(zip(sent, silent, strict=True))
                repeat_after = math.inf
            time.sleep(min(max(FIRST_LOOK_SECONDS, waited / 4), MAX_LOOK_SECONDS))

    def _look(self, ids: Sequence[str]) -> list[Message]:
        """Returns what Flower's grid has; nothing where the SuperLink says that it failed.

        In Flower 1.41 and 1.42 its database is locked for a while where many nodes fetch a large
        model at a time, which is an HTTP status of 500 and more and ends the run. It is asked again
        at the next look, until the deadline.
        """
        try:
            return list(self._grid.pull_messages(ids))
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if status < 500:
                raise
            return []

    def _first_look(self, timeout: float | None) -> float:
        """Returns the seconds until the first look for answers."""
        if math.isinf(self._shortest):
            return 0.0
        limits = [self._shortest / 2, MAX_LOOK_SECONDS]
        if timeout is not None:
            limits.append(timeout)
        return min(limits)

    def _send(self, messages: Sequence[Message]) -> list[str]:
        """Returns the ids under which ``messages`` are sent."""
        if not messages:
            return []
        return list(self._grid.push_messages(messages))
