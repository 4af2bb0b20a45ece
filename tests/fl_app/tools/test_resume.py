"""`murmur resume`: a run killed at any instant ends as if nothing had happened."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fl_app.cli import main as murmur
from fl_app.client_app import app as client_app
from fl_app.config.errors import ConfigError
from fl_app.engines.inline import serve
from fl_app.run.experiment import Experiment
from fl_app.run.prepare import prepare
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.privacy.ledger import Ledger
from strategies.gradient_rounds import GradientRounds
from tests.fl_app.running import SMALL, interrupt, run_inline, settled

MURMUR = str(Path(sys.executable).parent / "murmur")
PAPER = "privacy=paper"  # the budget of a round, to which rounds can be added
WORDS = settled([*SMALL, "federation.num_rounds=12", "strategy.local.epochs=20"])


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model/model.safetensors").items()}


def test_killed_run_resumes_to_the_same_result_and_pays_once(tmp_path):
    cut = RunFolder(tmp_path / "cut")
    whole = run_inline(tmp_path / "whole", small=WORDS).path
    running = subprocess.Popen(
        [MURMUR, *WORDS, f"run_dir={cut.path}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while len(cut.rows()) < 4 and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert cut.metrics() is None, "the run ended before it could be killed"
    assert murmur(["resume", str(cut.path)]) == 0
    assert weights(whole) == weights(cut.path)
    assert [row["round"] for row in cut.rows()] == list(range(13))
    assert cut.metrics()["seconds"] > sum(row["seconds"] for row in cut.rows()) - 0.01
    with Ledger(cut.path / "ledger.sqlite") as ledger:
        ledger.verify()
        assert all(len(ledger.events(client)) == 12 for client in ledger.clients())


def test_nothing_to_resume_is_said_in_one_line(tmp_path, capsys):
    assert murmur(["resume", str(tmp_path / "none")]) == 2
    assert murmur(["resume", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_run_that_another_process_is_doing_is_left_alone(tmp_path, capsys):
    folder = RunFolder(tmp_path)
    folder.save_overrides([*WORDS, f"run_dir={tmp_path}"])
    with folder.claim():
        assert murmur(["resume", str(tmp_path)]) == 2
    assert "another process is doing this run" in capsys.readouterr().err
    assert folder.rows() == []


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The folder of a run of four rounds that was interrupted after two."""
    path = tmp_path_factory.mktemp("half") / "run"
    return interrupt(path, PAPER, "federation.num_rounds=4", before=3)


@pytest.fixture
def copy(half, tmp_path):
    return shutil.copytree(half, tmp_path / "copy")


def content(folder):
    """All but the ledger, which this process may still have open."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if not path.name.startswith("ledger")}


def test_a_copy_goes_on_as_a_copy_and_pays_once(half, copy):
    before = content(half)
    assert murmur(["resume", str(copy)]) == 0
    assert content(half) == before
    whole = run_inline(copy.parent / "whole", PAPER, "federation.num_rounds=4")
    assert weights(copy) == weights(whole.path)
    with Ledger(copy / "ledger.sqlite") as ledger:
        assert all(len(ledger.events(client)) == 4 for client in ledger.clients())


@pytest.mark.parametrize(("before", "now"), [(1, 3), (3, 1)])
def test_the_interrupted_round_is_answered_whatever_the_number_of_workers(tmp_path, before, now):
    # A client answers a message that it has answered, and no other one of that round.
    rounds = "federation.num_rounds=4"
    cut = interrupt(tmp_path / "cut", rounds, f"engine.workers={before}", before=3)
    assert murmur(["resume", str(cut), f"engine.workers={now}"]) == 0
    assert all(row["answered"] == 6 for row in RunFolder(cut).rows()[1:])
    assert weights(cut) == weights(run_inline(tmp_path / "whole", rounds).path)
    with Ledger(cut / "ledger.sqlite") as ledger:
        assert all(len(ledger.events(client)) == 4 for client in ledger.clients())


def test_a_round_that_is_interrupted_again_is_shared_as_at_first(tmp_path, monkeypatch):
    words = ["evaluation=protected_counts", "evaluation.show_clean=false"]
    cut = RunFolder(interrupt(tmp_path / "cut", *words, "engine.workers=1", before=2))

    def die(_, number, __):
        if number:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "_after_round", die)  # clients have evaluated round 2
        assert murmur(["resume", str(cut.path), "engine.workers=3"]) == 130
    assert murmur(["resume", str(cut.path), "engine.workers=3"]) == 0
    assert cut.rows()[-1]["evaluation_clients"] == 6
    assert cut.statement() == run_inline(tmp_path / "whole", *words).statement()


def test_a_run_that_was_killed_while_its_ledger_was_begun_goes_on(tmp_path):
    cut = interrupt(tmp_path / "cut", before=1)
    for file in cut.glob("ledger.sqlite*"):
        file.unlink()
    (cut / "ledger.sqlite.lock").touch()
    assert murmur(["resume", str(cut)]) == 0
    assert weights(cut) == weights(run_inline(tmp_path / "whole").path)


def test_fewer_nodes_than_shared_the_interrupted_round_are_refused(tmp_path):
    cut = interrupt(tmp_path / "cut", "engine.workers=3", before=2)
    run = ValidatedRun.of(RunFolder(cut).overrides())
    files = content(cut)
    with pytest.raises(ConfigError, match="2 nodes: 3 shared the round that was interrupted"):
        serve(run, 2, 1, client_app)  # as `flwr run` would
    after = content(cut)
    assert {path: after[path] for path in files} == files


def test_a_folder_that_was_moved_stays_the_run_that_clients_know(tmp_path, capsys):
    cut = interrupt(tmp_path / "cut", PAPER, before=2)
    moved = shutil.move(cut, tmp_path / "moved")
    words = [*SMALL, PAPER, f"run_dir={moved}"]
    assert murmur(words) == 2
    assert (
        "run_name=moved: clients know this run as cut; add run_name=cut" in capsys.readouterr().err
    )
    assert murmur(["resume", str(moved), "run_name=other"]) == 2
    assert murmur([*words, "run_name=cut"]) == 0
    with Ledger(moved / "ledger.sqlite") as ledger:
        assert all(len(ledger.events(client)) == 2 for client in ledger.clients())


def test_a_run_in_the_working_folder_is_named_after_it_and_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    ready = prepare(settled([*SMALL, "run_dir=."]))
    assert {"run_name=here", f"run_dir={folder}"} <= set(ready.overrides)
    interrupt(Path("."), before=1)
    assert murmur(settled([*SMALL, "run_dir=."])) == 0
    with Ledger(folder / "ledger.sqlite") as ledger:
        assert all(len(ledger.events(client)) == 2 for client in ledger.clients())


CENTRED = [
    *(word for word in SMALL if "local" not in word),
    *("strategy=gradient_rounds", "model=centred", "federation.public=0"),
]


@pytest.fixture
def asked_before_the_rounds(tmp_path, monkeypatch):
    """Starts a run that ends where clients have answered before its rounds."""

    def die(*_):
        raise KeyboardInterrupt

    def start(*words):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(GradientRounds, "learn", die)
            prepare([*CENTRED, *words, f"run_dir={tmp_path / 'cut'}"]).run()
        return tmp_path / "cut"

    return start


@pytest.mark.parametrize("kept", [True, False])
def test_who_answered_before_the_rounds_answered_this_run(asked_before_the_rounds, capsys, kept):
    few = ["federation.clients_per_round=3", f"keep_checkpoints={kept}"]
    cut = asked_before_the_rounds(*few)
    said = "seed=7: this run was started with 1" if kept else "this run kept no checkpoints"
    assert murmur([*CENTRED, *few, "seed=7", f"run_dir={cut}"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("secure", ["on", "simulated"])
def test_what_was_answered_before_the_rounds_is_gone_on_with(
    tmp_path, asked_before_the_rounds, secure
):
    sums = f"privacy.secure_aggregation={secure}"
    cut = asked_before_the_rounds(sums)
    assert murmur(["resume", str(cut)]) == 0
    whole = run_inline(tmp_path / "whole", sums, small=CENTRED)
    assert weights(cut) == weights(whole.path)
    assert RunFolder(cut).statement() == whole.statement()
    with Ledger(cut / "ledger.sqlite") as ledger:
        assert all(len(ledger.events(client)) == 3 for client in ledger.clients())


@pytest.mark.parametrize(
    "words",
    [
        # The noise of an upload is for all rounds, also where the costliest release is a label.
        [*SMALL, "strategy=kd_dpfl", PAPER, "strategy.grouping.top_k=1", "model=mlp"],
        [*CENTRED, "model=linear", "privacy=none"],  # each step is a share of all
    ],
)
def test_rounds_that_were_planned_together_cannot_be_extended(tmp_path, capsys, words):
    prepare([*words, f"run_dir={tmp_path / 'run'}"]).run()
    assert murmur(["resume", str(tmp_path / "run"), "federation.num_rounds=9"]) == 2
    assert "this run's 2 rounds were planned together" in capsys.readouterr().err


def test_a_run_that_keeps_no_checkpoints_cannot_go_on(tmp_path, capsys):
    cut = interrupt(tmp_path / "cut", "keep_checkpoints=false", before=2)
    rows = (cut / "rounds.jsonl").read_bytes()
    assert murmur(["resume", str(cut)]) == 2
    assert "kept no checkpoints (keep_checkpoints=false)" in capsys.readouterr().err
    assert (cut / "rounds.jsonl").read_bytes() == rows


def test_a_finished_run_is_refused_and_can_be_extended(copy, capsys):
    assert murmur(["resume", str(copy)]) == 0
    assert murmur(["resume", str(copy)]) == 2
    assert "this run is finished; federation.num_rounds=N" in capsys.readouterr().err
    first = shutil.copy(copy / "statement.json", copy.parent / "first.json")
    assert murmur(["resume", str(copy), "federation.num_rounds=5"]) == 0
    mine = ["--mine", "--state", str(copy)]
    assert murmur(["verify", str(copy), *mine]) == 0  # signed anew, under another header
    assert murmur(["verify", str(first), *mine]) == 1  # clients were asked on after it
    assert "it has no question train in round 5" in capsys.readouterr().out
    whole = run_inline(copy.parent / "whole", PAPER, "federation.num_rounds=5")
    assert weights(copy) == weights(whole.path)
    assert [row["round"] for row in RunFolder(copy).rows()] == list(range(6))
    assert murmur(["resume", str(copy), "federation.num_rounds=3"]) == 2


def test_while_a_run_is_extended_it_has_no_statement_of_fewer_rounds(copy, monkeypatch):
    assert murmur(["resume", str(copy)]) == 0
    assert (copy / "privacy.json").exists()

    def die(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "_finish", die)  # all five rounds were answered
    assert murmur(["resume", str(copy), "federation.num_rounds=5"]) != 0
    assert RunFolder(copy).rows()[-1]["round"] == 5
    assert not any((copy / name).exists() for name in ("privacy.json", "privacy.txt"))


@pytest.mark.parametrize(
    ("word", "match"),
    [
        ("seed=2", "seed=2: this run was started with 1"),
        ("federation.num_rounds=1", "this run has done 2 already"),
    ],
)
def test_other_settings_are_refused(copy, capsys, word, match):
    assert murmur(["resume", str(copy), word]) == 2
    assert match in capsys.readouterr().err


def test_a_budget_that_was_shared_out_cannot_be_extended(tmp_path, capsys):
    run = prepare([*SMALL, f"run_dir={tmp_path / 'run'}"])
    run.run()
    assert murmur(["resume", str(run.folder.path), "federation.num_rounds=3"]) == 2
    assert "budget was shared out over 2 rounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "damage", "match"),
    [
        ("checkpoint.safetensors", lambda b: bytes([b[0] ^ 1]) + b[1:], "damaged or edited"),
        ("checkpoint.safetensors", lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:], "damaged"),
        ("checkpoint.safetensors", None, "checkpoint.safetensors: is missing"),
        ("rounds.jsonl", None, "rounds.jsonl: is missing, shortened or edited"),
        ("rounds.jsonl", lambda b: b[: b.index(b"\n") + 1], "shortened"),
        ("rounds.jsonl", lambda b: b.replace(b"failed", b"Failed"), "edited"),
        ("config.yaml", lambda b: b.replace(b"seed: 1", b"seed: 2"), "config.yaml: was edited"),
        ("config.yaml", None, "config.yaml: was edited"),
    ],
)
def test_damage_is_refused_in_one_sentence(copy, capsys, name, damage, match):
    path = copy / name
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    assert murmur(["resume", str(copy)]) == 2
    said = capsys.readouterr().err
    assert match in said and said.count("\n") == 1


@pytest.mark.parametrize("word", ["strategy.local.epochs=-1", "strategy.local.batch_size=0"])
def test_training_that_cannot_be_is_refused_before_the_run(tmp_path, capsys, word):
    assert murmur([*SMALL, word, f"run_dir={tmp_path / 'run'}"]) == 2
    assert word.removeprefix("strategy.local.") in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_without_an_accepted_round_ends_with_an_error(tmp_path, capsys):
    policy = tmp_path / "policy.yaml"
    policy.write_text("nothing: like a policy")
    words = [*SMALL, f"privacy.policy={policy}", f"run_dir={tmp_path / 'run'}"]
    assert murmur(words) == 1
    assert "no round was accepted" in capsys.readouterr().err
