"""KD-DPFL's label stage on the wire: one message to each large client, one sum of answers.

Each client is asked in a message of its own, which does not depend on how many nodes there are:
after a crash the same message goes out again, the client's ledger recognises it, and answers
with what it stored instead of labelling, and paying, once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from murmur.learning.codec import Codec, MalformedError, Sum
from murmur.round.answers import Weigh, accept, exposed
from murmur.round.client_placement import ClientPlacement
from murmur.round.message_size import message_size
from murmur.round.reply_limit import REPLIES
from murmur.round.untrusted_text import said

PURPOSE = "label"


@dataclass
class LabelStage:
    """Asks clients to label public images; ``votes`` sums what they say.

    ``model``: where teachers start (d,); ``indices``: which public images (q,); ``codec``: the
    form of an answer; ``weigh``: a client's weight; ``where``: how they are found.
    ``failed``: who did not answer, and why; ``released``: who may have released a label.
    """

    model: NDArray[np.float32]
    indices: NDArray[np.int64]
    codec: Codec
    weigh: Weigh
    where: ClientPlacement
    failed: dict[int, str] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    bytes_down: int = 0
    bytes_up: int = 0

    def __post_init__(self) -> None:
        self.votes = Sum(self.codec)

    def ask(self, grid: Grid, clients: Sequence[int], timeout: float) -> None:
        """Send the messages and take what comes back within ``timeout`` seconds."""
        placement = self.where.place(grid, clients)
        self.failed.update(placement.away)
        asked = [(node, client) for node, ids in placement.asked.items() for client in ids]
        messages = [
            Message(
                self._message(client),
                dst_node_id=node,
                message_type="query",
                group_id="labels",
            )
            for node, client in asked
        ]
        REPLIES.allow(self.codec, 1)
        self.bytes_down += sum(message_size(message.content) for message in messages)
        replies = list(grid.send_and_receive(messages, timeout=timeout))
        # A message gets its id when it is sent.
        ids = [str(message.metadata.message_id) for message in messages]
        waiting = dict(zip(ids, asked, strict=True))
        for reply in replies:
            message = str(reply.metadata.reply_to_message_id)
            node, client = waiting.get(message, (None, -1))
            if node == reply.metadata.src_node_id:  # else a duplicate, or another node's answer
                del waiting[message]
                self._take(client, reply)
        for _, client in waiting.values():
            self.failed[client] = "no answer before the deadline"
            self.released.update(exposed(self.where, [client], 1, PURPOSE, None))

    def _message(self, client: int) -> RecordDict:
        arrays = ArrayRecord({"model": Array(self.model), "indices": Array(self.indices)})
        task = ConfigRecord({"purpose": PURPOSE, "round": 1, "clients": [client]})
        return RecordDict({"model": arrays, "task": task})

    def _take(self, client: int, reply: Message) -> None:
        if reply.has_error():
            self.failed[client] = f"node failed: {said(reply.error.reason)}"
            self.released.update(exposed(self.where, [client], 1, PURPOSE, reply))
            return
        try:
            self.bytes_up += message_size(reply.content)
            answered, refusals = accept(self.votes, [client], reply.content, self.weigh)
        except (MalformedError, KeyError, TypeError, ValueError) as error:
            self.failed[client] = f"rejected: {said(error)}"
            self.released.add(client)
            return
        # One that refuses now may have answered before the server was killed.
        self.released.update(answered or self.where.released([client], 1, PURPOSE))
        self.failed.update(refusals)
