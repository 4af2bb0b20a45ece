"""One odd record decides nothing for the others: data sets that differ in one, by every reader.

A device answers for both. All other records reach the algorithm as they are, bit for bit, and what
goes into the noise differs by no more than was charged. 2,000 pairs in ``make test-long``.
"""

import functools
from collections import Counter
from functools import partial

import numpy as np
import pytest

from clients.base import ClientSetup, LocalData, Task
from clients.class_moments import ClassMomentsClient
from clients.dpsgd_fedavg import DpSgdClient
from clients.kd_dpfl import KdDpflClient
from clients.nbafl import NbAFLClient
from clients.protected_evaluation import ClusteringResultClient, CountsClient
from fl_app.device.data import OwnData, schema_in
from murmur.algorithms.class_moments import CENTRE
from murmur.learning.models import centred, mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.events import Adjacency, Unit, releases
from murmur.round.client_state import ClientState
from tests import charge_tape
from tests.charge_tape import charged, losses
from tests.fl_app.device.odd_records import CLASSES, CLIENT, SIZES, SOURCES
from tests.made import made

record = charge_tape.record
POOL = 20
RATES = {"clipping_norm": 1.0, "learning_rate": 0.5}
LOTS = {"epochs": 1, "lot_size": 4}


def class_moments(setup):
    return made(ClassMomentsClient, setup, constant=0.3, records=None, centre_share=0.1)


def nbafl(setup):
    noise = {
        "num_clients": 3, "clients_per_round": None, "clip": 3.0, "exposures": 1,
        "smallest_dataset": None,
    }  # fmt: skip
    local = {"epochs": 1, "steps": None, "batch_size": 4, **RATES}
    return made(NbAFLClient, setup, **noise, local=local)


def kd_dpfl(setup, mechanism="dpsgd_teacher"):
    labelling = {
        "mechanism": mechanism, "queries": 10, **LOTS, "noise": "gaussian", "teachers": 3,
        "allow_few": True,
    }  # fmt: skip
    return made(
        KdDpflClient,
        setup,
        sizes=None,
        grouping={"factor": 5.0},
        spending={"mode": "tight", "joining": True},
        labelling=labelling,
        teacher={**RATES, "batch_size": 4},
        soft=False,
        local={**LOTS, **RATES},
        uploads={"noise": "dpsgd", "clip": 2.0},
        special=LOTS,
    )


def vectors(setup):
    result = {"privacy": "laplace", "epsilon": 1.0, "unit": "record"}
    return ClusteringResultClient(setup, every=1, result=result)


def counts(setup):
    settings = {"epsilon": 1.0, "unit": "record", "examples": 100}
    return CountsClient(setup, every=1, counts=settings)


# What protects a record, and what it is asked.
ALGORITHMS = {
    "class_moments": (class_moments, "train"),
    "class_moments, centre": (class_moments, CENTRE),
    "dpsgd_fedavg": (lambda it: made(DpSgdClient, it, local={**LOTS, **RATES}), "train"),
    "nbafl": (nbafl, "train"),
    "kd_dpfl, labels": (kd_dpfl, "label"),
    "kd_dpfl, votes": (partial(kd_dpfl, mechanism="pate"), "label"),
    "kd_dpfl, uploads": (kd_dpfl, "train"),
    "evaluation, vectors": (vectors, "evaluate"),
    "evaluation, counts": (counts, "evaluate"),
}


@functools.cache
def fitted(source, name):
    """Features and what they are fitted with, on a public pool of the source's shape."""
    features = SOURCES[source].features[name]()
    pool = np.random.default_rng(0).random((POOL, *SOURCES[source].shape), np.float32)
    return features, None if features is None else features.fit(pool)


@functools.cache
def role(shape, name, folder):
    """The client half ``name`` on inputs of this shape."""
    make, purpose = ALGORITHMS[name]
    model = partial(centred, radius=0.3) if "moments" in name else partial(mlp, hidden=[4])
    trainer = Trainer(model, shape, CLASSES)
    public = np.random.default_rng(1).random((POOL, *shape), np.float32)
    unit = "client" if "evaluation" in name else "record"  # an evaluation's is its own
    limits = Budget(8.0, 1e-5, unit=unit)
    return make(ClientSetup(trainer, public, None, limits, 1, ClientState(folder), SIZES)), purpose


def task_of(it, purpose, rng):
    model = it.trainer.initial(rng) * np.float32(rng.choice([1.0, 1e3, 1e30]))
    return Task(1, CLIENT, model, {"indices": np.arange(10)}, {}, purpose)


def aligned(one, other):
    """``other`` with its rows where ``one`` has them, and the place in which they differ, if any.

    That the order of records counts for nothing is shown elsewhere.
    """
    rows, strange = ([f"{i.tobytes()} {y}" for i, y in zip(d.images, d.labels, strict=True)]
                     for d in (one, other))  # fmt: skip
    assert len(rows) == len(strange) == SIZES[CLIENT]
    gone, new = Counter(rows) - Counter(strange), Counter(strange) - Counter(rows)
    assert gone.total() == new.total() <= 1, "more than one record is another"
    places, victim, order = {}, None, []
    for place, row in enumerate(strange):
        places.setdefault(row, []).append(place)
    for place, row in enumerate(rows):
        if row in gone:
            victim = place
            gone = Counter()
            row = next(iter(new))
        order.append(places[row].pop())
    return LocalData(other.images[order], other.labels[order], np.arange(len(order))), victim


def lost_share(record, it, task, one, other, victim):
    """The share of its charge that a release gives away of the record in which data differ."""
    (release,) = releases(it.event(task))
    assert release.unit is Unit.RECORD
    if release.adjacency is Adjacency.REPLACE_SPECIAL:
        base = record(it, task, other)
        moved = losses(base, record(it, task, other, base, without=victim))
    else:
        base = record(it, task, one)
        again = record(it, task, other, base)
        assert np.array_equal(base.release, again.release), "something passed by the noise"
        moved = losses(base, again)
    paid = charged(release)
    return max((sum(terms) / sum(paid[kind]) for kind, terms in moved.items()), default=0.0)


def try_pair(folder, seed, record):
    """One pair of data sets, one set of features and one algorithm; whether a row was blank."""
    rng = np.random.default_rng(seed)
    source = list(SOURCES)[seed % len(SOURCES)]
    name = list(ALGORITHMS)[seed // len(SOURCES) % len(ALGORITHMS)]
    features, known = fitted(source, str(rng.choice(list(SOURCES[source].features))))
    opened, blank = [], False
    for number, (own, terms) in enumerate(SOURCES[source].pair(folder, seed)):
        state = folder / f"state {number}"
        data = OwnData(own, terms, state, features, known, schema_in(known))
        opened.append(data.of(CLIENT))
        log = state / "errors.log"
        blank = log.exists()
        assert not (blank and number == 0), log.read_text()
        assert np.isfinite(opened[-1].images).all() and opened[-1].labels.max() < CLASSES
    one, (other, victim) = opened[0], aligned(*opened)
    if victim is None:
        return blank
    it, purpose = role(one.images.shape[1:], name, folder)
    share = lost_share(record, it, task_of(it, purpose, rng), one, other, victim)
    assert share <= 1 + 1e-9, (source, name, share)
    return blank


def all_of(folder, seeds, record):
    """How many pairs had a row that could not be read."""
    blanks = 0
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        try:
            blanks += try_pair(place, seed, record)
        except BaseException as error:
            raise AssertionError(f"pair of seed {seed}") from error
    return blanks


def test_one_odd_record_changes_itself_alone(tmp_path, record):
    count = len(SOURCES) * len(ALGORITHMS)
    blanks = all_of(tmp_path, range(count), record)
    assert count / 4 < blanks < count


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_nor_do_two_thousand(tmp_path, record, part):
    all_of(tmp_path, range(1000 + 200 * part, 1200 + 200 * part), record)
