"""PrivateKT's client half: β from what arrived and its own budget, hostile tasks refused."""

from pathlib import Path

import numpy as np
import pytest

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.local_training import LocalSgd
from clients.privatekt import PrivateKTClient
from murmur.algorithms.privatekt.labeller import Labeller
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.events import Hiding, NonPrivateEvent
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.noise import NoiseGenerator
from murmur.round.client_state import ClientState

CLASSES, POOL = 4, 30


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, CLASSES, 40)
    images = np.zeros((40, 1, 4, 4), np.float32)
    images[np.arange(40), 0, labels, :] = 1
    return LocalData(images, labels, np.arange(30))


def client(tmp_path: Path, epsilon=8.0, max_labels=4):
    public = np.zeros((POOL, 1, 4, 4), np.float32)
    public[np.arange(POOL), 0, np.arange(POOL) % CLASSES, :] = 1
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[8]),
        (1, 4, 4),
        CLASSES,
    )
    setup = ClientSetup(
        trainer, public, None, Budget(epsilon, 1e-5, paper_semantics=True), 1, ClientState(tmp_path)
    )
    return PrivateKTClient(
        setup,
        answers="paper",
        K=max_labels,
        local=LocalSgd(epochs=30, batch_size=10, learning_rate=0.5),
        labeller=Labeller("sgd", 1.0, None),
    )


def task(client, indices, model=None, round=1):
    if model is None:
        model = client.trainer.initial(np.random.default_rng(0))
    return Task(round, 0, model, {"indices": np.asarray(indices)}, {})


def test_client_learns_its_data_and_labels_public_images(tmp_path, data):
    it = client(tmp_path, epsilon=np.inf)
    labels = it.train(task(it, [0, 1, 2, 3]), data)
    assert list(labels) == [0, 1, 2, 3]


def test_epsilon_per_label_follows_from_the_images_that_arrived(tmp_path, data):
    it = client(tmp_path, epsilon=8.0)
    assert it.event(task(it, [0, 1, 2, 3])) == RandomizedResponse(2.0, CLASSES).release(
        4, Hiding.REPORTS
    )
    assert it.event(task(it, [7])) == RandomizedResponse(8.0, CLASSES).release(1, Hiding.REPORTS)


def test_release_is_randomised_and_repeatable_from_its_noise_only(tmp_path, data):
    it = client(tmp_path, epsilon=2.0)
    asked = task(it, [0, 1, 2, 3])
    truth = np.array([0, 1, 2, 3])
    releases = [it.privatize(truth, asked, NoiseGenerator.seeded(i)) for i in range(200)]
    kept = np.mean([release == truth for release in releases])
    beta = np.expm1(0.5) / (np.expm1(0.5) + CLASSES)
    expected = beta + (1 - beta) / CLASSES
    assert abs(kept - expected) < 4 * np.sqrt(expected * (1 - expected) / 800)
    assert np.array_equal(it.privatize(truth, asked, NoiseGenerator.seeded(5)), releases[5])


def test_infinite_budget_is_recorded_as_no_protection(tmp_path, data):
    it = client(tmp_path, epsilon=np.inf)
    assert it.event(task(it, [0])) == NonPrivateEvent()


@pytest.mark.parametrize(
    "indices",
    [
        np.array([], np.int64),
        np.array([0, 0]),
        np.array([-1]),
        np.array([POOL]),
        np.arange(5),
        np.array([0.0, 1.0]),
        np.array([[0, 1]]),
    ],
    ids=["none", "twice", "negative", "outside", "too many", "reals", "matrix"],
)
def test_hostile_indices_are_refused_before_anything_is_charged(tmp_path, data, indices):
    it = client(tmp_path)
    with pytest.raises(TaskError, match="indices"):
        it.event(task(it, indices))


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
        it.event(task(it, [0], model))


def test_same_task_gives_the_same_labels_whatever_ran_before(tmp_path, data):
    it = client(tmp_path)
    first = it.train(task(it, [0, 1, 2]), data)
    it.train(task(it, [3, 4], round=9), data)
    assert np.array_equal(it.train(task(it, [0, 1, 2]), data), first)
