"""The evaluation's client half: its own limits, softmax of its own, charged by the node."""

from dataclasses import replace

import numpy as np
import pytest

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.protected_evaluation import CLEAN, PROTECTED, ClusteringResultClient, CountsClient
from murmur.algorithms.protected_evaluation import CLEAN_TOTAL
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.events import LaplaceEvent
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.record_choice import fixed_sample
from murmur.random import experiment_rng
from murmur.round.client_state import ClientState
from tests import charge_tape
from tests.charge_tape import charged, losses
from tests.fl_app.device.test_node import POLICY, ask, make_node, report

record = charge_tape.record
K = 4


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    return LocalData(
        rng.random((40, 1, 4, 4), dtype=np.float32), rng.integers(0, K, 40), np.arange(30)
    )


def setup(tmp_path):
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[8]), (1, 4, 4), K
    )
    return ClientSetup(
        trainer,
        np.zeros((0, 1, 4, 4), np.float32),
        None,
        Budget(8.0, 1e-5),
        1,
        ClientState(tmp_path),
        (30,),
    )


def clustering(tmp_path, every=1, **changed):
    result = {"privacy": "laplace", "epsilon": 10.0, **changed}
    return ClusteringResultClient(setup(tmp_path), every=every, result=result)


def task(it, purpose=PROTECTED, round=2, scale=1.0):
    model = it.trainer.initial(np.random.default_rng(0)) * np.float32(scale)
    return Task(round, 0, model, {}, {}, purpose)


def test_vector_is_a_mean_of_probabilities_whatever_the_model_exports(tmp_path, data):
    it = clustering(tmp_path)
    vector = it.train(task(it, scale=1e4), data)
    assert vector.min() >= 0
    assert vector.sum() == pytest.approx(1)
    row = it.privatize(vector, task(it), NoiseGenerator.seeded(1))
    assert row.shape == (K,)
    assert it.codec(task(it)).expand(it.codec(task(it)).pack(row), 1).shape == (K,)


def test_a_record_whose_outputs_overflow_moves_the_mean_no_further_than_any_other(tmp_path, data):
    """A server may choose a model under which one record's outputs are infinite, and no other's."""
    it = clustering(tmp_path, unit="record", records=30)
    images = np.zeros_like(data.images)
    images[7] = 1e9
    model = it.trainer.initial(np.random.default_rng(0)) * np.float32(1e15)
    asked = Task(2, 0, model, {}, {}, PROTECTED)
    with_it = it.train(asked, LocalData(images, data.labels, data.indices))
    without = it.train(asked, LocalData(np.zeros_like(images), data.labels, data.indices))
    it.trainer.load(model)
    assert not np.isfinite(it.trainer.logits(images[7:8])).all()
    assert np.abs(with_it - without).sum() <= it.result.change * (1 + 1e-9)


def test_clean_vector_costs_nothing_since_it_is_a_simulations_only(tmp_path, data):
    it = clustering(tmp_path)
    assert it.event(task(it, CLEAN)) is None
    assert isinstance(it.event(task(it)).event, LaplaceEvent)
    row = it.privatize(it.train(task(it, CLEAN), data), task(it, CLEAN), NoiseGenerator.seeded(1))
    assert row.sum() == CLEAN_TOTAL


def test_client_keeps_its_own_pace_and_its_own_floor(tmp_path, data):
    it = clustering(tmp_path, every=2)
    with pytest.raises(TaskError, match=r"^round=3"):
        it.event(task(it, round=3))
    few = clustering(tmp_path, unit="record", records=31)
    with pytest.raises(TaskError, match=r"^records=31: .* published fewer"):
        few.event(task(few))
    silent = clustering(tmp_path, privacy="none")
    with pytest.raises(TaskError, match=r"^privacy=none"):
        silent.event(task(silent))


def test_hostile_model_is_refused_before_anything_is_charged(tmp_path, data):
    it = clustering(tmp_path)
    with pytest.raises(TaskError, match="model"):
        it.event(task(it, scale=np.nan))


def test_broken_vector_is_never_sent(tmp_path):
    it = clustering(tmp_path)
    with pytest.raises(ValueError, match=r"^vector"):
        it.privatize(np.full(K, np.nan), task(it), NoiseGenerator.seeded(1))


def test_counts_are_of_a_bounded_sample(tmp_path, data):
    counts = {"epsilon": 1.0, "unit": "client", "examples": 7}
    it = CountsClient(setup(tmp_path), every=1, counts=counts)
    found = it.train(task(it), data)
    assert found.sum() == 7
    assert np.array_equal(it.train(task(it), data), found)


def right_where_counted(it, count):
    """Records that the model gets right where a public order of places has them counted.

    So a server may arrange them for whom it knows: one record less before them, and others count.
    """
    images = np.random.default_rng(2).random((count + 1, 1, 4, 4), dtype=np.float32)
    asked = task(it)
    it.trainer.load(asked.model)
    found = it.trainer.logits(images).argmax(axis=1)
    order = experiment_rng(1, "evaluation sample", asked.round).permutation(count)
    labels = (found + 1) % K
    labels[order[: count // 2]] = found[order[: count // 2]]
    labels[count] = found[count]
    return images, labels


def orders_of(labels, names):
    """Orders in which the same records may lie on a disk."""
    by_class = np.lexsort((names, labels))
    by_date = np.random.default_rng(3).permutation(len(labels))
    return [np.arange(len(labels)), by_class, by_class[::-1], np.argsort(names), by_date]


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_one_record_exchanged_moves_one_prediction_in_whatever_order(tmp_path, record, noise):
    """Of the places that a public order chose others' records came to stand on, 50 of 100."""
    counts = {"epsilon": 1.0, "unit": "record", "examples": 100, "noise": noise}
    it = CountsClient(setup(tmp_path), every=1, counts=counts)
    images, labels = right_where_counted(it, 200)
    names = np.random.default_rng(4).permutation(201)
    base = np.arange(200)
    tape = record(it, task(it), LocalData(images, labels, base))
    paid = charged(it.event(task(it)))
    for rows in (base, base[1:], *(np.append(np.delete(base, x), 200) for x in (0, 57, 199))):
        for order in orders_of(labels[rows], names[rows]):
            data = LocalData(images, labels, rows[order])
            lost = losses(tape, record(it, task(it), data, tape))
            assert all(sum(lost[kind]) <= sum(paid[kind]) * (1 + 1e-9) for kind in lost)


def test_what_is_counted_for_a_record_is_drawn_anew_in_secret(tmp_path, data, record):
    counts = {"epsilon": 1.0, "unit": "record", "examples": 7}
    it = CountsClient(setup(tmp_path), every=1, counts=counts)
    found = set()
    for name in range(20):
        noise = NoiseGenerator.seeded(name)
        found.add(tuple(fixed_sample(data.contents(), 7, noise).tolist()))
    assert len(found) == 20
    tape = record(it, task(it), data)
    assert sum(tape.seen[0][2].tolist()) == 7


def test_the_evaluation_says_itself_whom_it_protects(tmp_path):
    for unit in ("client", "record"):
        whole = replace(setup(tmp_path), budget=Budget(8.0, 1e-5, unit=unit))
        for own in ("client", "record"):
            counts = {"epsilon": 1.0, "unit": own, "examples": 7}
            event = CountsClient(whole, every=1, counts=counts).cost()
            assert event.unit == own


def evaluate(node, **changed):
    return ask(node, indices=(0,), purpose=PROTECTED, **changed)


def test_node_sends_rows_and_charges_them_beside_the_training(tmp_path):
    node = make_node(tmp_path, "evaluation=protected_counts")
    node.answer(ask(node))
    reply = node.answer(evaluate(node))
    assert set(reply) == {"report", "contribution"}
    assert set(report(reply)) == {"clients", "refused", "reasons"}
    assert reply.array_records["contribution"]["rows"].numpy().shape == (3, 2)
    kinds = [type(event.event).__name__ for event in node.ledger.events(1)]
    assert kinds == ["RepeatedEvent", "LaplaceEvent"]


def test_node_without_an_evaluation_refuses_its_purpose(tmp_path):
    node = make_node(tmp_path)
    reply = node.answer(evaluate(node))
    assert "contribution" not in reply
    assert all(PROTECTED in reason for reason in report(reply)["reasons"])
    assert node.ledger.events(1) == []


def test_devices_owner_limits_evaluation_and_refuses_what_has_no_charge(tmp_path):
    policy = tmp_path / "policy.yaml"
    laplace = "{randomized_response: {max_epsilon: 3.0}, laplace: {min_noise_multiplier: 0.5}}"
    allowed = POLICY.replace("{randomized_response: {max_epsilon: 3.0}}", laplace)
    policy.write_text(allowed + "unit: record\n")
    words = ["evaluation=protected_counts", f"privacy.policy={policy}"]
    node = make_node(tmp_path / "a", *words)
    assert report(node.answer(evaluate(node)))["clients"] == [0, 1, 2]
    clean = node.answer(ask(node, indices=(0,), purpose=CLEAN))
    assert report(clean)["clients"] == []
    assert all("simulations only" in reason for reason in report(clean)["reasons"])
    loud = make_node(tmp_path / "b", *words, "evaluation.counts.epsilon=5")
    refused = loud.answer(evaluate(loud))
    assert report(refused)["clients"] == []
    assert loud.ledger.clients() == []


def test_counts_that_protect_a_record_are_refused_where_clients_are_to_be_protected(tmp_path):
    policy = tmp_path / "policy.yaml"
    laplace = "{randomized_response: {max_epsilon: 3.0}, laplace: {min_noise_multiplier: 0.5}}"
    policy.write_text(POLICY.replace("{randomized_response: {max_epsilon: 3.0}}", laplace))
    words = ["evaluation=protected_counts", f"privacy.policy={policy}"]
    node = make_node(tmp_path / "a", *words)
    refused = report(node.answer(evaluate(node)))
    assert refused["clients"] == [] and node.ledger.clients() == []
    assert all("unit=record" in reason for reason in refused["reasons"])
    whole = make_node(tmp_path / "b", *words, "evaluation.counts.unit=client")
    assert report(whole.answer(evaluate(whole)))["clients"] == [0, 1, 2]


def test_lifetime_cap_counts_training_and_evaluation_together(tmp_path):
    policy = tmp_path / "policy.yaml"
    laplace = "{randomized_response: {max_epsilon: 3.0}, laplace: {min_noise_multiplier: 0.1}}"
    allowed = POLICY.replace("{randomized_response: {max_epsilon: 3.0}}", laplace)
    policy.write_text(allowed + "unit: record\n")
    words = ["privacy=paper", "evaluation=protected_counts", "evaluation.counts.epsilon=9"]
    node = make_node(tmp_path / "a", *words, f"privacy.policy={policy}")
    assert report(node.answer(ask(node, clients=[0])))["clients"] == [0]
    reply = node.answer(evaluate(node, clients=[0]))
    assert report(reply)["clients"] == []
    assert "lifetime" in report(reply)["reasons"][0]
