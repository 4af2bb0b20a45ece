"""DP-FedAvg's client half: clipped updates, the bit, and what the ledger is told."""

from functools import partial

import numpy as np
import pytest

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.fedavg import FedAvgClient
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.events import NonPrivateEvent
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection import Central
from murmur.round.client_state import ClientState
from tests.made import made

NOISE = NoiseGenerator.seeded("unused")


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 40)
    images = np.zeros((40, 1, 4, 4), np.float32)
    images[np.arange(40), 0, labels, :] = 1
    return LocalData(images, labels, np.arange(30))


def client(tmp_path, adaptive=False):
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[8]), (1, 4, 4), 4
    )
    public = np.zeros((0, 1, 4, 4), np.float32)
    budget = Budget(8.0, 1e-5, 5, threat="central")
    memory, cohorts = ClientState(tmp_path), Cohorts(size=200)
    setup = ClientSetup(trainer, public, None, budget, 1, memory, cohorts=cohorts)
    return made(
        FedAvgClient,
        setup,
        local={"epochs": 3, "steps": None, "batch_size": 10, "learning_rate": 0.5},
        proximal_mu=0.0,
        protection=partial(Central, clipping={"norm": 1.0, "adaptive": adaptive}),
    )


def task(it, clip=1.0):
    model = it.trainer.initial(np.random.default_rng(0))
    return Task(1, 0, model, {"clip": np.array([clip])}, {})


@pytest.mark.parametrize("clip", [0.01, 100.0])
def test_update_is_clipped_and_sent_in_steps_of_the_norm(tmp_path, data, clip):
    it = client(tmp_path)
    asked = task(it, clip)
    update = it.train(asked, data)
    steps = it.privatize(update.copy(), asked, NOISE)
    length = np.linalg.norm(update)
    assert 0.1 < length < 10
    expected = update * min(1, clip / length)
    np.testing.assert_allclose(steps * clip / CLIP_STEPS, expected, atol=1.01 * clip / CLIP_STEPS)
    it.codec(asked).expand(it.codec(asked).pack(steps), 1)


@pytest.mark.parametrize(("clip", "bit"), [(0.01, -CLIP_STEPS), (100.0, CLIP_STEPS)])
def test_bit_says_whether_the_update_was_short_enough(tmp_path, data, clip, bit):
    it = client(tmp_path, adaptive=True)
    asked = task(it, clip)
    steps = it.privatize(it.train(asked, data), asked, NOISE)
    assert steps[-1] == bit
    assert len(steps) == it.trainer.num_parameters + 1


def test_a_zero_update_is_short_enough(tmp_path):
    it = client(tmp_path, adaptive=True)
    steps = it.privatize(np.zeros(it.trainer.num_parameters), task(it), NOISE)
    assert steps[-1] == CLIP_STEPS
    assert not steps[:-1].any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_answered_with_what_can_be_carried(tmp_path, value):
    it = client(tmp_path)
    update = np.zeros(it.trainer.num_parameters)
    update[0] = value
    codec = it.codec(task(it))
    codec.expand(codec.pack(it.privatize(update, task(it), NOISE)), 1)


def test_ledger_is_told_that_nothing_protects_the_update_itself(tmp_path, data):
    it = client(tmp_path)
    assert it.event(task(it)) == NonPrivateEvent()


@pytest.mark.parametrize(
    "clip",
    [
        None,
        np.array([0.0]),
        np.array([5e-324]),  # by which (1, 1) is no longer than (1, 0): √2 is 1 there
        np.array([np.inf]),
        np.array([1.0, 1.0]),
        np.array([1.0], np.float32),
    ],
    ids=["none", "zero", "least", "infinite", "two", "dtype"],
)
def test_hostile_clipping_norms_are_refused(tmp_path, data, clip):
    it = client(tmp_path)
    arrays = {} if clip is None else {"clip": clip}
    with pytest.raises(TaskError, match="clip"):
        it.event(Task(1, 0, task(it).model, arrays, {}))
