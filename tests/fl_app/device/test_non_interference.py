"""Two devices that differ in one client's data answer alike, byte for byte, whatever is asked.

The release, which is charged for, is replaced by a constant; everything else that comes back is
compared. ``make test-long`` asks 10,000 questions, the default suite 320.
"""

from __future__ import annotations

import gc
import shutil

import numpy as np
import pytest

import fl_app.run.hosts
from murmur.algorithms.privatekt.own_label_codec import OwnLabelCodec
from murmur.learning.codec import LabelCodec
from murmur.round.task import REFUSED
from tests.fl_app.device import test_hostile_server
from tests.fl_app.device.test_hostile_server import SMALL, Case, honest
from tests.fl_app.device.test_sum_rules import VICTIM, HostileServer
from tests.fl_app.device_under_test import (
    CLIENTS,
    MINE,
    OPEN,
    POOL,
    STRICT,
    Device,
    answer_without_data,
    model_size,
)

DATA = tuple(f"/{client}.npz" for client in MINE)
EACH = 10  # questions to one configuration
ROWS = {"indices": np.tile(np.arange(3), (CLIENTS, 1)), "clients": np.arange(CLIENTS)}
ONE_EPOCH = [*SMALL, "strategy.local.epochs=1"]
CASES = {
    **test_hostile_server.CASES,
    "privatekt, disjoint": Case([*ONE_EPOCH, "strategy.answers=disjoint"], ROWS),
    "votes": Case(
        [
            *("strategy=votes", *ONE_EPOCH, "features=none", "strategy.learner=sgd"),
            *("strategy.spreading=null", "strategy.target=hard", "privacy.threat=local"),
        ],
        {"indices": np.arange(3)},
    ),
    "class_statistics": Case(
        [
            *("strategy=class_statistics", "features=none", "privacy.threat=local"),
            "federation.num_rounds=1",
        ]
    ),
    "class_moments": Case(
        [
            *("strategy=class_moments", "features=none", "privacy.threat=local"),
            "privacy.unit=record",
            "federation.num_rounds=1",
        ]
    ),
    "gradient_rounds": Case(
        [*("strategy=gradient_rounds", "features=none", "privacy.threat=local", "model=centred")],
        {"clip": np.ones(1)},
    ),
    "scaffold": Case(["strategy=scaffold", *SMALL], {"control": np.zeros(310, np.float32)}, OPEN),
    "fedavg, distributed": Case(
        [
            "strategy=fedavg",
            *SMALL,
            "protection=distributed",
            "privacy=local",
            "privacy.threat=local",
        ],
        {"clip": np.ones(1)},
        OPEN,
    ),
}
WORDS = [
    *("privacy.epsilon=0.5", "privacy.epsilon=1e6", "privacy.epsilon=inf", "privacy.delta=0.3"),
    *("privacy.noise=seeded", "privacy.unit=client", "seed=7", "seed=-1"),
    *("strategy.K=4", "strategy.K=200", "strategy.gamma=0.05", "strategy.clip=0.5"),
    *("strategy.smallest_dataset=299", "strategy.smallest_dataset=300", "strategy.noise=false"),
    *("federation.num_rounds=3", "federation.num_clients=5", "federation.clients_per_round=2"),
    *("federation.devices.sizes=[299]", "federation.devices.classes=[flu,cold]"),
    *("federation.devices.shape=[1,9,9]", "evaluation.every=2", "evaluation.counts.unit=client"),
    *(
        "evaluation.counts.unit=record",
        "evaluation.counts.examples=299",
        "evaluation.counts.examples=1",
    ),
    *(
        "evaluation=protected_counts",
        "evaluation=protected_clustering",
        "evaluation.result.records=300",
    ),
    *("privacy.sensitivity=worst", "privacy.sensitivity=erm", "privacy.calibration=proven"),
    *("strategy.labelling.mechanism=rr", "strategy.labelling.mechanism=pate", "strategy.soft=true"),
    *("strategy.local.epochs=2", "strategy.local.lot_size=7", "strategy.uploads.noise=nbafl"),
    *("model.hidden=[3]", "model=cnn_small", "strategy.beta=0.5", "strategy.budget.hamming=5"),
    *("strategy.answers=paper", "strategy.learner=ridge", "strategy.abstain=0.5"),
    *("protection=distributed", "privacy.threat=secure_aggregation", "strategy.components=3"),
    *("privacy.secure_aggregation=on", "protection=central", "run_name=another", "no.such.key=1"),
]


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """By policy and by whether sizes are published: two devices, of which one client differs.

    Its last record is another one; or, where sizes are not published, there is one more.
    """
    answer_without_data(monkeypatch, constant)
    made = {}
    for policy, published in ((p, s) for p in (STRICT, OPEN) for s in (True, False)):
        twins = []
        for name in ("one", "other"):
            folder = tmp_path / f"{len(made)}-{name}"
            folder.mkdir()
            device = Device(folder, policy)
            if not published:
                del device.node_config["sizes"]
            if name == "other":
                change(folder / f"{MINE[0]}.npz", published)
            twins.append(device)
        made[policy, published] = twins
    return made


def change(file, published):
    with np.load(file) as held:
        images, labels = held["images"].copy(), held["labels"].copy()
    if published:
        images[-1], labels[-1] = 1 - images[-1], 9 - labels[-1]
    else:
        images, labels = np.append(images, images[:1], 0), np.append(labels, 3)
    np.savez(file, images=images, labels=labels)


def constant(half, task):
    codec = half.codec(task)
    if isinstance(codec, OwnLabelCodec):  # its cells are those of its own images
        place = list(task.arrays["clients"]).index(task.client)
        return (place * codec.count + np.arange(codec.count)) * codec.categories
    return np.zeros(codec.shape[:1] if isinstance(codec, LabelCodec) else codec.shape, np.int64)


def seen(reply):
    """All that the server gets."""
    if reply.has_error():
        return ("error", reply.error.code, reply.error.reason)
    arrays = reply.content.array_records.items()
    return (
        [(n, k, a.dtype, a.shape, a.data) for n, record in arrays for k, a in record.items()],
        [(name, sorted(record.items())) for name, record in reply.content.config_records.items()],
        list(reply.content.metric_records),
    )


def asked(case, words, rng):
    """A question: an honest one, of which a few things are changed."""
    changed = {}
    for what in rng.choice(8, rng.integers(0, 3), replace=False):
        match what:
            case 0:
                changed["clients"] = [[3], [7], [3, 7], [3, 99], [3, 3], []][rng.integers(6)]
            case 1:
                changed["purpose"] = ["train", "label", "evaluate", "x", "centre"][rng.integers(5)]
            case 2:
                changed["arrays"] = {"indices": np.arange(rng.integers(0, POOL + 2))}
            case 3:
                changed["model"] = np.full(model_size(words), rng.choice([0, 1, 1e38]), np.float32)
            case 4:
                changed["model"] = np.zeros(rng.integers(0, 9), np.float32)
            case 5:
                changed["extra"] = int(rng.integers(3))
            case _:
                pass
    once = any(f"strategy={name}" in words for name in ("class_statistics", "class_moments"))
    return honest(case, words, round=1 if once else int(rng.integers(0, 53)), **changed)


def of_clients(opened):
    """The files of clients' data among those that were opened."""
    return [path for path in opened if path.endswith(DATA)]


@pytest.mark.parametrize("questions", [320, pytest.param(10_000, marks=pytest.mark.long)])
def test_nothing_but_the_charged_release_depends_on_a_clients_data(
    pairs, opened, tmp_path, questions
):
    """Each question is also asked of a device whose policy has expired: it opens no data file."""
    (tmp_path / "expired").mkdir()
    expired = Device(tmp_path / "expired", STRICT.replace("2099", "2001"))
    rng = np.random.default_rng(0)
    answered, answered_from = set(), False
    for number in range(questions // EACH):
        name = list(CASES)[number % len(CASES)]
        case, published = CASES[name], not number // len(CASES) % 2
        one, other = pairs[case.policy, published]
        wishes = rng.integers(1, 3) if number >= len(CASES) else 0
        extra = rng.choice(WORDS, wishes, replace=False).tolist()
        words = one.words(*case.words, *extra, f"run_dir=/nowhere/run-{number}")
        told = one.words(*case.words)
        for _ in range(EACH):
            content = asked(case, told, rng)
            found = [seen(device.ask(words, content, fresh=False)) for device in (one, other)]
            assert found[0] == found[1], (words, content["task"])
            if found[0][0] not in ("error", []):
                answered.add(name)
            answered_from = bool(of_clients(opened)) or answered_from
            opened.clear()
            assert seen(expired.ask(words, content))[2] == REFUSED
            assert not of_clients(opened) and not (expired.state / "cache").exists()
    assert answered == set(CASES) and answered_from
    for one, other in pairs.values():
        assert one.charged() == other.charged()


def test_phases_of_a_secure_sum_open_no_data_and_its_vector_hides_nothing_but_the_release(
    pairs, opened, monkeypatch
):
    """Keys and shares are random, so each later phase is asked of copies of one device's state."""
    one, other = pairs[OPEN, True]
    plainly, phases = Device.ask, []

    def ask(device, words, content, kind="train", **rest):
        phase = content["secure_sum"]["phase"]
        later = phase in ("mask", "confirm", "reveal")
        if later:
            fl_app.run.hosts._local.__dict__.clear()
            gc.collect()  # else a ledger may be open still, and its log would be mixed with a copy
            shutil.copytree(one.state, other.state, dirs_exist_ok=True)
        opened.clear()
        reply = plainly(device, words, content, kind, **rest)
        assert bool(of_clients(opened)) is (phase == "mask"), phase
        if later:
            assert seen(plainly(other, words, content, kind, **rest)) == seen(reply), phase
        phases.append(phase)
        return reply

    monkeypatch.setattr(Device, "ask", ask)
    vector = HostileServer(one).read()
    assert vector[-1] == 300 and not vector[:-1].any() and MINE[0] == VICTIM
    assert phases == ["advertise", "share", "check", "mask", "confirm", "reveal"]
