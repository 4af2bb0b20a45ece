"""Formats are frozen within 1.x, and files that a 1.x has written are read by this version.

``formats.json`` has the numbers of formats, and the names in those that carry none. A number that
changes fails here. So does a name that goes, or one that a policy must have and old ones lack. Each
folder beside it that is named for a version was written by that version
(``python -m tests.formats.write_release``); it is copied, never written.
"""

import json
import shutil

import numpy as np
import pytest

from fl_app.cli import main as murmur
from fl_app.run import model_folder, results
from fl_app.run.load import load_run
from fl_app.testing import Federation, random_data
from murmur.privacy import policy_file
from murmur.privacy.budget import Budget
from murmur.privacy.ledger import Ledger, chain
from murmur.privacy.policy import Policy
from murmur.privacy.statement import Statement
from murmur.round import secure_summation, statement_file
from tests.fl_app.test_testing import Bits, BitsClient
from tests.formats.kept import FILES, predicted

FROZEN = json.loads((FILES / "formats.json").read_text(encoding="utf-8"))
RELEASES = sorted(path.name for path in FILES.glob("[1-9]*"))


def test_the_numbers_of_formats_are_frozen():
    assert FROZEN["numbers"] == {
        "ledger": chain.FORMAT,
        "checkpoint": results.FORMAT,
        "secure sum": secure_summation._FORMAT,
        "model folder": model_folder.FORMAT,
        "signed statement": statement_file.FORMAT,
    }


def test_a_statement_keeps_its_names():
    assert set(FROZEN["statement"]) <= set(Statement.__dataclass_fields__)


def test_a_policy_needs_no_other_keys_and_may_have_all_of_them():
    needed = set(policy_file._CONVERSIONS) - set(policy_file._DEFAULTS)
    assert needed == set(FROZEN["policy"])
    assert set(FROZEN["policy may leave out"]) <= set(policy_file._DEFAULTS)


def test_messages_keep_their_names(tmp_path):
    seen = {}

    class Watched(Federation):
        def _answer(self, message, context):
            reply = super()._answer(message, context)
            for name, content in (("question", message.content), ("answer", reply.content)):
                seen[name] = {record: sorted(content[record]) for record in content}
            return reply

    both = [random_data(30, seed=1), random_data(30, seed=2)]
    Watched(tmp_path, Bits, BitsClient, both, budget=Budget(50.0, 1e-5, rounds=1)).run()
    assert seen == {name: FROZEN[name] for name in ("question", "answer")}


def test_a_release_has_left_its_files():
    assert RELEASES


@pytest.fixture(params=RELEASES)
def kept(request, tmp_path):
    """A copy of what one version has written."""
    return shutil.copytree(FILES / request.param, tmp_path / request.param)


def test_a_run_is_read_whole(kept):
    run = load_run(kept / "run")
    assert run.state == "finished" and run.problems == ()
    assert [row["round"] for row in run.rows] == [0, 1, 2]
    assert run.metrics["accuracy"] == run.rows[-1]["accuracy"]
    assert run.provenance["versions"]["murmur-fl"] == kept.name
    assert all((kept / "run" / name).exists() for name in FROZEN["run folder"])


def test_a_statement_says_what_it_said(kept, capsys):
    written = json.loads((kept / "run" / "privacy.json").read_text(encoding="utf-8"))
    read = Statement.from_dict(written).to_dict()
    assert {name: read[name] for name in written} == written
    assert murmur(["statement", str(kept / "run")]) == 0
    assert capsys.readouterr().out


def test_a_ledger_verifies(kept):
    with Ledger(kept / "run" / "ledger.sqlite", create=False) as ledger:
        ledger.verify()
        assert [len(ledger.events(client)) for client in ledger.clients()] == [2, 2, 2, 2]


def test_a_ledger_of_format_3_has_what_was_asked_confirmed_and_closed(tmp_path):
    path = shutil.copytree(FILES / "ledger-3", tmp_path / "kept") / "ledger.sqlite"
    with Ledger(path, create=False) as ledger:
        ledger.verify()
        kinds = [entry.kind for entry in ledger.entries()]
        assert kinds == ["run", "question", "charge", "charge", "answer", "confirmed", "closed"]
        assert ledger.run_header("kept").header.algorithm == "nbafl"
        assert [len(ledger.events(client)) for client in ledger.clients()] == [1, 1]


def test_a_model_predicts_the_classes_that_it_predicted(kept):
    inputs = np.load(kept / "inputs.npy")
    said = json.loads((kept / "predicted.json").read_text(encoding="utf-8"))
    assert predicted(kept / "run", inputs) == said


def test_a_policy_is_read(kept):
    policy = Policy.load(kept / "policy.yaml")
    assert policy.epsilon_per_release == {"privatekt": 5.0, "nbafl": 8.0}
    assert policy.epsilon_per_lifetime == 8.5


def test_a_run_is_extended_by_a_round(kept):
    assert murmur(["resume", str(kept / "run"), "federation.num_rounds=3"]) == 0
    run = load_run(kept / "run")
    assert run.state == "finished" and [row["round"] for row in run.rows] == [0, 1, 2, 3]
    with Ledger(kept / "run" / "ledger.sqlite", create=False) as ledger:
        ledger.verify()
        assert [len(ledger.events(client)) for client in ledger.clients()] == [3, 3, 3, 3]
