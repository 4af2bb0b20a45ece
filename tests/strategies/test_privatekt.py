"""PrivateKT's server half: debiasing, voting, buffer, self-training, settings, statement."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from murmur.algorithms.privatekt.answers import LabelQuery, SharedLabels
from murmur.algorithms.privatekt.knowledge import SelfTraining
from murmur.learning.data.datasets import Examples
from murmur.learning.linear_model import to_parameters
from murmur.learning.models import mlp
from murmur.learning.public_labels import cohort_for_plurality, draw, entropy, margin, plurality
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.noise import NoiseGenerator
from murmur.round.setup import ServerSetup
from strategies.privatekt import PrivateKT
from tests.made import made

CLASSES, POOL = 4, 50


SETTINGS = {
    "answers": "paper",
    "learner": "sgd",
    "penalty": 1.0,
    "components": None,
    "refits": 0,
    "spreading": None,
    "K": 4,
    "buffer_rounds": 3,
    "target": "hard",
    "sampling": "entropy",
    "first_round": "uniform",
    "use_labels": True,
    "abstain_below": 0.0,
    "finetuning": {"passes": 2, "learning_rate": 0.1, "batch_size": None},
    "self_training": {
        "samples": 0,
        "targets": "hard",
        "passes": 1,
        "learning_rate": 0.1,
        "batch_size": 8,
    },
}


def server(epsilon=8.0, paper=True, rounds=10, cohort=20, **changed):
    rng = np.random.default_rng(0)
    images = rng.random((POOL, 1, 4, 4), dtype=np.float32)
    setup = ServerSetup(
        trainer=Trainer(
            lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[8]),
            (1, 4, 4),
            CLASSES,
        ),
        public=images,
        test=Examples(images[:10], np.zeros(10, np.int64)),
        budget=Budget(epsilon, 1e-5, rounds, paper_semantics=paper),
        seed=1,
        num_clients=cohort,
        cohort_size=cohort,
        quorum=0.5,
    )
    return made(PrivateKT, setup, **{**SETTINGS, **changed})


def test_estimate_is_unbiased_over_the_randomiser():
    strategy = server(epsilon=6.0)
    truth = np.array([0, 1, 2, 3], np.uint8)
    clients = 20_000
    reports = (
        RandomizedResponse(6.0 / 4, CLASSES)
        .privatize(np.tile(truth, clients), NoiseGenerator.seeded("estimate"))
        .reshape(clients, 4)
    )
    total = np.stack([np.bincount(reports[:, k], minlength=CLASSES) for k in range(4)])
    keep = RandomizedResponse(6.0 / 4, CLASSES).keep
    standard_error = 1 / (keep * np.sqrt(clients))
    assert (
        np.abs(strategy.answers.estimate(total, clients) - np.eye(CLASSES)).max()
        < 4 * standard_error
    )


def test_estimate_without_protection_is_plain_voting():
    total = np.array([[3, 1, 0, 0]] * 4)
    assert np.array_equal(server(epsilon=np.inf).answers.estimate(total, 4), total / 4)


def test_soft_targets_are_distributions():
    total = np.array([[20, 0, 0, 0], [5, 5, 5, 5], [0, 19, 1, 0], [7, 6, 4, 3]])
    strategy = server(target="soft")
    strategy.indices = np.arange(4)
    strategy.update(1, strategy.setup.initial_parameters(), total, 20)
    targets = strategy.buffer.buffer[0][1]
    assert targets.min() >= 0
    np.testing.assert_allclose(targets.sum(axis=1), 1, rtol=1e-6)


def test_hard_targets_are_the_plurality_and_ties_are_broken_at_random():
    votes = np.array([[5, 5, 0, 0]] * 400 + [[0, 1, 6, 1]])
    winners = plurality(votes, np.random.default_rng(3)).argmax(axis=1)
    assert winners[-1] == 2
    first = np.mean(winners[:-1] == 0)
    assert 0.4 < first < 0.6
    assert set(winners[:-1]) == {0, 1}


def test_round_one_draws_uniformly_and_later_ones_by_entropy():
    weights = np.array([0.0] * 49 + [5.0])
    picked = sum(49 in draw(weights, 4, np.random.default_rng(seed)) for seed in range(200))
    assert picked > 150
    even = sum(49 in draw(np.zeros(50), 4, np.random.default_rng(seed)) for seed in range(200))
    assert even < 40


@pytest.mark.parametrize(
    ("changed", "by_entropy"),
    [
        ({}, [False, True, True]),
        ({"first_round": "entropy"}, [True, True, True]),
        ({"sampling": "uniform"}, [False, False, False]),
        ({"sampling": "uniform", "first_round": "entropy"}, [False, False, False]),
    ],
)
def test_settings_say_in_which_rounds_images_are_drawn_by_entropy(monkeypatch, changed, by_entropy):
    seen = []

    def watched(utility, count, rng):
        seen.append(bool(utility.any()))
        return draw(utility, count, rng)

    monkeypatch.setattr("murmur.algorithms.privatekt.knowledge.draw", watched)
    strategy = server(**changed)
    for number in (1, 2, 3):
        strategy.task(number, strategy.setup.initial_parameters())
    assert seen == by_entropy


def test_transfer_images_are_distinct_and_within_the_pool():
    strategy = server()
    model = strategy.setup.initial_parameters()
    for number in (1, 2, 3):
        indices = strategy.task(number, model)[0]["indices"]
        assert len(np.unique(indices)) == 4
        assert indices.min() >= 0
        assert indices.max() < POOL


def test_entropy_is_that_of_the_softmax_even_for_extreme_logits():
    logits = np.array([[0.0, 0.0], [1000.0, -1000.0], [np.log(3), 0.0]], np.float32)
    expected = [np.log(2), 0.0, -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))]
    np.testing.assert_allclose(entropy(logits), expected, atol=1e-6)


def one_round(strategy, number, votes):
    model = strategy.setup.initial_parameters()
    strategy.task(number, model)
    return strategy.update(number, model, votes, int(votes[0].sum()))


def test_buffer_keeps_the_last_rounds_only_and_survives_a_checkpoint():
    strategy, votes = server(), np.tile([17, 1, 1, 1], (4, 1))
    for number in range(1, 6):
        one_round(strategy, number, votes)
    assert len(strategy.buffer.buffer) == 3
    other = server()
    other.restore(strategy.state())
    for (a, b), (c, d) in zip(strategy.buffer.buffer, other.buffer.buffer, strict=True):
        assert np.array_equal(a, c)
        assert np.array_equal(b, d)


def test_abstention_drops_images_without_a_clear_lead():
    strategy = server(abstain_below=2.0)
    votes = np.array([[17, 1, 1, 1], [6, 5, 5, 4], [10, 10, 0, 0], [1, 1, 1, 17]])
    one_round(strategy, 1, votes)
    assert len(strategy.buffer.buffer[0][0]) == 2
    assert list(margin(votes) >= 2.0) == [True, False, False, True]


def test_self_training_only_control_learns_nothing_from_labels():
    control = server(use_labels=False)
    a = one_round(control, 1, np.tile([20, 0, 0, 0], (4, 1)))
    b = one_round(control, 1, np.tile([0, 0, 0, 20], (4, 1)))
    assert np.array_equal(a, b)
    assert control.buffer.buffer == []
    assert control.rounds.cohort(1).size == 0  # nobody is asked, and nobody pays


@pytest.mark.parametrize("targets", ["hard", "sharpened"])
def test_self_training_moves_the_parameters(targets):
    how = {"samples": 20, "targets": targets, "passes": 1, "learning_rate": 0.1, "batch_size": 8}
    strategy = server(use_labels=False, self_training=how)
    model = strategy.setup.initial_parameters()
    moved = strategy.update(1, model, np.zeros((4, CLASSES), np.int64), 0)
    assert np.abs(moved - model).max() > 1e-3


def test_a_lower_temperature_sharpens_the_targets_of_self_training():
    logits = np.array([[1.0, 0.0, 0.0]], np.float32)
    likeliest = []
    for temperature in (0.9, 0.5, 0.1):
        how = {"samples": 1, "targets": "sharpened", "temperature": temperature}
        words = [f"strategy.self_training.{key}={value}" for key, value in how.items()]
        settings = compose(["strategy=privatekt", *words]).strategy.self_training
        targets = SelfTraining(**settings).teach(logits)
        assert targets[0].sum() == pytest.approx(1)
        likeliest.append(targets[0, 0])
    assert likeliest == sorted(likeliest)
    assert likeliest[-1] > 0.999


def test_self_training_raises_the_accuracy():
    """Two clouds and a boundary that cuts into one of them: the pool says where it belongs."""
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    clouds = rng.normal(0, 0.4, (200, 2)) + np.where(labels[:, None], 1.5, -1.5) * [1, 0]
    images = clouds.astype(np.float32)[:, :, None, None]
    trainer = Trainer(partial(mlp, hidden=[]), (2, 1, 1), 2)
    setup = replace(server().setup, trainer=trainer, public=images, test=Examples(images, labels))
    how = {"samples": 100, "targets": "hard", "passes": 20, "learning_rate": 0.5, "batch_size": 20}
    knobs = {**SETTINGS, "use_labels": False, "self_training": how}
    strategy = made(PrivateKT, setup, **knobs)
    tilted = np.array([[-1.0, 1.0], [1.0, -1.0]])  # (d, C): right, but turned by 45 degrees
    model = to_parameters(tilted)
    before = strategy.evaluate(model)["accuracy"]
    for number in (1, 2, 3):
        model = strategy.update(number, model, np.zeros((4, 2), np.int64), 0)
    assert before < 0.999
    assert strategy.evaluate(model)["accuracy"] > before


def test_self_training_on_soft_predictions_needs_dropout():
    how = {"samples": 20, "targets": "soft", "passes": 1, "learning_rate": 0.1, "batch_size": 8}
    with pytest.raises(ValueError, match="dropout"):
        server(self_training=how)


def test_labels_move_the_model_towards_them():
    strategy = server(finetuning={"passes": 200, "learning_rate": 0.5, "batch_size": None})
    strategy.trainer.load(one_round(strategy, 1, np.tile([0, 0, 20, 0], (4, 1))))
    logits = strategy.trainer.logits(strategy.setup.public[strategy.indices])
    assert set(logits.argmax(axis=1)) == {2}


@pytest.mark.parametrize(("epsilon_per_label", "clients"), [(2.5, 36), (1.0, 312), (0.5, 1547)])
def test_cohort_needed_for_plurality_matches_the_specification(epsilon_per_label, clients):
    keep = RandomizedResponse(epsilon_per_label, 10).keep
    assert cohort_for_plurality(keep, 10) == clients


def test_small_cohort_is_pointed_out():
    assert "clients_per_round=20" in server(epsilon=1.0).warnings()[0]
    assert server(epsilon=40.0).warnings() == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"K": POOL + 1}, ["K=51", "1..50"]),
        ({"K": 0}, ["K=0"]),
        ({"buffer_rounds": 0}, ["buffer_rounds=0"]),
        ({"target": "medium"}, ["target='medium'", "soft"]),
        ({"answers": "votes"}, ["answers=votes", "set strategy=votes"]),
        ({"sampling": "best"}, ["sampling='best'", "entropy"]),
        ({"first_round": "never"}, ["first_round='never'", "entropy"]),
        ({"finetuning": {"passes": 1, "learning_rate": 0}}, ["learning_rate=0"]),
    ],
)
def test_bad_settings_are_refused_on_construction(changed, words):
    with pytest.raises(ValueError, match=words[0].replace("(", r"\(")) as caught:
        server(**changed)
    for word in words:
        assert word in str(caught.value)


def test_authors_run_claims_5_and_is_proven_795():
    """privatekt.md: ε=5 per round, K=2, C=10, 250 participations, δ=1e-5."""
    strategy = server(epsilon=5.0, K=2)
    strategy.answers = SharedLabels(LabelQuery(strategy.setup.budget, 2, 10))
    strategy.rounds.participations.update({0: 250, 1: 10})
    guarantee = strategy.rounds.statement().guarantees[0]
    assert guarantee.claimed_total == 5.0
    assert round(guarantee.proven_total) == 795
    assert round(guarantee.clients["1"], 1) == 49.0


def test_budget_for_the_run_is_kept_by_the_exact_composition():
    strategy = server(epsilon=4.0, paper=False, rounds=50)
    strategy.rounds.participations.update({0: 50})
    total = strategy.rounds.statement().guarantees[0].proven_total
    assert 3.99 < total <= 4.0
    assert strategy.epsilon > 4.0 / 50


def test_images_of_ones_own_need_a_cohort_of_known_size():
    words = ["strategy=privatekt", "strategy.answers=disjoint", "strategy.target=posterior"]
    with pytest.raises(ConfigError, match="schedule=poisson: answers=disjoint needs"):
        ValidatedRun(compose([*words, "federation.schedule=poisson", "privacy=none"]))
