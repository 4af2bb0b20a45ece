"""An accountant that fails after clients have answered: results and a statement stay."""

import numpy as np
import pytest

from fl_app import cli
from fl_app.api import run as run_in_python
from fl_app.config.errors import ConfigError
from fl_app.run import experiment
from fl_app.run.prepare import prepare
from fl_app.run.progress import end_lines
from fl_app.run.results import RunFolder
from murmur.privacy.accounting import epsilon
from murmur.privacy.events import event_from_dict
from murmur.privacy.guarantee import Guarantee
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import render
from murmur.round.rounds import Rounds
from tests.fl_app.running import SMALL, interrupt

WORDS = [*(word for word in SMALL if "seeded" not in word), "strategy.K=2"]


class BrokenError(ArithmeticError):
    """No answer."""


def broken(*_, **__):
    raise BrokenError("no answer")


def failed(folder, *more):
    """The folder of a run whose accountant failed, at which traceback it ended."""
    with pytest.raises(BrokenError) as ended:
        prepare([*WORDS, *more, f"run_dir={folder}"]).run()
    assert f"is whole: {folder}" in str(ended.value.__notes__)
    return RunFolder(folder)


def break_accountant(patch):
    """For whoever has answered; what is asked before is answered, or the run would not begin."""
    derived = experiment.Experiment._derived

    def of_nobody(run, roughly):
        if run.strategy.rounds.participations:
            return broken()
        return derived(run, roughly)

    patch.setattr(experiment.Experiment, "_derived", of_nobody)
    patch.setattr(Guarantee, "of", broken)


@pytest.fixture
def broken_accountant(monkeypatch):
    break_accountant(monkeypatch)


def test_a_run_leaves_everything_but_epsilon(tmp_path, broken_accountant):
    run = failed(tmp_path / "run")
    assert [row["epsilon_proven"] for row in run.rows()] == [0, None, None]
    metrics = run.metrics()
    assert metrics["accuracy"] == run.rows()[-1]["accuracy"]
    assert metrics["epsilon_proven"] is metrics["epsilon_assumed"] is None
    assert metrics["privacy_void"]
    assert (run.path / "model/model.safetensors").exists()
    assert "BrokenError: no answer" in run.error() and "Traceback" in run.error()


def test_its_statement_says_what_was_charged_and_that_no_epsilon_is_derived(
    tmp_path, broken_accountant
):
    run = failed(tmp_path / "run")
    said = Statement.from_dict(run.statement())
    assert said.doubts == ("no ε is derived: the accountant failed (BrokenError: no answer)",)
    assert not said.is_private
    text = (run.path / "privacy.txt").read_text()
    assert text == render(said) + "\n"
    text = " ".join(text.split())
    assert "no ε is derived" in text and "BrokenError" in text
    charged = "Charged to 6 clients, as seen by a server that reads every message: Composed(2 x "
    assert charged + "2 x RandomizedResponse(" in text
    assert "ε =" not in text and "infinite" not in text
    [charged] = said.charged
    assert charged["clients"] == 6
    derived = epsilon(event_from_dict(charged["event"]), said.delta).epsilon
    assert derived == pytest.approx(4, rel=1e-3)  # as the budget has it
    card = "\n".join(end_lines(run, np.array([0, 1]), str(run.path)))
    assert "no ε is derived" in card and "ε =" not in card


def test_the_same_words_derive_it_once_the_accountant_is_mended(tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        break_accountant(patch)
        run = failed(tmp_path / "run")
    model = (run.path / "model/model.safetensors").stat().st_size
    assert cli.main(["resume", str(run.path)]) == 0
    metrics = run.metrics()
    assert metrics["epsilon_proven"] == pytest.approx(4, rel=1e-3)
    assert not metrics["privacy_void"] and run.error() is None
    assert "ε" in (run.path / "privacy.txt").read_text()
    # It holds the statement.
    assert (run.path / "model/model.safetensors").stat().st_size != model
    with pytest.raises(ConfigError, match="is finished"):
        cli._tool("resume")([str(run.path)])


def test_a_resumed_run_leaves_everything_but_epsilon_too(tmp_path, broken_accountant):
    interrupt(tmp_path / "run", *WORDS[-1:], "privacy.noise=os", before=2)
    run = RunFolder(tmp_path / "run")
    with pytest.raises(BrokenError):
        cli._tool("resume")([str(run.path)])
    assert [row["epsilon_proven"] for row in run.rows()] == [0, None, None]
    assert run.statement()["underived"] and run.metrics()["rounds"] == 2


def test_a_view_that_cannot_be_composed_leaves_who_released_how_often(
    tmp_path, monkeypatch, broken_accountant
):
    monkeypatch.setattr(Rounds, "exposures", broken)
    run = failed(tmp_path / "run")
    [charged] = run.statement()["charged"]
    assert charged["clients"] == 6
    assert charged["event"]["events"][0]["count"] == 2
    Statement.from_dict(run.statement())


def test_before_anybody_has_answered_it_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment.Experiment, "_derived", broken)
    with pytest.raises(BrokenError):
        prepare([*WORDS, f"run_dir={tmp_path / 'run'}"]).run()
    run = RunFolder(tmp_path / "run")
    assert not run.rows() and not run.has_ledger()


def test_labels_in_sums_whose_worst_loss_is_likely_have_a_statement(tmp_path):
    """They ended the run after clients had answered: the variance of the loss underflowed."""
    result = run_in_python(
        [
            "experiment=digits_privatekt",
            "federation.num_rounds=1",
            "federation.num_clients=45",
            "strategy.K=1",
            "privacy.epsilon=3",
            "privacy.secure_aggregation=simulated",
            "privacy.secure_sum.minimum=1.0",
            "privacy.secure_sum.colluders=0",
            "privacy.secure_sum.threshold=0.99",
            f"run_dir={tmp_path / 'run'}",
        ],
        progress=False,
    )
    by_sums = next(g for g in result.statement.guarantees if g.threat == "secure_aggregation")
    assert 2.9 < by_sums.assumed_total < result.metrics["epsilon_proven"] <= 3
