"""Regression and several labels, from a table to a model that predicts; and who refuses them."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from fl_app import api
from fl_app.cli import main
from fl_app.config.client_half import settings_of
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups
from fl_app.engines.deploy import device_overrides
from fl_app.run.scores import compared_score
from fl_app.run.tasks import require_task
from fl_app.run.validated import ValidatedRun
from fl_app.tools.predict import write_onnx
from strategies.fedavg import FedAvg

ROWS = 240
SETTINGS = [
    *("engine=inline", "tracking=none", "privacy.noise=seeded", "partition=natural"),
    *("federation.num_clients=6", "federation.num_rounds=2", "federation.public=0"),
    *("dataset=table", "dataset.client=who", "dataset.inputs=[age,stay]", "model=linear"),
]
TASKS = {
    "regression": ["task=regression", "dataset.label=price", "dataset.label_range=[0,300]"],
    "multilabel": ["task=multilabel", "dataset.labels=[pain,fever,cough]"],
    "classification": ["dataset.label=pain"],
}
LEARNERS = {
    "fedavg": ["strategy=fedavg"],
    "fedprox": ["strategy=fedprox"],
    "scaffold": ["strategy=scaffold"],
    "dp_fedavg": ["strategy=dp_fedavg"],
    "dp-sgd": ["strategy=dpsgd_fedavg", "privacy.unit=record", "strategy.local.lot_size=10"],
    "gradient_rounds": ["strategy=gradient_rounds", "strategy.length=2"],
    "robust": ["strategy=robust"],
}
PRIVATE = ["privacy.epsilon=8", "privacy.delta=1e-6"]
FAMILY = (
    *("fedavg", "fedprox", "fedadam", "dp_fedavg", "dp_ftrl", "dpsgd_fedavg", "scaffold", "robust"),
    *("gradient_rounds", "centralised"),
)
OTHERS = sorted(set(groups()["strategy"]) - set(FAMILY))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table whose price and whose three labels follow from its two numbers."""
    path = tmp_path_factory.mktemp("table") / "stays.csv"
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "stay", "price", "pain", "fever", "cough", "who"])
        for row in range(ROWS):
            age, stay = rng.random(2).round(3)
            price = round(50 + 100 * age + 120 * stay + rng.normal(0, 2), 2)
            labels = [int(age > 0.5), int(stay > 0.5), int(age + stay > 1)]
            rows.writerow([age, stay, price, *labels, row // 20])
    return path


def words(table, task, *more):
    return [*SETTINGS, f"dataset.path={table}", *TASKS[task], *more]


def run(tmp_path, words):
    return api.run([*words, f"run_dir={tmp_path}/run"])


@pytest.fixture(scope="module", params=["regression", "multilabel"])
def trained(request, table, tmp_path_factory):
    """A task, and a run of it without protection that learns."""
    more = ["strategy=fedavg", "federation.num_rounds=8", "strategy.local.learning_rate=0.5"]
    more.append("strategy.local.epochs=20")
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, run(folder, words(table, request.param, *more))


def test_a_run_learns_and_carries_its_scores(trained):
    task, result = trained
    last = result.rows[-1]
    if task == "regression":
        assert last["r2"] > 0.9
        assert last["mae"] <= last["rmse"] < 20  # of prices around 160
        assert result.metrics["score"] == "r2"
        assert result.metrics["accuracy"] is None
    else:
        assert last["accuracy"] > 0.8
        assert last["auc"] > 0.9
        assert 0.5 < result.metrics["chance"] < 0.7
    assert result.metrics["at_chance"] is False


def test_the_model_predicts_in_every_form(trained, table, capsys):
    task, result = trained
    model = api.load_model(result.folder)
    numbers = np.array([[0.2, 0.4], [0.9, 0.1]], np.float32)[:, :, None, None]
    outputs = model(torch.from_numpy(numbers)).detach().numpy()
    assert main(["predict", str(result.folder), str(table), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert main(["predict", str(result.folder), str(table)]) == 0
    header, line, *_ = capsys.readouterr().out.splitlines()
    if task == "regression":
        assert outputs.shape == (2, 1)
        assert np.all((outputs > 50) & (outputs < 270))
        assert header == "input,prediction"
        assert float(line.rpartition(",")[2]) == first["prediction"]
    else:
        assert outputs.shape == (2, 3)
        assert model.classes == ("pain", "fever", "cough")
        assert header == "input,pain,fever,cough"
        assert list(first["probabilities"]) == ["pain", "fever", "cough"]


def test_onnx_gives_what_the_run_predicts(trained, tmp_path):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    from fl_app.run.model_folder import SavedModel

    task, result = trained
    saved = SavedModel.load(result.folder)
    write_onnx(saved, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    numbers = np.random.default_rng(1).random((9, 2, 1, 1), np.float32)
    found = session.run(None, {"input": numbers})[0]
    name = {"regression": "prediction", "multilabel": "probabilities"}[task]
    assert session.get_outputs()[0].name == name
    assert found.dtype == np.float32
    assert np.allclose(found, saved.predictions(numbers), rtol=1e-5, atol=1e-5)


def test_the_end_of_a_run_and_its_card_name_the_task(trained, capsys):
    task, result = trained
    card = (result.folder / "model" / "README.md").read_text()
    if task == "regression":
        assert "a number in 0 to 300" in card
        assert "{type: rmse, value:" in card
    else:
        assert "labels, each by itself | pain, fever, cough" in card
    assert "classes and probabilities" not in card


@pytest.mark.parametrize("task", ["regression", "multilabel"])
@pytest.mark.parametrize("name", LEARNERS)
def test_each_learner_charges_as_for_classes(name, task, table, tmp_path):
    private = [] if name in ("fedavg", "fedprox", "scaffold", "robust") else PRIVATE
    two = ["dataset.labels=[pain,fever]"] if task == "multilabel" else []
    own = run(tmp_path / task, words(table, task, *LEARNERS[name], *private, *two))
    plain = run(tmp_path / "plain", words(table, "classification", *LEARNERS[name], *private))
    assert all(math.isfinite(row["loss"]) for row in own.rows)
    mine, theirs = own.statement.to_dict(), plain.statement.to_dict()
    if task == "multilabel":  # as many numbers leave as of two classes
        assert mine == theirs
    for one, other in zip(mine["guarantees"], theirs["guarantees"], strict=True):
        assert one["adversary"] == other["adversary"]
        assert one["assumptions"] == other["assumptions"]
        for key in ("proven_total", "assumed_total"):
            assert spent(one[key]) == pytest.approx(spent(other[key]), rel=1e-3)


def spent(epsilon):
    return -1.0 if epsilon is None else float(epsilon)


@pytest.mark.parametrize("task", ["regression", "multilabel"])
@pytest.mark.parametrize("strategy", OTHERS)
def test_every_other_strategy_refuses_the_task_by_name(strategy, task):
    config = compose([f"strategy={strategy}", f"task={task}"])
    with pytest.raises(ConfigError, match=rf"^task={task}: strategy={strategy} learns .* only"):
        require_task(config)


@pytest.mark.parametrize("strategy", FAMILY)
def test_the_family_takes_each_task(strategy):
    require_task(compose([f"strategy={strategy}", "task=regression"]))


REFUSED = {
    "unknown": (["task=ranking"], "task=ranking"),
    "pictures": (["task=regression", "dataset=digits"], "task=regression: dataset=digits"),
    "no range": (["dataset.label_range=null"], "dataset.label_range=None: task=regression needs"),
    "empty range": (["dataset.label_range=[3,3]"], r"dataset.label_range=\[3.0, 3.0\]"),
    "by class": (["partition=dirichlet"], "partition=Dirichlet: divides by class"),
    "a score of classes": (["evaluation.metrics=[f1_score]"], "evaluation.metrics=f1_score"),
    "names of classes": (["dataset.classes=[a,b]"], "dataset.classes="),
    "a start of classes": (["model.start=rates"], "model.start=rates"),
    "clients' evaluation": (["evaluation=protected_counts"], "set evaluation=none"),
    "bfloat16": (["compute.precision=bf16"], "compute.precision=bf16"),
    "logits of classes": (
        ["strategy=gradient_rounds", "privacy.delta=1e-6", "strategy.logit_adjustment=0.5"],
        "strategy.logit_adjustment=0.5",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_reads_classes_is_refused(case, table):
    more, said = REFUSED[case]
    if "dataset=digits" in more:
        base = ["engine=inline", "strategy=fedavg"]
    else:
        base = words(table, "regression", "strategy=fedavg")
    with pytest.raises(ConfigError, match=said):
        ValidatedRun(compose([*base, *more]))


def test_labels_that_are_no_bits_are_refused_with_their_place(table):
    more = ["strategy=fedavg", "dataset.labels=[pain,price]"]
    with pytest.raises(ConfigError, match=r"column 'price': has .* in row 0 .* is 0 or 1"):
        ValidatedRun(compose(words(table, "multilabel", *more)))


def test_an_archive_of_numbers_trains_a_regression(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.random((120, 3)).astype(np.float32)
    np.savez(tmp_path / "own.npz", images=images, labels=images.sum(axis=1))
    settings = [
        *("engine=inline", "tracking=none", "strategy=fedavg", "model=linear", "partition=iid"),
        *("dataset=npz", f"dataset.path={tmp_path}/own.npz", f"dataset.cache={tmp_path}/cache"),
        *("task=regression", "dataset.label_range=[0,3]", "federation.num_clients=4"),
        *("federation.num_rounds=5", "federation.public=0", "strategy.local.epochs=60"),
    ]
    assert run(tmp_path, settings).metrics["r2"] > 0.8


def test_an_archive_of_bits_has_several_labels(tmp_path):
    from murmur.learning.data.own_data import npz

    labels = np.arange(40).reshape(20, 2) % 2
    images = np.zeros((20, 3), np.float32)
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    data = npz(path=tmp_path / "own.npz", task="multilabel", cache=tmp_path / "cache")
    assert data.num_classes == 2
    assert data.train.labels.dtype == np.float32
    assert data.train.labels.shape == (16, 2)


def test_a_real_table_trains_a_regression(tmp_path):
    """Progress of diabetes after a year (Efron et al. 2004), which scikit-learn brings."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    with (tmp_path / "diabetes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*data.feature_names, "progress"])
        rows.writerows([*map(float, row), y] for row, y in zip(data.data, data.target, strict=True))
    settings = [
        *("engine=inline", "tracking=none", "strategy=fedavg", "model=linear", "partition=iid"),
        *("dataset=table", f"dataset.path={tmp_path}/diabetes.csv", "dataset.label=progress"),
        *("task=regression", "dataset.label_range=[0,400]", "federation.num_clients=5"),
        *("federation.num_rounds=6", "federation.public=0"),
        *("strategy.local.epochs=30", "strategy.local.learning_rate=1"),
    ]
    metrics = run(tmp_path, settings).metrics
    assert metrics["r2"] > 0.3  # ordinary least squares has 0.45 or so, by the split
    assert 45 < metrics["rmse"] < 70


def test_a_search_and_a_sweep_compare_r2():
    assert compared_score({"r2": 0.25, "accuracy_last_5": None}) == ("r2", 0.25)
    assert compared_score({"accuracy_last_5": 0.5}) == ("accuracy", 0.5)


def test_advice_by_accuracy_is_refused(capsys):
    assert main(["advise", "settings", "strategy=fedavg", "task=multilabel"]) == 2
    assert "task=multilabel: `murmur advise settings` compares" in capsys.readouterr().err


FORMS = {
    "regression": "federation.devices.label_range=[0.0, 300.0]",
    "multilabel": 'federation.devices.labels=["pain", "fever", "cough"]',
    "classification": "federation.devices.classes=2",
}


@pytest.mark.parametrize("task", FORMS)
def test_devices_are_told_the_task_and_the_form_of_its_labels(task, table):
    more = ["strategy=fedavg", "engine=deploy", "engine.superlink=x"]
    said = device_overrides(words(table, task, *more))
    assert FORMS[task] in said
    assert ('task="regression"' in said) == (task == "regression")


@pytest.mark.parametrize("wrong", ["label_range=[0,60]", "labels=[a,b,c]", "classes=10"])
def test_a_server_whose_data_have_other_labels_hears_it_before_a_run(table, wrong):
    more = ["strategy=fedavg", "engine=deploy", "engine.superlink=x"]
    with pytest.raises(ConfigError, match="the server's data have labels of task=regression in"):
        device_overrides(words(table, "regression", *more, f"federation.devices.{wrong}"))


def test_runs_of_classes_keep_the_settings_of_their_header():
    assert "task" not in settings_of(compose(["strategy=fedavg"]))
    assert settings_of(compose(["strategy=fedavg", "task=regression"]))["task"] == "regression"


class Stranger(FedAvg):
    """Says nothing of tasks."""


def test_a_strategy_that_names_no_task_learns_classes_alone():
    config = compose(["strategy=fedavg", "task=regression"])
    config = OmegaConf.merge(config, {"strategy": {"server": {"_target_": f"{__name__}.Stranger"}}})
    with pytest.raises(ConfigError, match="learns classification only"):
        require_task(config)
