"""Reading a node's answer, which may come from anybody: into the total, or rejected as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import RecordDict

from learning.contribution import MalformedError, Sum
from learning.rows import Rows
from strategies.secure_sum import SecureRound


def accept(
    total: Sum | SecureRound | Rows,
    clients: list[int],
    content: RecordDict,
    sizes: Sequence[int] | None = None,
) -> tuple[list[int], dict[int, str]]:
    """Add one node's answer for ``clients`` to ``total``: who answered, who refused and why.

    ``sizes``: every client's weight, where those are public; others are then refused.
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
        total.collect(answered, content.array_records["contribution"]["masked"].numpy())
    elif answered and isinstance(total, Rows):
        total.add_all(answered, content.array_records["contribution"]["rows"].numpy())
    elif answered and isinstance(total, Sum):
        _add(total, answered, content, sizes)
    return answered, {client: str(reason) for client, reason in zip(refused, reasons, strict=True)}


def _add(total: Sum, answered: list[int], content: RecordDict, sizes: Sequence[int] | None) -> None:
    report = content.config_records["report"]
    values = content.array_records["contribution"]["sum"].numpy()
    weight = report["weight"]
    if not isinstance(weight, int):
        raise MalformedError(f"weight={weight!r}: must be an integer")
    if sizes is not None and weight != sum(sizes[client] for client in answered):
        raise MalformedError(f"weight={weight}: these clients' public sizes are others")
    if not report["packed"]:
        total.add_total(answered, values, weight)
    elif len(answered) == 1:
        total.add(answered[0], values, weight)
    else:
        raise MalformedError("a packed contribution comes from exactly one client")


def _ids(value: object) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise MalformedError(f"client ids must be a list of integers, got {value!r}")
    return value
