"""DPFL-BNN's client half: mixing, memory on disk, what is charged, hostile tasks."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.dpfl_bnn import DPFLBNNClient
from fl_app.config.compose import compose
from fl_app.run.hosts import SimulatedHost
from murmur.algorithms.dpfl_bnn.network import bnn
from murmur.learning.codec import BitCodec, WeightCodec
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.events import NonPrivateEvent, RandomizedBitsEvent
from murmur.privacy.noise import NoiseGenerator
from murmur.round.client_state import ClientState, ClientStateError
from murmur.round.site import SimulatedSite
from tests.made import made

CLASSES, SHAPE = 4, (1, 8, 8)
LOCAL = {
    "steps": 4,
    "batch_size": 10,
    "learning_rate": 0.1,
    "decay": 0.1,
    "decay_every": 40,
    "beta1": 0.5,
}
BUDGET = {"hamming": None, "mask": 1.0}


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, CLASSES, 60)
    images = rng.random((60, *SHAPE), dtype=np.float32) * 0.3
    for image, label in zip(images, labels, strict=True):
        image[:, 2 * label : 2 * label + 2] += 1
    return LocalData(images, labels, np.arange(40))


@pytest.fixture
def client(tmp_path, data):
    def build(folder=tmp_path, **changed):
        factory = partial(bnn, channels=[2, 3], hidden=5)
        test = (data.images[40:], data.labels[40:])
        budget = Budget(np.inf, 1e-5)
        setup = ClientSetup(
            Trainer(factory, SHAPE, CLASSES),
            data.images[:0],
            test,
            budget,
            1,
            ClientState(folder / "clients"),
        )
        settings = {
            "gamma": 0.1,
            "upload": "sign",
            "noise": True,
            "flip": "bit",
            "beta": 0.3,
            "budget": BUDGET,
            "local": LOCAL,
            "evaluate_examples": None,
        }
        return made(DPFLBNNClient, setup, **{**settings, **changed})

    return build


def task(client, round=1, who=0, seed=0, purpose="train"):
    size = client.trainer.num_parameters
    model = np.random.default_rng([seed, round]).uniform(-1, 1, size).astype(np.float32)
    return Task(round, who, model, {}, {}, purpose)


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*.safetensors")}


def test_newcomer_starts_from_the_servers_mean_and_others_mix_it_in_once(client, data):
    it = client(beta=0.25)
    it.local = replace(it.local, learning_rate=1e-12)  # training then changes next to nothing
    first, second = task(it, 1), task(it, 2)
    np.testing.assert_allclose(it.train(first, data), first.model, atol=1e-6)
    mixed = 0.25 * second.model + 0.75 * first.model
    np.testing.assert_allclose(it.train(second, data), mixed, atol=1e-6)
    np.testing.assert_allclose(it.train(second, data), mixed, atol=1e-6)


def test_weights_stay_within_one_even_where_a_debiased_mean_does_not(client, data):
    it = client()
    for number in (1, 2):
        asked = task(it, number)
        weights = it.train(replace(asked, model=asked.model * 5), data)
        assert np.abs(weights).max() <= 1


def test_a_round_asked_again_gives_the_same_weights_and_changes_no_file(client, data, tmp_path):
    it = client()
    it.train(task(it, 1), data)
    once = it.train(task(it, 2), data)
    kept = files(tmp_path)
    assert np.array_equal(it.train(task(it, 2), data), once)
    assert files(tmp_path) == kept


def test_state_survives_a_restart_and_belongs_to_one_client(client, data, tmp_path):
    it = client()
    it.train(task(it, 1, who=3), data)
    it.train(task(it, 1, who=4, seed=9), data)
    shutil.copytree(tmp_path, tmp_path / "kept")
    going_on = it.train(task(it, 2, who=3), data)
    assert np.array_equal(client(tmp_path / "kept").train(task(it, 2, who=3), data), going_on)
    assert {path.name for path in (tmp_path / "clients").iterdir()} == {"3", "4"}


def test_evaluation_changes_no_state_and_no_later_round(client, data, tmp_path):
    it = client()
    it.train(task(it, 1), data)
    kept = files(tmp_path)
    report = it.train(task(it, 1, seed=5, purpose="evaluate"), data)
    assert report.shape == (2,)
    assert np.array_equal(it.train(task(it, 1, seed=5, purpose="evaluate"), data), report)
    assert files(tmp_path) == kept
    fresh = client(shutil.copytree(tmp_path, tmp_path / "other"))
    assert np.array_equal(it.train(task(it, 2), data), fresh.train(task(it, 2), data))


def test_report_is_of_the_mixed_model_and_of_the_servers_signs(client, data):
    it = client(beta=1.0)  # then both are the same model
    it.train(task(it, 1), data)
    own, signs = it.train(task(it, 1, seed=5, purpose="evaluate"), data)
    assert own == signs
    assert it.codec(task(it, purpose="evaluate")) == WeightCodec(2, bound=1.0)


def test_clients_learn_their_data(client, data):
    it = client(noise=False, local={**LOCAL, "steps": 200, "learning_rate": 0.02})
    weights = it.train(task(it, 1), data)
    assert it.train(replace(task(it, 1, purpose="evaluate"), model=weights), data)[0] > 0.8


def test_nothing_is_charged_for_a_report_and_every_bit_for_a_round(client, data):
    it = client()
    bits = it.trainer.num_parameters
    assert it.event(task(it)).event == RandomizedBitsEvent(0.1, bits, bits)
    assert it.event(task(it, purpose="evaluate")) is None
    assert client(noise=False).event(task(it)) == NonPrivateEvent()
    assert client(flip="tensor").event(task(it)) == NonPrivateEvent()
    clipped = client(budget={**BUDGET, "hamming": 3, "mask": 0.5})
    assert clipped.event(task(it)).event == RandomizedBitsEvent(0.1, -(-bits // 2), 6)


def test_release_has_the_uploaded_bits_only_and_few_changes_if_clipped(client, data):
    it = client(noise=False, budget={**BUDGET, "hamming": 3, "mask": 0.5})
    asked = task(it)
    release = it.privatize(it.train(asked, data), asked, NoiseGenerator.seeded(1))
    assert it.codec(asked) == BitCodec(len(release))
    places = it.release.coordinates(1, asked.round)
    assert np.count_nonzero(release != (asked.model[places] >= 0)) == 3


def test_one_coin_per_tensor_flips_whole_tensors(client):
    it = client(flip="tensor")
    update = np.random.default_rng(2).uniform(-1, 1, it.trainer.num_parameters).astype(np.float32)
    sizes = [t.numel() for _, t in it.trainer.flat.module.named_parameters()]
    seen = set()
    for attempt in range(20):
        release = it.privatize(update, task(it), NoiseGenerator.seeded("coin", attempt))
        same = (update >= 0) == release.astype(bool)
        for tensor in np.split(same, np.cumsum(sizes)[:-1]):
            assert tensor.all() or not tensor.any()
            seen.add(bool(tensor[0]))
    assert seen == {True, False}


def test_learning_rate_falls_by_the_tenth_every_forty_rounds(client):
    local = client().local
    rates = [local.rate(number) for number in (1, 40, 41, 81)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.01, 0.001])


@pytest.mark.parametrize("fault", ["shape", "nan"])
def test_hostile_tasks_are_refused_before_anything_is_charged(client, data, fault):
    it = client()
    it.train(task(it, 3), data)
    asked = task(it, 4)
    asked = {
        "shape": replace(asked, model=asked.model[:-1]),
        "nan": replace(asked, model=np.full_like(asked.model, np.nan)),
    }[fault]
    with pytest.raises(TaskError):
        it.event(asked)


def test_a_round_whose_start_is_forgotten_is_refused_before_anything_is_charged(client, data):
    it = client()
    for number in (1, 2, 3):
        it.train(task(it, number), data)
    with pytest.raises(ClientStateError, match="round 1 is no longer kept"):
        it.event(task(it, 2))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"beta": 1.5}, "beta=1.5"),
        ({"flip": "none"}, "flip='none'"),
        ({"flip": "tensor", "budget": {**BUDGET, "mask": 0.5}}, "flip='tensor'"),
        ({"local": {**LOCAL, "steps": 0}}, "steps=0"),
        ({"local": {**LOCAL, "decay": 0}}, "decay=0"),
        ({"local": {**LOCAL, "decay_every": 0}}, "decay_every=0"),
    ],
)
def test_bad_settings_are_refused_on_construction(client, changed, words):
    with pytest.raises(ValueError, match=words):
        client(**changed)


@pytest.mark.parametrize("simulated", [True, False])
def test_reports_leave_a_simulation_without_a_charge_and_a_device_never(tmp_path, simulated):
    settings = replace(SimulatedSite.of(tmp_path), free_reports=simulated)
    config = compose(["strategy=dpfl_bnn", "federation.num_clients=3", "model.hidden=5"])
    node = SimulatedHost(config, settings)
    model = np.zeros(node.trainer.num_parameters, np.float32)
    content = RecordDict(
        {
            "model": ArrayRecord({"model": Array(model)}),
            "task": ConfigRecord({"purpose": "evaluate", "round": 1, "clients": [0, 2]}),
        }
    )
    report = node.answer(content)["report"]
    assert (report["clients"] == [0, 2]) == simulated
    assert node.ledger.spent(0).events == ()
    if not simulated:
        assert "simulations only" in report["reasons"][0]
