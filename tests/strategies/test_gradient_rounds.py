"""Rounds of clipped gradients: one step is the closed form, budgets are shared with the centre."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.hosts import build_client
from fl_app.run.validated import ValidatedRun
from fl_app.testing import Grid
from murmur.algorithms.gradient_rounds import gradient
from murmur.learning.array_bytes import array_from_bytes
from murmur.learning.data.examples import LocalData
from murmur.learning.linear_model import Head, directions, unit
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.mechanisms.clipping import clip_l2
from murmur.round.question import Outcome
from tests.fl_app.running import run_inline

SMALL = [
    "strategy=gradient_rounds",
    "engine=inline",
    "dataset=digits",
    "federation.public=0",
    "federation.num_clients=20",
    "federation.num_rounds=3",
    "privacy.noise=seeded",
    "privacy.secure_aggregation=simulated",
]


def by_hand(experiment, rounds, length=30.0, constant=0.3, clip=0.5):
    """W after ``rounds`` without noise, every client's gradient clipped."""
    people = experiment.population
    images, labels = people.dataset.train.images, people.dataset.train.labels
    weights = np.zeros((65, 10))
    for _ in range(rounds):
        total = np.zeros_like(weights)
        for rows in people.shards:
            flat = images[rows].reshape(len(rows), -1)
            total += clip_l2(gradient(flat, labels[rows], weights, constant, 0.5), clip)
        weights += length / rounds / len(people.shards) * total
    return weights


def trained(tmp_path, *words):
    folder = run_inline(tmp_path, *words, small=SMALL)
    return folder, ValidatedRun(compose([*SMALL, *words]))


def test_without_noise_every_round_is_a_step_along_the_clipped_gradients(tmp_path):
    words = ["privacy.epsilon=inf", "protection.clipping.norm=0.5", "strategy.length=30"]
    folder, experiment = trained(tmp_path, *words)
    head = Head(experiment.trainer, "test")
    model = folder.load_checkpoint().run.model
    wanted = by_hand(experiment, 3)
    np.testing.assert_allclose(head.weights(model), wanted[1:], atol=2e-4)
    np.testing.assert_allclose(head.biases(model), 0.3 * wanted[0], atol=2e-4)


def test_the_result_is_the_mean_of_the_last_models_however_the_run_was_interrupted():
    experiment = ValidatedRun(compose([*SMALL, "privacy.epsilon=inf", "strategy.average=0.7"]))
    strategy, size = experiment.strategy, experiment.trainer.num_parameters
    model, seen = np.zeros(size, np.float32), []
    for number in (1, 2, 3):
        total = np.full(size, number << 20, np.int64)
        saved = strategy.rounds.state(number, model, 1)
        after = strategy.update(number, model, total.copy(), 20)
        strategy.rounds.resume(saved)
        assert np.array_equal(strategy.update(number, model, total, 20), after)
        plain = model + strategy.rates * (number / 20)
        seen.append(plain)
        model = after
    assert strategy.last == 2
    np.testing.assert_allclose(model, (seen[1] + seen[2]) / 2, rtol=1e-5)


def test_a_last_round_that_nobody_answers_still_ends_in_the_mean():
    words = [*SMALL, "privacy.epsilon=inf", "strategy.average=0.7"]
    experiment = ValidatedRun(compose([*words, "federation.num_rounds=4"]))
    strategy = experiment.strategy
    models = [np.zeros(experiment.trainer.num_parameters, np.float32)]
    for number in (1, 2, 3):
        total = np.full(len(models[0]), number << 20, np.int64)
        models.append(strategy.update(number, models[-1], total, 20))
        assert strategy.missed(number) is None
    arrays = ArrayRecord({"model": Array(models[-1])})
    strategy.configure_train(4, arrays, ConfigRecord(), Grid(1))
    arrays, _ = strategy.aggregate_train(4, [])
    assert strategy.last == 3 and not strategy.rounds.outcome.accepted
    result = array_from_bytes(arrays["model"].data)
    np.testing.assert_allclose(result, (models[2] + models[3]) / 2, rtol=1e-6)


@pytest.mark.parametrize("threat", ["local", "secure_aggregation"])
def test_the_centre_and_the_rounds_share_one_budget(threat):
    words = ["model=centred", "privacy.epsilon=2", f"privacy.threat={threat}"]
    strategy = ValidatedRun(compose([*SMALL, *words])).strategy
    strategy.rounds.before.update(range(20))
    strategy.rounds.participations.update(dict.fromkeys(range(20), 4))
    strategy.rounds.sums.least_survivors = strategy.setup.least_survivors
    spent = epsilon(strategy.claims().spent(), 1e-5, Threat(threat))
    assert 1.99 < spent.epsilon <= 2
    centre, rounds = strategy.centre_sum.noise, strategy.protection
    share = (centre.sensitivity / centre.sigma) ** 2
    rest = 3 / rounds.noise_multiplier**2
    assert share / (share + rest) == pytest.approx(0.1, rel=1e-3)


def test_a_centre_is_what_the_clients_features_have_in_common(tmp_path):
    folder, experiment = trained(tmp_path, "model=centred", "privacy.epsilon=inf")
    head = Head(experiment.trainer, "test")
    people = experiment.population
    rows = [unit(people.dataset.train.images[i]).mean(axis=0) for i in people.shards]
    found = head.centre(folder.load_checkpoint().run.model)
    np.testing.assert_allclose(found, np.mean(rows, axis=0), atol=1e-5)
    scores = json.loads((folder.path / "metrics.json").read_text())
    assert scores["accuracy"] > 0.6


def test_what_a_client_computes_on_is_what_the_model_sees():
    experiment = ValidatedRun(compose([*SMALL, "model=centred", "model.radius=0.2"]))
    trainer = experiment.trainer
    head, rng = Head(trainer, "test"), np.random.default_rng(0)
    model = rng.normal(size=trainer.num_parameters).astype(np.float32)
    images = experiment.population.dataset.test.images[:9]
    trainer.load(model)
    seen = head.inputs(images, model)
    np.testing.assert_allclose(seen, directions(unit(images), head.centre(model), 0.2))
    expected = seen @ head.weights(model) + head.biases(model)
    np.testing.assert_allclose(trainer.logits(images), expected, atol=1e-3)


def test_an_empty_client_answers_with_zeros(tmp_path):
    experiment = ValidatedRun(compose([*SMALL, "model=centred"]))
    client = build_client(experiment.config, experiment.population, experiment.trainer, tmp_path)
    train = experiment.population.dataset.train
    nothing = LocalData(train.images, train.labels, np.zeros(0, np.int64))
    question = experiment.strategy.before_rounds()
    assert not client.train(question.task(0), nothing).any()
    asked = experiment.strategy.training(1, experiment.strategy.setup.initial_parameters())
    assert not client.train(asked.task(0), nothing).any()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=mlp"], "model=linear or model=centred"),
        (["model=centred", "protection=central", "privacy.threat=central"], "set protection=dist"),
        (["strategy.constant=0"], "strategy.constant=0: must be finite and above 0"),
        (["strategy.average=1"], "strategy.average=1: must"),
        (["strategy.balance=2"], "strategy.balance=2: must"),
        (["strategy.flatten=1"], "strategy.flatten=1: must"),
        (["strategy.logit_adjustment=2"], "strategy.logit_adjustment=2: must"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(words, message):
    with pytest.raises(ConfigError, match=message):
        ValidatedRun(compose([*SMALL, *words]))


def test_the_centre_is_kept_with_the_run():
    strategy = ValidatedRun(compose([*SMALL, "model=centred", "privacy.epsilon=inf"])).strategy
    question = strategy.before_rounds()
    total = np.full(64, 1 << 19, np.int64)
    strategy.learn(question, Outcome(1, answered=[0], total=total, weight=1))
    again = ValidatedRun(compose([*SMALL, "model=centred", "privacy.epsilon=inf"])).strategy
    again.rounds.resume(strategy.rounds.state(0, strategy.setup.initial_parameters(), 1))
    assert again.before_rounds() is None
    assert np.array_equal(again.middle, strategy.middle)
    assert again.middle[0] == 0.5
    assert replace(again.setup.budget).prerun_fraction == 0.1


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], 1.0),
        (["strategy.average=0.67"], np.sqrt((1 + 1 + 0.25) / 3)),
        (["server_step=momentum", "server_step.momentum=0.5"], np.sqrt((1.75**2 + 1.5**2 + 1) / 3)),
    ],
)
def test_the_noise_in_the_model_is_that_of_its_sums(words, wanted):
    strategy = ValidatedRun(compose([*SMALL, "privacy.epsilon=1", *words])).strategy
    plain = strategy.protection.clip * strategy.protection.noise_on_a_sum() / 20
    plain *= np.sqrt(20 / strategy.setup.budget.honest_clients)
    length = strategy.rates[0] * np.sqrt(3)
    assert strategy.model_noise() == pytest.approx(wanted * plain * length, rel=1e-6)


def test_what_the_planner_says_beforehand():
    drowned = ValidatedRun(compose([*SMALL, "privacy.epsilon=0.1"])).strategy
    assert "not at this budget" in drowned.warnings()[0]
    assert drowned.forecast().is_drowned and drowned.forecast().share == 0
    told = ValidatedRun(compose([*SMALL, "privacy.epsilon=60"])).strategy.forecast()
    assert told.share == pytest.approx(1 - 0.2 / told.ratio)
    assert not ValidatedRun(compose([*SMALL, "privacy.epsilon=inf"])).strategy.warnings()


def test_what_would_help_does():
    said = ValidatedRun(compose([*SMALL, "privacy.epsilon=1"])).strategy.forecast()
    words = [f"federation.num_clients={said.more_units()}", "privacy.epsilon=1"]
    more = ValidatedRun(compose([*SMALL, *words])).strategy.forecast()
    assert more.ratio == pytest.approx(2, rel=0.02)
    larger = ValidatedRun(compose([*SMALL, f"privacy.epsilon={said.larger_epsilon()}"])).strategy
    assert larger.forecast().ratio == pytest.approx(2, rel=0.02)
