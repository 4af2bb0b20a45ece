"""A signed statement beside a device's own ledger: what its owner can check alone.

Nobody's receipt is needed, and no server can prevent it.
"""

from pathlib import Path

from murmur.privacy.envelope import Envelope
from murmur.privacy.ledger import Ledger
from murmur.privacy.run_header import SignedHeader
from murmur.round.statement_file import SignedStatement, read_statement

LEDGER = "ledger.sqlite"


def compare(envelope: Envelope, state: Path, client: str | None) -> int:
    """Compare a statement with the entries of the ledger in ``state``.

    Args:
        envelope: of the statement; nothing of it is verified yet.
        state: the device's folder.
        client: whose entries; None: of all clients that live here.

    Returns:
        0 where no entry contradicts the statement, 1 where one does.

    Raises:
        ValueError: the statement is none, or this device was never asked in its run.
        LedgerError: the ledger cannot be read or trusted.
    """
    with Ledger(state / LEDGER, create=False) as ledger:
        ledger.verify()
        _, statement = _run_of(envelope, ledger)
    print(f"run {statement.header.header.name}: signed by {statement.header.header.server}")
    return 0


def _run_of(envelope: Envelope, ledger: Ledger) -> tuple[str, SignedStatement]:
    """The run of the statement in the ledger, and what it says.

    ValueError where the device was never asked in that run.
    """
    headers: dict[str, SignedHeader] = {}
    for entry in ledger.entries():
        if entry.kind == "run":
            headers[entry.run] = SignedHeader.from_text(entry.body)
    for key in {signed.header.server for signed in headers.values()}:
        if envelope.is_signed_by(key):
            statement = read_statement(envelope, key)
            for run, signed in headers.items():
                if signed.digest == statement.header.digest:
                    return run, statement
            raise ValueError(
                f"this device was never asked in the run with header {statement.header.digest}"
            )
    raise ValueError("it is signed by no server that has asked this device")
