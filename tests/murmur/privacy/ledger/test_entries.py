"""What the ledger's entries hold, and what its files look like."""

import hashlib
import sqlite3
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import NonPrivateEvent, RandomizedResponseEvent, event_from_dict
from murmur.privacy.ledger import Charge, Ledger, LedgerError

LABELS = RandomizedResponseEvent(2.5, 10)


def digest(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def charge(client=1, run="run", round=1, event=LABELS):
    return Charge(client, run, round, "train", digest(run, round), event)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger(path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client", ""),
        ("client", 1.5),
        ("client", "a\nb"),
        ("client", "\ud800"),
        ("run", ""),
        ("run", None),
        ("run", "r" * 257),
        ("purpose", "\x00"),
        ("round", -1),
        ("round", 2**63),
        ("round", True),
        ("round", 1.0),
        ("request", "xyz"),
        ("request", "AB" * 32),
        ("request", b"ab" * 32),
        ("event", {"kind": "PureEvent"}),
    ],
)
def test_a_charge_that_could_not_be_told_apart_later_is_not_accepted(field, value):
    good = {
        "client": 1,
        "run": "r",
        "round": 1,
        "purpose": "train",
        "request": digest(),
        "event": LABELS,
    }
    Charge(**good)
    with pytest.raises(ValueError, match=f"^{field}="):
        Charge(**{**good, field: value})


def test_unprotected_releases_are_counted_too(ledger):
    ledger.charge([charge(1, event=NonPrivateEvent())])
    assert ledger.events(1) == [NonPrivateEvent()]


def test_a_ledger_that_must_exist_is_not_begun(path):
    with pytest.raises(LedgerError, match="no such ledger"):
        Ledger(path, create=False)
    assert not path.parent.joinpath("ledger.sqlite.key").exists()
    Ledger(path).close()
    Ledger(path, create=False).close()


def test_entries_carry_their_place_their_time_and_their_purpose(path):
    clock = iter(datetime(2026, 1, 1, 12, minute, tzinfo=UTC) for minute in (0, 0, 1))
    with Ledger(path, clock=lambda: next(clock)) as ledger:
        ledger.charge([charge(1), charge(2)])
        ledger.store_reply(charge().request, b"x")
        entries = list(ledger.entries())
    assert [entry.position for entry in entries] == [1, 2, 3]
    assert [entry.time for entry in entries] == [
        "2026-01-01T12:00:00.000+00:00",
        "2026-01-01T12:00:00.000+00:00",
        "2026-01-01T12:01:00.000+00:00",
    ]
    assert [entry.kind for entry in entries] == ["charge", "charge", "answer"]
    assert entries[0].event == LABELS and entries[0].purpose == "train"
    assert entries[2].body == hashlib.sha256(b"x").hexdigest()
    assert [entry.previous for entry in entries[1:]] == [entry.seal for entry in entries[:-1]]
    # One signature for each commit, on its last entry.
    assert [entry.signature is not None for entry in entries] == [False, True, True]


def test_time_does_not_run_backwards(path):
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    clock = [noon]
    with Ledger(path, clock=lambda: clock[0]) as ledger:
        ledger.charge([charge(round=1)])
        clock[0] = noon - timedelta(seconds=5)  # put right by a time server
        ledger.charge([charge(round=2)])
        assert [entry.time[11:19] for entry in ledger.entries()] == ["12:00:00"] * 2
        clock[0] = noon - timedelta(days=1)
        with pytest.raises(LedgerError, match=r"clock says 2025-12-31.* entry is of 2026"):
            ledger.charge([charge(round=3)])
        assert len(ledger.events(1)) == 2
        clock[0] = noon + timedelta(days=1)
        ledger.charge([charge(round=3)])


def test_where_a_ledger_is_expected_no_other_takes_its_place(path):
    with Ledger(path) as ledger:
        known = ledger.id
    Ledger(path, expected=known).close()
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(LedgerError, match=f"{known} is missing; no other ledger counts"):
        Ledger(path, expected=known)
    assert not list(path.parent.iterdir())
    Ledger(path).close()
    with pytest.raises(LedgerError, match=f"is [0-9a-f]{{32}}, not {known}"):
        Ledger(path, expected=known)


@pytest.mark.parametrize("statement", ["UPDATE entries SET client = '9'", "DELETE FROM entries"])
def test_the_database_itself_refuses_to_change_entries(ledger, path, statement):
    ledger.charge([charge(1)])
    with sqlite3.connect(path) as database, pytest.raises(sqlite3.IntegrityError, match="never"):
        database.execute(statement)
    ledger.verify()


def test_only_the_owner_can_read_the_files(ledger, path):
    ledger.charge([charge(1)])
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_a_closed_ledger_refuses(ledger):
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.charge([charge(1)])


def test_a_device_loads_nothing_heavy_for_its_ledger_and_policy():
    heavy = "{'torch', 'numpy', 'scipy', 'flwr', 'yaml', 'dp_accounting'}"
    modules = "murmur.privacy.ledger, murmur.privacy.policy"
    code = f"import sys, {modules}; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_an_earlier_version_charged_in_a_sum_is_read_and_counts_in_full(tmp_path):
    label = {"kind": "RandomizedResponseEvent", "epsilon": 1.0, "categories": 10}
    release = {
        "kind": "Release",
        "event": label,
        "unit": "client",
        "adjacency": "replace_one",
        "assumptions": [],
        "otherwise": None,
    }
    before = event_from_dict(
        {"kind": "SecurelySummedEvent", "event": release, "honest_clients": 100}
    )
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.charge([Charge(1, "run", n, "train", digest(n), before) for n in range(3)])
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.events(1) == [before] * 3
        spent = epsilon(ledger.spent(1), 0.0, Threat.SECURE_AGGREGATION)
    assert spent.epsilon == 3.0
