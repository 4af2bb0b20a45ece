"""Noise that a server adds is drawn once: a killed and resumed run publishes no second model.

The disk as a kill would leave it is copied before each durable write, and before and after each
send, evaluation and report of a whole run; each copy is resumed. Noise comes from the operating
system: another draw would be another model.
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import pytest
from safetensors.numpy import load_file

from fl_app.engines.inline import InlineGrid
from fl_app.run.results import RunFolder
from fl_app.tracking import RunHealth
from murmur.files import replace_file
from murmur.round.setup import ServerSetup
from strategies.base import CohortStrategy
from tests.fl_app.running import SMALL, command, interrupt, run_inline

ROUNDS = 2
WORDS = [
    "engine=inline",
    "tracking=none",
    "federation.num_clients=4",
    f"federation.num_rounds={ROUNDS}",
    "model=mlp",
    "model.hidden=[]",
    "evaluation=protected_counts",
    "evaluation.show_clean=false",
]
COUNTS = "evaluation.counts.unit=client"
PROTECTIONS = {
    "central": ["strategy=dp_fedavg", COUNTS, "federation.clients_per_round=3"],
    "adaptive": [
        *("strategy=dp_fedavg", COUNTS, "privacy.epsilon=100", "federation.schedule=rotate"),
        *("protection.clipping.adaptive=true", "protection.clipping.bit_noise=20"),
    ],
    "matrix": ["strategy=dp_ftrl", COUNTS, "protection.bands=2"],
    "nbafl": [
        *("strategy=nbafl", "privacy=paper", "federation.public=0"),
        *("strategy.exposures=1", "federation.num_clients=3"),
    ],
    "special client": [
        *(
            "strategy=kd_dpfl",
            "privacy=paper",
            "strategy.grouping.top_k=1",
            "strategy.labelling.epochs=1",
        ),
    ],
}


class Published:
    """Every model that left, by round, and the disk as it was before each step of a run."""

    def __init__(self):
        self.models = defaultdict(set)
        self.steps = []
        self.draws = 0

    def out(self, number, model):
        self.models[number].add(np.asarray(model).tobytes())

    def step(self, name):
        self.steps.append(name)


@contextmanager
def watched(published):
    """Tell ``published`` of whatever a run writes, sends, evaluates, reports and draws."""

    def sent(grid, messages, **options):
        messages = list(messages)
        for message in messages:
            task = message.content["task"]
            before = int(message.metadata.message_type != "evaluate")
            published.out(task["round"] - before, message.content["model"]["model"].numpy())
        published.step(f"send {messages[0].metadata.message_type if messages else 'nothing'}")
        replies = list(send(grid, messages, **options))
        published.step("receive")
        return replies

    def replaced(draft, path, **options):
        published.step(f"write {os.path.basename(path)}")
        replace(draft, path, **options)

    def evaluated(strategy, model):
        published.out(strategy.rounds.outcome.number, model)
        published.step("evaluate")
        return evaluate(strategy, model)

    def appended(folder, row):
        checkpoint = folder.load_checkpoint()
        assert checkpoint.run.trained is None
        published.out(checkpoint.run.round, checkpoint.run.model)
        published.step("row")
        append(folder, row)

    def reported(health, row):
        published.step("report")
        report(health, row)

    def drawn(setup, purpose, number):
        published.draws += purpose in ("update", "broadcast", "special client")
        return draw(setup, purpose, number)

    send, replace, evaluate = InlineGrid.send_and_receive, os.replace, CohortStrategy.evaluate
    append, report, draw = RunFolder.append_row, RunHealth.row, ServerSetup.noise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InlineGrid, "send_and_receive", sent)
        patch.setattr(os, "replace", replaced)
        patch.setattr(CohortStrategy, "evaluate", evaluated)
        patch.setattr(RunFolder, "append_row", appended)
        patch.setattr(RunHealth, "row", reported)
        patch.setattr(ServerSetup, "noise", drawn)
        yield


class Killed(Published):
    """Copies the folder at every step, with what had left by then."""

    def __init__(self, run, copies):
        super().__init__()
        self.run, self.copies = run, copies
        self.before = []

    def step(self, name):
        super().step(name)
        left = {number: set(models) for number, models in self.models.items()}
        copy = self.copies / str(len(self.before)) / self.run.name  # by which clients know it
        self.before.append((left, shutil.copytree(self.run, copy)))


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model/model.safetensors").items()}


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_killed_at_any_step_every_model_of_a_round_that_ever_left_is_the_same(tmp_path, protection):
    words = [*WORDS, *PROTECTIONS[protection]]
    whole = Killed(tmp_path / "whole", tmp_path / "copies")
    with watched(whole):
        run_inline(whole.run, small=words)
    assert {"send train", "send evaluate", "receive", "evaluate", "row", "report"} < set(
        whole.steps
    )
    assert whole.steps.count("write checkpoint.safetensors") == 2 * ROUNDS + 3
    assert whole.draws == ROUNDS
    charged = RunFolder(whole.run).statement()["guarantees"][0]
    for place, (left, copy) in enumerate(whole.before):
        again = Published()
        with watched(again):
            run_inline(copy, small=words)
        for number, models in again.models.items():
            assert len(models | left.get(number, set())) == 1, (place, whole.steps[place], number)
        assert RunFolder(copy).statement()["guarantees"][0] == charged
        if left.get(ROUNDS):
            assert weights(copy) == weights(whole.run)


KILLED = """
import os, signal, sys
import numpy as np
from strategies.base import CohortStrategy
from fl_app.cli import main

def evaluate(strategy, model):
    if strategy.rounds.outcome.number == 1:
        np.save(sys.argv[1], model)
        os.kill(os.getpid(), signal.SIGKILL)
    return {}

CohortStrategy.evaluate = evaluate
main(sys.argv[2:])
"""


def test_a_process_killed_in_an_evaluation_goes_on_with_the_model_that_it_evaluated(tmp_path):
    run, seen = tmp_path / "run", tmp_path / "seen.npy"
    words = [*WORDS, *PROTECTIONS["matrix"], f"run_dir={run}"]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(seen), *words], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = Published()
    with watched(again):
        assert command("resume", run)[0] == 0
    assert again.draws == ROUNDS - 1
    assert again.models[1] == {np.load(seen).tobytes()}
    assert RunFolder(run).load_checkpoint().run.algorithm["protection.published"] == ROUNDS


def test_a_published_round_cannot_be_taken_back(tmp_path):
    folder = interrupt(tmp_path / "run", before=2, trained=True)
    assert "this run has done 2 already" in command("resume", folder, "federation.num_rounds=1")[1]


def test_a_run_without_checkpoints_publishes_no_round_twice(tmp_path):
    never = [*WORDS, *PROTECTIONS["central"], "keep_checkpoints=false"]
    folder = interrupt(tmp_path / "run", *never, before=1, trained=True)
    status, said = command("resume", folder)
    assert (status, "no round is answered or published twice" in said) == (2, True)


def test_a_run_with_checkpoints_does_not_go_on_without(tmp_path):
    folder = interrupt(tmp_path / "run", *WORDS, *PROTECTIONS["central"], before=2)
    status, said = command("resume", folder, "keep_checkpoints=false")
    assert (status, "would do rounds twice" in said) == (2, True)


@pytest.fixture
def readable_by_all():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_raw_sums_are_their_users_only_and_gone_when_the_run_ends(tmp_path, readable_by_all):
    folder = interrupt(tmp_path / "run", *WORDS, *PROTECTIONS["matrix"], before=2, trained=True)
    run = RunFolder(folder)
    assert run.load_checkpoint().run.algorithm["protection.sums"].any()
    assert mode(run.checkpoint_path) == 0o600
    assert command("resume", folder)[0] == 0
    assert run.load_checkpoint().run.algorithm["protection.sums"].size == 0
    assert mode(run.checkpoint_path) == 0o600


def test_a_draft_that_others_could_read_is_not_written_to(tmp_path, readable_by_all):
    (tmp_path / ".secret.new").touch()
    replace_file(tmp_path / "secret", b"raw sums")
    assert mode(tmp_path / "secret") == 0o600


def test_journals_of_secure_sums_are_their_users_only_and_gone_when_the_run_ends(
    tmp_path, readable_by_all
):
    on = "privacy.secure_aggregation=on"
    run = RunFolder(interrupt(tmp_path / "run", on, before=2, trained=True))
    assert mode(run.sum_path) == 0o600
    assert command("resume", run.path)[0] == 0
    assert not run.sum_path.exists()


def test_a_damaged_journal_is_said_in_a_sentence(tmp_path):
    on = "privacy.secure_aggregation=on"
    run = RunFolder(interrupt(tmp_path / "run", on, before=2))
    content = bytearray(run.sum_path.read_bytes())
    content[len(content) // 2] ^= 1
    run.sum_path.write_bytes(content)
    status, said = command("resume", run.path)
    assert (status, "damaged or edited; start the run anew" in said) == (1, True), said
    assert "Traceback" not in said


def test_rounds_that_share_their_noise_cannot_be_extended(tmp_path):
    own = ["strategy=dp_ftrl", "privacy=none", "protection.noise_multiplier=2"]
    folder = tmp_path / "run"
    assert command(*SMALL, *own, f"run_dir={folder}")[0] == 0
    status, said = command("resume", folder, "federation.num_rounds=3")
    assert (status, "were planned together" in said) == (2, True)
