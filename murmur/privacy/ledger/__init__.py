"""The device's own record of what each of its clients has released; see ``docs/ledger.md``.

A charge is committed before anything leaves: *charge committed → compute → reply committed →
bytes leave*. Killed anywhere on that way, the ledger never shows less than what was released; the
answer is recomputed under the same charge while nothing has left, and replayed byte for byte
afterwards, so that fresh noise is never drawn for free.
"""

from murmur.privacy.ledger.entry import Charge, Entry, LedgerError, Outcome, Status
from murmur.privacy.ledger.ledger import Ledger
from murmur.privacy.ledger.rules import Admission

__all__ = ["Admission", "Charge", "Entry", "Ledger", "LedgerError", "Outcome", "Status"]
