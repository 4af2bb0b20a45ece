"""How large messages are, and how large a node's reply may be.

Sizes are counted as if each client had a node of its own: a simulation puts many clients on one
node, which sums them, and devices do not. What counts is the content of each client's own messages,
without the transport's framing. They are the ``bytes_down`` and ``bytes_up`` of a round.

The limit is about Flower 1.41, which sends equal parts of an array once, however often they occur:
1.2 GB of zeros travel as a few kilobytes and take 3 GB when they are decoded, before a strategy
sees the reply. So Flower's two decoding functions are replaced by ones that count first; a reply
that is too large becomes an error of its node, as if that had failed.

The first half measures, the second limits: ``ReplyLimit``, and ``limit_replies``, which puts this
process's one in place.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
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

from murmur.learning.codec import Codec
from murmur.round.cohorts import Weigh

_HEADER = 128  # bytes before an array in NumPy's format
_TOO_LARGE = "a reply is larger than this round's contributions can be"
_ROOM = 4 * 2**20  # bytes for reports, keys and shares of a few thousand clients


# What messages weigh --------------------------------------------------------------------------


def message_size(content: RecordDict) -> int:
    """Bytes of the arrays and records of one client's message."""
    return _array_bytes(content) + sum(len(r.deflate()) for r in content.config_records.values())


def request_size(content: RecordDict, clients: Sequence[int]) -> int:
    """Bytes of what a node is sent for ``clients``, had each a node of its own.

    Every array is counted once for each client. In a record, ``which`` says which of ``messages``
    is whose, for each of ``clients``; all else is sent to each.
    """
    alone = _Alone()
    for record in content.config_records.values():
        plain: dict[str, Any] = dict(record)
        messages = plain.pop("messages", None)
        for place, client in enumerate(clients):
            own: dict[str, Any] = {"clients": [client]}
            if messages is not None:
                own |= {"messages": [messages[plain["which"][place]]], "which": [0]}
            alone.add(plain | own)
    return len(clients) * _array_bytes(content) + alone.total


def reply_size(
    content: RecordDict, name: str, codec: Codec | None = None, weigh: Weigh | None = None
) -> int:
    """Bytes of an accepted reply, had each of the node's clients a node of its own.

    Parameters
    ----------
    content : RecordDict
        The reply.
    name : str
        The record that says who answered.
    codec : Codec, optional
        The form in which one client's release travels, where its node sums.
    weigh : callable, optional
        A client's public weight, where its node sums; 1 by default.
    """
    alone = _Alone()
    plain: dict[str, Any] = dict(content.config_records[name])
    nobody: dict[str, Any] = {"clients": [], "refused": [], "reasons": []}
    messages = plain.pop("messages", None)
    summed = codec is not None and "sum" in content.array_records.get("contribution", {})
    for place, client in enumerate(plain["clients"]):
        own: dict[str, Any] = {"clients": [client]}
        if messages is not None:
            own["messages"] = [messages[place]]
        if summed:
            own |= {"weight": weigh(client) if weigh else 1, "packed": True}
        alone.add({**plain, **nobody, **own})
    for client, reason in zip(plain["refused"], plain["reasons"], strict=True):
        own = {"refused": [client], "reasons": [reason]}
        if messages is not None:
            own["messages"] = []
        if "weight" in plain:
            own |= {"weight": 0, "packed": False}
        alone.add({**plain, **nobody, **own})
    answered = len(plain["clients"])
    if not answered or not content.array_records:
        return alone.total
    if codec is not None and summed:
        return alone.total + answered * (_HEADER + codec.packed_bytes)
    return alone.total + (answered - 1) * _HEADER + _array_bytes(content)  # a row for each


def _array_bytes(content: RecordDict) -> int:
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


class _Alone:
    """Adds up records; those that differ in a number of the same length are measured once."""

    def __init__(self) -> None:
        self.total = 0
        self._known: dict[tuple, int] = {}

    def add(self, record: dict[str, Any]) -> None:
        key = tuple((name, _length(value)) for name, value in record.items())
        if key not in self._known:
            self._known[key] = len(ConfigRecord(record).deflate())
        self.total += self._known[key]


def _length(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_length, value))
    if isinstance(value, bytes | str):
        return len(value)
    if type(value) is int:
        return value.bit_length()
    return value


# What a reply may weigh -----------------------------------------------------------------------


class ReplyLimit:
    """The largest reply that this process decodes.

    Parameters
    ----------
    least : int
        Bytes that are always allowed.

    Attributes
    ----------
    bytes : int
        Of one reply with all its arrays. What a run needs raises it, for good: it never falls.
    """

    def __init__(self, least: int) -> None:
        self.bytes = least

    def allow(self, codec: Codec, clients: int) -> None:
        """Replies may hold the contributions of ``clients``, side by side, in any form.

        Sixteen bytes for each entry and weight: twice the 64 bits in which sums travel. Called
        before each message of a phase is sent.
        """
        self.allow_bytes(16 * clients * (math.prod(codec.shape) + 1))

    def allow_bytes(self, needed: int) -> None:
        """Replies may have ``needed`` bytes, and 4 MiB for reports, keys and shares beside them."""
        self.bytes = max(self.bytes, _ROOM + needed)

    def pulling(self, pull: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
        """Flower's ``pull_objects``, which stops at the limit.

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
        """Flower's ``inflate_object_from_contents``, of what stays within the limit.

        It counts what would be decoded, before it is. A reply that is too large, or that Flower
        cannot decode, becomes an error reply of its node: one node cannot end a run.
        """

        @wraps(inflate)
        def limited(object_id: str, contents: dict[str, bytes]) -> Any:
            head = contents[object_id]
            try:
                if inflated_size(contents) > self.bytes:
                    raise ValueError(_TOO_LARGE)
                return inflate(object_id, contents)
            except Exception as error:  # whatever a node has made up, the run goes on without it
                sent = MessageProto.FromString(get_object_body(head, Message))
                wrong = Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=str(error)[:200])
                return make_message(metadata_from_proto(sent.metadata), error=wrong)

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


# Of this process: Flower's grid is made before a run knows what it needs.
REPLIES = ReplyLimit(_ROOM)


def limit_replies() -> None:
    """Let Flower's grid of this process keep to ``REPLIES``.

    It replaces two names in Flower's module, once however often it is called. Called where a run
    begins, before anything is received: whoever has that grid has loaded the module, and it takes
    seconds to import for those who have another.
    """
    http_grid = sys.modules.get("flwr.superlink.grid.http_grid")
    if http_grid is None:
        return
    for name, limited in (
        ("pull_objects", REPLIES.pulling),
        ("inflate_object_from_contents", REPLIES.inflating),
    ):
        plain = getattr(http_grid, name)
        if not hasattr(plain, "__wrapped__"):
            setattr(http_grid, name, limited(plain))
