"""How many bytes each client sends and is sent, had it a node of its own.

A simulation puts many clients on one node, which sums them; devices do not. What is counted is the
same for both: the content of each client's own messages, without the transport's framing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from murmur.learning.codec import Codec
from murmur.round.weights import Weigh

_HEADER = 128  # of an array in NumPy's format


def message_size(content: RecordDict) -> int:
    """Bytes of the arrays and records of one client's message."""
    return _array_bytes(content) + sum(len(r.deflate()) for r in content.config_records.values())


def request_size(content: RecordDict, clients: Sequence[int]) -> int:
    """Bytes of what a node is sent for ``clients``, had each a node of its own.

    In a record, ``messages`` are the clients' own, one for each of ``clients``.
    """
    alone = _Alone()
    for record in content.config_records.values():
        plain: dict[str, Any] = dict(record)
        messages = plain.pop("messages", None)
        for place, client in enumerate(clients):
            own = {} if messages is None else {"messages": [messages[place]]}
            alone.add({**plain, "clients": [client], **own})
    return len(clients) * _array_bytes(content) + alone.total


def reply_size(
    content: RecordDict, name: str, codec: Codec | None = None, weigh: Weigh | None = None
) -> int:
    """Bytes of an accepted reply, had each of the node's clients a node of its own.

    ``name``: of the record that says who answered. ``codec``: the form in which one client's
    release travels, where its node sums. ``weigh``: a client's weight, where that is public.
    """
    alone = _Alone()
    plain: dict[str, Any] = dict(content.config_records[name])
    nobody: dict[str, Any] = {"clients": [], "refused": [], "reasons": []}
    messages = plain.pop("messages", None)
    summed = codec is not None and "sum" in content.array_records.get("contribution", {})
    for place, client in enumerate(plain["clients"]):
        own: dict[str, Any] = {} if messages is None else {"messages": [messages[place]]}
        if summed:
            own = {"weight": 1 if weigh is None else weigh(client), "packed": True}
        alone.add({**plain, **nobody, "clients": [client], **own})
    for client, reason in zip(plain["refused"], plain["reasons"], strict=True):
        own = {} if messages is None else {"messages": []}
        if "weight" in plain:
            own = {"weight": 0, "packed": False}
        alone.add({**plain, **nobody, "refused": [client], "reasons": [reason], **own})
    answered = len(plain["clients"])
    if not answered or not content.array_records:
        return alone.total
    if summed:
        assert codec is not None
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
    return value.bit_length() if type(value) is int else value
