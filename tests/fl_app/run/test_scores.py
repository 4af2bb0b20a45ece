"""The first of ``evaluation.metrics`` leads: progress, card, forecast and report print it."""

import json

import numpy as np
import pytest
import yaml

from fl_app.config.errors import ConfigError
from fl_app.config.groups import CONF
from fl_app.run.load import Run
from fl_app.run.progress import CARD, describe, end_lines
from fl_app.run.results import RunFolder
from fl_app.run.scores import leading_score
from murmur.learning.metrics import area_under_curve, linear_score
from tests.fl_app.running import run_inline

EXPERIMENTS = sorted((CONF / "experiment").glob("*.yaml"))
# Of whose pages the figure is another one than accuracy.
PROMISED = {
    "flights": "auc",
    "flights_weather": "auc",
    "ldp_evaluation": "protected_score",
    "ldp_evaluation_seed_compat": "protected_score",
    "ldp_evaluation_supervised": "protected_accuracy",
}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_says_which_score_its_page_promises(path):
    told = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert told["evaluation"]["metrics"]
    assert leading_score(told) == PROMISED.get(path.stem, "accuracy")


def test_accuracy_leads_where_nothing_is_named():
    assert leading_score({}) == leading_score({"evaluation": {"metrics": []}}) == "accuracy"
    assert leading_score({"evaluation": {"metrics": [{"mine.best": {"k": 1}}]}}) == "best"
    assert Run("r", config={"evaluation": {"metrics": ["auc"]}}).score == "auc"


@pytest.fixture
def two_classes(tmp_path):
    """Words for a linear model on rows of two classes, of which one is rare."""
    rng = np.random.default_rng(3)
    labels = (rng.random(600) < 0.2).astype(np.int64)
    inputs = (rng.normal(size=(600, 4)) + labels[:, None]).astype(np.float32)
    np.savez(tmp_path / "rows.npz", images=inputs, labels=labels)
    return [
        "dataset=npz",
        f"dataset.path={tmp_path / 'rows.npz'}",
        f"dataset.cache={tmp_path / 'cache'}",
        "strategy=fedavg",
        "model=linear",
        "federation.num_clients=4",
        "federation.num_rounds=2",
        "federation.public=0",
    ]


def test_rows_progress_and_card_print_the_score_that_leads(two_classes, tmp_path):
    folder = run_inline(tmp_path / "run", *two_classes, "evaluation.metrics=[auc]")
    row = folder.rows()[-1]
    figures = json.loads((folder.path / "metrics.json").read_text())
    assert figures["score"] == "auc" and figures["auc"] == row["auc"]
    assert describe(row, "auc") == f"AUC {row['auc']:.3f}"
    card = end_lines(RunFolder(folder.path), np.array([0, 1]), "run", CARD)
    assert f"AUC {row['auc']:.3f} after 2 rounds" in card[0] and "chance 0.500" in card[0]


def test_a_score_of_two_classes_is_refused_for_more(tmp_path):
    with pytest.raises(ConfigError, match=r"evaluation\.metrics=auc: is of two classes"):
        run_inline(tmp_path / "run", "dataset=digits", "evaluation.metrics=[auc]")


def test_what_a_linear_model_reaches_is_told_in_the_score_that_leads():
    rng = np.random.default_rng(5)
    labels = (rng.random(400) < 0.2).astype(np.int64)
    inputs = (rng.normal(size=(400, 3)) + labels[:, None]).astype(np.float32)
    best = area_under_curve(inputs.sum(axis=1), labels)
    assert linear_score(inputs, labels, "auc") == pytest.approx(best, abs=0.03)
    assert linear_score(inputs, labels) > 0.8
