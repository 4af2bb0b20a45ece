"""``federation.roster``: a run begins only with the clients that owners have agreed on."""

import pytest

from fl_app.config.errors import ConfigError
from fl_app.run.signing import signer_of
from fl_app.run.validated import ValidatedRun
from murmur.privacy.ledger.chain import LedgerSigner
from murmur.privacy.roster import Roster
from murmur.privacy.run_header import RunHeader
from tests.fl_app.running import run_inline


def roster(path, names):
    """A roster of clients with these names, each of an owner and device of its own."""
    lines = [f"{name} - {LedgerSigner.generate().public_key} owner {name}\n" for name in names]
    path.write_text("".join(lines))
    return f"federation.roster={path}"


def test_a_run_with_the_rosters_clients_names_it_in_its_header(tmp_path):
    word = roster(tmp_path / "roster.txt", "543210")
    run = run_inline(tmp_path / "run", word, "federation.num_rounds=1")
    header = RunHeader.read((run.path / "header.json").read_bytes())
    assert header.roster == Roster.load(tmp_path / "roster.txt").digest


@pytest.mark.parametrize(
    "names, sentence",
    [
        ("01235", "must name the run's clients, 0 to 5: it lacks 4 and has none beside them"),
        ([*"012345", "a"], "it lacks none and has a beside them"),
        (["clinic"], "it lacks 0, 1, 2, 3, 4, 5 and has clinic beside them"),
        (range(40), "and has 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 24 more beside them"),
    ],
)
def test_a_run_with_other_clients_is_refused_before_anybody_is_asked(tmp_path, names, sentence):
    word = roster(tmp_path / "roster.txt", names)
    with pytest.raises(ConfigError) as caught:
        run_inline(tmp_path / "run", word, "federation.num_rounds=1")
    said = str(caught.value)
    assert said.startswith(f"{word}: ") and sentence in said
    assert said.endswith("; correct the file, or federation.num_clients=6")
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


def test_a_roster_that_nobody_signs_is_refused(tmp_path, monkeypatch):
    word = roster(tmp_path / "roster.txt", "012345")
    words = ["engine=inline", "strategy=fedavg", "federation.num_clients=6"]
    run = ValidatedRun.of([*words, word, f"run_dir={tmp_path}"])
    monkeypatch.setattr("fl_app.run.signing._key", lambda run: None)  # as on devices without one
    with pytest.raises(ConfigError, match=r"needs federation\.server_key=FILE, which"):
        signer_of(run, "a run")
