"""What a device gives a server that asks for receipts: whose word it needs, and what it tells.

Two devices whose data differ, with noise and clocks of their own, give the same payloads; also
where trainings fail, and where one was killed and answered again.
"""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.config.client_half import started_with
from fl_app.config.overrides import to_run_config
from fl_app.device.agreement import device_config
from fl_app.device.node_settings import OwnerSettings
from murmur.algorithms.privatekt.own_label_codec import OwnLabelCodec
from murmur.learning.codec import LabelCodec
from murmur.privacy.envelope import Envelope
from murmur.privacy.events import Adjacency, Unit
from murmur.privacy.ledger import Ledger
from murmur.privacy.receipt import RECEIPT_TYPE
from murmur.privacy.run_header import PlannedPhase, RunHeader, ServerKey
from murmur.round import receipts
from murmur.round.host import Host
from murmur.round.signed import NO_SUM, QuestionSigner
from murmur.round.statement_file import PREDICATE_TYPE
from murmur.round.task import RECEIPTS, question
from tests.fl_app.device.test_hostile_server import honest
from tests.fl_app.device.test_non_interference import CASES
from tests.fl_app.device.test_sum_rules import ON, HostileServer
from tests.fl_app.device_under_test import MINE, OPEN, Device

KEY = ServerKey.generate()
GIVES = "receipts: run, sizes\n"
NOTHING = receipts.answer({})
MASKED = "fedavg, masked"
SLOW = (
    *(MASKED, "fedavg, distributed", "nbafl", "scaffold", "dpsgd_fedavg", "gradient_rounds"),
    *("kd_dpfl", "kd_dpfl, labels"),
)


class FailedError(Exception):
    """A training that fails, or a process that is killed."""


class Server:
    """The server of one run, which signs what it asks."""

    def __init__(self, run="a", key=KEY, **header):
        self.run, self.key = run, key
        purposes = ("train", "label", "evaluate")
        said = {
            "name": run,
            "server": key.public_key,
            "algorithm": "any",
            "unit": Unit.CLIENT,
            "adjacency": Adjacency.REPLACE_ONE,
            "delta": 1e-5,
            "threat": "local",
            "schedule": {},
            "secret": False,
            "phases": tuple(PlannedPhase(purpose, 1, 50) for purpose in purposes),
            "settings": {},
        }
        self.signer = QuestionSigner(key, RunHeader(**{**said, **header}))

    def words(self, device, words):
        return device.words(*words, f"run_dir=/nowhere/run-{self.run}")

    def ask(self, device, words, content, terms=(NO_SUM,)):
        """The device's reply to ``content``, signed."""
        typed = self.words(device, words)
        agreed = device_config(to_run_config(typed), OwnerSettings((), None, None))
        asked = question(content, "train", started_with(agreed))
        task = content.config_records["task"]
        about = task["round"], str(task.get("purpose", "train"))
        self.signer.sign(content, [-1], *about, asked, terms)
        return device.ask(typed, content, fresh=False)

    def request(self, statement=b"", key=None):
        """A request for receipts; ``statement``: the envelope, by default one that is signed."""
        if not statement:
            subjects = {"header": self.signer.signed.digest}
            statement = Envelope.of(PREDICATE_TYPE, subjects, {}, key or self.key).to_bytes()
        return receipts.signed_request(statement, self.signer, MINE)

    def collect(self, device, content=None):
        """Receipts by client, as the device gives them."""
        content = self.request() if content is None else content
        reply = device.ask(self.words(device, ()), content, "query", fresh=False)
        assert list(reply.content) == [RECEIPTS]
        record = reply.content.config_records[RECEIPTS]
        return dict(zip(record["clients"], record["receipts"], strict=True))


class MaskedServer(HostileServer):
    """It sums one device's vector with those of clients of its own, and signs what it asks."""

    def __init__(self, server, device):
        super().__init__(device)
        self.words = server.words(device, ON)
        plainly = device.ask

        def ask(words, content, kind="train"):
            if content["secure_sum"]["phase"] != "mask":
                return plainly(words, content, kind)
            return server.ask(device, ON, content, [self.terms.terms_digest])

        self.device = type("Signed", (), {"ask": staticmethod(ask)})()


def twin(folder, policy, seed):
    """A device whose records are drawn from ``seed``; their number is the published one."""
    folder.mkdir()
    device = Device(folder, policy + GIVES)
    rng = np.random.default_rng(seed)
    for client in MINE:
        path = folder / f"{client}.npz"
        with np.load(path) as held:
            shape, labels = held["images"].shape, held["labels"]
        images = rng.random(shape, np.float32)
        np.savez(path, images=images, labels=rng.permutation(labels))
    return device


def learn(patch, rng, failing):
    """Let clients release what is random; where ``failing``, half of the trainings fail first.

    A client whose training has failed is asked again with blank records.
    """
    failed = set()
    plainly = Host._release

    def learnt(half, task, data, noise):
        about = task.round, task.purpose, task.client
        if failing and about not in failed and rng.random() < 0.5:
            failed.add(about)
            raise FailedError
        codec = half.codec(task)
        if isinstance(codec, OwnLabelCodec):
            place = list(task.arrays["clients"]).index(task.client)
            return (place * codec.count + np.arange(codec.count)) * codec.categories
        if isinstance(codec, LabelCodec):
            return rng.integers(0, codec.categories, codec.count)
        return np.zeros(codec.shape, np.int64) + rng.integers(0, 2, codec.shape)

    def release(host, task, waiting, opened):
        host.train = learnt
        plainly(host, task, waiting, opened)

    patch.setattr(Host, "_release", release)


def lives(device, server, name, rng, failing, killed, patch):
    """Let ``device`` answer one or two phases of a run as an honest server asks them."""
    learn(patch, rng, failing)
    offset = timedelta(seconds=int(rng.integers(1, 10**6)))
    patch.setattr("murmur.privacy.ledger.ledger.datetime", shifted(offset))
    if name == MASKED:
        MaskedServer(server, device).read()
        return
    case = CASES[name]
    told = device.words(*case.words)
    for number in (1,) if "num_rounds=1" in " ".join(case.words) else (1, 2):
        content = honest(case, told, round=number)
        if killed:
            with patch.context() as dying:
                dying.setattr(Ledger, "store_reply", dies)
                server.ask(device, case.words, content)
        server.ask(device, case.words, content)


def dies(*_, **__):
    raise FailedError


def shifted(offset):
    """A clock that is ``offset`` ahead."""

    class Ahead(datetime):
        @classmethod
        def now(cls, zone=UTC):
            return datetime.now(zone) + offset

    return Ahead


count = itertools.count()


def require_alike(folder, name, examples):
    """Two devices give the same payloads, in so many examples of how they differ."""
    policy = OPEN if name == MASKED else CASES[name].policy
    server = Server()

    def payloads(seed, failing, killed):
        with pytest.MonkeyPatch.context() as patch:
            device = twin(folder / f"{next(count)}", policy, seed)
            lives(device, server, name, np.random.default_rng(seed), failing, killed, patch)
            charged = device.charged()
            given_now = server.collect(device)
            assert server.collect(device) == given_now
            assert charged and device.charged() == charged
            require_silent(device, given_now)
        return {c: Envelope.read(content).payload for c, content in given_now.items()}

    pasts = st.tuples(st.integers(0, 2**32), st.booleans(), st.booleans())

    @settings(max_examples=examples, deadline=None)
    @given(one=pasts, other=pasts)
    def alike(one, other):
        found = payloads(*one)
        assert payloads(*other) == found
        assert list(found) == [str(client) for client in MINE]

    alike()


@pytest.mark.parametrize("name", [*CASES, MASKED])
def test_payloads_tell_nothing_of_data_noise_clock_failures_or_kills(tmp_path, name):
    require_alike(tmp_path, name, 2 if name in SLOW else 3)


@pytest.mark.long
@pytest.mark.parametrize("name", [*CASES, MASKED])
def test_payloads_tell_nothing_in_many_examples(tmp_path, name):
    require_alike(tmp_path, name, 25)


def require_silent(device, found):
    """No receipt holds a seal, a reply's digest, a time, the ledger's id, or a path."""
    with Ledger(device.state / "ledger.sqlite", create=False) as ledger:
        secrets = {ledger.id, str(device.folder), "epsilon_per", "errors.log"}
        for entry in ledger.entries():
            secrets |= {entry.seal.hex(), entry.previous.hex(), entry.time[:16], entry.time[:10]}
            if entry.kind in ("charge", "answer"):
                secrets.add(entry.request)
            if entry.kind == "answer":
                secrets.add(entry.body)
        for content in found.values():
            _, predicate = Envelope.read(content).predicate(RECEIPT_TYPE, ledger.header.key)
            text = json.dumps(predicate)
            assert not [secret for secret in secrets if secret in text]


@pytest.fixture
def device(tmp_path, monkeypatch):
    learn(monkeypatch, np.random.default_rng(0), failing=False)
    return twin(tmp_path / "device", OPEN, 0)


FEDAVG = CASES["fedavg"]


def answered(server, device, number=1):
    content = honest(FEDAVG, device.words(*FEDAVG.words), round=number)
    reply = server.ask(device, FEDAVG.words, content)
    return list(reply.content.config_records["report"]["clients"])


def test_once_given_no_question_of_the_run_is_answered_and_other_runs_are(device):
    server = Server()
    assert answered(server, device) == list(MINE)
    first = server.collect(device)
    assert list(first) == ["3", "7"] and answered(server, device, 2) == []
    assert "was closed" in device.log()
    assert answered(Server("b"), device) == list(MINE)
    assert server.collect(device) == first


def test_every_refusal_is_the_same_empty_answer_and_closes_nothing(device, tmp_path):
    server = Server()
    answered(server, device)
    stranger = ServerKey.generate()
    forged = server.request()
    forged[RECEIPTS] = ConfigRecord({"statement": b"other"})
    more = server.request()
    more["task"] = ConfigRecord({"round": 1})
    unsigned = server.request()
    del unsigned["signed"]
    for content in (
        server.request(key=stranger),
        server.request(statement=b"{}"),
        Server(key=stranger).request(),
        Server().request(),
        forged,
        more,
        unsigned,
    ):
        assert server.collect(device, content) == {}
    path = tmp_path / "device" / "policy.yaml"
    path.write_text(OPEN)
    assert server.collect(device) == {} and "none to be given" in device.log()
    path.write_text(OPEN + "receipts: run\n")
    assert server.collect(device) == {} and "how many examples" in device.log()
    assert answered(server, device, 2) == list(MINE)


def test_a_device_that_was_never_asked_gives_receipts_to_a_server_that_its_owner_names(
    device, tmp_path
):
    assert Server().collect(device) == {} and not (device.state / "ledger.sqlite").exists()
    named = OPEN.replace("servers: any", f"servers: [{KEY.public_key}]")
    (tmp_path / "device" / "policy.yaml").write_text(named + GIVES)
    stranger = Server(key=ServerKey.generate())
    assert stranger.collect(device) == {}
    server = Server()
    assert list(server.collect(device)) == ["3", "7"] and answered(server, device) == []


def test_a_server_keeps_receipts_of_those_who_live_where_it_has_asked_and_no_other():
    """What a device says is a stranger's word: names, sizes and types."""
    given = {"3": b"one", "4": b"not here", "../5": b"a path", "7": bytes(2 * 2**20 + 1)}
    texts = ConfigRecord({"clients": ["3"], "receipts": ["text"]})
    answers = [
        receipts.answer({}),
        receipts.answer(given),
        RecordDict(),
        RecordDict({RECEIPTS: ConfigRecord({"clients": "3"})}),
        RecordDict({RECEIPTS: texts}),
    ]

    class Grid:
        def send_and_receive(self, messages, timeout):
            assert timeout == receipts.MAX_SECONDS
            for message, content in zip(messages, answers, strict=True):
                about = SimpleNamespace(src_node_id=message.metadata.dst_node_id)
                yield SimpleNamespace(metadata=about, content=content, has_error=lambda: False)

    hosted = {node: {"3", "7"} for node in range(1, 6)}
    found = receipts.collected(Grid(), Server().request(), hosted, "query", 1e6)
    assert list(found) == [(2, "3", b"one")]
