"""What the driver shows while a run goes on."""

import io
import sys
import types

from rich.console import Console

from clients.fedavg import FedAvgClient
from fl_app.run.progress import LiveProgress
from fl_app.run.results import RunFolder
from tests.fl_app.running import run_inline


def test_a_notebook_has_a_bar_that_follows_the_rounds(tmp_path, monkeypatch):
    shown = []

    class Bar:
        def __init__(self, total):
            self.total, self.progress = total, 0

        def display(self):
            shown.append(self)

    page = types.SimpleNamespace(ProgressBar=Bar, display=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", page)
    with LiveProgress(RunFolder(tmp_path), 2, Console(force_jupyter=True), "a server"):
        run_inline(tmp_path, "strategy=fedavg")
    assert [(bar.total, bar.progress) for bar in shown] == [(2, 2)]


def broken(self, task, data):
    if task.client in (2, 4):
        raise ArithmeticError("the loss is not a number")
    return self.unbroken(task, data)


def test_an_error_inside_a_client_shows_its_id_and_one_traceback_for_each_reason(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(FedAvgClient, "unbroken", FedAvgClient.train, raising=False)
    monkeypatch.setattr(FedAvgClient, "train", broken)
    printed = io.StringIO()
    with LiveProgress(RunFolder(tmp_path), 2, Console(file=printed, width=200), "a server"):
        run = run_inline(tmp_path, "strategy=fedavg", "privacy.noise=os")
    assert [set(row["failed"]) for row in run.rows()] == [set(), {"2", "4"}, {"2", "4"}]
    text = printed.getvalue()
    for number in (1, 2):
        assert f"round {number}: client 2, 4: ArithmeticError: the loss is not a number" in text
    assert text.count("Traceback (most recent call last)") == 1
    assert 'raise ArithmeticError("the loss is not a number")' in text


def test_a_round_s_row_calls_proven_what_the_statement_does(tmp_path):
    """That sums hide a release is an assumption, also while the run goes on."""
    words = ["strategy=votes", "strategy.K=2", "privacy.threat=secure_aggregation"]
    words += ["privacy.secure_aggregation=simulated", "privacy.noise=os"]
    run = run_inline(tmp_path, *words)
    names = ("epsilon_proven", "epsilon_assumed")
    row, metrics = run.rows()[-1], run.metrics()
    assert [row[name] for name in names] == [metrics[name] for name in names]
    assert metrics["epsilon_assumed"] <= 8 < metrics["epsilon_proven"]
