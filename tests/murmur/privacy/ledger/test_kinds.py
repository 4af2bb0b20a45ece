"""Entries beside charges: questions, confirmations, closed runs; and ledgers of older formats."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from murmur.privacy.events import GaussianEvent
from murmur.privacy.ledger import Asked, Charge, Confirmed, Ledger, Status

OLD = Path(__file__).resolve().parents[3] / "formats" / "1.0.0rc1" / "run"
ASKED = Asked("ab" * 32)


def charge(run="run", client=0, number=1):
    return Charge(client, run, number, "train", f"{number:02d}" * 32, GaussianEvent(2.0))


def confirmed(**other):
    said = {"run": "run", "round": 1, "purpose": "train", "terms": "cd" * 32, "clients": [0]}
    return Confirmed(**{**said, "survivors": 3, "lists": "ef" * 32, **other})


@pytest.fixture
def old(tmp_path):
    """A ledger that 1.0.0rc1 has written, in format 2."""
    for path in OLD.glob("ledger.sqlite*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "ledger.sqlite"


def tables(path):
    with sqlite3.connect(path) as database:
        return dict(database.execute("SELECT name, sql FROM sqlite_master"))


def test_a_question_stands_once_before_its_charges(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        ledger.charge([charge(client=0)], asked=ASKED)
        ledger.charge([charge(client=1)], asked=ASKED)
        assert [entry.kind for entry in ledger.entries()] == ["question", "charge", "charge"]
        ledger.verify()


def test_confirmations_are_kept_once_and_charge_nobody(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        ledger.charge([charge()], asked=ASKED)
        ledger.confirm([confirmed()])
        ledger.confirm([confirmed(), confirmed(survivors=4)])
        kinds = [entry.kind for entry in ledger.entries()]
        assert kinds == ["question", "charge", "confirmed", "confirmed"]
        assert ledger.clients() == ["0"] and ledger.releases() == 1
    with Ledger(tmp_path / "l") as ledger:
        ledger.verify()


def test_a_closed_run_is_charged_nothing_and_others_go_on(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        ledger.charge([charge()])
        ledger.close_run("run")
        (same,) = ledger.charge([charge()])
        (later,) = ledger.charge([charge(number=2)])
        (other,) = ledger.charge([charge("other", number=3)])
        assert (same.status, same.code) == (Status.REFUSED, "run-closed")
        assert (later.status, other.status) == (Status.REFUSED, Status.CHARGED)


def test_an_older_ledger_is_read_without_a_change(old):
    before = tables(old)
    with Ledger(old, create=False) as ledger:
        ledger.verify()
        assert len(ledger.events("0")) == 2 and ledger.run_header("kept") is None
    assert tables(old) == before


def test_an_older_ledger_goes_on_in_this_format(old, tmp_path):
    with Ledger(old, create=False) as ledger:
        name = ledger.id
        before = list(ledger.entries())
        (outcome,) = ledger.charge([charge()], asked=ASKED)
        assert outcome.status is Status.CHARGED
        ledger.confirm([confirmed()])
    with Ledger(tmp_path / "new"):
        pass
    assert tables(old) == tables(tmp_path / "new")
    with Ledger(old, create=False, expected=name) as ledger:
        ledger.verify()
        assert list(ledger.entries())[: len(before)] == before
        assert len(ledger.events("0")) == 3
