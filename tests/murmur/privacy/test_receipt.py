"""Receipts: from a ledger's entries to signed bytes, and read strictly."""

import hashlib
import json

import pytest

from murmur.format import framed
from murmur.privacy.envelope import Envelope
from murmur.privacy.events import (
    Adjacency,
    GaussianEvent,
    Hiding,
    Release,
    SummedEvent,
    Unit,
)
from murmur.privacy.ledger import Asked, Charge, Confirmed, JoinedSum, Ledger
from murmur.privacy.receipt import (
    NOTHING_ASKED,
    RECEIPT_TYPE,
    Receipt,
    RunEntries,
    receipt_of,
    receipt_of_all,
)
from murmur.privacy.run_header import PlannedPhase, RunHeader, ServerKey, SignedHeader

KEY = ServerKey.generate()
EVENT = Release(GaussianEvent(4.0), Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=Hiding.NOISE)
QUESTION, LISTS = ("ab" * 32, "ef" * 32)


def header(**other):
    said = {
        "name": "run",
        "server": KEY.public_key,
        "algorithm": "nbafl",
        "unit": Unit.CLIENT,
        "adjacency": Adjacency.REPLACE_ONE,
        "delta": 1e-5,
        "threat": "local",
        "schedule": {},
        "secret": False,
        "phases": (PlannedPhase("train", 1, 100, event=EVENT),),
        "settings": {},
    }
    return RunHeader(**{**said, **other})


SIGNED = SignedHeader.of(header(), KEY)


def charged(ledger, number=1, clients=(0,), event=EVENT, signed=SIGNED, **other):
    """One phase, for which ``clients`` are charged in blocks."""
    run = signed.header.name
    request = hashlib.sha256(f"{run} {number}".encode()).hexdigest()
    charges = [Charge(client, run, number, "train", request, event) for client in clients]
    asked = Asked(QUESTION, signed, ("",), (b"0" * 64,), is_binding=True, **other)
    ledger.charge(charges, asked=asked, blocks=len(clients) > 1)


def terms_of(number):
    return hashlib.sha256(bytes([number])).hexdigest()


def masked(ledger, number=1, place=3, confirmed=5):
    terms = terms_of(number)
    sums = (JoinedSum(terms, 4, 1, {"0": place}),)
    charged(ledger, number, event=SummedEvent(EVENT, 3), sums=sums)
    if confirmed:
        ledger.confirm([Confirmed("run", number, "train", terms, [0], confirmed, LISTS)])


def signed_bytes(ledger, receipt):
    return ledger.sign_envelope(RECEIPT_TYPE, receipt.subjects, receipt.to_predicate()).to_bytes()


def test_a_receipt_says_what_was_charged_and_asked(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        charged(ledger, 2)
        charged(ledger, 1)
        receipt = receipt_of(RunEntries(ledger, "run"), "0")
        plain = receipt.to_predicate()
        assert [entry[0] for entry in plain["entries"]] == [1, 2]
        assert [entry[1:3] for entry in plain["entries"]] == [[0, 0], [0, 0]]
        assert plain["events"] == [EVENT.to_dict()] and plain["purposes"] == ["train"]
        digest = hashlib.sha256(framed(bytes.fromhex(QUESTION), b"", b"")).digest()
        assert receipt.entries[0].digest == digest
        assert (plain["unit"], plain["adjacency"]) == ("client", "replace_one")
        assert plain["peers"] is None and plain["beside"] == []
        assert plain["header"] == SIGNED.digest


def test_a_masked_release_has_place_and_confirmed_lists(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        masked(ledger, 1)
        masked(ledger, 2, confirmed=0)
        receipt = receipt_of(RunEntries(ledger, "run"), "0", peers="seen")
        shown, silent = receipt.to_predicate()["entries"]
        assert shown[4:] == [3, 5, 4, 1] and silent[4:] == [3, 0, 4, 1]
        parts = [bytes.fromhex(part) for part in (QUESTION, terms_of(1), LISTS)]
        assert receipt.entries[0].digest == hashlib.sha256(framed(*parts)).digest()
        parts[1:] = [bytes.fromhex(terms_of(2)), b""]
        assert receipt.entries[1].digest == hashlib.sha256(framed(*parts)).digest()
        assert receipt.peers == "seen"


def test_bytes_are_read_back_under_the_ledgers_key_alone(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        masked(ledger)
        receipt = receipt_of(
            RunEntries(ledger, "run"), "0", number=2, previous="12" * 32, statement="34" * 32
        )
        content = signed_bytes(ledger, receipt)
        assert Receipt.read(content, ledger.header.key) == receipt
        with pytest.raises(ValueError, match="no valid signature"):
            Receipt.read(content, KEY.public_key)


def test_who_was_charged_nothing_has_the_headers_words(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        charged(ledger)
        receipt = receipt_of(RunEntries(ledger, "run"), "7")
        assert receipt.entries == () and receipt.unit is Unit.CLIENT
        assert Receipt.from_predicate(receipt.to_predicate()) == receipt


def test_a_run_without_a_header_has_no_receipt(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        charge = Charge(0, "run", 1, "train", "ab" * 32, EVENT)
        ledger.charge([charge], asked=Asked(QUESTION))
        with pytest.raises(ValueError, match="no server has signed a header"):
            RunEntries(ledger, "run")


def test_secret_cohorts_tell_the_plan_alone(tmp_path):
    signed = SignedHeader.of(header(secret=True), KEY)
    with Ledger(tmp_path / "l") as ledger:
        charged(ledger, 7, signed=signed)
        entries = RunEntries(ledger, "run")
        drawn, other = (receipt_of(entries, client) for client in ("0", "1"))
        assert drawn.entries == other.entries and len(drawn.entries) == 100
        assert {entry.digest for entry in drawn.entries} == {NOTHING_ASKED}
    phases = (PlannedPhase("train", 1, 2),)
    open_plan = SignedHeader.of(header(secret=True, phases=phases), KEY)
    with Ledger(tmp_path / "o") as ledger:
        charged(ledger, signed=open_plan)
        with pytest.raises(ValueError, match="names no event"):
            receipt_of(RunEntries(ledger, "run"), "0")


def test_a_simulation_has_one_receipt_in_blocks(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        charged(ledger, 1, clients=range(3000))
        charged(ledger, 2, clients=[4, 5, 9])
        receipt = receipt_of_all(RunEntries(ledger, "run"), range(3000))
        assert receipt.client == "0-2999"
        assert [entry.clients for entry in receipt.entries] == ["0-2999", "4-5,9"]
        assert Receipt.read(signed_bytes(ledger, receipt), ledger.header.key) == receipt


def test_a_hundred_masked_phases_fit_into_12_kb(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        for number in range(1, 101):
            masked(ledger, number, place=9_999, confirmed=9_000)
        receipt = receipt_of(
            RunEntries(ledger, "run"), "0", number=99, previous="12" * 32, statement="34" * 32
        )
        assert len(signed_bytes(ledger, receipt)) <= 12_000


CHANGES = {
    "unknown field": lambda plain: plain | {"time": "2027"},
    "missing field": lambda plain: {k: v for k, v in plain.items() if k != "peers"},
    "other format": lambda plain: plain | {"format": 2},
    "no digest": lambda plain: plain | {"header": "xy"},
    "number 0": lambda plain: plain | {"number": 0},
    "number true": lambda plain: plain | {"number": True},
    "event that is not there": lambda plain: plain | {"entries": [[1, 0, 1, "A" * 43]]},
    "event from the end": lambda plain: plain | {"entries": [[1, 0, -1, "A" * 43]]},
    "short digest": lambda plain: plain | {"entries": [[1, 0, 0, "AA"]]},
    "half masked": lambda plain: plain | {"entries": [[1, 0, 0, "A" * 43, 3]]},
    "twice": lambda plain: plain | {"entries": plain["entries"] * 2},
    "event twice": lambda plain: plain | {"events": plain["events"] * 2},
    "purpose unused": lambda plain: plain | {"purposes": ["train", "label"]},
    "unit": lambda plain: plain | {"unit": "person"},
    "peers": lambda plain: plain | {"peers": "everybody"},
    "beside": lambda plain: plain | {"beside": [{"header": "12" * 32}]},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_receipt_is_refused(tmp_path, name):
    with Ledger(tmp_path / "l") as ledger:
        charged(ledger)
        receipt = receipt_of(RunEntries(ledger, "run"), "0")
        changed = CHANGES[name](json.loads(json.dumps(receipt.to_predicate())))
        envelope = ledger.sign_envelope(RECEIPT_TYPE, receipt.subjects, changed)
        with pytest.raises(ValueError, match=r".+"):
            Receipt.read(envelope.to_bytes(), ledger.header.key)


def test_subjects_must_be_what_it_is_about(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        charged(ledger)
        receipt = receipt_of(RunEntries(ledger, "run"), "0")
        wrong = ledger.sign_envelope(RECEIPT_TYPE, {"header": "0" * 64}, receipt.to_predicate())
        with pytest.raises(ValueError, match="subject"):
            Receipt.read(wrong.to_bytes(), ledger.header.key)
        draft = Envelope.of(RECEIPT_TYPE, receipt.subjects, receipt.to_predicate(), None)
        assert Receipt.read(draft.to_bytes(), None) == receipt
