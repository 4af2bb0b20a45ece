"""A node keeps its clients' promises whatever the server asks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.numpy import load

from fl_app.config.compose import compose
from fl_app.run.hosts import SimulatedData, SimulatedHost
from murmur.learning.array_bytes import array_from_bytes
from murmur.privacy.events import Hiding
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.round.collectors import PlainSum
from murmur.round.replies import sealed, unsealed
from murmur.round.site import SimulatedSite
from murmur.round.task import request_digest
from tests.fl_app.running import SMALL

POLICY = """
expires: 2099-01-01
servers: any
algorithms: [privatekt]
mechanisms: {randomized_response: {max_epsilon: 3.0}}
epsilon_per_release: 9.0
epsilon_per_lifetime: 16.0
delta: 1.0e-5
threat: local
minimum_surviving_clients: 2
allow_seeded_noise: true
allow_non_private: false
"""


def make_node(folder, *overrides):
    config = compose([*SMALL, "privacy=paper", "federation.num_rounds=5", *overrides])
    return SimulatedHost(config, SimulatedSite.of(folder, config.privacy.policy))


def ask(node, clients=(0, 1, 2), round=1, indices=(3, 1, 4), scale=1.0, **settings):
    model = node.trainer.initial(np.random.default_rng(0)) * np.float32(scale)
    arrays = {"model": Array(model), "indices": Array(np.asarray(indices))}
    task = ConfigRecord({"round": round, "clients": list(clients), **settings})
    return RecordDict({"model": ArrayRecord(arrays), "task": task})


def report(reply):
    return dict(reply.config_records["report"])


def test_clients_are_summed_into_one_histogram(tmp_path):
    node = make_node(tmp_path)
    reply = node.answer(ask(node))
    total = reply.array_records["contribution"]["sum"].numpy()
    assert total.shape == (3, 10)
    assert (total.sum(axis=1) == 3).all()
    assert report(reply)["clients"] == [0, 1, 2]
    assert report(reply)["packed"] is False


def test_a_single_client_sends_one_byte_for_each_label(tmp_path):
    node = make_node(tmp_path)
    reply = node.answer(ask(node, clients=[2]))
    values = reply.array_records["contribution"]["sum"].numpy()
    assert values.dtype == np.uint8
    assert values.shape == (3,)
    assert report(reply)["packed"] is True


def test_nothing_else_leaves_with_the_contribution(tmp_path):
    node = make_node(tmp_path)
    reply = node.answer(ask(node))
    assert set(reply) == {"report", "contribution"}
    assert set(report(reply)) == {"clients", "refused", "reasons", "weight", "packed"}
    assert set(reply.array_records["contribution"]) == {"sum"}


@pytest.mark.parametrize("together", [0, 3, 1 << 20])
@pytest.mark.parametrize("stack", [1, 2, 3])
def test_releases_that_wait_for_each_other_are_what_they_are_one_by_one(
    tmp_path, monkeypatch, stack, together
):
    def train(half, task, data, noise):
        if task.client == 1:
            raise ValueError("no labels")
        return np.full(3, task.client, np.uint8)

    monkeypatch.setattr("murmur.round.host._TOGETHER", together)
    node = make_node(tmp_path)
    node.stack = stack
    node.train = train
    reply = node.answer(ask(node))
    assert (report(reply)["clients"], report(reply)["refused"]) == ([0, 2], [1])
    total = reply.array_records["contribution"]["sum"].numpy()
    assert (total[:, [0, 2]] == 1).all() and total.sum() == 6


@pytest.mark.parametrize(("rows", "answered"), [(2, [0, 1, 2]), (1, [0])])
def test_a_client_half_that_uses_its_memory_again_changes_nothing_that_it_has_released(
    tmp_path, rows, answered
):
    node = make_node(tmp_path)
    own = np.zeros(3, np.uint8)
    if rows > 1:
        own = np.zeros((rows, 3), np.uint8)[0]

    def train(half, task, data, noise):
        own[:] = task.client  # a label for each of three questions
        return own

    node.train = train
    reply = node.answer(ask(node))
    assert report(reply)["clients"] == answered
    assert all("read-only" in reason for reason in report(reply)["reasons"])
    released = reply.array_records["contribution"]["sum"].numpy()
    if rows > 1:
        assert (released[:, :3] == 1).all()
    else:
        assert released.tolist() == [0, 0, 0]


def test_every_release_is_in_the_ledger_with_what_it_cost(tmp_path):
    node = make_node(tmp_path, "privacy.epsilon=6")
    node.answer(ask(node, indices=[1, 2]))
    assert node.ledger.events(1) == [RandomizedResponse(3.0, 10).release(2, Hiding.REPORTS)]
    assert node.ledger.events(5) == []


def contents(reply):
    """All that a reply holds: its report, and its arrays' bytes."""
    arrays = reply.array_records.get("contribution", {})
    return dict(report(reply)), {name: array.data for name, array in arrays.items()}


def test_same_question_twice_gives_the_same_bytes_and_one_charge(tmp_path):
    node = make_node(tmp_path, "privacy.noise=os", "privacy.epsilon=0.1")
    first = contents(node.answer(ask(node)))
    again = make_node(tmp_path, "privacy.noise=os", "privacy.epsilon=0.1")
    assert contents(again.answer(ask(again))) == first
    assert len(again.ledger.events(0)) == 1


def test_same_round_with_another_question_is_refused_and_free(tmp_path):
    node = make_node(tmp_path)
    node.answer(ask(node))
    for other in (ask(node, scale=2.0), ask(node, indices=[7]), ask(node, clients=[0, 1])):
        reply = node.answer(other)
        assert report(reply)["clients"] == []
        assert "contribution" not in reply
        assert all("round 1" in reason for reason in report(reply)["reasons"])
    assert len(node.ledger.events(0)) == 1


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"indices": [1, 1]}, "indices"),
        ({"indices": np.arange(200)}, "indices"),
        ({"indices": [10**6]}, "indices"),
        ({"scale": np.nan}, "NaN"),
        ({"clients": [10**9]}, "client="),
    ],
)
def test_hostile_task_is_refused_by_name_and_free(tmp_path, changed, word):
    node = make_node(tmp_path)
    reply = node.answer(ask(node, **changed))
    assert report(reply)["clients"] == []
    assert all(word in reason for reason in report(reply)["reasons"])
    assert node.ledger.clients() == []


def test_one_failing_client_costs_the_others_nothing(tmp_path):
    node = make_node(tmp_path)
    shards = list(node.population.shards)
    shards[1] = np.array([], np.int64)
    node.data = SimulatedData(replace(node.population, shards=shards))
    reply = node.answer(ask(node))
    assert report(reply)["clients"] == [0, 2]
    assert report(reply)["refused"] == [1]
    assert (reply.array_records["contribution"]["sum"].numpy().sum(axis=1) == 2).all()
    log = (tmp_path / "errors.log").read_text()
    assert "round 1, client 1: ValueError" in log
    assert "Traceback" in log


def test_device_policy_limits_release_and_lifetime(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    node = make_node(tmp_path, f"privacy.policy={policy}", "privacy.epsilon=8")
    for round, allowed in ((1, True), (2, True), (3, False)):
        reply = node.answer(ask(node, clients=[0], round=round))
        assert bool(report(reply)["clients"]) is allowed, report(reply)
    assert "lifetime" in report(reply)["reasons"][0]
    greedy = make_node(tmp_path, f"privacy.policy={policy}", "privacy.epsilon=1e6")
    reply = greedy.answer(ask(greedy, clients=[1]))
    assert report(reply)["clients"] == []
    assert greedy.ledger.events(1) == []


def test_malformed_policy_refuses_everything(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("algorithms: [privatekt\n")
    node = make_node(tmp_path, f"privacy.policy={policy}")
    reply = node.answer(ask(node))
    assert report(reply)["clients"] == []
    assert node.ledger.clients() == []


def test_a_reply_without_answers_is_stored_with_its_reasons():
    for refused in ({}, {7: "no"}, {0: "é", 10**9: "\n"}):
        reply = unsealed(sealed(PlainSum(), refused))
        assert report(reply)["clients"] == []
        assert report(reply)["refused"] == list(refused)
        assert report(reply)["reasons"] == list(refused.values())
        assert "contribution" not in reply


def test_digest_tells_questions_apart(tmp_path):
    node = make_node(tmp_path)
    questions = [
        ask(node),
        ask(node, round=2),
        ask(node, clients=[0]),
        ask(node, indices=[3]),
        ask(node, scale=2),
        ask(node, extra=1),
    ]
    assert len({request_digest("run", "x", "os", question) for question in questions}) == len(
        questions
    )
    about = [("run", "x", "os"), ("other", "x", "os"), ("run", "y", "os"), ("run", "x", "seeded")]
    assert len({request_digest(*each, ask(node)) for each in about}) == len(about)
    assert request_digest(*about[0], ask(node)) == request_digest(*about[0], ask(node))


def question_of_arrays(arrays, **records):
    kept = {key: Array(name, (1,), "raw", data) for key, (name, data) in arrays.items()}
    configs = {name: ConfigRecord(values) for name, values in records.items()}
    return RecordDict({"a": ArrayRecord(kept), **configs})


def test_no_two_questions_have_one_digest_however_their_fields_are_cut():
    # Each pair differs in where one field ends and the next begins.
    two = {"k": ("u1", b"first"), "l": ("u1", b"second")}
    joined = b"first" + b"a/l/u1/(1,)/6;" + b"second"
    pairs = [
        (question_of_arrays({"k/u1": ("i1", b"")}), question_of_arrays({"k": ("u1/i1", b"")})),
        (question_of_arrays(two), question_of_arrays({"k": ("u1", joined)})),
        (question_of_arrays({}, t={"b": 1}), question_of_arrays({}, **{"t[('b', 1)];": {}})),
        (question_of_arrays({}, t={}, u={}), question_of_arrays({}, **{"t[];u": {}})),
    ]
    for one, other in pairs:
        assert request_digest("run", "x", "os", one) != request_digest("run", "x", "os", other)
    one = pairs[0][0]
    assert len({request_digest("run", "xos", "", one), request_digest("runx", "os", "", one)}) == 2


# Labels are noise alone: ε is tiny, and clients that hardly train would all give the same ones.
NOISE = "privacy.epsilon=0.01", "strategy.K=30", "strategy.local.learning_rate=0.000001"


def noise_of(node, client=0, round=1):
    reply = node.answer(ask(node, [client], round, range(30)))
    return reply.array_records["contribution"]["sum"].numpy().tolist()


def test_clients_and_rounds_have_noise_of_their_own_even_where_a_seed_decides_it(tmp_path):
    node = make_node(tmp_path, "privacy.noise=seeded", *NOISE)
    mine, anothers, later = noise_of(node), noise_of(node, client=1), noise_of(node, round=2)
    assert mine != anothers and mine != later and anothers != later


def test_the_run_s_seed_tells_nothing_about_noise_of_the_operating_system(tmp_path):
    words = "privacy.noise=os", *NOISE
    one, two = make_node(tmp_path / "one", *words), make_node(tmp_path / "two", *words)
    assert noise_of(one) != noise_of(two)


@pytest.mark.parametrize("code", ["?", "u1", "u2", "u4", "u8", "i1", "i4", "i8", "f2", "f4", "f8"])
def test_a_reply_is_a_file_of_safetensors_whatever_numbers_a_codec_packs(code):
    values = np.arange(6).reshape(2, 3).astype(code)
    contributions: list[Any] = [values, list(values)]
    for contribution in contributions:
        collector = PlainSum()
        collector.arrays = {"sum": contribution}
        pieces = sealed(collector, {4: "no"})
        file = b"".join(pieces)
        np.testing.assert_array_equal(load(file)["sum"], values)
        for stored in (pieces, file):
            reply = unsealed(stored)
            found = array_from_bytes(reply["contribution"]["sum"].data)
            assert found.dtype == values.dtype
            np.testing.assert_array_equal(found, values)
            assert reply["report"]["refused"] == [4]
