"""Receipts: when a run is over, every device is asked what it says that it was charged.

One more message of Flower's to each device that hosts a client of the run: a record ``receipts``
with the signed statement, signed as every question is. A device that gives receipts has closed the
run by then, and gives the same bytes from then on (``fl_app.device.receipts``). All others, for
whatever reason, give the same empty answer.

They lie in the run's folder as ``receipts/NAME.json``. A simulation has one for all clients,
``receipts/simulation.json``, signed by its own ledger: it shows arithmetic, and nothing else.
"""

import logging
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from murmur.files import replace_file
from murmur.privacy.ledger import Ledger
from murmur.privacy.receipt import RECEIPT_TYPE, RunEntries, receipt_of_all
from murmur.privacy.strict_json import MAX_BYTES
from murmur.round.placement import Enrolment
from murmur.round.signed import NO_SUM, QuestionSigner
from murmur.round.statement_file import read_envelope
from murmur.round.task import question

RECORD = "receipts"
FOLDER = "receipts"
ROUND = 1  # in what the server signs of a request
SIMULATION = "simulation"
MAX_SECONDS = 300.0  # for all answers
_MAX_RECEIPT_BYTES = 2 * MAX_BYTES  # in base64


def signed_request(statement: bytes, signer: QuestionSigner, enrolment: Enrolment) -> RecordDict:
    """The message that asks for receipts.

    Args:
        statement: the signed statement's envelope, which is on disk already.
        signer: of the run.
        enrolment: which device hosts whom.
    """
    clients = chain.from_iterable(enrolment.clients.values())
    content = RecordDict({RECORD: ConfigRecord({"statement": statement})})
    signer.sign(content, clients, ROUND, RECORD, digest_of(content), [NO_SUM])
    return content


def digest_of(content: RecordDict) -> bytes:
    """Digest that the server signs of a request."""
    return question(content, RECORD, "")


def is_request(content: RecordDict) -> bool:
    """Tells whether a message asks for receipts."""
    return RECORD in content.config_records


def answer(receipts: Mapping[str, bytes]) -> RecordDict:
    """The reply to a request: receipts by client, or none."""
    record: dict[str, Any] = {"clients": list(receipts), "receipts": list(receipts.values())}
    return RecordDict({RECORD: ConfigRecord(record)})


def collect(
    grid: Grid, content: RecordDict, enrolment: Enrolment, folder: Path, seconds: float
) -> None:
    """Ask the devices that are online, and keep what they give.

    Args:
        grid: by which devices are reached.
        content: the request (``signed_request``).
        enrolment: which device hosts whom.
        folder: the run's.
        seconds: to wait for answers.

    """
    online = enrolment.client_ids(grid.get_nodes())
    messages = [
        Message(content, dst_node_id=node, message_type="query", group_id=RECORD)
        for node in sorted(online)
    ]
    kept = 0
    for reply in grid.send_and_receive(messages, timeout=min(seconds, MAX_SECONDS)):
        if not reply.has_error():
            hosted = map(str, online[reply.metadata.src_node_id])
            for client, receipt in _given(reply.content, set(hosted)).items():
                _keep(folder, client, receipt)
                kept += 1
    asked = sum(map(len, online.values()))
    log(logging.INFO, "%d of %d clients gave a receipt", kept, asked)


def write_simulated(
    folder: Path, run: str, signer: QuestionSigner, clients: Iterable[int], statement: bytes
) -> None:
    """Write the one receipt of a simulation in ``folder``.

    Args:
        folder: the run's, with its ledger.
        run: its name there.
        signer: of the run.
        clients: all of the federation.
        statement: the signed statement's envelope.
    """
    digest = read_envelope(statement).digest
    with Ledger(folder / "ledger.sqlite", create=False) as ledger:
        entries = RunEntries(ledger, run)
        entries.signed = signer.signed  # of a run that was extended the ledger has the first one
        receipt = receipt_of_all(entries, clients, digest)
        predicate = receipt.to_predicate()
        signed = ledger.sign_envelope(RECEIPT_TYPE, receipt.subjects, predicate)
    _keep(folder, SIMULATION, signed.to_bytes())


def _given(content: RecordDict, hosted: set[str]) -> dict[str, bytes]:
    """Receipts by client in one device's answer, as far as they can be receipts of its clients."""
    record: dict[str, Any] = dict(content.config_records.get(RECORD, ConfigRecord()))
    clients, receipts = record.get("clients"), record.get("receipts")
    if not isinstance(clients, list) or not isinstance(receipts, list):
        return {}
    return {
        client: receipt
        for client, receipt in zip(clients, receipts, strict=False)
        if client in hosted and isinstance(receipt, bytes) and len(receipt) <= _MAX_RECEIPT_BYTES
    }


def _keep(folder: Path, name: str, receipt: bytes) -> None:
    (folder / FOLDER).mkdir(exist_ok=True)
    replace_file(folder / FOLDER / f"{name}.json", receipt)
