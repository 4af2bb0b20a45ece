"""A device whose owner has pinned a server charges only what that server has signed and planned."""

from dataclasses import replace

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fl_app.testing import Federation, random_data
from murmur.privacy.budget import Budget
from murmur.privacy.events import GaussianEvent
from murmur.privacy.policy import Policy
from murmur.privacy.run_header import RunHeader, ServerKey
from murmur.round.signed import QuestionSigner
from murmur.round.task import SIGNED
from tests.fl_app.test_testing import Bits, BitsClient

BUDGET = Budget(50.0, 1e-5, rounds=2)
BOTH = [random_data(30, seed=1), random_data(30, seed=2)]


def header_of(federation, key, **other):
    strategy = federation.strategy
    said = {
        "name": "test",
        "server": key.public_key,
        "algorithm": federation.host.facts.algorithm,
        "unit": strategy.unit,
        "adjacency": strategy.adjacency,
        "delta": BUDGET.delta,
        "threat": BUDGET.threat,
        "schedule": {"kind": "random", "clients": 2, "cohort": 2, "rounds": 2},
        "secret": False,
        "phases": tuple(strategy.rounds.planned_phases(["train"])),
        "settings": {},
        "successions": key.successions,
    }
    return RunHeader(**{**said, **other})


class Signed(Federation):
    """A federation whose server signs, and whose clients are held to what it has signed."""

    def __init__(self, folder, key, pinned=None, **other):
        super().__init__(folder, Bits, BitsClient, BOTH, budget=BUDGET)
        self.key = key
        self.change = lambda content: None
        self.signer = QuestionSigner(key, header_of(self, key, **other))
        self.strategy.rounds.sign(self.signer)
        policy = replace(Policy.simulation(), servers=(pinned or key.public_key,))
        self.host.site = replace(self.host.site, policy=policy)

    def _answer(self, message, context):
        self.change(message.content)
        return super()._answer(message, context)

    def ask(self, number=1):
        """Asks one round of all clients; who answered and who was refused, with the reason."""
        model = ArrayRecord({"model": Array(self.model)})
        message = next(iter(self.strategy.rounds.ask(number, model, _OneNode())))
        reply = self._answer(message, None)
        self.strategy.rounds.take([reply])
        report = reply.content["report"]
        return report["clients"], report["reasons"]

    @property
    def ledger(self):
        return self.host.ledger

    def kinds(self):
        return [entry.kind for entry in self.ledger.entries()]


class _OneNode:
    def get_node_ids(self):
        return [1]


@pytest.fixture
def key():
    return ServerKey.generate()


def test_a_signed_run_is_charged_after_its_header_and_questions(tmp_path, key):
    federation = Signed(tmp_path, key)
    federation.run()
    once = ["question", "charge", "answer"]
    assert federation.kinds() == ["run", *once, *once]
    assert federation.ledger.run_header("test").digest == federation.signer.signed.digest
    federation.ledger.verify()


def test_the_header_is_sent_until_clients_have_answered(tmp_path, key):
    federation = Signed(tmp_path, key)
    sent = []
    federation.change = lambda content: sent.append("header" in content[SIGNED])
    federation.run()
    assert sent == [True, False]


def test_signatures_change_neither_models_nor_requests(tmp_path, key):
    signed = Signed(tmp_path / "one", key).run()
    plain = Federation(tmp_path / "two", Bits, BitsClient, BOTH, budget=BUDGET).run()
    assert signed.tobytes() == plain.tobytes()


def without_signatures(content):
    del content[SIGNED]


def without_header(content):
    record = dict(content[SIGNED])
    for name in ("header", "key", "signature"):
        del record[name]
    content[SIGNED] = ConfigRecord(record)


def with_another_word(content):
    content[SIGNED] = ConfigRecord({**content[SIGNED], "words": [bytes(64)]})


def with_another_question(content):
    content["task"]["more"] = 1


def with_no_words(content):
    content[SIGNED] = ConfigRecord({**content[SIGNED], "words": [1]})


def with_a_huge_number(content):
    content[SIGNED] = ConfigRecord({**content[SIGNED], "header": 2**62})


def with_another_header(content):
    text = content[SIGNED]["header"].replace(b'"threat":"local"', b'"threat":"nobody"')
    content[SIGNED] = ConfigRecord({**content[SIGNED], "header": text})


@pytest.mark.parametrize(
    "change",
    [
        without_signatures,
        without_header,
        with_another_word,
        with_another_question,
        with_no_words,
        with_a_huge_number,
        with_another_header,
    ],
)
def test_what_is_not_signed_is_refused_where_a_key_is_pinned(tmp_path, key, change):
    federation = Signed(tmp_path, key)
    federation.change = change
    answered, reasons = federation.ask()
    assert answered == [] and len(reasons) == 2
    assert federation.kinds() == []


def test_the_same_is_answered_where_no_key_is_pinned(tmp_path, key):
    federation = Signed(tmp_path, key)
    federation.host.site = replace(federation.host.site, policy=Policy.simulation())
    federation.change = with_another_word
    answered, _ = federation.ask()
    assert answered == [0, 1]
    assert federation.kinds() == ["question", "charge", "answer"]


def test_a_header_of_another_key_is_refused(tmp_path, key):
    federation = Signed(tmp_path, key, pinned=ServerKey.generate().public_key)
    answered, reasons = federation.ask()
    assert answered == [] and "servers" in reasons[0]


def test_a_key_that_the_pinned_one_has_signed_is_accepted(tmp_path, key):
    newest = key.successor().successor()
    assert Signed(tmp_path / "a", newest, pinned=key.public_key).ask()[0] == [0, 1]
    newest.successions = newest.successions[1:]
    assert Signed(tmp_path / "b", newest, pinned=key.public_key).ask()[0] == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"phases": ()}, "does not plan"),
        ({"settings": {"seed": 1.0}}, "seed=None"),
        ({"algorithm": "another"}, "the run header is for another"),
        ({"delta": 1e-6}, "delta=1e-06"),
    ],
)
def test_what_the_header_does_not_plan_is_refused(tmp_path, key, other, said):
    federation = Signed(tmp_path, key, **other)
    answered, reasons = federation.ask()
    assert answered == [] and said in reasons[0]
    assert federation.kinds() == []


def test_another_event_and_a_round_too_many_are_refused(tmp_path, key):
    federation = Signed(tmp_path, key)
    (train,) = federation.strategy.rounds.planned_phases(["train"])
    once = Signed(tmp_path / "once", key, phases=(replace(train, last=1),))
    assert once.ask(1)[0] == [0, 1]
    assert "does not plan" in once.ask(2)[1][0]
    other = replace(train, event=GaussianEvent(1.0))
    changed = Signed(tmp_path / "event", key, phases=(other,))
    assert "another event" in changed.ask()[1][0]


def test_a_second_header_of_a_run_is_refused(tmp_path, key):
    federation = Signed(tmp_path, key)
    assert federation.ask(1)[0] == [0, 1]
    federation.strategy.rounds.sign(QuestionSigner(key, header_of(federation, key)))
    answered, reasons = federation.ask(2)
    assert answered == [] and "another header" in reasons[0]


def test_one_header_is_not_used_for_two_runs(tmp_path, key):
    federation = Signed(tmp_path, key)
    assert federation.ask(1)[0] == [0, 1]
    federation.signer.known.clear()
    federation.host.site = replace(federation.host.site, run="again")
    answered, reasons = federation.ask(2)
    assert answered == [] and "has this header" in reasons[0]


def test_a_closed_run_releases_nothing_more(tmp_path, key):
    federation = Signed(tmp_path, key)
    model = ArrayRecord({"model": Array(federation.model)})
    message = next(iter(federation.strategy.rounds.ask(1, model, _OneNode())))
    assert federation._answer(message, None).content["report"]["clients"] == [0, 1]
    federation.ledger.close_run("test")
    assert federation._answer(message, None).content["report"]["clients"] == []  # no replay
    assert "was closed" in federation.ask(2)[1][0]
    federation.ledger.close_run("test")
    assert federation.kinds() == ["run", "question", "charge", "answer", "closed"]
    federation.ledger.verify()
