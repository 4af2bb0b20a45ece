"""What messages weigh, counted as if each client had a node of its own.

A simulation puts many clients on one node, which sums them, and devices do not. What counts is the
content of each client's own messages, without the transport's framing and the server's signatures
(about 200 bytes, and the run's header once for each client). They are the ``bytes_down``
and ``bytes_up`` of a round.
"""

from collections.abc import Sequence
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from murmur.learning.codec import Codec
from murmur.round.cohorts import Weigh
from murmur.round.task import SIGNED

_HEADER = 128  # bytes before an array in NumPy's format


def message_size(content: RecordDict) -> int:
    """Bytes of the arrays and records of one client's message."""
    return _array_bytes(content) + sum(len(r.deflate()) for r in content.config_records.values())


def request_size(content: RecordDict, clients: Sequence[int]) -> int:
    """Bytes of what a node is sent for ``clients``, had each a node of its own.

    Every array is counted once for each client. In a record, ``which`` says which of ``messages``
    is whose, for each of ``clients``; all else is sent to each.
    """
    total = len(clients) * _array_bytes(content)
    for name, record in content.config_records.items():
        if name == SIGNED:
            continue
        plain: dict[str, Any] = dict(record)
        messages = plain.pop("messages", None)
        alone = _Alone(plain)
        for place, client in enumerate(clients):
            own: dict[str, Any] = {"clients": [client]}
            if messages is not None:
                own |= {"messages": [messages[plain["which"][place]]], "which": [0]}
            alone.add(own)
        total += alone.total
    return total


def reply_size(
    content: RecordDict, name: str, codec: Codec | None = None, weigh: Weigh | None = None
) -> int:
    """Bytes of an accepted reply, had each of the node's clients a node of its own.

    Args:
        content: The reply.
        name: The record that says who answered.
        codec: The form in which one client's release travels, where its node sums.
        weigh: A client's public weight, where its node sums; 1 by default.
    """
    plain: dict[str, Any] = dict(content.config_records[name])
    nobody: dict[str, Any] = {"clients": [], "refused": [], "reasons": []}
    messages = plain.pop("messages", None)
    alone = _Alone(plain | nobody)
    summed = codec is not None and "sum" in content.array_records.get("contribution", {})
    for place, client in enumerate(plain["clients"]):
        own: dict[str, Any] = {"clients": [client]}
        if messages is not None:
            own["messages"] = [messages[place]]
        if summed:
            own |= {"weight": weigh(client) if weigh else 1, "packed": True}
        alone.add(own)
    for client, reason in zip(plain["refused"], plain["reasons"], strict=True):
        own = {"refused": [client], "reasons": [reason]}
        if messages is not None:
            own["messages"] = []
        if "weight" in plain:
            own |= {"weight": 0, "packed": False}
        alone.add(own)
    answered = len(plain["clients"])
    if not answered or not content.array_records:
        return alone.total
    if codec is not None and summed:
        return alone.total + answered * (_HEADER + codec.packed_bytes)
    return alone.total + (answered - 1) * _HEADER + _array_bytes(content)  # a row for each


def _array_bytes(content: RecordDict) -> int:
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


class _Alone:
    """Adds up records; those that differ in a number of the same length are measured once.

    ``alike``: what all of them hold, where they hold nothing else of that name.
    """

    def __init__(self, alike: dict[str, Any]) -> None:
        self.alike = alike
        self.total = 0
        self._known: dict[tuple, int] = {}

    def add(self, own: dict[str, Any]) -> None:
        key = tuple([(name, _length(value)) for name, value in own.items()])
        if key not in self._known:
            self._known[key] = len(ConfigRecord(self.alike | own).deflate())
        self.total += self._known[key]


def _length(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_length, value))
    if isinstance(value, bytes | str):
        return len(value)
    if type(value) is int:
        return value.bit_length()
    return value
