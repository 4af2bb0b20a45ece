"""A filled ledger, and what an intruder with its files can do to it."""

import hashlib
import sqlite3

import pytest

from privacy.events import RandomizedResponseEvent
from privacy.ledger import Charge, Ledger, LedgerError

EVENT = RandomizedResponseEvent(2.5, 10)


def digest(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def charges(number, clients=(1, 2, 3)):
    return [Charge(c, "run", number, "train", digest(number), EVENT) for c in clients]


def fill(path, rounds=range(4)):
    with Ledger(path) as ledger:
        for number in rounds:
            ledger.charge(charges(number))
            ledger.store_reply(digest(number), b"reply %d" % number)


def sidecar(path, suffix):
    return path.with_name(path.name + suffix)


def edit(path, *statements):
    """What an intruder with the file does: triggers off, change, triggers back as they were."""
    database = sqlite3.connect(path, isolation_level=None)
    triggers = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    triggers = triggers.fetchall()
    for name, _ in triggers:
        database.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        database.execute(statement)
    for _, sql in triggers:
        database.execute(sql)
    database.close()


def assert_refused(path, reason):
    """It cannot be opened, however often one tries."""
    for create in (True, False, True):
        with pytest.raises(LedgerError, match=reason):
            Ledger(path, create=create)
