"""NbAFL's client half: clip, noise on a grid, sizes, DP-SGD inside, hostile tasks."""

import math
from dataclasses import replace

import numpy as np
import pytest

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.nbafl import NbAFLClient
from murmur.algorithms.nbafl.noise import BOUNDED_CHANGE
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Unit, epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.events import DiscreteGaussianEvent, NonPrivateEvent, RepeatedEvent
from murmur.privacy.mechanisms.clipping import clip_l2
from murmur.privacy.noise import NoiseGenerator
from murmur.round.client_state import ClientState
from tests.made import made

SIZES = (30, 40)


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 40)
    images = np.zeros((40, 1, 4, 4), np.float32)
    images[np.arange(40), 0, labels, :] = 1
    return LocalData(images, labels, np.arange(30))


def client(tmp_path, budget=50.0, sizes=SIZES, hidden=(8,), **changed):
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=list(hidden)),
        (1, 4, 4),
        4,
    )
    setup = ClientSetup(
        trainer,
        np.zeros((0, 1, 4, 4), np.float32),
        None,
        Budget(budget, 0.01, 5, paper_semantics=True),
        1,
        ClientState(tmp_path),
        sizes,
    )
    noise = {
        "num_clients": 2, "clients_per_round": None, "clip": 1.0, "exposures": 1,
        "smallest_dataset": None, "lipschitz": None, "proximal_mu": 0.0, "sensitivity": "paper",
        "calibration": "paper",
    }  # fmt: skip
    local = {
        "epochs": 5, "steps": None, "batch_size": 10, "learning_rate": 0.5, "clipping_norm": 1.0,
    }  # fmt: skip
    keys = local.keys() & changed.keys()
    local |= {key: changed.pop(key) for key in keys}
    return made(NbAFLClient, setup, **{**noise, **changed}, local=local)


def task(it, model=None):
    if model is None:
        model = it.trainer.initial(np.random.default_rng(0))
    return Task(1, 0, model, {}, {})


def test_trained_weights_are_clipped_to_norm_c(tmp_path, data):
    free, tight = client(tmp_path, clip=1e3), client(tmp_path, clip=0.5)
    model = free.train(task(free), data)
    clipped = tight.train(task(tight), data)
    assert 0.5 < np.linalg.norm(model) < 1e3
    assert np.linalg.norm(clipped.astype(np.float64)) <= 0.5
    np.testing.assert_allclose(clipped, model * 0.5 / np.linalg.norm(model), rtol=1e-5)


def test_upload_is_the_clipped_model_plus_noise_of_sigma_u(tmp_path, data):
    it = client(tmp_path, hidden=(400,))
    update = it.train(task(it), data)
    release = it.privatize(update, task(it), NoiseGenerator.seeded("upload"))
    error = release * it.noise.grid - update
    assert it.noise.upload_sigma == pytest.approx(3.10751 * 2 / 30 / 50, rel=1e-5)
    assert abs(error.std() / it.noise.upload_sigma - 1) < 5 / math.sqrt(2 * error.size)
    assert abs(error.mean()) < 5 * it.noise.upload_sigma / math.sqrt(error.size)


def test_a_zero_model_can_be_clipped_and_released(tmp_path, data):
    it = client(tmp_path)
    zero = np.zeros(it.trainer.num_parameters, np.float32)
    codec = it.codec(task(it))
    packed = codec.pack(it.privatize(zero, task(it), NoiseGenerator.seeded(1)))
    assert np.all(np.abs(codec.expand(packed, 1) * it.noise.grid) < 8 * it.noise.upload_sigma)


def test_without_protection_the_upload_is_the_model_on_the_grid(tmp_path, data):
    it = client(tmp_path, budget=math.inf)
    update = it.train(task(it), data)
    release = it.privatize(update, task(it), NoiseGenerator.seeded(1))
    np.testing.assert_allclose(release * it.noise.grid, update, atol=it.noise.grid)
    assert it.event(task(it)) == NonPrivateEvent()


def test_event_says_what_the_noise_and_the_grid_are(tmp_path, data):
    it = client(tmp_path)
    release = it.event(task(it))
    assert (release.unit, release.assumptions) == (Unit.RECORD, (BOUNDED_CHANGE,))
    event = release.event
    assert isinstance(event, DiscreteGaussianEvent)
    multiplier = it.noise.upload_sigma / it.noise.upload_sensitivity
    assert event.sigma / event.sensitivity == pytest.approx(multiplier, rel=1e-3)
    assert event.sigma / event.sensitivity < multiplier


def test_weight_is_the_number_of_examples(tmp_path, data):
    assert client(tmp_path).weight(0) == 30


def test_a_client_smaller_than_m_refuses_before_anything_is_charged(tmp_path, data):
    it = client(tmp_path, sizes=(30, 31), smallest_dataset=30)
    it.setup = replace(it.setup, client_sizes=(29, 31))
    with pytest.raises(TaskError, match=r"^smallest_dataset=30: .* published fewer"):
        it.event(task(it))


def test_a_client_whose_size_is_not_published_refuses(tmp_path):
    it = client(tmp_path, sizes=None, smallest_dataset=30)
    with pytest.raises(TaskError, match="not published here"):
        it.event(task(it))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_training_that_diverges_counts_as_no_training(tmp_path, data, monkeypatch, value):
    it = client(tmp_path)
    asked = task(it)
    spoiled = np.full(it.trainer.num_parameters, value, np.float32)
    monkeypatch.setattr(it.trainer, "parameters", lambda: spoiled)
    np.testing.assert_array_equal(it.train(asked, data), clip_l2(asked.model, it.noise.clip))


@pytest.mark.parametrize("fault", ["shape", "dtype", "nan"])
def test_hostile_model_is_refused_before_anything_is_charged(tmp_path, data, fault):
    it = client(tmp_path)
    model = it.trainer.initial(np.random.default_rng(0))
    model = {
        "shape": model[:-1],
        "dtype": model.astype(np.float64),
        "nan": np.where(np.arange(len(model)) == 3, np.nan, model).astype(np.float32),
    }[fault]
    with pytest.raises(TaskError, match="model"):
        it.event(task(it, model))


def test_proximal_term_keeps_the_model_near_the_broadcast(tmp_path, data):
    start = client(tmp_path).trainer.initial(np.random.default_rng(0))
    moved = [
        np.linalg.norm(it.train(task(it, start), data) - start)
        for it in (client(tmp_path, clip=1e3, proximal_mu=mu) for mu in (0.0, 1.0))
    ]
    assert moved[1] < 0.5 * moved[0]


def inside(tmp_path, **changed):
    return client(tmp_path, sensitivity="dpsgd", calibration="proven", clip=1e3, **changed)


def test_dpsgd_charges_its_steps_and_all_rounds_keep_the_budget(tmp_path, data):
    it = inside(tmp_path, budget=4.0)
    event = it.event(task(it))
    spent = epsilon(RepeatedEvent(event, 5), 0.01).epsilon
    assert 3.9 < spent <= 4.0


def test_dpsgd_learns_where_the_budget_is_large_and_adds_no_noise_to_the_upload(tmp_path, data):
    it = inside(tmp_path, budget=2000.0, epochs=30)
    start = task(it)
    release = it.answer(start, data, NoiseGenerator.seeded("inside"))
    again = it.answer(start, data, NoiseGenerator.seeded("inside"))
    assert np.array_equal(release, again)
    assert not np.array_equal(release, it.answer(start, data, NoiseGenerator.seeded("other")))
    it.trainer.load((release * it.noise.grid).astype(np.float32))
    result = it.trainer.evaluate(data.images[:30], data.labels[:30])
    assert result.accuracy > 0.9


def test_dpsgd_is_pulled_towards_the_broadcast_as_well(tmp_path, data):
    moved = []
    for mu in (0.0, 1.0):
        it = inside(tmp_path, budget=2000.0, proximal_mu=mu)
        start = task(it)
        release = it.answer(start, data, NoiseGenerator.seeded("pull"))
        moved.append(np.linalg.norm(release * it.noise.grid - start.model))
    assert moved[1] < 0.7 * moved[0]


def test_dpsgd_counts_epochs_not_steps(tmp_path):
    with pytest.raises(ValueError, match=r"local.steps=3: sensitivity=dpsgd counts epochs"):
        inside(tmp_path, epochs=None, steps=3)


def test_where_one_record_is_assumed_to_change_little_no_order_of_the_others_counts(tmp_path):
    """In batches by places the order on a disk decided what a model became."""
    rng = np.random.default_rng(1)
    images, labels = rng.random((30, 1, 4, 4), np.float32), rng.integers(0, 4, 30)
    it = client(tmp_path)
    assert it.in_keyed_order
    asked = Task(1, 0, it.trainer.initial(rng), {}, {}, "train")
    orders = [np.arange(30), np.argsort(labels), np.argsort(-labels), rng.permutation(30)]
    trained = [it.train(asked, LocalData(images, labels, order)) for order in orders]
    assert all(np.array_equal(trained[0], other) for other in trained[1:])


@pytest.mark.parametrize("changed", [{"sensitivity": "worst"}, {"budget": math.inf}])
def test_elsewhere_the_order_is_that_of_the_data(tmp_path, data, changed):
    it = client(tmp_path, calibration=None, **changed)
    assert not it.in_keyed_order
    asked = Task(1, 0, it.trainer.initial(np.random.default_rng(0)), {}, {}, "train")
    assert it.share(asked, data).indices is data.indices
    assert list(tmp_path.iterdir()) == []
