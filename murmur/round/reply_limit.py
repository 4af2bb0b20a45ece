"""Limits the size of a node's reply before it is decoded.

Flower 1.41 sends equal parts of an array once, however often they occur: 1.2 GB of zeros travel as
a few kilobytes and take 3 GB when they are decoded. Flower's own grid decodes a reply before a
strategy sees it. So its two decoding functions are replaced here by ones that count first; a reply
that is too large becomes an error of its node, as if that had failed.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from flwr.app import Message
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.app.message.array import Array
from flwr.common.constant import ErrorCode
from flwr.common.serde import metadata_from_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.superlink.grid import http_grid

from murmur.learning.codec import Codec

_TOO_LARGE = "a reply is larger than this round's contributions can be"


class ReplyLimit:
    """``bytes``: of one reply with all its arrays; what a run needs raises it, for good."""

    def __init__(self, least: int) -> None:
        self.bytes = least

    def allow(self, codec: Codec, clients: int) -> None:
        """Replies may hold the contributions of ``clients``, side by side, in any form."""
        self.allow_bytes(16 * clients * (math.prod(codec.shape) + 1))

    def allow_bytes(self, needed: int) -> None:
        """Replies may have ``needed`` bytes."""
        self.bytes = max(self.bytes, _ROOM + needed)

    def pulling(self, pull: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
        """Flower's ``pull_objects``, which stops at the limit."""

        @wraps(pull)
        def limited(
            object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any
        ) -> dict[str, bytes]:
            lock, left = threading.Lock(), self.bytes

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
        """Flower's ``inflate_object_from_contents``, of what stays within the limit."""

        @wraps(inflate)
        def limited(object_id: str, contents: dict[str, bytes]) -> Any:
            head = contents[object_id]
            try:
                if inflated_size(contents) > self.bytes:
                    raise ValueError(_TOO_LARGE)
                return inflate(object_id, contents)
            except Exception as error:  # whatever a node has made up, the run goes on without it
                sent = MessageProto.FromString(get_object_body(head, Message))
                told = Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=str(error)[:200])
                return make_message(metadata_from_proto(sent.metadata), error=told)

        return limited


def inflated_size(contents: Mapping[str, bytes]) -> int:
    """Bytes of all objects of a reply, and of the arrays that they become."""
    total = sum(map(len, contents.values()))
    for content in contents.values():
        kind, parts, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            sizes = [len(contents[part]) for part in parts]
            order = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(sizes[place] for place in order)
    return total


_ROOM = 4 * 2**20  # for reports, keys and shares of a few thousand clients
# Of this process: Flower's grid is made before a run knows what it needs.
REPLIES = ReplyLimit(_ROOM)


def limit_replies() -> None:
    """Let Flower's grid of this process keep to ``REPLIES``."""
    for name, limited in (
        ("pull_objects", REPLIES.pulling),
        ("inflate_object_from_contents", REPLIES.inflating),
    ):
        plain = getattr(http_grid, name)
        if not hasattr(plain, "__wrapped__"):
            setattr(http_grid, name, limited(plain))
