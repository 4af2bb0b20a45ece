"""Receipts of a run: what its devices give, or the one that a simulation writes.

They lie in the run's folder as ``receipts/NAME.json``. A simulation has one for all clients,
``receipts/simulation.json``, signed by its own ledger: it shows arithmetic, and nothing else.
"""

import logging
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from flwr.common import log
from flwr.serverapp import Grid

from murmur.privacy.ledger import Ledger
from murmur.privacy.receipt import RECEIPT_TYPE, RunEntries, receipt_of_all
from murmur.round.placement import Enrolment
from murmur.round.receipts import collected, keep, signed_request
from murmur.round.signed import QuestionSigner
from murmur.round.statement_file import read_envelope

SIMULATION = "simulation"


def collect(
    grid: Grid,
    statement: bytes,
    signer: QuestionSigner,
    enrolment: Enrolment,
    folder: Path,
    seconds: float,
) -> None:
    """Ask the devices that are online, and keep what they give.

    Args:
        grid: by which devices are reached.
        statement: the signed statement's envelope, which is on disk already.
        signer: of the run.
        enrolment: which device hosts whom.
        folder: the run's.
        seconds: to wait for answers.
    """
    online = enrolment.client_ids(grid.get_nodes())
    hosted = {node: set(map(str, clients)) for node, clients in online.items()}
    content = signed_request(statement, signer, chain.from_iterable(online.values()))
    kept = 0
    for _, client, receipt in collected(grid, content, hosted, "query", seconds):
        keep(folder, client, receipt)
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
    keep(folder, SIMULATION, signed.to_bytes())
