"""A filled ledger, and what an intruder with its files can do to it."""

import hashlib
import sqlite3

import pytest

from murmur.privacy.events import RandomizedResponseEvent
from murmur.privacy.ledger import Charge, Ledger, LedgerError
from murmur.privacy.ledger.database import COLUMNS
from murmur.privacy.ledger.entry import Entry

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


def beside(path, suffix):
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


def reseal(path, first):
    """Make the chain fit again from entry ``first`` on, as anybody can; signatures stay."""
    database = sqlite3.connect(path)
    query = f"SELECT {COLUMNS} FROM entries WHERE position >= ? ORDER BY position"
    found = [Entry._make(row) for row in database.execute(query, [first - 1])]
    database.close()
    statements, seal = [], found[0].seal
    for entry in found[1:]:
        entry = entry._replace(previous=seal)
        statements.append(
            f"UPDATE entries SET previous = x'{seal.hex()}', "
            f"seal = x'{entry.contents_digest().hex()}' WHERE position = {entry.position}"
        )
        seal = entry.contents_digest()
    edit(path, *statements)


def assert_refused(path, reason):
    """It cannot be opened, however often one tries."""
    for create in (True, False, True):
        with pytest.raises(LedgerError, match=reason):
            Ledger(path, create=create)
