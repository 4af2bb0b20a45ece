"""What real training hands to the noise never moves further than was charged, however it is set.

Worst cases are searched for: records, labels, models, learning rates and epochs far out. For every
key that a server may set, and training as bad as it could be: ``test_charge_of_settings.py``.
"""

import math
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import product

import numpy as np
import pytest

from clients.base import ClientSetup, LocalData, Task
from clients.dpsgd_fedavg import DpSgdClient
from clients.fedavg import FedAvgClient
from clients.kd_dpfl import KdDpflClient
from clients.nbafl import NbAFLClient
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.events import Adjacency, ComposedEvent, Unit, releases
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.policy import Policy, Refusal
from murmur.privacy.protection import Central
from murmur.round.client_state import ClientState
from tests import charge_tape
from tests.charge_tape import charged, losses
from tests.made import made

record = charge_tape.record
SHAPE, CLASSES, SIZE, POOL = (1, 4, 4), 4, 12, 20
NOW = datetime(2026, 1, 1, tzinfo=UTC)
VICTIM = 3  # the record in which neighbours differ
RATES, EPOCHS, SCALES = (0.1, 2.0, 1e3), (1, 20), (0.1, 1.0, 1e4)
PIXELS = (-1e6, -1.0, 1.0, 1e3)


def setup(tmp_path, sizes=(SIZE, SIZE), paper=False):
    trainer = Trainer(partial(mlp, hidden=[5]), SHAPE, CLASSES)
    public = np.random.default_rng(0).random((POOL, *SHAPE), np.float32)
    limits = Budget(8.0, 1e-5, 3, participations=1, paper_semantics=paper)
    return ClientSetup(trainer, public, None, limits, 1, ClientState(tmp_path), sizes)


def local_data():
    rng = np.random.default_rng(5)
    images = rng.random((SIZE, *SHAPE), np.float32)
    return LocalData(images, rng.integers(0, CLASSES, SIZE), np.arange(SIZE))


def neighbours(data):
    """``data`` with one record exchanged, far and near, towards every label."""
    for pixel, label in product(PIXELS, range(CLASSES)):
        images, labels = data.images.copy(), data.labels.copy()
        images[VICTIM], labels[VICTIM] = pixel, label
        yield replace(data, images=images, labels=labels)


def asked(it, scale=1.0, arrays=None, purpose="train"):
    model = it.trainer.initial(np.random.default_rng(0)) * np.float32(scale)
    return Task(1, 0, model, arrays or {}, {}, purpose)


def dpsgd(tmp_path, **local):
    return made(
        DpSgdClient,
        setup(tmp_path, paper=True),
        local={"lot_size": 4, "clipping_norm": 1.0, **local},
    )


def nbafl(tmp_path, sensitivity, epochs, learning_rate, **changed):
    noise = {
        "num_clients": 2, "clients_per_round": None, "clip": 3.0, "exposures": 1,
        "smallest_dataset": None, "lipschitz": None, "proximal_mu": 0.0,
        "sensitivity": sensitivity, "calibration": None, **changed,
    }  # fmt: skip
    local = {
        "epochs": epochs, "steps": None, "batch_size": 4, "learning_rate": learning_rate,
        "clipping_norm": 1.0,
    }  # fmt: skip
    return made(NbAFLClient, setup(tmp_path, paper=True), **noise, local=local)


def kd_dpfl(tmp_path, epochs, learning_rate):
    labelling = {
        "mechanism": "dpsgd_teacher", "queries": 10, "epochs": epochs, "lot_size": 4,
        "noise": "gaussian", "teachers": 3, "allow_few": True,
    }  # fmt: skip
    rates = {"clipping_norm": 1.0, "learning_rate": learning_rate}
    return made(
        KdDpflClient,
        setup(tmp_path, sizes=(SIZE, 2, 2), paper=True),
        sizes=None,
        grouping={"factor": 5.0},
        spending={"mode": "tight", "joining": True},
        labelling=labelling,
        teacher={**rates, "batch_size": 4},
        soft=False,
        local={"epochs": epochs, "lot_size": 4, **rates},
        uploads={"noise": "dpsgd", "clip": 2.0},
        special={"epochs": 1, "lot_size": 4},
    )


DPSGD = {
    "dpsgd_fedavg": lambda path, **local: (dpsgd(path, **local), "train"),
    "nbafl": lambda path, **local: (nbafl(path, "dpsgd", **local), "train"),
    "kd_dpfl uploads": lambda path, **local: (kd_dpfl(path, **local), "train"),
    "kd_dpfl labels": lambda path, **local: (kd_dpfl(path, **local), "label"),
}


@pytest.mark.parametrize("name", DPSGD)
def test_a_record_moves_no_step_of_dpsgd_further_than_its_charge(tmp_path, record, name):
    data, worst = local_data(), 0.0
    for rate, epochs, scale in ((0.1, 1, 1.0), (1e3, 1, 1.0), (2.0, 3, 1e4), (0.1, 1, 1e30)):
        it, purpose = DPSGD[name](tmp_path, learning_rate=rate, epochs=epochs)
        arrays = {"indices": np.arange(10)} if purpose == "label" else None
        task = asked(it, scale, arrays, purpose)
        (release,) = releases(it.event(task))
        assert (release.unit, release.adjacency) == (Unit.RECORD, Adjacency.REPLACE_SPECIAL)
        steps = charged(release)["gaussian"]
        for other in list(neighbours(data))[::5]:
            with_it = record(it, task, other)
            moved = losses(with_it, record(it, task, other, with_it, without=VICTIM))["gaussian"]
            assert len(moved) == len(steps)
            worst = max(worst, max(moved) / max(steps))
    assert 0.5 < worst <= 1  # a record of norm C is met, none beyond


@pytest.mark.parametrize("sensitivity", ["worst", "paper", "erm"])
def test_nbafls_proven_charge_bounds_any_training_and_the_assumed_ones_are_refused(
    tmp_path, record, sensitivity
):
    assumed = {"lipschitz": 1e-9, "proximal_mu": 0.001} if sensitivity == "erm" else {}
    data, worst = local_data(), 0.0
    for rate, epochs, scale in product(RATES, EPOCHS, SCALES):
        it = nbafl(tmp_path, sensitivity, epochs, rate, **assumed)
        task = asked(it, scale)
        tapes = [record(it, task, other) for other in (data, *neighbours(data))]
        (release,) = releases(it.event(task))
        (most,) = charged(release, assumptions=None)["gaussian"]
        moved = (sum(losses(tapes[0], tape)["gaussian"]) for tape in tapes[1:])
        worst = max(worst, max(moved) / most)
    if sensitivity == "worst":
        assert 0.1 < worst <= 1
        assert release.unit is Unit.CLIENT and not release.assumptions
        return
    # One record moves the model further than the assumption says, and not further than 2C.
    assert 1 < worst <= charged(release)["gaussian"][0] / most
    owner = Policy(
        "the owner", epsilon_per_release={"nbafl": 9.0}, epsilon_per_lifetime=9.0, delta=1e-5,
        mechanisms=None, unit=Unit.RECORD,
    )  # fmt: skip
    with pytest.raises(Refusal, match=f"assumption={release.assumptions[0].name}"):
        owner.check(
            algorithm="nbafl",
            event=release,
            spent=ComposedEvent(()),
            delta=1e-5,
            seeded_noise=False,
            now=NOW,
        )


@pytest.mark.parametrize("adaptive", [False, True])
def test_no_update_is_longer_than_the_servers_noise_is_made_for(tmp_path, adaptive):
    clipping = {"norm": 1.0, "adaptive": adaptive, "bit_noise": 50.0}
    it = made(
        FedAvgClient,
        replace(setup(tmp_path), budget=Budget(math.inf, 1e-5, threat="central")),
        local={"epochs": 20, "steps": None, "batch_size": 4, "learning_rate": 2.0}, proximal_mu=0.0,
        protection=partial(Central, clipping=clipping),
    )  # fmt: skip
    size = it.trainer.num_parameters
    for clip, scale in product((1e-6, 1.0, 1e6), SCALES):
        task = asked(it, scale, {"clip": np.array([clip])})
        for other in list(neighbours(local_data()))[::4]:
            steps = it.answer(task, other, NoiseGenerator.seeded(1))
            assert np.linalg.norm(steps[:size].astype(float)) <= CLIP_STEPS
            assert np.abs(steps[size:]).max(initial=0) <= CLIP_STEPS
