"""``murmur verify STATEMENT --mine --state FOLDER``: compares a statement with what was asked.

A run's server signs its statement when the run is over. A device's owner compares it with the
device's own ledger, alone (``--mine``).
"""

import sys
from pathlib import Path

from fl_app.tools import verify_mine
from fl_app.tools.options import parser_of
from murmur.format import printable
from murmur.privacy.envelope import Envelope
from murmur.privacy.ledger import LedgerError
from murmur.round.statement_file import FILE, read_envelope


def main(argv: list[str]) -> int:
    """Compare a statement as ``argv`` says.

    Returns:
        0 where nothing contradicts it, 1 where something does, 2 where the input is wrong or
        nothing can be compared.
    """
    options = parser_of("verify").parse_args(argv)
    try:
        envelope = _envelope(options.statement)
        if options.mine and options.state is not None:
            return verify_mine.compare(envelope, options.state, options.client)
        raise ValueError("write --mine --state FOLDER, the folder with the device's ledger")
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
