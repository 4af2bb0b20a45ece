"""Parses a node's answer as untrusted input: added to the total, or rejected as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from murmur.learning.array_file import array_from_bytes
from murmur.learning.codec import MalformedError, Rows, Sum
from murmur.round.client_placement import ClientPlacement
from murmur.round.secure_sum import SecureRound
from murmur.round.untrusted_text import said
from murmur.round.weights import Weigh, require_weight

# A node's errors: before the code of its clients has begun, and once that code has ended. All
# others are not the node's own words: it may still be at work, and answer late.
_NOT_BEGUN = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.INVALID_FAB)
_ENDED = (
    ErrorCode.UNKNOWN,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.CLIENT_APP_CRASHED,
)


def exposed(
    placement: ClientPlacement,
    clients: Sequence[int],
    number: int,
    purpose: str,
    reply: Message | None,
) -> list[int]:
    """Those of ``clients`` of whom something may have left in round ``number`` for ``purpose``.

    ``reply``: their node's error, None where nothing came back.
    """
    code = None if reply is None else reply.error.code
    if code in _NOT_BEGUN:
        return []
    return placement.released(clients, number, purpose) if code in _ENDED else list(clients)


def accept(
    total: Sum | SecureRound | Rows,
    clients: list[int],
    content: RecordDict,
    weigh: Weigh,
) -> tuple[list[int], dict[int, str]]:
    """Add one node's answer for ``clients`` to ``total``: who answered, who refused and why.

    ``weigh``: a client's weight; any other is refused.
    Raises MalformedError, KeyError, TypeError or ValueError on anything that an honest node
    cannot send; ``total`` is then as it was.
    """
    report = content.config_records["report"]
    answered, refused = _ids(report["clients"]), _ids(report["refused"])
    reasons = report["reasons"]
    if sorted(answered + refused) != sorted(clients):
        raise MalformedError("it answers for other clients than it was asked for")
    if not isinstance(reasons, list) or len(reasons) != len(refused):
        raise MalformedError("every refusal needs its reason")
    if answered and isinstance(total, SecureRound):
        total.collect(answered, values(content, "masked"))
    elif answered and isinstance(total, Rows):
        total.add_all(answered, values(content, "rows"))
    elif answered and isinstance(total, Sum):
        _add(total, answered, content, weigh)
    return answered, {client: said(why) for client, why in zip(refused, reasons, strict=True)}


def values(content: RecordDict, name: str) -> NDArray:
    """One array of a contribution; KeyError or MalformedError if it is not there."""
    record: ArrayRecord = content.array_records["contribution"]
    return array_from_bytes(record[name].data)


def _add(total: Sum, answered: list[int], content: RecordDict, weigh: Weigh) -> None:
    report, array = content.config_records["report"], values(content, "sum")
    weight = require_weight(report["weight"], answered, weigh)
    if not report["packed"]:
        total.add_total(answered, array, weight)
    elif len(answered) == 1:
        total.add(answered[0], array, weight)
    else:
        raise MalformedError("a packed contribution comes from exactly one client")


def _ids(value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise MalformedError(f"client ids must be a list of integers, got {value!r:.60}")
    return value
