"""Trackers get every round once, whatever was lost in a crash; a missing package is one error."""

import builtins
import os
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from fl_app.tracking import scalars
from tests.fl_app.running import run_inline

ROUNDS = "federation.num_rounds"
PAPER = "privacy=paper"  # the budget of a round, to which rounds can be added


def tensorboard_events(folder):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert events.Tags()["tensors"] == []  # what reads scalars finds them
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_every_row_by_default_and_once_after_a_resume(tmp_path):
    words = [PAPER, "privacy.noise=os"]
    run_inline(tmp_path, *words, f"{ROUNDS}=2")
    # As if killed after round 1's checkpoint, before its row reached TensorBoard.
    run = run_inline(tmp_path, *words, f"{ROUNDS}=4")
    events = tensorboard_events(tmp_path)
    for name in ("accuracy", "loss", "epsilon_proven", "bytes_up", "bytes_down"):
        wanted = [(row["round"], pytest.approx(row[name], rel=1e-6)) for row in run.rows()]
        assert events[name] == wanted, name
    metrics = run.metrics()
    for name in ("epsilon_claimed", "epsilon_proven", "accuracy_last_5"):
        assert events[f"final/{name}"] == [(4, pytest.approx(metrics[name], rel=1e-6))]


def test_no_tracking_leaves_only_the_run_folder(tmp_path):
    run_inline(tmp_path, "tracking=none")
    assert not (tmp_path / "tensorboard").exists()


def test_mlflow_has_every_round_once_after_a_resume(tmp_path, monkeypatch):
    client = pytest.importorskip("mlflow.tracking").MlflowClient
    for rounds in (2, 4):
        run = run_inline(tmp_path / "run", "tracking=mlflow", PAPER, f"{ROUNDS}={rounds}")
    store = client(f"sqlite:///{tmp_path}/mlflow.db")
    [found] = store.search_runs([store.get_experiment_by_name("murmur").experiment_id])
    history = store.get_metric_history(found.info.run_id, "accuracy")
    assert sorted((m.step, m.value) for m in history) == [
        (row["round"], row["accuracy"]) for row in run.rows()
    ]
    assert found.data.params["strategy.name"] == "privatekt"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_wandb_writes_offline_into_the_run_folder(tmp_path):
    pytest.importorskip("wandb")
    for rounds in (2, 4):
        run_inline(tmp_path, "tracking=wandb", PAPER, f"{ROUNDS}={rounds}")
    assert len(list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))) == 2
    assert (tmp_path / "wandb-last-round").read_text() == "4"


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_one_error_before_any_work(name, monkeypatch):
    real = builtins.__import__

    def absent(module, *rest):
        if module.split(".")[0] == name:
            raise ImportError(module)
        return real(module, *rest)

    for loaded in [m for m in sys.modules if name in m.split(".")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ConfigError, match=f"tracking={name}: the package `{name}` is not"):
        ValidatedRun(compose([f"tracking={name}"]))


def test_scalars_are_finite_numbers_and_counts():
    row = {"round": 3, "accuracy": 0.5, "epsilon_proven": "infinity", "failed": {"4": "why"}}
    assert scalars(row) == {"accuracy": 0.5, "failed": 1.0}
