"""KD-DPFL's client half: labels once, by any mechanism; own budgets; hostile tasks refused."""

from functools import partial

import numpy as np
import pytest

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.dpsgd_fedavg import DpSgdClient
from clients.kd_dpfl import KdDpflClient
from murmur.algorithms.kd_dpfl import labels
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.events import NonPrivateEvent, RepeatedEvent
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.random import experiment_rng
from murmur.round.client_state import ClientState
from tests import charge_tape
from tests.made import made

record = charge_tape.record
CLASSES, POOL, SIZES = 3, 30, (60, 6, 6, 6)
STEPS = 2**16  # of Gaussian noise, in a vote


@pytest.fixture(scope="module")
def trainer():
    return Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[6]),
        (1, 4, 4),
        CLASSES,
    )


def images_of(labels):
    images = np.zeros((len(labels), 1, 4, 4), np.float32)
    images[np.arange(len(labels)), 0, labels, :] = 1
    return images


@pytest.fixture
def data():
    labels = np.random.default_rng(1).integers(0, CLASSES, 80)
    return LocalData(images_of(labels), labels, np.arange(60))


def setup_of(trainer, tmp_path, total=8.0, sizes=SIZES, rounds=4):
    public = images_of(np.arange(POOL) % CLASSES)
    budget = Budget(total, 1e-5, rounds, paper_semantics=True)
    return ClientSetup(trainer, public, None, budget, 1, ClientState(tmp_path), sizes)


@pytest.fixture
def client(trainer, tmp_path):
    def make(
        total=8.0, sizes=SIZES, listed=None, soft=False, spending=None, uploads="dpsgd", **labelling
    ):
        return made(
            KdDpflClient,
            setup_of(trainer, tmp_path, total, sizes),
            sizes=listed,
            grouping={"factor": 5.0},
            spending=spending or {"mode": "tight"},
            labelling={
                "mechanism": "dpsgd_teacher",
                "queries": 20,
                "epochs": 30,
                "lot_size": 30,
                "teachers": 60,
                **labelling,
            },
            teacher={"clipping_norm": 1.0, "learning_rate": 0.5, "batch_size": 10},
            soft=soft,
            local={"epochs": 2, "lot_size": 3, "clipping_norm": 1.0, "learning_rate": 0.2},
            uploads={"noise": uploads, "clip": 2.0},
            special={"epochs": 1, "lot_size": 10},
        )

    return make


def task(it, purpose="label", who=0, indices=None, round=1, model=None):
    indices = np.arange(20) if indices is None else indices
    if model is None:
        model = it.trainer.initial(np.random.default_rng(0))
    return Task(round, who, model, {"indices": indices} if purpose == "label" else {}, {}, purpose)


@pytest.mark.parametrize("mechanism", ["dpsgd_teacher", "pate", "rr"])
def test_labels_cost_the_label_budget_and_no_more(client, data, mechanism):
    it = client(total=2.0, mechanism=mechanism)
    spent = epsilon(it.event(task(it)), 1e-5).epsilon
    assert 0.98 * 2.0 < spent <= 2.0 * (1 + 1e-6)


def test_a_dpsgd_teacher_labels_well_with_much_budget(client, data):
    it = client(total=200.0)
    labels = it.answer(task(it), data, NoiseGenerator.seeded("teacher"))
    assert labels.dtype == np.uint8
    assert np.mean(labels == np.arange(20) % CLASSES) > 0.9
    it.codec(task(it)).expand(it.codec(task(it)).pack(labels), 1)


def test_noise_and_lots_come_from_the_noise_stream_only(client, data):
    it = client(total=1.0)
    asked = task(it, "train")
    asked = Task(asked.round, 1, asked.model, {}, {}, "train")
    small = LocalData(data.images, data.labels, np.arange(6))
    one, again, other = (
        it.answer(asked, small, NoiseGenerator.seeded(seed)) for seed in ("a", "a", "b")
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_soft_teachers_say_distributions(client, data):
    it = client(total=50.0, soft=True)
    said = it.answer(task(it), data, NoiseGenerator.seeded("soft")).reshape(20, CLASSES)
    np.testing.assert_allclose(said.sum(axis=1), 1, rtol=1e-5)
    codec = it.codec(task(it))
    codec.expand(codec.pack(said.ravel()), 1)


def test_pate_votes_are_noised_histograms(client, data):
    exact = client(total=np.inf, mechanism="pate")
    votes = exact.answer(task(exact), data, NoiseGenerator.seeded("x")).reshape(20, CLASSES)
    assert np.all(votes.sum(axis=1) == 60)
    noisy = client(total=20.0, mechanism="pate")
    one, other = (noisy.answer(task(noisy), data, NoiseGenerator.seeded(name)) for name in "xy")
    scale = noisy.scheme.labelling.votes(20.0, 1e-5).scale
    assert 0.8 * scale < (one - other).std() / np.sqrt(2) < 1.25 * scale


def arranged(teachers, seed):
    """Records of which each teacher sees three of a class and two of another, or five of one.

    So it is by the places that a public permutation gives to them: a server knows it, and whoever
    knows the others' records can arrange that as many votes as possible hang on their places.
    """
    rng = np.random.default_rng(seed)
    images = np.full((5 * teachers + 1, 1, 4, 4), 0.5, np.float32)
    images[:, 0, 0, 0] = rng.random(len(images))  # no two are alike
    split, whole = [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]
    shards = [split if number % 6 else whole for number in range(teachers)]
    places = experiment_rng(1, "teacher", 1).permutation(5 * teachers)
    labels = np.zeros(len(images), np.int64)
    labels[places] = np.concatenate(shards)
    return images, labels


def moved(one, other):
    """Votes that moved in the query in which most did; one that is gone has moved by a half."""
    (mechanism, _, before), (_, _, after) = one.seen[0], other.seen[0]
    steps = STEPS if isinstance(mechanism, DiscreteGaussian) else 1
    return np.abs(after - before).sum(axis=1).max() / steps / 2


def orders_of(labels, names):
    """Orders in which the same records may lie on a disk, by class, by name and others."""
    by_class = np.lexsort((names, labels))
    return {
        "by class": by_class,
        "by name": np.argsort(names),
        "by class, last first": by_class[::-1],
        "by date": np.random.default_rng(3).permutation(len(labels)),
    }


@pytest.mark.parametrize("settings", [{}, {"noise": "laplace"}, {"queries": 1}])
def test_a_record_left_out_moves_one_vote_of_pate_and_one_exchanged_two(client, record, settings):
    """With shards that were cut by place one moved up to 19 of 60."""
    images, labels = arranged(60, seed=5)
    it = client(mechanism="pate", epochs=3, **settings)
    asked = task(it, indices=np.arange(settings.get("queries", 20)))
    base = np.arange(300)
    tape = record(it, asked, LocalData(images, labels, base))
    names = np.random.default_rng(6).permutation(301)
    for most, rows in ((1, base[1:]), (2, np.append(base[1:], 300)), (0, base)):
        for order in (np.arange(len(rows)), *orders_of(labels[rows], names[rows]).values()):
            neighbour = LocalData(images, labels, rows[order])
            assert moved(tape, record(it, asked, neighbour, tape)) <= most


def test_a_null_record_and_copies_of_one_move_one_vote(client, record):
    images, labels = arranged(60, seed=5)
    images[20:40], labels[20:40] = images[20], labels[20]
    it = client(mechanism="pate", epochs=3)
    rows = np.arange(300)
    tape = record(it, task(it), LocalData(images, labels, rows))
    without = LocalData(images, labels, np.delete(rows, 30))
    assert moved(tape, record(it, task(it), without, tape)) <= 1
    nulled = images.copy()
    nulled[30] = np.nan
    assert moved(tape, record(it, task(it), LocalData(nulled, labels, rows), tape)) <= 1


def test_pates_shards_are_the_same_in_the_next_release_and_others_on_another_device(
    client, record, trainer, tmp_path, data
):
    it = client(mechanism="pate", epochs=1)
    first, again = (record(it, task(it), data).seen[0][2] for _ in range(2))
    assert np.array_equal(first, again)
    (tmp_path / "records.key").unlink()
    assert not np.array_equal(first, record(it, task(it), data).seen[0][2])


def test_a_broken_key_of_records_costs_nothing(client, tmp_path):
    (tmp_path / "records.key").write_text("00")
    it = client(mechanism="pate")
    with pytest.raises(ValueError, match="32 bytes"):
        it.event(task(it))


def test_randomised_response_keeps_few_labels_at_a_small_budget(client, data):
    it = client(total=1.0, mechanism="rr")
    answers = [it.answer(task(it), data, NoiseGenerator.seeded(i)) for i in range(30)]
    share = np.mean([np.mean(labels == np.arange(20) % CLASSES) for labels in answers])
    assert abs(share - it.scheme.labelling.randomiser(1.0, 1e-5).truth_probability) < 0.12


def test_uploads_of_all_rounds_keep_the_clients_own_budget(client):
    it = client(spending={"mode": "tight", "general_epsilon": [1.0, 2.0, 3.0]})
    for who, own in ((1, 1.0), (2, 2.0), (3, 3.0)):
        event = it.event(task(it, "train", who))
        spent = epsilon(RepeatedEvent(event, 4), 1e-5).epsilon
        assert 0.98 * own < spent <= own * (1 + 1e-9)


def test_nbafl_noise_clips_the_model_and_keeps_the_budget_over_the_rounds(client, data):
    small = LocalData(data.images, data.labels, np.arange(6))
    it = client(total=5.0, uploads="nbafl")
    asked = task(it, "train", 1)
    event = it.event(asked)
    spent = epsilon(RepeatedEvent(event, 4), 1e-5).epsilon
    assert 4.95 < spent <= 5.0 * (1 + 1e-9)
    noise = it.answer(asked, small, NoiseGenerator.seeded("n")) - it.train(asked, small)
    expected = event.event.sigma / event.event.sensitivity * 2 * 2.0
    assert noise.std() == pytest.approx(expected, rel=0.25)
    codec = it.codec(asked)
    codec.expand(codec.pack(noise), 1)


def test_without_protection_everything_is_recorded_as_such(client, data):
    it = client(total=np.inf, mechanism="none")
    assert it.event(task(it)) == NonPrivateEvent()
    assert it.event(task(it, "train", 1)) == NonPrivateEvent()
    labels = it.answer(task(it), data, NoiseGenerator.seeded("x"))
    assert np.mean(labels == np.arange(20) % CLASSES) > 0.9
    trained = it.answer(task(it, "train", 1), data, NoiseGenerator.seeded("x"))
    assert np.array_equal(trained, it.train(task(it, "train", 1), data))


def test_sizes_may_be_published_by_configuration(client):
    assert client(sizes=None, listed=[80, 4, 4]).scheme.plan.large == (0,)
    with pytest.raises(ValueError, match=r"^sizes=null: .*strategy\.sizes"):
        client(sizes=None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"who": 1}, "not large"),
        ({"purpose": "train", "who": 0}, "no part in the federated stage"),
        ({"indices": np.arange(19)}, "must name 20"),
        ({"indices": np.arange(20.0)}, "must name public images as int64"),
        ({"indices": np.zeros(20, np.int64)}, "distinct"),
        ({"indices": np.arange(11, 31)}, r"0\.\.29"),
        ({"model": np.zeros(3, np.float32)}, "model"),
    ],
)
def test_hostile_tasks_are_refused_before_anything_is_charged(client, data, changed, words):
    it = client()
    with pytest.raises(TaskError, match=words):
        it.event(task(it, **changed))


def test_dpsgd_alone_shares_the_budget_over_the_rounds_or_spends_it_each_round(
    trainer, tmp_path, data
):
    settings = {"epochs": 1, "lot_size": 6, "clipping_norm": 1.0, "learning_rate": 0.1}
    run = made(DpSgdClient, setup_of(trainer, tmp_path, 2.0), local=settings)
    asked = task(run, "train")
    assert epsilon(RepeatedEvent(run.event(asked), 4), 1e-5).epsilon <= 2.0 * (1 + 1e-9)
    setup = ClientSetup(
        trainer,
        np.zeros((0, 1, 4, 4), np.float32),
        None,
        Budget(2.0, 1e-5, paper_semantics=True),
        1,
        ClientState(tmp_path),
        SIZES,
    )
    each = made(DpSgdClient, setup, local=settings)
    assert 1.9 < epsilon(each.event(asked), 1e-5).epsilon <= 2.0 * (1 + 1e-9)
    assert run.weight(0) == 60


def test_views_of_features_are_refused(tmp_path):
    features = Trainer(partial(mlp, hidden=[]), (16, 1, 1), CLASSES)
    settings = {"epochs": 1, "lot_size": 5, "clipping_norm": 1.0, "learning_rate": 1.0}
    made(DpSgdClient, setup_of(features, tmp_path), local={**settings, "views": 1})
    with pytest.raises(ValueError, match="views=4"):
        made(DpSgdClient, setup_of(features, tmp_path), local={**settings, "views": 4})


def test_a_private_teacher_trains_by_the_size_that_its_labels_are_charged_by(
    client, data, monkeypatch
):
    seen = []
    monkeypatch.setattr(labels, "train_privately", lambda *given, **named: seen.append(given[5]))
    few = LocalData(data.images, data.labels, np.arange(7))
    for own in (data, few):
        client().answer(task(client()), own, NoiseGenerator.seeded("teacher"))
    assert seen == [SIZES[0], SIZES[0]]
