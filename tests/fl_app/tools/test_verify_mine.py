"""`murmur verify --mine`: the owner of a device finds what a server states otherwise than it asked.

The lies are those of docs/receipts.md; each has a statement that the server has signed.
"""

import json
from dataclasses import replace

import pytest

from fl_app.cli import main
from fl_app.tools import verify_mine
from murmur.flower import private_grid
from murmur.privacy.accounting import Unit
from murmur.privacy.events import GaussianEvent
from murmur.privacy.policy import Policy
from murmur.privacy.receipt import RECEIPT_TYPE, RunEntries, receipt_of
from murmur.privacy.run_header import PlannedPhase, ServerKey
from murmur.round.asked_log import AskedLog
from murmur.round.statement_file import (
    OpenedQuestion,
    SignedStatement,
    read_envelope,
    read_statement,
)
from murmur.round.task import question_digest
from murmur.secure_sum.terms import SumTerms
from tests.deploy.receipt_worlds import verifier
from tests.murmur.flower.nodes import POLICY, Nodes, app_of
from tests.murmur.flower.test_rounds import started
from tests.murmur.round.test_signed import Signed, with_another_word

KEY = ServerKey.generate()


class Stated(Signed):
    """A federation whose run is over, with its statement."""

    def __init__(self, folder, change=None, is_pinned=True, **header):
        super().__init__(folder, KEY, **header)
        self.folder = folder
        self.signer.log = AskedLog(folder / "asked.jsonl")
        if not is_pinned:
            self.host.site = replace(self.host.site, policy=Policy.simulation())
        if change is not None:
            self.change = change
        self.run()
        privacy = self.strategy.rounds.statement()
        self.statement = SignedStatement(
            self.signer.signed, privacy, "12" * 32, *self.signer.log.read()
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Stated(tmp_path_factory.mktemp("run"))


def verify(statement, state, capsys, *words, key=KEY):
    """The command's status and what it says of ``statement``, signed by ``key``."""
    path = state / "statement.json"
    path.write_bytes(statement.signed(key).to_bytes())
    status = main(["verify", str(path), "--mine", "--state", str(state), *words])
    said = capsys.readouterr()
    return status, said.out + said.err


def with_epsilon(privacy, factor):
    """The privacy statement with every ε so much as it was."""
    changed = [
        replace(each, proven_total=factor * each.proven_total) for each in privacy.guarantees
    ]
    return replace(privacy, guarantees=tuple(changed))


def test_an_honest_statement_does_not_contradict_what_was_asked(run, capsys):
    status, said = verify(run.statement, run.folder, capsys)
    assert status == 0, said
    assert "does not contradict what this device was asked: 4 charges of 2 clients" in said
    assert "not shown: what other devices were asked" in said
    assert verify(run.statement, run.folder, capsys, "--client", "1")[0] == 0
    more = replace(run.statement, privacy=with_epsilon(run.statement.privacy, 2))
    assert verify(more, run.folder, capsys)[0] == 0  # more is stated than was asked


def test_fewer_rounds_than_asked(run, capsys):
    fewer = replace(
        run.statement,
        questions=run.statement.questions[:1],
        privacy=with_epsilon(run.statement.privacy, 0.5),
    )
    status, said = verify(fewer, run.folder, capsys)
    assert status == 1
    assert "round 2) was charged, and it has no question train in round 2" in said
    assert "the server asked, and its signature is in entry" in said


def test_another_question_than_asked(run, capsys):
    first, second = run.statement.questions
    opened = {**second.opened, "started": "other"}
    other = OpenedQuestion(2, "train", question_digest(opened).hex(), opened)
    status, said = verify(replace(run.statement, questions=(first, other)), run.folder, capsys)
    assert status == 1 and "has another question train in round 2" in said


def test_a_question_that_does_not_open_to_its_digest_is_no_statement(run, capsys):
    first, second = run.statement.questions
    false = replace(second, opened={**second.opened, "kind": "evaluate"})
    status, said = verify(replace(run.statement, questions=(first, false)), run.folder, capsys)
    assert status == 2 and "the question's digest is not of what is opened" in said


def test_less_noise_than_the_header_plans(tmp_path, capsys):
    """A device that names no server answers it; its owner still finds it."""
    planned = PlannedPhase("train", 1, 2, event=GaussianEvent(9.0))
    run = Stated(tmp_path, is_pinned=False, phases=(planned,))
    status, said = verify(run.statement, tmp_path, capsys)
    assert status == 1 and "the run header plans another event" in said


def test_another_unit_and_another_delta(run, capsys):
    for changed in ({"unit": Unit.RECORD}, {"delta": 1e-3}):
        privacy = replace(run.statement.privacy, **changed)
        status, said = verify(replace(run.statement, privacy=privacy), run.folder, capsys)
        assert status == 1 and "the run header that its server has signed says" in said


def test_less_epsilon_than_was_charged(run, capsys):
    less = replace(run.statement, privacy=with_epsilon(run.statement.privacy, 0.9))
    status, said = verify(less, run.folder, capsys)
    assert status == 1 and "was charged ε = " in said and "and it states " in said


def test_what_nobody_signed_cannot_be_shown(tmp_path, capsys):
    run = Stated(tmp_path, change=with_another_word_later(), is_pinned=False)
    fewer = replace(run.statement, questions=run.statement.questions[:1])
    status, said = verify(fewer, tmp_path, capsys)
    assert status == 1 and "this device says so, and cannot show it" in said


def with_another_word_later():
    """Spoils the signatures of all messages but the first, which the header comes with."""
    messages = []

    def change(content):
        messages.append(content)
        if len(messages) > 1:
            with_another_word(content)

    return change


def test_another_run_another_server_and_no_statement_are_said_so(run, tmp_path, capsys):
    other = Stated(tmp_path)
    status, said = verify(other.statement, run.folder, capsys)
    assert status == 2 and "was never asked in the run with header" in said
    status, said = verify(run.statement, run.folder, capsys, key=ServerKey.generate())
    assert status == 2 and "no server that has asked this device has signed it" in said
    status, said = verify(run.statement, run.folder, capsys, "--client", "7")
    assert status == 2 and "nothing was charged to client 7" in said
    path = run.folder / "statement.json"
    content = path.read_bytes()
    for damaged in (content[:-9], b"{}", b"", content.replace(b"payloadType", b"payload")):
        path.write_bytes(damaged)
        assert main(["verify", str(path), "--mine", "--state", str(run.folder)]) == 2
        assert "is no signed statement" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "none"), "--mine", "--state", str(run.folder)]) == 2
    assert main(["verify", str(tmp_path), "--mine"]) == 2
    assert main(["verify", str(tmp_path), "--mine", "--state", str(tmp_path / "none")]) == 2


def test_a_server_that_asks_again_after_a_kill_states_it_once(run, tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_bytes((run.folder / "asked.jsonl").read_bytes() + b'{"question": {"rou')
    log = AskedLog(path)
    for one in run.statement.questions:
        log.add_question(one)
    assert log.read() == (run.statement.questions, ())


def published(run, statement, folder):
    """What a reader has of a run: a statement, everybody's receipts and the roster.

    Returns:
        The verifier's words for it.
    """
    envelope = statement.signed(KEY)
    (folder / "receipts").mkdir()
    (folder / "statement.json").write_bytes(envelope.to_bytes())
    entries = RunEntries(run.ledger, "test")
    lines = []
    for client in ("0", "1"):
        receipt = receipt_of(entries, client, statement=envelope.digest)
        about = receipt.subjects, receipt.to_predicate()
        signed = run.ledger.sign_envelope(RECEIPT_TYPE, *about)
        (folder / "receipts" / f"{client}.json").write_bytes(signed.to_bytes())
        lines.append(f"{client} - {run.ledger.header.key} a clinic\n")
    (folder / "roster.txt").write_text("".join(lines))
    return [str(folder), "--roster", str(folder / "roster.txt")]


def test_evidence_shows_everybody_that_the_server_has_asked(run, tmp_path, capsys):
    fewer = replace(run.statement, questions=run.statement.questions[:1])
    words = published(run, fewer, tmp_path)
    assert verifier.main(words) == 1
    assert "So it says; no signature of the server is shown" in capsys.readouterr().out
    found = []
    for client in ("0", "1"):
        path = tmp_path / "receipts" / f"{client}.evidence"
        more = "--client", client, "--evidence", str(path)
        status, said = verify(fewer, run.folder, capsys, *more)
        assert status == 1 and "2 signatures of the server" in said
        found.append(path.read_bytes())
    assert found[0] == found[1]  # it tells nothing of whose it is
    assert verifier.main(words) == 1
    said = capsys.readouterr().out
    assert (
        "was asked in round 2 (train), and the statement has no such round. "
        "The server has signed that question."
    ) in said
    assert "no signature of the server is shown" not in said


def test_where_there_is_no_evidence_it_is_said_so(run, tmp_path, capsys, monkeypatch):
    path = tmp_path / "1.evidence"

    def holds_not(*_):
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(verify_mine, "require_signed_question", holds_not)
        status, said = verify(run.statement, run.folder, capsys, "--evidence", str(path))
    assert status == 2 and "the server's signature kept; nothing was written" in said
    assert main(["verify", str(run.folder), "--evidence", str(path)]) == 2
    assert "write --mine --state FOLDER" in capsys.readouterr().err
    secret = Stated(tmp_path, secret=True)
    status, said = verify(secret.statement, tmp_path, capsys, "--evidence", str(path))
    assert status == 2 and "would tell in which rounds this device was drawn" in said
    assert not path.exists()


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Devices that pin the server's key, and its statement after a run with secure sums."""
    folder = tmp_path_factory.mktemp("masked")
    KEY.save(folder / "server.key")
    for place in range(4):
        (folder / str(place)).mkdir()
        pinned = POLICY.replace("servers: any", f"servers: [{KEY.public_key}]")
        (folder / str(place) / "policy.yaml").write_text(pinned)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MURMUR_RESULTS", str(folder / "results"))
        patch.delenv("MURMUR_DEVICE", raising=False)
        patch.setattr(private_grid, "PHASE_SECONDS", 0.5)
        started(Nodes(app_of(), 4, devices=folder), rounds=2, server_key=folder / "server.key")
    (path,) = folder.glob("results/*/statement.json")
    return folder, read_statement(read_envelope(path.read_bytes()), KEY.public_key)


def test_an_honest_run_with_secure_sums(masked, capsys):
    folder, statement = masked
    status, said = verify(statement, folder / "0", capsys)
    assert status == 0, said
    assert "2 charges of 1 client in 2 rounds, 2 confirmed secure sums" in said
    assert len(statement.questions) == len(statement.sums) == 2
    for one in statement.sums:
        assert len(one.keys) == len(one.confirmations) == 4
        assert SumTerms.from_dict(dict(one.opened)).terms_digest.hex() == one.terms


def test_evidence_of_secure_sums_is_alike_on_all_devices(masked, tmp_path, capsys):
    folder, statement = masked
    found = set()
    for place in ("0", "1"):
        path = tmp_path / f"{place}.evidence"
        assert verify(statement, folder / place, capsys, "--evidence", str(path))[0] == 0
        found.add(path.read_bytes())
    (content,) = found
    asked = {(one.round, one.question, one.terms) for one in statement.sums}
    assert {(line[1], line[3], line[4]) for line in json.loads(content)} == asked


def with_sum(statement, **changed):
    first, second = statement.sums
    return replace(statement, sums=(first, replace(second, **changed)))


def test_a_sum_stated_otherwise_than_it_was_confirmed(masked, capsys):
    folder, statement = masked
    state = folder / "1"
    second = statement.sums[1]
    opened = {**second.opened, "length": second.opened["length"] + 1}
    terms = SumTerms.from_dict(opened).terms_digest.hex()
    for lie, reason in (
        (replace(statement, sums=statement.sums[:1]), "it has no secure sum with the terms"),
        (with_sum(statement, survivors="e0"), "it has other lists of this sum's clients (3"),
        (with_sum(statement, opened=opened), "the terms that it opens have another digest"),
        (with_sum(statement, opened=opened, terms=terms), "it has no secure sum with the terms"),
        (with_sum(statement, opened={}), "its sum with these terms is none"),
    ):
        status, said = verify(lie, state, capsys)
        assert status == 1 and reason in said, (reason, said)
        assert "the server asked, and its signature is in entry" in said


def test_less_epsilon_in_sums_than_was_charged(masked, capsys):
    folder, statement = masked
    privacy = statement.privacy
    changed = [replace(each, assumed_total=0.5 * each.stated) for each in privacy.guarantees]
    lie = replace(statement, privacy=replace(privacy, guarantees=tuple(changed)))
    status, said = verify(lie, folder / "0", capsys)
    assert status == 1 and "against a server that sees only sums" in said
