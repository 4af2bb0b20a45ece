"""What the driver shows while a run goes on."""

import io
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from clients.fedavg import FedAvgClient
from fl_app.run.progress import CARD, LiveProgress, end_lines
from fl_app.run.results import RunFolder
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.audit import CanaryAudit
from murmur.privacy.events import DiscreteGaussianEvent, Release, SummedEvent
from murmur.privacy.guarantee import Exposure, by_participations
from murmur.privacy.statement import Statement
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


class Rows:
    """A run's folder, as the display and the card read it."""

    path = Path("runs/20261128-102600-e864f2")

    def __init__(self, rows=(), metrics=None, statement=None):
        self._rows, self._metrics, self._statement = list(rows), metrics, statement

    def rows(self, after=0):
        return self._rows[after:]

    def metrics(self):
        return self._metrics

    def statement(self):
        return self._statement.to_dict()


WIDTHS = [60, 80, 120, 200]
ROW = {"round": 12, "accuracy": 0.133, "epsilon_proven": 7.92, "failed": {}, "counted": True}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_terminals_line_shows_round_and_bar_and_is_not_wider(width):
    printed = io.StringIO()
    screen = Console(file=printed, width=width, force_terminal=True, color_system=None)
    with LiveProgress(Rows([ROW]), 60, screen, "a server that reads every message"):
        pass
    line = [line for line in printed.getvalue().splitlines() if "round" in line][-1]
    line = re.sub(r"\x1b\[\S*?[A-Za-z]", "", line)
    assert "round 12/60" in line and "━" in line and "accuracy 0.133" in line and "ε = 7.92" in line
    assert len(line) <= width
    assert ("against a server" in line) == (width >= 120)


def audited(**more):
    """A statement of sums with all that a card can say: conditions, a claim, and canaries."""
    noised = Release(DiscreteGaussianEvent(100.0, 100.0), Unit.CLIENT, Adjacency.REPLACE_ONE)
    summed = SummedEvent(noised, 51)
    rests = ("at least 51 of the 54 clients of every sum are honest", "the server follows it")
    exposure = Exposure(
        Threat.SECURE_AGGREGATION,
        "a server that sees only sums",
        summed,
        by_participations(summed, {"a": 3}),
        claimed_total=2.0,
        canaries=CanaryAudit(8, 0.12, None, 0.5, 0.1, 0.9),
        assumptions=rests,
    )
    return Statement.of("Sums", Unit.CLIENT, Adjacency.REPLACE_ONE, 1e-5, [exposure], **more)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("failed", [0, 3])
def test_a_card_has_ten_lines_at_most_no_wider_than_the_terminal_and_breaks_no_word(width, failed):
    metrics = {"accuracy": 0.836, "accuracy_last_5": 0.829, "rounds": 60, "failed": failed}
    folder = Rows([ROW], metrics, audited())
    lines = end_lines(folder, np.arange(100) % 10, str(folder.path), width)
    assert len(lines) <= 10 and max(map(len, lines)) <= width
    whole = end_lines(folder, np.arange(100) % 10, str(folder.path), CARD)
    words = set(" ".join(whole).split())
    promise = next(line for line in lines if line.startswith("Promise"))
    assert "against a server that sees only sums" in promise
    labels = [line[:13].strip() for line in lines if line[0] != " "]
    needed = ["Result", "Protected", "Promise", "Holds if", "If it fails", "Measured", "Model"]
    assert [label for label in labels if label != "Claimed"] == [*needed, "Next"]
    if width >= CARD:
        text = " ".join(whole)
        assert set(" ".join(lines).split()) == words
        assert "chance 0.1" in text and "but for a chance of 0.00001" in text


@pytest.mark.parametrize(("accuracy", "learnt"), [(0.1, False), (0.11, False), (0.5, True)])
def test_a_card_says_of_an_accuracy_at_chance_that_nothing_was_learnt(accuracy, learnt):
    metrics = {"accuracy": accuracy, "accuracy_last_5": accuracy, "rounds": 1, "failed": 0}
    folder = Rows([ROW], metrics, audited())
    first = end_lines(folder, np.arange(100) % 10, "runs/a")[0]
    assert ("nothing was learnt" in first) != learnt and "chance" in first


def test_a_card_of_a_run_without_an_accepted_round_says_refused_and_no_accuracy():
    metrics = {"accuracy": 0.1, "accuracy_last_5": 0.1, "rounds": 2, "failed": 8}
    folder = Rows([{**ROW, "counted": False}], metrics, audited())
    first = end_lines(folder, np.arange(100) % 10, "runs/a")[0]
    assert first.startswith("Result       refused: ") and "0.1" not in first


def test_a_card_of_a_void_statement_has_no_epsilon():
    metrics = {"accuracy": 0.8, "accuracy_last_5": 0.8, "rounds": 1, "failed": 0}
    folder = Rows([ROW], metrics, audited(void=("the noise was seeded",)))
    text = " ".join(end_lines(folder, np.arange(100) % 10, "runs/a"))
    assert "VOID" in text and "ε =" not in text


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
