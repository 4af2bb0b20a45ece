"""Charges in blocks of clients: fewer entries, and in all else what single charges would be."""

import json
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.privacy.events import PureEvent, RandomizedResponseEvent
from murmur.privacy.ledger import Charge, Ledger, LedgerError, Status, database
from murmur.privacy.ledger.blocks import MARK, MAX_BLOCK_IDS, decode_ids, encode_ids
from murmur.privacy.ledger.chain import History
from murmur.privacy.policy import Refusal
from tests.murmur.privacy.ledger.ledger_cases import assert_refused, digest, edit, reseal

EVENTS = RandomizedResponseEvent(2.5, 10), PureEvent(1.0)
PEOPLE = st.lists(st.integers(0, 12), min_size=1, max_size=12)


def asked(clients, round_=1, purpose="train", request=None, events=EVENTS[:1]):
    """One charge for each client; who is asked for which event follows from the client."""
    about = "run", round_, purpose, request or digest(round_, purpose)
    return [Charge(client, *about, events[client % len(events)]) for client in clients]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@given(st.sets(st.integers(0, 3_000), min_size=1), st.sets(st.text(min_size=1)))
def test_names_come_back_from_the_texts_that_name_them_together(numbers, words):
    names = {*map(str, numbers), *words}
    texts = encode_ids(names)
    found = [name for text in texts for name in decode_ids(text)]
    assert sorted(found) == sorted(names)
    assert all(len(decode_ids(text)) <= MAX_BLOCK_IDS for text in texts)


@given(st.text(), st.sampled_from(["", MARK]))
def test_no_text_is_read_as_a_block_that_was_not_made(text, mark):
    try:
        names = decode_ids(mark + text)
    except ValueError:
        assert mark
    else:
        assert len(names) == len(set(names)) <= MAX_BLOCK_IDS
        assert mark or list(names) == [text] or text.startswith(MARK)


@pytest.mark.parametrize("ranges", ["", "2-1", "0-1024", "3,2", "1,1", "1-", "-1", "0-9999999999"])
def test_a_list_that_could_name_a_client_twice_or_too_many_is_refused(ranges):
    with pytest.raises(ValueError, match="is no list of clients"):
        decode_ids(MARK + ranges)


def test_a_round_of_all_takes_one_entry_for_1024_clients(path):
    with Ledger(path) as ledger:
        outcomes = ledger.charge(asked(range(3_000)), blocks=True)
        assert {outcome.status for outcome in outcomes} == {Status.CHARGED}
        assert [entry.client for entry in ledger.entries()] == [
            f"{MARK}0-1023",
            f"{MARK}1024-2047",
            f"{MARK}2048-2999",
        ]
        assert ledger.releases() == 3_000
        assert [entry.position for entry in ledger.entries(2_000)] == [2]
        assert [len(entry.clients) for entry in ledger.entries("0", run="run")] == [1_024]
        assert list(ledger.entries(3_000)) == []
        assert ledger.kinds() == {EVENTS[0]}
        ledger.verify()


def test_without_blocks_each_client_has_an_entry_of_its_own(path):
    with Ledger(path) as ledger:
        ledger.charge(asked(range(5)))
        assert [entry.client for entry in ledger.entries()] == list("01234")


def test_clients_that_have_spent_the_same_share_what_is_remembered(path):
    with Ledger(path) as ledger:
        for round_ in range(3):
            ledger.charge(asked(range(1_000), round_), blocks=True)
        ledger.charge(asked(range(500), 3), blocks=True)
        spends = ledger._log.history.spends
        assert len({id(tally) for tally in spends.values()}) == 2
        assert len(ledger.events(7)) == 4 and len(ledger.events(700)) == 3


def test_the_policy_is_asked_once_for_all_that_have_spent_the_same(path):
    seen = []
    with Ledger(path) as ledger:
        ledger.charge(asked([3, 4]), blocks=True)
        ledger.charge(asked(range(100), 2), lambda *about: seen.append(about), blocks=True)
        assert sorted(len(spent.events) for _, spent in seen) == [0, 1]
        ledger.store_reply(digest(2, "train"), b"reply")
        seen.clear()
        assert ledger.reply(digest(2, "train"), lambda *about: seen.append(about)) == b"reply"
        assert sorted(len(spent.events) for _, spent in seen) == [0, 1]


def at_most(most):
    """A policy that lets every client release so often."""

    def admit(charge, spent):
        if sum(getattr(event, "count", 1) for event in spent.events) >= most:
            raise Refusal(f"no more than {most}", "epsilon-per-lifetime")

    return admit


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("charge"),
            PEOPLE,
            st.integers(1, 3),
            st.sampled_from(["train", "label"]),
            st.sampled_from(["one", "two"]),
            st.sampled_from([EVENTS[:1], EVENTS]),
        ),
        st.tuples(st.just("reply"), st.integers(1, 3), st.sampled_from(["one", "two"])),
        st.tuples(st.just("reopen")),
    ),
    max_size=15,
)


def lives(ledger):
    """All that a ledger says of each client."""
    return {
        client: (
            ledger.spent(client),
            [(e.round, e.purpose, e.request, e.body) for e in ledger.entries(client)],
        )
        for client in ledger.clients()
    }


@settings(max_examples=40, derandomize=True)
@given(STEPS, st.integers(1, 4))
def test_charges_in_blocks_are_decided_and_counted_as_single_ones(tmp_path_factory, steps, most):
    folder = tmp_path_factory.mktemp("ledgers")
    single, blocks = Ledger(folder / "single.sqlite"), Ledger(folder / "blocks.sqlite")
    for number, step in enumerate(steps):
        if step[0] == "charge":
            _, clients, round_, purpose, question, events = step
            charges = asked(clients, round_, purpose, digest(round_, question), events)
            found = [
                ledger.charge(charges, at_most(most), blocks=ledger is blocks)
                for ledger in (single, blocks)
            ]
            assert found[0] == found[1]
        elif step[0] == "reply":
            sent = []
            for ledger in (single, blocks):
                try:
                    sent.append(ledger.store_reply(digest(*step[1:]), b"%d" % number))
                except Refusal as refusal:
                    sent.append(str(refusal))
            assert sent[0] == sent[1]
            kept = [ledger.reply(digest(*step[1:])) for ledger in (single, blocks)]
            assert kept[0] == kept[1]
        else:
            single.close()
            blocks.close()
            single, blocks = Ledger(single.path), Ledger(blocks.path)
    assert lives(single) == lives(blocks)
    assert single.releases() == blocks.releases()
    for ledger in (single, blocks):
        ledger.verify()
        ledger.close()


def test_single_entries_and_blocks_stand_beside_each_other(path):
    """A run that was begun by a version without blocks goes on, and by one charge or the other."""
    with Ledger(path) as ledger:
        ledger.charge(asked([1, 2]))
        outcomes = ledger.charge(asked(range(4)), blocks=True)
        assert [o.status for o in outcomes] == ["charged", "repeated", "repeated", "charged"]
        other = ledger.charge(asked([0, 1], request=digest("other")))
        assert [(o.status, o.code) for o in other] == [("refused", "other-request")] * 2
        assert [len(ledger.events(client)) for client in range(4)] == [1] * 4


def test_a_client_that_is_asked_twice_in_one_message_is_in_its_block_once(path):
    with Ledger(path) as ledger:
        outcomes = ledger.charge(asked([5, 6, 5]), blocks=True)
        assert [outcome.code for outcome in outcomes] == ["", "", "asked-twice"]
        assert len(ledger.events(5)) == 1


def test_names_that_are_no_numbers_keep_entries_of_their_own(path):
    names = ["ward", "007", "-1", "0-5", 3, 4]
    about = "run", 1, "train", digest(1)
    with Ledger(path) as ledger:
        ledger.charge([Charge(name, *about, EVENTS[0]) for name in names], blocks=True)
        assert len(list(ledger.entries())) == 5
        assert set(ledger.clients()) == set(map(str, names))
        assert all(len(list(ledger.entries(name))) == 1 for name in names)


@pytest.mark.parametrize("clients", [f"{MARK}0-8", f"{MARK}0-10", "9", f"{MARK}0-9,9"])
def test_a_block_that_was_altered_is_noticed(path, clients):
    with Ledger(path) as ledger:
        ledger.charge(asked(range(10)), blocks=True)
        ledger.charge(asked(range(10), 2), blocks=True)
    edit(path, f"UPDATE entries SET client = '{clients}' WHERE position = 1")
    assert_refused(path, r"entry 1 \(charge.*do not match its seal")
    reseal(path, 2)
    assert_refused(path, r"entry 1 \(charge.*do not match its seal")


def test_a_block_that_is_altered_at_work_is_noticed_before_anybody_is_charged_again(path):
    with Ledger(path) as ledger:
        ledger.charge(asked(range(10)), blocks=True)
        ledger.charge(asked(range(10), 2), blocks=True)
        edit(path, f"UPDATE entries SET client = '{MARK}0-8' WHERE position = 1")
        with pytest.raises(LedgerError, match=r"entry 1 .*seal"):
            ledger.charge(asked([9]), blocks=True)


def test_snapshots_name_those_who_have_spent_the_same_together(path, monkeypatch):
    monkeypatch.setattr(database, "SNAPSHOT_EVERY", 10)
    with Ledger(path) as ledger:
        for round_ in range(40):
            ledger.charge(asked(range(round_ % 2, 2_000), round_), blocks=True)
        known = {client: ledger.spent(client) for client in ledger.clients()}
    with sqlite3.connect(path) as opened:
        (history,) = opened.execute("SELECT history FROM snapshots").fetchone()
    assert len(json.loads(history)["spends"]) <= 4 and len(history) < 1_000
    with Ledger(path) as ledger:
        assert ledger._log.base > 0
        assert known == {client: ledger.spent(client) for client in ledger.clients()}
        ledger.verify()


def test_a_snapshot_of_a_version_without_blocks_is_read(path):
    with Ledger(path) as ledger:
        ledger.charge(asked([1, 2]))
        found = ledger._log.history
    plain = json.loads(found.to_text())
    event = json.dumps(EVENTS[0].to_dict(), sort_keys=True, separators=(",", ":"))
    plain["spends"] = {"1": {event: 1}, "2": {event: 1}}
    assert History.from_text(json.dumps(plain)) == found
