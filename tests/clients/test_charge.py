"""What a release depends on never moves further than was charged, whatever a server sets.

The noise is replaced by a tape: it notes what was about to be noised, and gives the neighbour the
same answers, so that every step of an adaptive mechanism is compared from the same state. Worst
cases are searched for: records, labels, models, learning rates, epochs and sizes far out.
"""

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product

import numpy as np
import pytest

from clients.base import ClientSetup, LocalData, Task
from clients.dpfl_bnn import DPFLBNNClient
from clients.dpsgd_fedavg import DpSgdClient
from clients.fedavg import FedAvgClient
from clients.kd_dpfl import KdDpflClient
from clients.nbafl import NbAFLClient
from clients.privatekt import PrivateKTClient
from clients.protected_evaluation import ClusteringResultClient, CountsClient
from learning.models import mlp
from learning.training.trainer import Trainer
from privacy.accounting.flatten import View, flatten
from privacy.budget import Budget
from privacy.events import (
    DiscreteGaussianEvent,
    LaplaceEvent,
    PoissonSampledEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
)
from privacy.mechanisms.clipped_grid import CLIP_STEPS
from privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from privacy.mechanisms.discrete_laplace import DiscreteLaplace
from privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from privacy.mechanisms.randomized_response import RandomizedResponse
from privacy.mechanisms.sampled_gaussian import SampledGaussian
from privacy.neighbours import Adjacency, Unit
from privacy.noise import NoiseGenerator
from privacy.policy import Policy, Refusal
from privacy.protection import Central, Distributed
from privacy.releases import releases
from rounds.client_state import ClientState
from schemes.dpfl_bnn.network import bnn

SHAPE, CLASSES, SIZE, POOL = (1, 4, 4), 4, 12, 20
NOW = datetime(2026, 1, 1, tzinfo=UTC)
VICTIM = 3  # the record in which neighbours differ
RATES, EPOCHS, SCALES = (0.1, 2.0, 1e3), (1, 20), (0.1, 1.0, 1e4)
PIXELS = (-1e6, -1.0, 1.0, 1e3)


@dataclass
class Tape:
    """Stands in for the noise of one client: ``seen`` is what it was to hide, with its scale."""

    answers: list[np.ndarray] = field(default_factory=list)
    seen: list[tuple[float, np.ndarray]] = field(default_factory=list)
    without: int | None = None  # a record that is in no sample

    def note(self, scale, values):
        """What comes out: what went in, or what came out for the neighbour."""
        self.seen.append((scale, np.array(values)))
        if len(self.answers) < len(self.seen):
            self.answers.append(np.array(values))
        return self.answers[len(self.seen) - 1].copy()


@pytest.fixture
def record(monkeypatch):
    """``record(it, task, data)``: the tape of one answer; with an earlier one, its neighbour's."""
    tape = Tape()

    def noised(mechanism, values, rng, *_):
        scale = getattr(mechanism, "sigma", None) or getattr(mechanism, "scale", 1.0)
        return tape.note(scale / getattr(mechanism, "grid", 1.0), values)

    for kind in (DiscreteGaussian, DiscreteLaplace):
        monkeypatch.setattr(kind, "privatize_integers", noised)
    monkeypatch.setattr(RandomizedResponse, "privatize", noised)
    monkeypatch.setattr(BinaryRandomizedResponse, "privatize_packed", noised)
    drawn = SampledGaussian.sample

    def sample(mechanism, count, rng):
        chosen = drawn(mechanism, count, rng)
        if tape.without is not None:
            chosen[tape.without] = False
        return chosen

    monkeypatch.setattr(SampledGaussian, "sample", sample)

    def recorded(it, task, data, earlier=None, without=None):
        nonlocal tape
        tape = Tape([] if earlier is None else earlier.answers, without=without)
        it.answer(task, data, NoiseGenerator.seeded(1))
        return tape

    return recorded


def setup(tmp_path, budget=8.0, per="run", sizes=(SIZE, SIZE), model=None, threat="local"):
    trainer = Trainer(model or partial(mlp, hidden=[5]), SHAPE, CLASSES)
    public = np.random.default_rng(0).random((POOL, *SHAPE), np.float32)
    limits = Budget(budget, 1e-5, per, 3, threat)
    return ClientSetup(trainer, public, None, limits, 1, ClientState(tmp_path), sizes)


def local_data(size=SIZE):
    rng = np.random.default_rng(5)
    images = rng.random((size, *SHAPE), np.float32)
    return LocalData(images, rng.integers(0, CLASSES, size), np.arange(size))


def neighbours(data):
    """``data`` with one record exchanged, far and near, towards every label."""
    for pixel, label in product(PIXELS, range(CLASSES)):
        images, labels = data.images.copy(), data.labels.copy()
        images[VICTIM], labels[VICTIM] = pixel, label
        yield replace(data, images=images, labels=labels)


def asked(it, scale=1.0, arrays=None, purpose="train", number=1, client=0):
    model = it.trainer.initial(np.random.default_rng(0)) * np.float32(scale)
    return Task(number, client, model, arrays or {}, {}, purpose)


def distance(one, other):
    """Σ (‖difference‖ / σ)² over the noised vectors of two tapes, and the largest of its terms."""
    assert [scale for scale, _ in one.seen] == [scale for scale, _ in other.seen]
    pairs = zip(one.seen, other.seen, strict=True)
    terms = [float(np.sum((a - b.astype(float)) ** 2)) / s**2 for (s, a), (_, b) in pairs]
    return sum(terms), max(terms)


def charged(event, **view):
    """Σ count · (sensitivity / σ)² of Gaussian releases, and the largest of its terms."""
    leaves = flatten(event, View(**view))
    plain = {
        leaf.event if isinstance(leaf, PoissonSampledEvent) else leaf: count
        for leaf, count in leaves.items()
    }
    assert all(isinstance(leaf, DiscreteGaussianEvent) for leaf in plain)
    terms = [(leaf.sensitivity / leaf.sigma) ** 2 for leaf in plain]
    return sum(c * t for c, t in zip(plain.values(), terms, strict=True)), max(terms)


def dpsgd(tmp_path, **local):
    local = {"epochs": 1, "lot_size": 4, "clipping_norm": 1.0, "learning_rate": 0.5, **local}
    return DpSgdClient(setup(tmp_path), **local)


def nbafl(tmp_path, sensitivity, epochs=1, learning_rate=0.1, **changed):
    noise = {
        "num_clients": 2, "clients_per_round": None, "clip": 3.0, "exposures": 1,
        "smallest_dataset": None, "lipschitz": None, "proximal_mu": 0.0,
        "sensitivity": sensitivity, "calibration": None, **changed,
    }  # fmt: skip
    return NbAFLClient(
        setup(tmp_path),
        noise=noise,
        epochs=epochs,
        steps=None,
        batch_size=4,
        learning_rate=learning_rate,
        clipping_norm=1.0,
    )


def kd_dpfl(tmp_path, mechanism="dpsgd_teacher", uploads="dpsgd", learning_rate=0.5, epochs=1):
    labelling = {
        "mechanism": mechanism, "queries": 10, "epochs": epochs, "lot_size": 4, "noise": "gaussian",
        "teachers": 3, "allow_few": True,
    }  # fmt: skip
    rates = {"clipping_norm": 1.0, "learning_rate": learning_rate}
    return KdDpflClient(
        setup(tmp_path, sizes=(SIZE, 2, 2)),
        sizes=None,
        grouping={"factor": 5.0},
        spending={"mode": "tight", "joining": True},
        labelling=labelling,
        teacher={**rates, "batch_size": 4, "soft": False},
        local={"epochs": epochs, "lot_size": 4, **rates},
        uploads={"noise": uploads, "clip": 2.0},
        special={"epochs": 1, "lot_size": 4},
    )


def question(it, purpose, scale=1.0):
    arrays = {"indices": np.arange(10)} if purpose == "label" else None
    return asked(it, scale, arrays, purpose)


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
        task = question(it, purpose, scale)
        (release,) = releases(it.event(task))
        assert (release.unit, release.adjacency) == (Unit.RECORD, Adjacency.REPLACE_SPECIAL)
        total, step = charged(release)
        for other in list(neighbours(data))[::5]:
            with_it = record(it, task, other)
            assert len(with_it.seen) == round(total / step)
            _, moved = distance(with_it, record(it, task, other, with_it, without=VICTIM))
            worst = max(worst, moved / step)
    assert 0.5 < worst <= 1  # a record of norm C is met, none beyond


def farthest(record, make, task_of=asked, rates=RATES, epochs=EPOCHS, scales=SCALES):
    """(worst Σ of squares over its charge, the release): the search over all that can be set."""
    data, worst = local_data(), 0.0
    for rate, passes, scale in product(rates, epochs, scales):
        it = make(learning_rate=rate, epochs=passes)
        task = task_of(it, scale)
        tapes = []
        for other in (data, *neighbours(data)):
            try:
                tapes.append(record(it, task, other))
            except ValueError:  # diverged: nothing was released
                continue
        (release,) = releases(it.event(task))
        most = charged(release, assumptions=None)[0]
        for tape in tapes[1:]:
            worst = max(worst, distance(tapes[0], tape)[0] / most)
    return worst, release


@pytest.mark.parametrize("sensitivity", ["worst", "paper", "erm"])
def test_nbafls_proven_charge_bounds_any_training_and_the_assumed_ones_are_refused(
    tmp_path, record, sensitivity
):
    assumed = {"lipschitz": 1e-9, "proximal_mu": 0.001} if sensitivity == "erm" else {}
    worst, release = farthest(
        record, lambda **local: nbafl(tmp_path, sensitivity, **local, **assumed)
    )
    if sensitivity == "worst":
        assert 0.1 < worst <= 1
        assert release.unit is Unit.CLIENT and not release.assumptions
        return
    # One record moves the model further than the assumption says, and not further than 2C.
    assert worst > 1
    bound = charged(release)[0] / charged(release, assumptions=None)[0]
    assert worst <= bound
    owner = Policy(
        "the owner", epsilon_per_release={"nbafl": 9.0}, epsilon_per_lifetime=9.0, delta=1e-5,
        mechanisms=None, unit=Unit.RECORD,
    )  # fmt: skip
    with pytest.raises(Refusal, match=f"assumption={release.assumptions[0].name}"):
        owner.check(
            algorithm="nbafl", event=release, spent=(), delta=1e-5, seeded_noise=False, now=NOW
        )


@pytest.mark.parametrize("mechanism", ["pate", "rr", "nbafl"])
def test_kd_dpfls_other_mechanisms_charge_what_a_record_can_move(tmp_path, record, mechanism):
    uploads = mechanism == "nbafl"
    words = {"uploads": "nbafl"} if uploads else {"mechanism": mechanism}
    purpose = "train" if uploads else "label"

    def make(learning_rate, epochs):
        return kd_dpfl(tmp_path, learning_rate=learning_rate, epochs=epochs, **words)

    if mechanism == "rr":
        it = make(0.5, 1)
        tape = record(it, question(it, purpose), local_data())
        (leaf,) = (leaves := flatten(it.event(question(it, purpose)), View()))
        assert isinstance(leaf, RandomizedResponseEvent)
        assert leaves[leaf] == tape.seen[0][1].size == 10
        return
    worst, _ = farthest(
        record, make, lambda it, scale: question(it, purpose, scale), (0.1, 2.0, 50.0), (1, 5)
    )
    assert 0.05 < worst <= 1


@pytest.mark.parametrize("hamming", [None, 3])
@pytest.mark.parametrize("rate", [0.1, 10.0])
def test_no_client_flips_more_bits_than_its_charge(tmp_path, record, hamming, rate):
    it = DPFLBNNClient(
        setup(tmp_path, math.inf, "round", model=partial(bnn, channels=[2], hidden=3)),
        gamma=0.1, upload="sign", noise=True, flip="bit", beta=0.3, examples=None,
        statistics="running",
        budget={"threat": "local", "honest_clients": 1, "hamming": hamming, "mask": 0.8},
        local={"steps": 5, "batch_size": 4, "learning_rate": rate, "decay": 1.0, "decay_every": 1,
               "beta1": 0.5},
    )  # fmt: skip
    task = asked(it)
    (leaf,) = flatten(it.event(task), View())
    assert isinstance(leaf, RandomizedBitsEvent)
    data = local_data()
    bits = [
        np.unpackbits(record(it, task, other).seen[0][1], count=leaf.bits)
        for other in (data, *neighbours(data), replace(data, images=-data.images))
    ]
    farthest_apart = max(int((one != other).sum()) for one in bits for other in bits)
    assert 0 < farthest_apart <= leaf.sensitivity_bits


def test_privatekt_charges_every_label_that_it_sends(tmp_path, record):
    for count in (1, 3, 4):
        it = PrivateKTClient(
            setup(tmp_path, per="round"), answers="paper", learner="sgd", penalty=1.0, abstain=0.0,
            components=None, epochs=1, batch_size=4, learning_rate=2.0, max_labels=4,
        )  # fmt: skip
        task = asked(it, arrays={"indices": np.arange(count)})
        (leaf,) = (leaves := flatten(it.event(task), View()))
        assert isinstance(leaf, RandomizedResponseEvent)
        assert leaves[leaf] == record(it, task, local_data()).seen[0][1].size == count
        assert leaf.epsilon == pytest.approx(8.0 / count)


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("kind", ["counts", "laplace"])
def test_evaluation_charges_what_its_unit_can_move(tmp_path, record, unit, kind):
    data = local_data()
    if kind == "counts":
        counts = {"epsilon": 1.0, "unit": unit.value, "examples": 7}
        it = CountsClient(setup(tmp_path), every=1, counts=counts)
    else:
        result = {"privacy": kind, "epsilon": 1.0, "unit": unit.value, "records": SIZE}
        it = ClusteringResultClient(setup(tmp_path), every=1, result=result)
    others = neighbours(data)
    if unit is Unit.CLIENT:
        flat = np.zeros_like(data.images)
        others = (
            replace(data, images=flat + pixel, labels=np.full(SIZE, label))
            for pixel, label in product(PIXELS, range(CLASSES))
        )
    everyone, found = [data, *others], 0.0
    for scale in (1.0, 1e3):
        task = asked(it, scale, purpose="evaluate")
        (release,) = releases(it.event(task))
        assert release.unit is unit and isinstance(release.event, LaplaceEvent)
        rows = [record(it, task, other).seen[0] for other in everyone]
        pairs = everyone if unit is Unit.CLIENT else everyone[:1]  # of records: the first is a pair
        worst = max(
            float(np.abs(rows[i][1] - row.astype(float)).sum()) / noise
            for i in range(len(pairs))
            for noise, row in rows
        )
        found = max(found, worst * release.event.noise_multiplier)
    assert 0.2 < found <= 1 + 1e-9


def averaging(tmp_path, protection, budget, adaptive, **local):
    local = {"epochs": 20, "learning_rate": 2.0, **local}
    clipping = {"norm": 1.0, "adaptive": adaptive, "bit_noise": 50.0}
    return FedAvgClient(
        setup(tmp_path, budget, threat=protection.threats[0]),
        steps=None, batch_size=4, proximal_mu=0.0,
        protection=partial(protection, clipping=clipping), **local,
    )  # fmt: skip


def clipped(it, scale=1.0, clip=1.0):
    return asked(it, scale, {"clip": np.array([clip])})


@pytest.mark.parametrize("adaptive", [False, True])
def test_no_update_is_longer_than_the_servers_noise_is_made_for(tmp_path, adaptive):
    it = averaging(tmp_path, Central, math.inf, adaptive)
    size = it.trainer.num_parameters
    for clip, scale in product((1e-6, 1.0, 1e6), SCALES):
        for other in list(neighbours(local_data()))[::4]:
            try:
                steps = it.answer(clipped(it, scale, clip), other, NoiseGenerator.seeded(1))
            except ValueError:  # diverged: nothing was released
                continue
            assert np.linalg.norm(steps[:size].astype(float)) <= CLIP_STEPS
            assert np.abs(steps[size:]).max(initial=0) <= CLIP_STEPS


@pytest.mark.parametrize("adaptive", [False, True])
def test_distributed_noise_is_made_for_any_two_updates(tmp_path, record, adaptive):
    def make(**local):
        return averaging(tmp_path, Distributed, 8.0, adaptive, **local)

    worst, release = farthest(record, make, clipped)
    assert release.unit is Unit.CLIENT
    assert 0.1 < worst <= 1
