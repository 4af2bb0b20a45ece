"""A ledger as a file for others: all of it, signed, for ``deploy/verify_ledger.py`` to check.

The first row is the header, the last one the device's signature over the number of entries, the
last seal and the time, so that nobody else can cut the file short.
"""

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TextIO

from murmur.format import csv_cell
from murmur.privacy.ledger.entry import Entry
from murmur.privacy.ledger.ledger import Ledger

FIELDS = tuple(name for name in Entry._fields if name != "previous")


def export_rows(ledger: Ledger, now: datetime) -> Iterator[dict[str, str | int]]:
    """The header, every entry and the export's signature, each with all of ``FIELDS``.

    Bytes are in hex, and what a row has not is empty. ``now``: the export's time, which is signed.
    """
    header = ledger.header
    seal = header.text_digest.hex()
    position = 0
    yield _row(position=0, kind="ledger", body=header.text, seal=seal)
    for entry in ledger.entries():
        position = entry.position
        seal = entry.seal.hex()
        signature = (entry.signature or b"").hex()
        plain = {**entry._asdict(), "seal": seal, "signature": signature}
        yield _row(**{name: plain[name] or "" for name in FIELDS} | {"round": entry.round})
    time = now.astimezone(UTC).isoformat(timespec="milliseconds")
    signature = ledger.sign_export(position, seal, time)
    yield _row(position=position, time=time, kind="export", seal=seal, signature=signature)


def write_csv(ledger: Ledger, file: TextIO, now: datetime) -> None:
    """One row a line, under a line of names, in UTF-8.

    Text that a spreadsheet would compute stands behind an apostrophe (``csv_cell``), which
    ``deploy/verify_ledger.py`` takes away again.
    """
    writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
    writer.writeheader()
    for row in export_rows(ledger, now):
        writer.writerow({name: csv_cell(value) for name, value in row.items()})


def write_json(ledger: Ledger, file: TextIO, now: datetime) -> None:
    """An array of objects, one a line."""
    before = "[\n"
    for row in export_rows(ledger, now):
        file.write(before + json.dumps(row))
        before = ",\n"
    file.write("\n]\n")


def _row(**values: str | int) -> dict[str, str | int]:
    return {**dict.fromkeys(FIELDS, ""), **values}
