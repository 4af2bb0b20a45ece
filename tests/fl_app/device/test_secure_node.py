"""A node's rules for secure sums: what its clients refuse, charge and remember."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from clients.fedavg import FedAvgClient
from fl_app.config.compose import compose
from fl_app.run.hosts import SimulatedHost
from murmur.format import unframed
from murmur.learning.codec import LabelCodec
from murmur.privacy.events import RandomizedResponseEvent, RepeatedEvent, SummedEvent
from murmur.privacy.ledger import Ledger
from murmur.round import secure_summation
from murmur.round.host import Host
from murmur.round.site import SimulatedSite
from murmur.round.task import question as question_of
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.terms import join_ids
from tests.fl_app.running import run_inline

ON = "privacy.secure_aggregation=on"


def node_and_task(tmp_path, *overrides, strategy="privatekt"):
    config = compose(
        ["engine=inline", "federation.num_clients=6", f"strategy={strategy}", ON, *overrides]
    )
    node = SimulatedHost(config, SimulatedSite.of(tmp_path, config.privacy.policy))
    parameters = node.trainer.initial(np.random.default_rng(0))
    arrays = {"model": Array(parameters)}
    if strategy == "privatekt":
        arrays["indices"] = Array(np.arange(3))
    task = ConfigRecord({"round": 1, "clients": [0, 1]})
    return node, RecordDict({"model": ArrayRecord(arrays), "task": task})


def test_a_client_never_answers_a_server_that_forgets_the_masks(tmp_path):
    node, content = node_and_task(tmp_path)
    report = node.answer(content).config_records["report"]
    assert report["clients"] == [] and len(report["refused"]) == 2
    assert "nothing but masked contributions" in report["reasons"][0]
    assert node.ledger.clients() == []


def test_a_client_without_secure_sums_does_not_join_one(tmp_path):
    node, _ = node_and_task(tmp_path, "privacy.secure_aggregation=off")
    record = ConfigRecord({"phase": "advertise", "run": "r", "round": 1, "clients": [0]})
    record["messages"] = [b"{}"]
    record["which"] = [0]
    reply = node.answer(RecordDict({"secure_sum": record})).config_records["secure_sum"]
    assert reply["clients"] == [] and "off at this client" in reply["reasons"][0]


def test_terms_below_what_is_asked_for_are_refused_before_anything_happens(tmp_path):
    node, _ = node_and_task(tmp_path, "privacy.secure_sum.colluders=1")
    proposed = SecureSumSettings("on", threshold=0.5).terms("r", 1, range(6), 41, 3)
    record = ConfigRecord(
        {
            "phase": "advertise",
            "run": "r",
            "round": 1,
            "clients": [0],
            "messages": [proposed.sent],
            "which": [0],
        }
    )
    reply = node.answer(RecordDict({"secure_sum": record})).config_records["secure_sum"]
    assert reply["reasons"][0].startswith("ValueError: colluders=0: ")
    assert list((tmp_path / "clients" / "secure_sum").glob("*")) == []


def masking_request(tmp_path, monkeypatch, *overrides):
    """A node of a stopped run, and the message of phase MASK that it was sent."""
    asked = []
    plainly = Host.answer

    def recording(self, content, kind):
        if "task" in content.config_records:
            asked.append((self, content))
        return plainly(self, content, kind)

    monkeypatch.setattr(Host, "answer", recording)
    run_inline(tmp_path / "run", ON, "federation.num_rounds=1", *overrides, nodes=1)
    monkeypatch.setattr(Host, "answer", plainly)
    return asked[0]


def test_a_repeated_request_gets_the_stored_reply_and_another_one_nothing(tmp_path, monkeypatch):
    node, content = masking_request(tmp_path, monkeypatch)
    first = node.answer(content).array_records["contribution"]["masked"].numpy()
    assert np.array_equal(
        node.answer(content).array_records["contribution"]["masked"].numpy(), first
    )
    record = content.config_records["secure_sum"]
    record["messages"] = [join_ids(range(5), range(6))]
    report = node.answer(content).config_records["report"]
    assert report["clients"] == [] and len(report["refused"]) == 6


@pytest.mark.parametrize("colluders", [0, 1])
def test_every_release_is_charged_as_hidden_in_the_smallest_sum_allowed(
    tmp_path, monkeypatch, colluders
):
    words = f"privacy.secure_sum.colluders={colluders}"
    node, _ = masking_request(tmp_path, monkeypatch, words)
    (event,) = node.ledger.events(3)
    assert isinstance(event, SummedEvent)
    assert event.honest_clients == 5 - colluders  # floor(0.67 · 6) + 1 share holders
    assert event.terms and (event.weight, event.least_weight, event.greatest_weight) == (1, 1, 1)
    assert len(list(node.ledger.entries(3))) == 1  # the phases without data are not charged
    [states] = (node.site.folder / "clients/secure_sum").glob("*.states")
    _, _, *clients = unframed(states.read_bytes())
    left = [unframed(entry[8:])[-1] for entry in clients]
    assert left == [b""] * 6  # no secret is left


def test_a_weight_outside_of_the_terms_is_refused_before_it_is_charged(tmp_path, monkeypatch):
    monkeypatch.setattr(FedAvgClient, "weight", lambda self, data: 10**6)
    run = run_inline(tmp_path / "run", "strategy=fedavg", ON)
    reason = run.rows()[1]["failed"]["0"]
    assert reason.startswith("weight=1000000: the sum's terms are for weights of ")
    with Ledger(run.path / "ledger.sqlite") as ledger:
        assert ledger.clients() == []


@pytest.mark.parametrize("what", ["event", "codec", "algorithm", "purpose", "seeded"])
def test_terms_for_another_release_are_refused_before_it_is_charged(tmp_path, monkeypatch, what):
    # The server makes terms for one release and asks for another: earlier versions charged the
    # victim as if the others released the same.
    plainly = secure_summation.release_digest

    def digest(algorithm, purpose, codec, event, least, greatest, seeded):
        made = {
            "algorithm": algorithm,
            "purpose": purpose,
            "codec": codec,
            "event": event,
            "seeded": seeded,
        }
        other = {
            "event": replace(event, event=RepeatedEvent(RandomizedResponseEvent(9.0, 10), 3)),
            "codec": LabelCodec(4, 10),
            "algorithm": "another",
            "purpose": "label",
            "seeded": not seeded,
        }
        return plainly(**{**made, what: other[what]}, least_weight=least, greatest_weight=greatest)

    monkeypatch.setattr(secure_summation, "release_digest", digest)
    run = run_inline(tmp_path / "run", ON, "federation.num_rounds=1")
    assert "terms are for another release" in run.rows()[1]["failed"]["0"]
    with Ledger(run.path / "ledger.sqlite") as ledger:
        assert ledger.clients() == []


LOCAL = ["engine=inline", "federation.num_clients=6", "privacy.noise=seeded"]


@pytest.mark.parametrize(
    "words",
    [
        ["strategy=privatekt", "strategy.local.epochs=1"],
        ["strategy=fedavg", "strategy.local.epochs=1"],
        [
            "strategy=fedavg",
            "strategy.local.epochs=1",
            "protection=distributed",
            "privacy.epsilon=8",
        ],
        ["strategy=dpfl_bnn", "strategy.local.steps=1"],
        ["strategy=nbafl", "strategy.local.epochs=1"],
        ["strategy=dpsgd_fedavg", "model=mlp"],
        ["strategy=class_statistics"],
        ["strategy=class_moments", "federation.public=0"],
        ["strategy=gradient_rounds", "federation.public=0"],
        ["strategy=scaffold", "strategy.local.epochs=1"],
        ["strategy=local_only", "strategy.local.epochs=1"],
        ["strategy=fedper", "strategy.local.epochs=1"],
    ],
    ids=lambda words: " ".join(words),
)
def test_both_halves_of_every_strategy_that_sums_mean_the_same_release(tmp_path, words):
    run = run_inline(tmp_path / "run", *words, ON, "federation.num_rounds=1", small=LOCAL)
    assert run.rows()[1]["answered"] == 6


def test_both_halves_of_a_summed_evaluation_mean_the_same_release(tmp_path):
    words = ["strategy=fedavg", "federation.num_rounds=1", "evaluation=protected_counts"]
    words += ["evaluation.counts.noise=gaussian", "evaluation.counts.epsilon=1.0", ON]
    assert run_inline(tmp_path / "run", *words).rows()[1]["evaluation_clients"] == 6


def test_a_question_is_the_same_for_all_nodes_and_all_of_it_counts():
    def content(values, clients=(0,), **settings):
        task = ConfigRecord({"round": 1, "clients": list(clients), **settings})
        arrays = ArrayRecord({"model": Array(np.array(values, np.float32))})
        return RecordDict({"model": arrays, "task": task})

    question = partial(question_of, kind="train", started="")
    asked = question(content([1, 2]))
    assert asked == question(content([1, 2], clients=(1, 2)))
    others = [content([1, 3]), content([[1, 2]]), content([1, 2], epsilon=8.0)]
    assert len({asked, *map(question, others)}) == 4
