"""Closing a run: it is charged no more, and its receipts are the same bytes from then on."""

import hashlib
import shutil

import pytest

from murmur.privacy.closing import FOLDER, Closing, Receipts
from murmur.privacy.envelope import Envelope
from murmur.privacy.events import Adjacency, GaussianEvent, Release, SummedEvent, Unit
from murmur.privacy.ledger import Asked, Charge, Confirmed, Ledger, Status
from murmur.privacy.policy import Policy, Refusal
from murmur.privacy.receipt import Receipt
from murmur.privacy.run_header import PlannedPhase, ServerKey, SignedHeader
from tests.murmur.privacy.test_receipt import EVENT, KEY, QUESTION, header

GIVES = Policy("this policy", receipts="run", servers=(KEY.public_key,))
BOTH = Closing(("0", "1"), "seen", "ab" * 32)
SIZED = Release(GaussianEvent(7.0), Unit.CLIENT, Adjacency.REPLACE_ONE)


def signed(name, key=KEY, **other):
    return SignedHeader.of(header(name=name, server=key.public_key, **other), key)


ONE, TWO, THREE = (signed(name) for name in ("one", "two", "three"))


def charged(ledger, sent, number=1, client=0, event=EVENT, purpose="train", name=None, **other):
    name = name or sent.header.name
    request = hashlib.sha256(f"{name} {number} {client} {purpose}".encode()).hexdigest()
    asked = Asked(QUESTION, sent, ("",), (b"0" * 64,), **{"is_binding": True, **other})
    (outcome,) = ledger.charge([Charge(client, name, number, purpose, request, event)], asked=asked)
    return outcome


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


@pytest.fixture
def receipts(ledger, tmp_path):
    return Receipts(ledger, tmp_path)


def read(content, ledger):
    return Receipt.read(content, ledger.header.key)


def test_closing_refuses_whatever_comes_later_and_gives_the_same_bytes(ledger, receipts):
    charged(ledger, ONE)
    first = receipts.close("one", BOTH, GIVES, ONE)
    assert list(first) == ["0", "1"]
    for number, purpose in ((2, "train"), (1, "evaluate"), (1, "train")):
        assert charged(ledger, ONE, number, purpose=purpose).code == "run-closed"
    with pytest.raises(Refusal, match="was closed"):
        ledger.confirm([Confirmed("one", 1, "train", "cd" * 32, [0], 3, "ef" * 32)])
    other = Closing(("0",), "any", "cd" * 32)
    assert receipts.close("one", other, GIVES, ONE) == first
    found = read(first["0"], ledger)
    assert (found.statement, len(found.entries)) == ("ab" * 32, 1)
    ledger.verify()


@pytest.mark.parametrize("is_binding", [True, False])
def test_a_closed_header_is_charged_under_no_other_name(ledger, receipts, is_binding):
    charged(ledger, ONE)
    receipts.close("one", BOTH, GIVES, ONE)
    again = charged(ledger, ONE, name="another", is_binding=is_binding)
    assert (again.status, again.code) == (Status.REFUSED, "run-closed")


def test_killed_after_closing_the_receipts_are_made_again(ledger, receipts, tmp_path):
    charged(ledger, ONE)
    first = receipts.close("one", BOTH, GIVES, ONE)
    shutil.rmtree(tmp_path / FOLDER)
    assert receipts.close("one", Closing(("0", "1", "2")), GIVES, ONE) == first


def test_receipts_of_one_key_are_a_chain(ledger, receipts):
    stranger = ServerKey.generate()
    charged(ledger, ONE)
    charged(ledger, signed("strange", stranger))
    one = receipts.close("one", BOTH, GIVES, ONE)["0"]
    receipts.close("strange", BOTH, replaced(servers=(stranger.public_key,)), strange(ledger))
    charged(ledger, TWO)
    two = receipts.close("two", BOTH, GIVES, TWO)["0"]
    first, second = read(one, ledger), read(two, ledger)
    assert (first.number, first.previous) == (1, None)
    assert (second.number, second.previous) == (2, Envelope.read(one).digest)


def strange(ledger):
    return ledger.run_header("strange")


def replaced(**other):
    return Policy("this policy", **{"receipts": "run", "servers": (KEY.public_key,), **other})


def test_other_runs_of_the_key_stand_beside(ledger, receipts):
    charged(ledger, THREE, 1)
    charged(ledger, signed("strange", ServerKey.generate()))
    charged(ledger, ONE)
    charged(ledger, THREE, 2)
    (beside,) = read(receipts.close("one", BOTH, GIVES, ONE)["0"], ledger).beside
    assert (beside.header, beside.is_closed, beside.counts) == (THREE.digest, False, ((EVENT, 2),))
    charged(ledger, THREE, 3)
    charged(ledger, TWO)
    content = receipts.close("two", BOTH, GIVES, TWO)
    (since,) = read(content["0"], ledger).beside
    assert since.counts == ((EVENT, 1),)
    assert read(content["1"], ledger).beside == ()


def test_who_was_never_asked_has_an_empty_receipt(ledger, receipts):
    found = read(receipts.close("one", BOTH, GIVES, ONE)["1"], ledger)
    assert found.entries == () and ledger.run_header("one").digest == ONE.digest
    assert charged(ledger, ONE).code == "run-closed"


def test_another_header_of_the_name_is_refused(ledger, receipts):
    charged(ledger, ONE)
    with pytest.raises(ValueError, match="has another header"):
        receipts.close("one", BOTH, GIVES, TWO)
    assert ledger.closing("one") is None


def test_without_the_owners_word_nothing_is_closed(ledger, receipts):
    charged(ledger, ONE)
    for policy in (Policy("this policy"), Policy.simulation()):
        with pytest.raises(Refusal, match="none to be given"):
            receipts.close("one", BOTH, policy, ONE)
    assert ledger.closing("one") is None


def test_events_that_tell_sizes_need_a_word_of_their_own(ledger, receipts):
    sent = signed("sizes", phases=(PlannedPhase("train", 1, 9),))
    charged(ledger, sent, event=SIZED)
    charged(ledger, ONE)
    for run, about in (("sizes", sent), ("one", ONE)):  # the second tells of it beside
        with pytest.raises(Refusal, match="how many examples"):
            receipts.close(run, BOTH, GIVES, about)
        assert ledger.closing(run) is None
    told = replaced(receipts="run, sizes")
    assert read(receipts.close("sizes", BOTH, told, sent)["0"], ledger).entries
    with pytest.raises(Refusal, match="how many examples"):  # the policy of now counts
        receipts.close("sizes", BOTH, GIVES, sent)


def test_weights_that_differ_in_a_sum_tell_sizes():
    planned = header()
    assert planned.names_event(1, "train", SummedEvent(EVENT, 3))
    assert not planned.names_event(1, "train", SummedEvent(EVENT, 3, 208, 207, 208))


def test_secret_cohorts_are_told_of_by_nobody(ledger, receipts):
    secret = signed("secret", secret=True)
    charged(ledger, secret, 3)
    charged(ledger, ONE)
    assert read(receipts.close("one", BOTH, GIVES, ONE)["0"], ledger).beside == ()
    with pytest.raises(Refusal, match="secret cohorts"):
        receipts.close("secret", BOTH, Policy("this policy", receipts="run"), secret)
    drawn, other = receipts.close("secret", BOTH, GIVES, secret).values()
    assert read(drawn, ledger).entries == read(other, ledger).entries
    assert len(read(drawn, ledger).entries) == 100


def test_a_draft_writes_nothing(ledger, receipts, tmp_path):
    charged(ledger, ONE)
    (draft, _) = receipts.draft("one", BOTH)
    assert ledger.closing("one") is None and not (tmp_path / FOLDER).exists()
    assert draft == read(receipts.close("one", BOTH, GIVES, ONE)["0"], ledger)
