"""The device's own record of what each of its clients has released; see ``docs/ledger.md``.

A charge is committed before anything leaves: *charge committed → compute → reply committed →
bytes leave*. Killed anywhere on that way, the ledger never shows less than what was released; the
answer is recomputed under the same charge while nothing has left, and replayed byte for byte
afterwards, so that fresh noise is never drawn for free.

``ledger`` is all that others use; ``batch`` has the rules: what may be charged or answered again.
Under it ``log`` makes entries durable, ``chain`` makes changes to them visible, ``database`` and
``key_and_anchor`` are the files, and ``replies`` has what was answered. ``write_csv`` and
``write_json`` write a ledger for somebody else to check.
"""

from murmur.privacy.ledger.asked import Asked, Confirmed, JoinedSum
from murmur.privacy.ledger.batch import Admission
from murmur.privacy.ledger.entry import Charge, Entry, LedgerError, Outcome, Status
from murmur.privacy.ledger.ledger import Ledger
from murmur.privacy.ledger.replies import Reply

__all__ = [
    "Admission",
    "Asked",
    "Charge",
    "Confirmed",
    "Entry",
    "JoinedSum",
    "Ledger",
    "LedgerError",
    "Outcome",
    "Reply",
    "Status",
]
