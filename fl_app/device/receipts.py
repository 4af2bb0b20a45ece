"""A device's answer to a server that asks for receipts of a run that is over.

A server sets every byte of a request (``fl_app.run.receipts``). Before anything is read, the
owner's policy must give receipts. Then the server must have signed the request and the statement in
it, by the key of a header that lies in this device's ledger, or of a server that the policy names:
a client that was never drawn gives a receipt, too. Then the run is closed
(``murmur.privacy.closing``).

Nothing of it reads data. Whatever forbids a receipt, the server gets the same empty answer; why is
in the device's log.
"""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import RecordDict
from flwr.common import log

from fl_app.device.agreement import run_name
from fl_app.device.node_settings import NodeSettings
from fl_app.run import receipts
from murmur.format import pluralize, printable
from murmur.privacy.closing import Closing, Receipts
from murmur.privacy.envelope import Envelope
from murmur.privacy.ledger import Ledger
from murmur.privacy.run_header import SignedHeader
from murmur.round.signed import read_signed
from murmur.round.statement_file import read_envelope
from murmur.round.task import SIGNED, Task, log_error
from murmur.secure_sum.identity import PinnedPeers


class RequestRefusedError(ValueError):
    """No receipt is given; the message says why, in the device's own log."""


def give(
    content: RecordDict, run_config: Mapping[str, Any], run_id: int, site: NodeSettings
) -> RecordDict:
    """Answer a request with receipts of this device's clients, or with none.

    Args:
        content: the message's, untrusted.
        run_config: Flower's, as the server sent it.
        run_id: Flower's number of the run.
        site: of this device, whose policy holds now.
    """
    try:
        site.policy.require_receipts()
        run = run_name(run_config, run_id)
        found = _receipts(content, run, site)
        given = pluralize(len(found), "receipt")
        log(logging.INFO, "run %s was closed, %s given", printable(run), given)
    except Exception as error:  # whatever a server has made up, it hears the same
        log_error(site.folder, f"run {run_id}, its receipts", error)
        found = {}
    return receipts.answer(found)


def _receipts(content: RecordDict, run: str, site: NodeSettings) -> dict[str, bytes]:
    """Receipts by client, once everything holds; an error says why not."""
    policy = site.policy
    if not set(content) <= {receipts.RECORD, SIGNED}:
        raise RequestRefusedError("it holds more than a statement and the server's signatures")
    is_pinned = policy.servers is not None
    path = site.folder / "ledger.sqlite"
    with Ledger(path, create=is_pinned, expected=policy.ledger) as ledger:
        asked = Task(receipts.ROUND, -1, np.zeros(0, np.float32), {}, {}, receipts.RECORD)
        digest = receipts.digest_of(content)
        signed = read_signed(content, asked, digest, run, ledger, policy).header
        if signed is None:
            raise RequestRefusedError("it is signed under no header of the run")
        closing = Closing(
            clients=tuple(map(str, site.owner.clients)),
            peers=_peers(site),
            statement=_statement(content, signed).digest,
        )
        known = ledger.runs_under(signed.digest)
        if len(known) > 1:
            raise RequestRefusedError(f"runs {', '.join(known)} have one header")
        if not known and not is_pinned:
            raise RequestRefusedError("this device was asked nothing under its header")
        [name] = known or [run]
        return Receipts(ledger, site.folder).close(name, closing, policy, signed)


def _statement(content: RecordDict, signed: SignedHeader) -> Envelope:
    """The statement in a request; RequestRefusedError unless the run's server has signed it."""
    sent = content.config_records[receipts.RECORD]["statement"]
    if set(content.config_records[receipts.RECORD]) != {"statement"} or type(sent) is not bytes:
        raise RequestRefusedError("it must hold a statement and nothing else")
    envelope = read_envelope(sent)
    if not envelope.is_signed_by(signed.header.server):
        raise RequestRefusedError("the statement has no valid signature by the run's server")
    return envelope


def _peers(site: NodeSettings) -> str:
    """By which rule the clients know others in secure sums."""
    pinned = site.owner.sums.peers
    if isinstance(pinned, PinnedPeers):
        return pinned.digest
    return "seen"
