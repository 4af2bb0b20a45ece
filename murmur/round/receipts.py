"""Handing receipts over: the request for them, a device's answer, and what a server keeps of it.

When a run is over, its server asks every device what that says it was charged: one more message of
Flower's, with a record ``receipts`` that holds the signed statement, signed as every question is. A
device that gives receipts has closed the run by then (``murmur.privacy.closing``), and gives the
same bytes from then on. All others, for whatever reason, give the same empty answer; why is in the
device's own log.

A server sets every byte of a request. Before anything is read, the owner's policy must give
receipts. Then the server must have signed the request and the statement in it, by the key of a
header that lies in this device's ledger, or of a server that the policy names: a client that was
never drawn gives a receipt, too. Nothing of it reads data.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from murmur.files import replace_file
from murmur.format import pluralize, printable
from murmur.privacy.closing import Closing, Receipts
from murmur.privacy.envelope import Envelope
from murmur.privacy.ledger import Ledger
from murmur.privacy.policy import Policy
from murmur.privacy.run_header import SignedHeader
from murmur.privacy.strict_json import MAX_BYTES
from murmur.round.signed import NO_SUM, QuestionSigner, read_signed
from murmur.round.statement_file import read_envelope
from murmur.round.task import RECEIPTS, SIGNED, Task, log_error, question

FOLDER = "receipts"  # of a run's folder
MAX_SECONDS = 300.0  # for all answers
_ROUND = 1  # in what the server signs of a request
_MAX_RECEIPT_BYTES = 2 * MAX_BYTES  # in base64


class RequestRefusedError(ValueError):
    """No receipt is given; the message says why, in the device's own log."""


# The server's half ------------------------------------------------------------------------------


def signed_request(statement: bytes, signer: QuestionSigner, clients: Iterable[int]) -> RecordDict:
    """The message that asks for receipts.

    Args:
        statement: the signed statement's envelope, which is on disk already.
        signer: of the run.
        clients: whom it is sent to.
    """
    content = RecordDict({RECEIPTS: ConfigRecord({"statement": statement})})
    signer.sign(content, clients, _ROUND, RECEIPTS, _digest_of(content), [NO_SUM])
    return content


def collected(
    grid: Grid,
    content: RecordDict,
    hosted: Mapping[int, Collection[str]],
    kind: str,
    seconds: float,
) -> Iterator[tuple[int, str, bytes]]:
    """Ask nodes for receipts; node, client and receipt of each that is given.

    Args:
        grid: by which nodes are reached.
        content: the request (``signed_request``).
        hosted: the clients of each node that is asked.
        kind: Flower's type of the message.
        seconds: to wait for answers.
    """
    messages = [Message(content, node, kind, group_id=RECEIPTS) for node in sorted(hosted)]
    for reply in grid.send_and_receive(messages, timeout=min(seconds, MAX_SECONDS)):
        node = reply.metadata.src_node_id
        if not reply.has_error():
            for client, receipt in _given(reply.content, hosted[node]).items():
                yield node, client, receipt


def keep(folder: Path, name: str, receipt: bytes) -> None:
    """Write a receipt into a run's ``folder``, as ``receipts/NAME.json``."""
    (folder / FOLDER).mkdir(exist_ok=True)
    replace_file(folder / FOLDER / f"{name}.json", receipt)


def _given(content: RecordDict, hosted: Collection[str]) -> dict[str, bytes]:
    """Receipts by client in one node's answer, as far as they can be receipts of its clients."""
    record: dict[str, Any] = dict(content.config_records.get(RECEIPTS, ConfigRecord()))
    clients, receipts = record.get("clients"), record.get("receipts")
    if not isinstance(clients, list) or not isinstance(receipts, list):
        return {}
    return {
        client: receipt
        for client, receipt in zip(clients, receipts, strict=False)
        if client in hosted and isinstance(receipt, bytes) and len(receipt) <= _MAX_RECEIPT_BYTES
    }


# A device's half --------------------------------------------------------------------------------


def give(
    content: RecordDict, run: str, folder: Path, policy: Policy, clients: Iterable[str], peers: str
) -> RecordDict:
    """Answer a request with receipts of a device's clients, or with none.

    Args:
        content: the message's, untrusted.
        run: the run's name in the ledger, in the server's words.
        folder: of the device.
        policy: its owner's, which holds now.
        clients: who lives here, by their names in the ledger.
        peers: by which rule they know others in secure sums, as in ``Receipt``.
    """
    given: dict[str, bytes] = {}
    try:
        policy.require_receipts()
        given = _receipts(content, run, folder, policy, tuple(clients), peers)
        count = pluralize(len(given), "receipt")
        log(logging.INFO, "run %s was closed, %s given", printable(run), count)
    except Exception as error:  # whatever a server has made up, it hears the same
        log_error(folder, f"{printable(run)}, its receipts", error)
    return answer(given)


def answer(given: Mapping[str, bytes]) -> RecordDict:
    """The reply to a request: receipts by client, or none."""
    record: dict[str, Any] = {"clients": list(given), "receipts": list(given.values())}
    return RecordDict({RECEIPTS: ConfigRecord(record)})


def _receipts(
    content: RecordDict,
    run: str,
    folder: Path,
    policy: Policy,
    clients: tuple[str, ...],
    peers: str,
) -> dict[str, bytes]:
    """Receipts by client, once everything holds; an error says why not."""
    if not set(content) <= {RECEIPTS, SIGNED}:
        raise RequestRefusedError("it holds more than a statement and the server's signatures")
    is_pinned = policy.servers is not None
    path = folder / "ledger.sqlite"
    with Ledger(path, create=is_pinned, expected=policy.ledger) as ledger:
        asked = Task(_ROUND, -1, np.zeros(0, np.float32), {}, {}, RECEIPTS)
        signed = read_signed(content, asked, _digest_of(content), run, ledger, policy).header
        if signed is None:
            raise RequestRefusedError("it is signed under no header of the run")
        closing = Closing(clients, peers, _statement(content, signed).digest)
        known = ledger.runs_under(signed.digest)
        if len(known) > 1:
            raise RequestRefusedError(f"runs {', '.join(known)} have one header")
        if not known and not is_pinned:
            raise RequestRefusedError("this device was asked nothing under its header")
        [name] = known or [run]
        return Receipts(ledger, folder).close(name, closing, policy, signed)


def _statement(content: RecordDict, signed: SignedHeader) -> Envelope:
    """The statement in a request; RequestRefusedError unless the run's server has signed it."""
    record = content.config_records[RECEIPTS]
    sent = record["statement"]
    if set(record) != {"statement"} or type(sent) is not bytes:
        raise RequestRefusedError("it must hold a statement and nothing else")
    envelope = read_envelope(sent)
    if not envelope.is_signed_by(signed.header.server):
        raise RequestRefusedError("the statement has no valid signature by the run's server")
    return envelope


def _digest_of(content: RecordDict) -> bytes:
    """Digest that the server signs of a request."""
    return question(content, RECEIPTS, "")
