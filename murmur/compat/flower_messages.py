"""Flower's messages: whose they are, their ids, and how large a reply may be.

Flower sets ids and addresses itself, and gives messages no interface for them. Who stands for a
SuperLink or a SuperNode, such as an engine in one process, sets them here.

**The limit** (``limit_replies``) is about replies that swell: 1.2 GB of zeros travel as a few
kilobytes and take 3 GB when they are decoded, before a strategy sees the reply.
"""

import json
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Protocol

from flwr.app import Message, Metadata, RecordDict
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.app.message.array import Array
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import metadata_from_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.inflatable import inflatable_object
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.task_identity import TaskIdentity

# Seconds until a part of a message that is still on its way is looked for again.
PART_SECONDS = 0.1
SPARE_REPLY_BYTES = 4 * 2**20  # for reports, keys and shares of a few thousand clients
_TOO_LARGE = "a reply is larger than this round's contributions can be"


class NodeInfo(Protocol):
    """A node as Flower's grid lists it.

    Attributes:
        node_id: Its id, a new one each time that it registers.
        public_key: The key with which the SuperLink has authenticated it.
    """

    node_id: int
    public_key: bytes


def identify(run: int = 1, node: int = SUPERLINK_NODE_ID, task: int = 1) -> None:
    """Sets the task's identity, without which this process can make no message.

    Flower 1.41 and 1.42 stamp it on every new message. Their own runtimes set it before an app
    starts; in an engine of ours and in Ray's workers nobody else does.
    """
    TaskIdentity.task_id = task
    TaskIdentity.run_id = run
    TaskIdentity.node_id = node


def set_message_id(message: Message, name: str) -> None:
    """Sets the id of ``message``, as Flower's grid does when it sends it."""
    message.metadata.__dict__["_message_id"] = name


def set_answered_id(reply: Message, name: str) -> None:
    """Sets the id of the message that ``reply`` answers."""
    reply.metadata.__dict__["_reply_to_message_id"] = name


def with_content(metadata: Metadata, content: RecordDict) -> Message:
    """Returns a message with the addresses of another one and a content of its own."""
    return make_message(metadata, content=content)


class ReplyLimit:
    """The largest reply that this process decodes.

    Args:
        least: Bytes that are always allowed.

    Attributes:
        bytes: Of one reply with all its arrays. What a run needs raises it, for good: it never
            falls.
    """

    def __init__(self, least: int) -> None:
        self.bytes = least

    def allow(self, entries: int, clients: int) -> None:
        """Raises the limit to contributions of ``entries`` numbers from ``clients``, side by side.

        Sixteen bytes for each entry and weight: twice the 64 bits in which sums travel. Called
        before each message of a phase is sent.
        """
        self.allow_bytes(16 * clients * (entries + 1))

    def allow_bytes(self, needed: int) -> None:
        """Raises the limit to ``needed`` bytes, and 4 MiB for reports, keys and shares."""
        self.bytes = max(self.bytes, SPARE_REPLY_BYTES + needed)

    def pulling(self, pull: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
        """Returns Flower's ``pull_objects``, stopped at the limit.

        It counts what travels, over all of Flower's threads; ObjectPullError once that is too much.
        """

        @wraps(pull)
        def limited(
            object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any
        ) -> dict[str, bytes]:
            lock = threading.Lock()
            left = self.bytes

            def counted(object_id: str) -> bytes:
                nonlocal left
                content = pull_object_fn(object_id)
                with lock:
                    left -= len(content)
                    if left < 0:
                        raise ObjectPullError(object_id, _TOO_LARGE)
                return content

            return pull(object_ids, counted, **options)

        return limited

    def inflating(self, inflate: Callable[..., Any]) -> Callable[[str, dict[str, bytes]], Any]:
        """Returns Flower's ``inflate_object_from_contents``, applied within the limit only.

        It counts what would be decoded, before it is. A reply that is too large, or that Flower
        cannot decode, becomes an error reply of its node: one node cannot end a run. One whose head
        is no message's answers none.
        """

        @wraps(inflate)
        def limited(object_id: str, contents: dict[str, bytes]) -> Any:
            sent = MessageProto()
            try:
                head = inflatable_object.get_object_body(contents[object_id], Message)
                sent = MessageProto.FromString(head)
                if inflated_size(contents) > self.bytes:
                    raise ValueError(_TOO_LARGE)
                return inflate(object_id, contents)
            except Exception as error:  # whatever a node has made up, the run goes on without it
                sent.metadata.message_type = "query"  # the node's own may be none that there is
                wrong = Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=str(error)[:200])
                return make_message(metadata_from_proto(sent.metadata), error=wrong)

        return limited


def inflated_size(contents: Mapping[str, bytes]) -> int:
    """Returns the bytes of all objects of a reply, and of the arrays that they become."""
    total = sum(map(len, contents.values()))
    for content in contents.values():
        kind, parts, _ = inflatable_object.get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            sizes = [len(contents[part]) for part in parts]
            order = json.loads(inflatable_object.get_object_body(content, Array))["arraychunk_ids"]
            total += sum(sizes[place] for place in order)
    return total


# Of this process: Flower's grid is made before a run knows what it needs.
REPLIES = ReplyLimit(SPARE_REPLY_BYTES)


def limit_replies() -> None:
    """Mends Flower's grid of this process: a reply's size is bounded before it is decoded.

    Flower 1.41 and 1.42 send equal parts of an array once, however often they occur, and decode
    whatever a node has sent, so a few kilobytes fill the server's memory; a reply that cannot be
    decoded ends the run.

    It replaces two names in Flower's module, once however often it is called. Called where a run
    begins, before anything is received: whoever has that grid has loaded the module, and it takes
    seconds to import for those who have another.
    """
    grid = _http_grid()
    if grid is None or hasattr(grid.inflate_object_from_contents, "__wrapped__"):
        return
    grid.pull_objects = REPLIES.pulling(grid.pull_objects)
    grid.inflate_object_from_contents = REPLIES.inflating(grid.inflate_object_from_contents)


def pull_parts_soon() -> None:
    """Mends Flower's grid of this process: parts that are on their way are looked for soon.

    Flower 1.41 and 1.42 hand out a reply while parts of it are still being sent, and look for those
    again after a second, which is most of what a short phase takes.

    Called, like ``limit_replies``, where a run begins.
    """
    grid = _http_grid()
    if grid is not None and not isinstance(grid.pull_objects, partial):
        grid.pull_objects = partial(grid.pull_objects, initial_backoff=PART_SECONDS)


def _http_grid() -> Any:
    """Returns the module of the grid that a SuperLink's ServerApp is given; None: not loaded."""
    return sys.modules.get("flwr.superlink.grid.http_grid")
