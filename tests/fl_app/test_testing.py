"""``fl_app.testing``: a federation runs to its end; checks tell right clients from wrong."""

from functools import partial

import numpy as np
import pytest

from clients.base import Client
from fl_app.testing import (
    Federation,
    assert_answers_alike,
    assert_release_follows_event,
    random_data,
)
from murmur.learning.codec import BitCodec, GridCodec
from murmur.privacy.budget import Budget
from murmur.privacy.events import (
    Adjacency,
    ComposedEvent,
    DiscreteGaussianEvent,
    Release,
    RepeatedEvent,
    Unit,
)
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from strategies.base import CohortStrategy

BITS, STEPS, SIGMA = 6, 100, 200.0


class Bits(CohortStrategy):
    """Counts randomised bits, and moves every weight by their balance."""

    algorithm = "randomised bits"

    def codec(self):
        return BitCodec(BITS)

    def update(self, number, model, total, weight):
        return model + np.float32((2 * total - weight).sum() / 100)

    def release_event(self):
        return BinaryRandomizedResponse(0.3).event(BITS)


class BitsClient(Client):
    """Says of each label whether it has it; ``gamma``: of the noise, charged as of 0.3."""

    def __init__(self, setup, *, gamma=0.3):
        super().__init__(setup)
        self.mechanism = BinaryRandomizedResponse(gamma)

    def codec(self, task):
        return BitCodec(BITS)

    def event(self, task):
        return BinaryRandomizedResponse(0.3).event(BITS)

    def train(self, task, data):
        return np.isin(np.arange(BITS), data.labels[data.indices])

    def privatize(self, update, task, noise):
        return self.mechanism.privatize(update, noise)


class MeanClient(Client):
    """The clipped sum of its images with Gaussian noise of ``sigma``, charged as of SIGMA."""

    def __init__(self, setup, *, sigma=SIGMA):
        super().__init__(setup)
        self.mechanism = DiscreteGaussian(sigma=sigma, sensitivity=2 * STEPS, dimension=16, grid=1)

    def codec(self, task):
        return GridCodec(16, bound=2**20)

    def event(self, task):
        event = DiscreteGaussianEvent(SIGMA, 2 * STEPS)
        return Release(event, Unit.CLIENT, Adjacency.REPLACE_ONE)

    def train(self, task, data):
        mean = data.images[data.indices].reshape(len(data), -1).mean(axis=0) - 0.5
        return np.trunc(STEPS * mean / max(1.0, np.linalg.norm(mean))).astype(np.int64)

    def privatize(self, update, task, noise):
        return self.mechanism.privatize_integers(update, noise)


class Sharp(MeanClient):
    def train(self, task, data):
        if not np.isfinite((data.images[data.indices] ** 2).sum()):
            raise ValueError("overflow")
        return super().train(task, data)


class Priced(MeanClient):
    """Charges less once it has seen a large record."""

    seen = 1

    def event(self, task):
        return DiscreteGaussianEvent(self.seen * SIGMA, 2 * STEPS)

    def train(self, task, data):
        self.seen += int((data.images[data.indices] > 1).any())
        return super().train(task, data)


def federation(folder, client=BitsClient):
    data = [random_data(30, seed=1), random_data(30, seed=2)]
    budget = Budget(20.0, 1e-5, rounds=3)
    return Federation(folder, Bits, client, data, budget=budget)


def far_apart():
    """Two data sets of one client, whose means and labels are far apart."""
    data, other = random_data(30, seed=3), random_data(30, seed=4)
    data.images[:], other.images[:] = 9.0, -9.0
    data.labels[:], other.labels[:] = 0, 3
    return data, other


def test_two_clients_answer_three_rounds_and_are_charged_for_each(tmp_path):
    both = federation(tmp_path / "one")
    before = both.model
    after = both.run()
    assert after.shape == before.shape and not np.array_equal(after, before)
    again = federation(tmp_path / "two")
    assert np.array_equal(again.run(), after)
    charged = ComposedEvent((RepeatedEvent(both.strategy.release_event(), 3),))
    assert both.charges(0) == both.charges(1) == charged
    assert both.strategy.rounds.participations == {0: 3, 1: 3}


@pytest.mark.parametrize("right", [BitsClient, MeanClient])
def test_a_release_that_follows_its_event_passes_and_shows_something(tmp_path, right):
    it = federation(tmp_path, right)
    assert assert_release_follows_event(it.client, it.task(), *far_apart()) > 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        partial(BitsClient, gamma=0.45),
        partial(MeanClient, sigma=SIGMA / 2),
        partial(MeanClient, sigma=1 / 8),
    ],
)
def test_less_noise_than_charged_is_seen(tmp_path, wrong):
    it = federation(tmp_path, wrong)
    with pytest.raises(AssertionError, match="the noise is less than charged"):
        assert_release_follows_event(it.client, it.task(), *far_apart())


def test_a_client_that_answers_in_one_form_passes(tmp_path):
    it = federation(tmp_path)
    assert_answers_alike(it.client, it.task(), random_data(10), classes=BITS)


@pytest.mark.parametrize(
    ("wrong", "said"), [(Sharp, "1e\\+30 .* fail"), (Priced, "changes its event")]
)
def test_a_record_that_changes_the_form_of_an_answer_is_named(tmp_path, wrong, said):
    it = federation(tmp_path, wrong)
    with pytest.raises(AssertionError, match=said):
        assert_answers_alike(it.client, it.task(), random_data(10))
