"""What the ledger charges, answers again and refuses."""

import hashlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.privacy.events import (
    ComposedEvent,
    GaussianEvent,
    PureEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
    UnknownEvent,
)
from murmur.privacy.ledger import Charge, Ledger, Status
from murmur.privacy.policy import Refusal

LABELS = RepeatedEvent(RandomizedResponseEvent(2.5, 10), 2)


def digest(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def charge(client=1, run="run", round=1, purpose="train", request=None, event=LABELS):
    return Charge(client, run, round, purpose, request or digest(run, round, purpose), event)


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with Ledger(path) as opened:
        yield opened


def test_a_charge_is_counted_for_its_client_over_all_runs(ledger):
    outcomes = ledger.charge([charge(1), charge(2), charge(1, run="other", event=PureEvent(1.0))])
    assert statuses(outcomes) == ["charged"] * 3
    assert all(outcome.may_compute for outcome in outcomes)
    assert Counter(ledger.events(1)) == Counter([LABELS, PureEvent(1.0)])
    assert [entry.event for entry in ledger.entries(1, run="run")] == [LABELS]
    assert ledger.events(2) == [LABELS]
    assert ledger.events(3) == []
    assert set(ledger.spent(1).events) == {LABELS, PureEvent(1.0)}


def test_equal_releases_are_spent_as_one_repeated_event(ledger):
    for number in range(5):
        ledger.charge([charge(1, round=number)])
    assert ledger.spent(1) == ComposedEvent((RepeatedEvent(LABELS, 5),))
    assert ledger.events(1) == [LABELS] * 5


def test_a_number_and_its_text_are_the_same_client(ledger):
    ledger.charge([charge(7), charge("ward")])
    assert statuses(ledger.charge([charge("7")])) == ["repeated"]
    ledger.charge([charge(10, round=2), charge("007", round=2)])
    assert ledger.clients() == ["7", "10", "007", "ward"]


def test_the_same_question_before_its_answer_is_repeated_without_a_new_entry(ledger):
    ledger.charge([charge(1), charge(2)])
    outcomes = ledger.charge([charge(1), charge(2), charge(3)])
    assert statuses(outcomes) == ["repeated", "repeated", "charged"]
    assert ledger.events(1) == [LABELS]


def test_the_same_question_after_its_answer_gets_the_same_bytes(ledger):
    ledger.charge([charge(1)])
    assert ledger.reply(charge().request) is None
    assert ledger.store_reply(charge().request, b"\x00noisy") == b"\x00noisy"
    outcome = ledger.charge([charge(1)])[0]
    assert outcome.status is Status.ANSWERED and not outcome.may_compute
    assert ledger.reply(charge().request) == b"\x00noisy"
    assert len(ledger.events(1)) == 1


def test_another_question_for_the_same_round_is_refused_and_not_charged(ledger):
    ledger.charge([charge(1)])
    for answered in (False, True):
        outcome = ledger.charge([charge(1, request=digest("other"))])[0]
        assert (outcome.status, outcome.code) == (Status.REFUSED, "other-request"), answered
        assert "round 1 of run run (train) was already charged" in outcome.reason
        ledger.store_reply(charge().request, b"x")
    assert len(ledger.events(1)) == 1


def test_other_purposes_of_a_round_are_other_questions(ledger):
    assert statuses(ledger.charge([charge(1), charge(1, purpose="label")])) == ["charged"] * 2


def test_the_same_question_cannot_be_answered_with_another_release(ledger):
    ledger.charge([charge(1, event=PureEvent(1.0))])
    outcome = ledger.charge([charge(1, event=PureEvent(9.0))])[0]
    assert (outcome.status, outcome.code) == (Status.REFUSED, "other-release")
    assert ledger.events(1) == [PureEvent(1.0)]


def test_a_client_named_twice_in_one_message_answers_once(ledger):
    assert statuses(ledger.charge([charge(1), charge("1")])) == ["charged", "refused"]
    assert statuses(ledger.charge([charge(1), charge(1)])) == ["repeated", "refused"]
    assert len(ledger.events(1)) == 1


def test_a_dropped_reply_is_refused_and_never_computed_again(ledger):
    for number in range(3):
        ledger.charge([charge(1, round=number)])
        ledger.store_reply(charge(round=number).request, b"%d" % number, keep_rounds=2)
    assert [ledger.reply(charge(round=number).request) for number in range(3)] == [None, b"1", b"2"]
    outcome = ledger.charge([charge(1, round=0)])[0]
    assert (outcome.status, outcome.code) == (Status.REFUSED, "already-answered")
    with pytest.raises(Refusal, match="round 0 of run run was answered before"):
        ledger.store_reply(charge(round=0).request, b"fresh noise")


def test_replies_of_another_run_and_of_the_same_round_are_kept(ledger):
    questions = [charge(run="a"), charge(purpose="label"), charge(), charge(round=2)]
    for question in questions:
        ledger.charge([question])
    for question in questions[:3]:
        ledger.store_reply(question.request, b"x")
    assert all(ledger.reply(question.request) for question in questions[:3])
    ledger.store_reply(questions[3].request, b"x")
    assert [ledger.reply(q.request) is None for q in questions] == [False, True, True, False]


def test_of_two_answers_to_one_question_only_the_first_ever_leaves(ledger, path):
    ledger.charge([charge(1)])
    with Ledger(path) as second:
        assert statuses(second.charge([charge(1)])) == ["repeated"]
        assert ledger.store_reply(charge().request, b"first") == b"first"
        assert second.store_reply(charge().request, b"second") == b"first"
        assert second.reply(charge().request) == b"first"


def test_a_reply_under_which_nothing_was_charged_is_not_stored(ledger):
    assert ledger.store_reply(digest("all refused"), b"reasons") == b"reasons"
    assert ledger.reply(digest("all refused")) is None


def test_a_client_that_was_refused_is_not_charged_once_the_message_is_answered(ledger):
    def refuse_two(asked, spent):
        if asked.client == 2:
            raise Refusal("not today", "policy")

    ledger.charge([charge(1), charge(2)], refuse_two)
    ledger.store_reply(charge().request, b"x")
    assert statuses(ledger.charge([charge(1), charge(2)])) == ["answered", "answered"]
    assert ledger.events(2) == []


def test_a_request_cannot_serve_another_round(ledger):
    ledger.charge([charge(1)])
    ledger.store_reply(charge().request, b"x")
    outcome = ledger.charge([charge(1, round=2, request=charge().request)])[0]
    assert (outcome.status, outcome.code) == (Status.REFUSED, "other-request")


def test_admission_sees_all_that_was_spent_and_refusals_leave_no_entry(ledger):
    seen = []

    def at_most_two(asked, spent):
        seen.append(spent)
        if sum(getattr(event, "count", 1) for event in spent.events) >= 2:
            raise Refusal("no more than two", "epsilon-per-lifetime")

    event = GaussianEvent(1.0)
    asked = [charge(1, round=1, event=event), charge(1, round=2, event=event)]
    assert statuses(ledger.charge(asked, at_most_two)) == ["charged", "charged"]
    outcomes = ledger.charge(
        [charge(1, round=3, event=event), charge(2, round=3, event=event)], at_most_two
    )
    assert statuses(outcomes) == ["refused", "charged"]
    assert (outcomes[0].reason, outcomes[0].code) == ("no more than two", "epsilon-per-lifetime")
    assert seen == [
        ComposedEvent(()),
        ComposedEvent((event,)),
        ComposedEvent((RepeatedEvent(event, 2),)),
        ComposedEvent(()),
    ]
    assert len(ledger.events(1)) == 2 and len(ledger.events(2)) == 1


def test_admission_is_asked_again_about_a_repeated_charge_which_it_does_not_count_twice(ledger):
    ledger.charge([charge(1, round=1), charge(1, round=2)])
    seen = []
    ledger.charge([charge(1, round=1)], lambda asked, spent: seen.append(spent))
    assert seen == [ComposedEvent((LABELS,))]

    def owner_changed_their_mind(asked, spent):
        raise Refusal("expired", "policy-expired")

    outcome = ledger.charge([charge(1, round=1)], owner_changed_their_mind)[0]
    assert (outcome.status, outcome.code) == (Status.REFUSED, "policy-expired")


def test_an_error_in_admission_undoes_the_whole_message(ledger):
    def broken(asked, spent):
        if asked.client == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.charge([charge(1), charge(2)], broken)
    assert ledger.clients() == []
    assert statuses(ledger.charge([charge(1)])) == ["charged"]
    ledger.verify()


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("charge"),
            st.lists(st.integers(1, 3), min_size=1, max_size=4),
            st.integers(1, 3),
            st.sampled_from(["one", "two"]),
        ),
        st.tuples(st.just("reply"), st.integers(1, 3), st.sampled_from(["one", "two"])),
        st.tuples(st.just("reopen")),
    ),
    max_size=25,
)


@settings(max_examples=40, derandomize=True)
@given(STEPS)
def test_whatever_a_server_asks_nothing_is_released_twice_or_uncharged(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    ledger = Ledger(path)
    charged, answers, may_release = {}, {}, {}
    for number, step in enumerate(steps):
        if step[0] == "reopen":
            ledger.close()
            ledger = Ledger(path)
        elif step[0] == "charge":
            _, clients, round_, question = step
            request = digest(round_, question)
            asked = [charge(client, round=round_, request=request) for client in clients]
            for one, outcome in zip(asked, ledger.charge(asked), strict=True):
                key = (one.client, round_)
                if outcome.may_compute:
                    assert request not in answers
                    assert charged.setdefault(key, request) == request
                    may_release.setdefault(request, set()).add(one.client)
                elif outcome.status is Status.ANSWERED:
                    assert ledger.reply(request) == answers[request]
        else:
            _, round_, question = step
            request = digest(round_, question)
            if request in may_release:
                try:
                    sent = ledger.store_reply(request, b"%d" % number)
                except Refusal:
                    assert request in answers
                else:
                    assert sent == answers.setdefault(request, sent)
    ledger.verify()
    written = {(int(e.client), e.round): e.request for e in ledger.entries() if e.client}
    assert written == charged
    ledger.close()


def test_a_client_with_an_entry_that_this_version_cannot_read_is_charged_no_more(ledger, path):
    """The ledger stays open for the others, and a newer version can read the entry."""
    newer = '{"kind":"NewerEvent","strength":3}'
    with ledger._log.writing() as transaction:
        transaction.charge("1", "run", 1, "train", digest("newer"), newer)
    with Ledger(path) as again:
        again.verify()
        assert again.events(1) == [UnknownEvent(newer)]
        asked = [charge(1, round=2), charge(2, round=2)]
        first, second = again.charge(asked, lambda *_: None)
        assert (first.status, first.code) == (Status.REFUSED, "unsupported")
        assert "cannot account for" in first.reason and "newer version" in first.reason
        assert second.status is Status.CHARGED
