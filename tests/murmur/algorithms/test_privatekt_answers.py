"""Three ways to answer: what each costs, what travels, and what the server may conclude."""

import json

import numpy as np
import pytest

from fl_app.config.compose import compose
from fl_app.run.validated import ValidatedRun
from murmur.algorithms.privatekt.answers import (
    ABSTAINED,
    DisjointLabels,
    LabelQuery,
    SharedLabels,
    Votes,
)
from murmur.algorithms.privatekt.own_label_codec import OwnLabelCodec
from murmur.learning.array_bytes import MalformedError
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.events import Hiding
from murmur.privacy.noise import NoiseGenerator
from tests.fl_app.running import run_inline

SMALL = [
    "strategy=privatekt",
    "engine=inline",
    "features=scattering",
    "features.components=30",
    "model=linear",
    "federation.num_clients=60",
    "federation.num_rounds=1",
    "privacy.noise=seeded",
    "strategy.learner=ridge",
    "strategy.target=posterior",
    "strategy.spreading={components:30}",
]
SUMS = [
    "strategy=votes",
    "strategy.K=40",
    "privacy.threat=secure_aggregation",
    "privacy.secure_aggregation=simulated",
]


def noise_of(count, **budget):
    answers = Votes(LabelQuery(Budget(4.0, 1e-5, **budget), count, 10))
    return answers.noise, answers


@pytest.mark.parametrize(("count", "expected"), [(32, 8.64929), (400, None)])
def test_votes_cost_the_budget_and_no_more(count, expected):
    noise, answers = noise_of(count, honest_clients=40, threat="secure_aggregation")
    spent = epsilon(noise.event(), 1e-5, Threat.SECURE_AGGREGATION).epsilon
    assert 3.98 < spent <= 4.0
    if expected:
        assert noise.sigma == pytest.approx(expected, rel=2e-3)
    assert answers.steps * noise.grid == 1


def test_votes_of_exchanged_clients_are_no_farther_apart_than_was_paid_for():
    _, answers = noise_of(8)
    free = Votes(LabelQuery(Budget(np.inf, 1e-5), 8, 10))
    rng = NoiseGenerator.seeded(0)
    rows = [np.zeros(8, np.int64), np.arange(8) + 1, np.full(8, ABSTAINED)]
    sent = [free.privatize(row, 0, rng) for row in rows]
    for one in sent:
        for other in sent:
            assert ((one - other) ** 2).sum() <= 2 * 8
    assert sent[2].sum() == 0
    assert answers.noise.sensitivity == pytest.approx(4.0)


@pytest.mark.parametrize("way", [SharedLabels, DisjointLabels, Votes])
def test_a_sum_hides_answers_only_where_others_answer_in_the_same_cells(way):
    answers = way(LabelQuery(Budget(8.0, 1e-5), 3, 4, clients=5))

    def cells(place):
        noise, codec = NoiseGenerator.seeded(place), answers.codec
        drawn = (answers.privatize(np.zeros(3, np.int64), place, noise) for _ in range(200))
        return np.any([codec.expand(codec.pack(each), 1) != 0 for each in drawn], axis=0)

    shared = bool(np.any(cells(0) & cells(1)))
    assert (answers.event().hiding is not Hiding.NOT) is shared


def test_pure_noise_says_nothing_about_any_image():
    _, answers = noise_of(400, honest_clients=40, threat="secure_aggregation")
    rng = NoiseGenerator.seeded("noise")
    nobody = np.full(400, ABSTAINED)
    total = sum(answers.privatize(nobody, 0, rng).astype(np.int64) for _ in range(60))
    evidence = answers.evidence(total, 60)
    assert np.abs(evidence).max() < 1.5


def test_evidence_of_randomised_labels_follows_their_law():
    answers = DisjointLabels(LabelQuery(Budget(2.0, 1e-5), 1, 10, 3))
    total = np.zeros((3, 10), np.int64)
    total[0, 4] = 1
    evidence = answers.evidence(total, 1)
    keep = np.expm1(2.0) / (np.expm1(2.0) + 10)
    right, wrong = keep / 2 + (1 - keep) / 10, keep / 18 + (1 - keep) / 10
    assert evidence[0, 4] == pytest.approx(np.log(right / wrong), rel=1e-4)  # δ buys a little
    assert not evidence[1:].any()


def test_cells_of_another_clients_images_are_rejected():
    codec = OwnLabelCodec(2, 3, 10)
    total = codec.expand(codec.pack(np.array([24, 39])), 1)
    assert total.sum() == 2
    assert total[2, 4] == total[3, 9] == 1
    assert np.array_equal(codec.check_total(total, 1), total)
    for cells in ([14, 29], [24, 25], [64, 79], [-1, 3]):
        with pytest.raises(MalformedError):
            codec.expand(np.array(cells, np.int32), 1)
    with pytest.raises(MalformedError):
        codec.check_total(2 * total, 2)


def accuracy(folder, *words):
    run_inline(folder, *words, small=SMALL)
    return json.loads((folder / "metrics.json").read_text())["accuracy"]


def test_votes_teach_digits_at_a_proven_4_and_noise_does_not(tmp_path):
    assert accuracy(tmp_path / "votes", *SUMS, "privacy.epsilon=4") > 0.75
    assert accuracy(tmp_path / "noise", *SUMS, "privacy.epsilon=0.01") < 0.4


def test_disjoint_questions_teach_what_shared_ones_do_not(tmp_path):
    words = ["privacy.epsilon=8", "strategy.K=1", "strategy.refits=3"]
    own = accuracy(tmp_path / "own", "strategy.answers=disjoint", *words)
    shared = accuracy(tmp_path / "shared", *words)
    assert own > 0.55
    assert own > shared + 0.2


def test_nobody_is_asked_or_charged_where_labels_are_not_used(tmp_path):
    run = run_inline(
        tmp_path / "run",
        "strategy=privatekt",
        "strategy.use_labels=false",
        "strategy.self_training.samples=20",
        small=["engine=inline", "federation.num_clients=6", "federation.num_rounds=2"],
    )
    rows = run.rows()
    assert [row["answered"] for row in rows[1:]] == [0, 0]
    assert rows[-1]["epsilon_proven"] == 0
    assert run.metrics()["epsilon_claimed"] is None
    assert not rows[-1]["failed"]


def test_votes_that_noise_drowns_leave_the_model_as_it_was():
    strategy = ValidatedRun(compose([*SMALL, *SUMS])).strategy
    model = strategy.setup.initial_parameters()
    strategy.task(1, model)
    total = np.zeros(strategy.codec().shape, np.int64)
    assert np.array_equal(strategy.update(1, model, total, 60), model)
