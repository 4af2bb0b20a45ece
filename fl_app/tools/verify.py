"""``murmur verify STATEMENT``: compares a signed statement with what those who were asked say.

A run's server signs its statement when the run is over. A device's owner compares it with the
device's own ledger, alone (``--mine --state FOLDER``). Everybody else needs a roster and receipts:
``deploy/verify_statement.py`` compares those, in a process of its own, as whoever has nothing of
Murmur runs it.
"""

import sys
from pathlib import Path

from fl_app.tools import verify_mine, verify_receipts
from fl_app.tools.options import parser_of
from murmur.format import printable
from murmur.privacy.envelope import Envelope
from murmur.privacy.ledger import LedgerError
from murmur.round.statement_file import FILE, read_envelope


def main(argv: list[str]) -> int:
    """Compare a statement as ``argv`` says.

    Returns:
        0 where nothing contradicts it, 1 where something does, 2 where the input is wrong or
        nothing can be compared. With receipts also 3 and 4: see ``deploy/verify_statement.py``.
    """
    options = parser_of("verify").parse_args(argv)
    if not options.mine and options.evidence is None:
        return verify_receipts.compare(options.statement, options.roster, argv)
    try:
        if not options.mine or options.state is None:
            raise ValueError("write --mine --state FOLDER, the folder with the device's ledger")
        envelope = _envelope(options.statement)
        return verify_mine.compare(envelope, options.state, options.client, options.evidence)
    except (LedgerError, ValueError) as error:
        print(f"murmur verify: {printable(error)}", file=sys.stderr)
        return 2


def _envelope(path: Path) -> Envelope:
    """The statement's envelope in ``path``, or in the run's folder ``path``."""
    if path.is_dir():
        path = path / FILE
    try:
        return read_envelope(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: is no signed statement: {error}") from error
