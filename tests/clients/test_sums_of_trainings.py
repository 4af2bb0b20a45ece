"""Noise within a training is not hidden by other clients' noise: an attack that shows it.

A model that a server chooses makes the rest of a training an amplifier: after the first step the
sign of one number, noise and all, decides where ninety-nine other records pull. What the server
learns of that sign is the first step with this client's noise alone, however many clients there
are, since others' noise is small beside the pull.
"""

from functools import partial

import numpy as np
import torch

from clients.base import ClientSetup, LocalData, Task
from clients.dpsgd_fedavg import DpSgdClient
from murmur.algorithms.dpsgd import LocalDpSgd
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.audit import empirical_epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.events import DiscreteGaussianEvent, RepeatedEvent, SummedEvent, releases
from murmur.privacy.noise import NoiseGenerator
from murmur.round.client_state import ClientState
from tests.sums import noised

SHAPE, RECORDS, CLIENTS, DELTA = (1, 4, 4), 100, 300, 1e-5
BRIGHT = 1e4  # so that a record's gradient is clipped, or next to nothing


def client(tmp_path):
    trainer = Trainer(partial(mlp, hidden=[]), SHAPE, 2)
    public = np.zeros((1, *SHAPE), np.float32)
    memory, sizes = ClientState(tmp_path), (RECORDS,) * CLIENTS
    limits = Budget(16.0, DELTA, unit="record")
    setup = ClientSetup(trainer, public, None, limits, 1, memory, sizes)
    local = LocalDpSgd(2, RECORDS, clipping_norm=1.0, learning_rate=1.0)
    return DpSgdClient(setup, local=local)


def axis(trainer):
    """The unit vector along which every record pulls, one way or the other."""
    pulls = torch.zeros(trainer.num_parameters)
    views = trainer.flat.views(pulls)
    sides = torch.tensor([1.0, -1.0])
    views["1.weight"].copy_(torch.outer(sides, torch.full((16,), BRIGHT / 4)))
    views["1.bias"].copy_(sides)
    return (pulls / pulls.norm()).numpy().astype(float)


def test_a_sum_of_trainings_shows_a_first_step_with_one_client_s_noise(tmp_path):
    it = client(tmp_path)
    mechanism = it.training.schedule.mechanism(16.0, DELTA, RECORDS)
    step, along = 1 / RECORDS, axis(it.trainer)  # how far one clipped gradient pulls
    images = np.full((RECORDS, *SHAPE), BRIGHT / 4, np.float32)
    labels = np.arange(RECORDS) % 2
    labels[0] = 1
    data = LocalData(images, labels, np.arange(RECORDS))
    without = images.copy()
    without[0] = np.nan  # a null record
    # Where the first step's pull of all others leads to a deviation and a half of its noise.
    start = (np.count_nonzero(labels[1:]) + 1.5 * mechanism.noise_multiplier) * step
    task = Task(1, 0, (start * along).astype(np.float32), {}, {})
    noise = NoiseGenerator.seeded("trainings")

    def end(held):
        return float(it.answer(task, held, noise) @ along) / step

    spread = np.sqrt(2 * (CLIENTS - 1)) * mechanism.noise_multiplier
    other = LocalData(without, labels, data.indices)
    seen = np.array([[end(data), end(other)] for _ in range(400)])
    rng = np.random.default_rng(0)
    seen += spread * rng.normal(size=seen.shape)  # of others whose data give them no choice
    one, another = seen.T
    found = empirical_epsilon(one, another, DELTA)
    shown = max(found, empirical_epsilon(-one, -another, DELTA))
    [release] = releases(it.event(task))
    charged = epsilon(SummedEvent(release, CLIENTS), DELTA, Threat.SECURE_AGGREGATION).epsilon
    each = DiscreteGaussianEvent(mechanism.sigma, mechanism.sensitivity)
    together = RepeatedEvent(noised(each, CLIENTS), 2)
    believed = epsilon(together, DELTA, Threat.SECURE_AGGREGATION).epsilon
    assert believed < shown <= charged
