"""`murmur ledger`: what a device's owner sees."""

import hashlib
import json
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fl_app.tools.ledger import _beside_card, describe, main
from murmur.format import format_number
from murmur.privacy.accounting import epsilon
from murmur.privacy.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
)
from murmur.privacy.ledger import Charge, Ledger
from murmur.privacy.ledger.entry import event_from_text
from tests.fl_app.running import run_inline

FEW = ["engine=inline", "federation.num_clients=6"]
LABELS = RepeatedEvent(RandomizedResponseEvent(2.5, 10), 2)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def path(tmp_path):
    """Clients 2 and 10 in two rounds of one run, client 10 also, without noise, in another."""
    path = tmp_path / "ledger.sqlite"
    clock = iter(datetime(2026, 1, day, 12, 30, tzinfo=UTC) for day in (1, 1, 2, 3, 4, 5, 6))
    with Ledger(path, clock=lambda: next(clock)) as ledger:
        for run, number, clients, event in (
            ("[red]first", 1, (2, 10), LABELS),
            ("[red]first", 2, (2, 10), LABELS),
            ("second", 1, (10,), NonPrivateEvent()),
        ):
            request = hashlib.sha256(f"{run}{number}".encode()).hexdigest()
            ledger.charge([Charge(c, run, number, "train", request, event) for c in clients])
            ledger.store_reply(request, b"reply")
    return path


def columns(output, client):
    """The cells of a client's row."""
    line = next(line for line in output.splitlines() if line.startswith(f"│ {client} "))
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_show_says_what_each_client_has_spent_in_its_life(path, capsys):
    assert main(["show", str(path)]) == 0
    output = capsys.readouterr().out
    spent = epsilon(RepeatedEvent(LABELS, 2), 1e-5).epsilon
    first, last = "2026-01-01 12:30", "2026-01-03 12:30"
    protected = ["client", "replace_one"]
    assert columns(output, 2) == ["2", "2", "1", first, last, *protected, format_number(spent)]
    assert columns(output, 10)[1:3] == ["3", "2"]
    assert columns(output, 10)[-1] == "infinite"
    assert output.index("│ 2 ") < output.index("│ 10 ")
    assert "at delta=1e-05, against a server that reads every message" in output


def test_show_of_one_client_lists_its_releases(path, capsys):
    assert main(["show", str(path), "--client", "10", "--delta", "1e-6"]) == 0
    output = capsys.readouterr().out
    assert "client 10: 3 releases, together epsilon=infinite at delta=1e-06, against" in output
    assert "2 x RandomizedResponse(epsilon=2.5, categories=10)" in output
    assert "[red]first" in output and "NonPrivate()" in output
    assert main(["show", str(path), "--client", "3"]) == 1
    assert "client 3: has released nothing; known are 10, 2" in capsys.readouterr().err


def test_json_is_the_same_for_machines(path, capsys):
    assert main(["show", str(path), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["delta"] == 1e-5
    assert [row["client"] for row in plain["clients"]] == ["2", "10"]
    assert plain["clients"][0]["epsilon"] == epsilon(RepeatedEvent(LABELS, 2), 1e-5).epsilon
    assert plain["clients"][1]["epsilon"] is None
    assert main(["show", str(path), "--json", "--client", "2"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["client"] == "2" and len(plain["releases"]) == 2
    assert (plain["unit"], plain["adjacency"]) == ("client", "replace_one")
    assert plain["releases"][0]["event"] == LABELS.to_dict()
    assert plain["releases"][0]["round"] == 1


def test_verify_says_that_all_is_well(path, capsys):
    assert main(["verify", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: intact; 5 releases by 2 clients\n"
    assert main(["verify", str(path), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    with Ledger(path) as ledger:
        assert plain == {"intact": True, "id": ledger.id, "clients": 2, "releases": 5}


@pytest.mark.parametrize("action", ["show", "verify"])
def test_a_ledger_that_cannot_be_trusted_gives_its_reason_and_status_1(path, capsys, action):
    path.with_name("ledger.sqlite.head").unlink()
    assert main([action, str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"murmur ledger: ledger {path}: the anchor")
    assert main([action, str(path), "--json"]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert plain["intact"] is False and "the anchor" in plain["reason"]


def test_a_file_that_is_no_ledger_is_refused_and_nothing_is_made(tmp_path, capsys):
    (tmp_path / "README.md").write_text("# Murmur, which is no database\n")
    assert main(["verify", str(tmp_path / "README.md")]) == 1
    assert "this file is no ledger" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_looking_for_a_ledger_does_not_begin_one(tmp_path, capsys):
    assert main(["show", str(tmp_path / "nothing.sqlite")]) == 1
    assert "no such ledger" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [[], ["mend", "x"], ["show"], ["show", "x", "--delta", "1"]])
def test_a_wrong_command_line_is_explained(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage: murmur ledger" in capsys.readouterr().err


def test_what_another_version_charged_is_shown_and_has_no_epsilon(tmp_path, capsys):
    class NewerEvent(Event):
        pass

    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.charge([Charge(1, "run", 1, "train", "ab" * 8, NewerEvent())])
    Event._kinds.pop("NewerEvent")
    event_from_text.cache_clear()
    for words in ([], ["--client", "1"]):
        assert main(["show", str(path), *words]) == 0
        assert "unsupported" in capsys.readouterr().out
    assert main(["verify", str(path)]) == 0


def test_events_are_described_on_one_line():
    event = ComposedEvent(
        (GaussianEvent(1.5), RepeatedEvent(PoissonSampledEvent(0.01, GaussianEvent(2.0)), 300))
    )
    assert describe(event) == (
        "Composed(Gaussian(noise_multiplier=1.5), "
        "300 x PoissonSampled(rate=0.01, Gaussian(noise_multiplier=2)))"
    )


POLICY = Path(__file__).parents[3] / "deploy" / "policy.example.yaml"


def test_show_says_what_is_left_of_the_policy(path, tmp_path, capsys):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.read_text().replace("lifetime: 8.5", "lifetime: 30.0"))
    assert main(["show", str(path), "--policy", str(policy), "--json"]) == 0
    two, ten = json.loads(capsys.readouterr().out)["clients"]
    counted = epsilon(RepeatedEvent(LABELS, 2), 1e-5).epsilon
    assert (two["counted"], two["left"]) == (pytest.approx(counted), pytest.approx(30 - counted))
    assert (ten["counted"], ten["left"]) == (None, 0.0)
    assert main(["show", str(path), "--policy", str(policy)]) == 0
    output = capsys.readouterr().out
    assert columns(output, 2)[-2:] == [
        format_number(counted),
        format_number(30 - counted, up=False),
    ]
    assert "left of epsilon_per_lifetime=30 until 2027-12-31" in output


def test_a_ledger_that_is_not_the_policys_is_not_shown(path, tmp_path, capsys):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.read_text().replace("ledger: any", f"ledger: {'ab' * 16}"))
    assert main(["show", str(path), "--policy", str(policy)]) == 1
    assert "no other ledger counts what this device has released" in capsys.readouterr().err
    policy.write_text("nothing: true")
    assert main(["show", str(path), "--policy", str(policy)]) == 1
    assert "policy.yaml is not valid" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["export.csv", "export.json"])
def test_export_writes_a_file_for_its_owner_only(path, tmp_path, capsys, name):
    assert main(["export", str(path), "--to", str(tmp_path / name)]) == 0
    assert "signed; check it with deploy/verify_ledger.py" in capsys.readouterr().out
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert main(["export", str(path)]) == 1
    assert "--to FILE" in capsys.readouterr().err


def test_show_of_a_run_says_first_why_its_figure_is_not_the_cards(tmp_path, capsys):
    sums = ["strategy=class_statistics", "privacy.secure_aggregation=simulated"]
    run = run_inline(tmp_path / "sums", *sums, "federation.num_rounds=1", small=FEW)
    assert main(["show", str(run.ledger_path)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("ε here is against a server that reads every message")
    assert "the run's card promises ε = " in first and "a server that sees only sums, if" in first
    assert second.startswith("charged to each client")
    alone = run_inline(
        tmp_path / "alone", "strategy=privatekt", "federation.num_rounds=1", small=FEW
    )
    for path in (alone.ledger_path, tmp_path / "sums" / "copy" / "ledger.sqlite"):
        assert _beside_card(path) is None
