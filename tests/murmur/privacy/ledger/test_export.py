"""An exported ledger, checked by the verifier that needs neither Murmur nor a secret."""

import ast
import csv
import importlib.util
import io
import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from murmur.privacy.accounting import epsilon
from murmur.privacy.events import (
    Adjacency,
    Assumption,
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    SecurelySummedEvent,
    ShuffledEvent,
    Unit,
)
from murmur.privacy.ledger import Charge, Ledger, batch
from murmur.privacy.ledger.export import write_csv, write_json
from murmur.privacy.neighbours import STEPS, Neighbours, common
from tests.murmur.privacy.ledger.ledger_cases import digest
from tests.sums import noised

VERIFIER = Path(__file__).parents[4] / "deploy" / "verify_ledger.py"
NOW = datetime(2026, 11, 2, tzinfo=UTC)
LABELS = RepeatedEvent(RandomizedResponseEvent(2.5, 10), 2)
VOTES = DiscreteGaussianEvent(20.0, math.sqrt(2))
LOTS = RepeatedEvent(PoissonSampledEvent(0.02, DiscreteGaussianEvent(70.0, 64.0)), 500)
PUBLIC = Assumption("public", "the bound is public")

EVENTS = {
    "labels": RepeatedEvent(LABELS, 10),
    "labels of two runs": ComposedEvent(
        (LABELS, RepeatedEvent(RandomizedResponseEvent(1.7, 9), 7))
    ),
    "labels whose steps have no common measure": ComposedEvent(
        (LABELS, RepeatedEvent(PureEvent(math.pi / 9), 30))
    ),
    "bits": RepeatedEvent(RandomizedBitsEvent(0.002, 10_000, 4_000), 20),
    "a count": RepeatedEvent(LaplaceEvent(1.5, 2), 20),
    "a count on an unknown grid": RepeatedEvent(LaplaceEvent(1.5), 5),
    "continuous Laplace": RepeatedEvent(LaplaceEvent(3.0, 0), 20),
    "Gaussian and labels": ComposedEvent((RepeatedEvent(GaussianEvent(5.0), 100), LABELS)),
    "Gaussian on a fine grid": RepeatedEvent(DiscreteGaussianEvent(2.0**17, 2.0**15), 30),
    "fine grid and a count": ComposedEvent(
        (DiscreteGaussianEvent(2.0**18, 2.0**17), LaplaceEvent(1.5, 2))
    ),
    "votes": RepeatedEvent(VOTES, 50),
    "votes and a choice": ComposedEvent((RepeatedEvent(VOTES, 50), PureEvent(0.1))),
    "steps of DP-SGD": LOTS,
    "sampled labels": RepeatedEvent(PoissonSampledEvent(0.1, RandomizedResponseEvent(2.0, 10)), 5),
    "in a secure sum": noised(GaussianEvent(2.0), 20),
    "in a sum of before": SecurelySummedEvent(GaussianEvent(2.0), 20),
    "shuffled": ShuffledEvent(PureEvent(1.0), 20),
    "without protection": NonPrivateEvent(),
    "a record's release": Release(LOTS, Unit.RECORD, Adjacency.REPLACE_SPECIAL),
    "sampled where any record may be replaced": Release(
        PoissonSampledEvent(0.5, DiscreteGaussianEvent(70.0, 64.0)),
        Unit.RECORD,
        Adjacency.REPLACE_ONE,
    ),
    "proven under an assumption only": Release(
        GaussianEvent(2.0), Unit.RECORD, Adjacency.REPLACE_ONE, (PUBLIC,)
    ),
    "proven otherwise": Release(
        GaussianEvent(2.0), Unit.RECORD, Adjacency.REPLACE_ONE, (PUBLIC,), GaussianEvent(0.5)
    ),
    "neighbours of four kinds": ComposedEvent(
        (
            Release(LOTS, Unit.RECORD, Adjacency.REPLACE_SPECIAL),
            Release(GaussianEvent(20.0), Unit.CLIENT, Adjacency.REPLACE_SPECIAL),
            Release(VOTES, Unit.CLIENT, Adjacency.REPLACE_SPECIAL, in_part=True),
            Release(
                ComposedEvent((LABELS, PureEvent(1.0), LaplaceEvent(9.0, 2), LaplaceEvent(9.0))),
                Unit.RECORD,
                Adjacency.ADD_REMOVE,
            ),
            LABELS,
        )
    ),
    "clients exchanged, and more or less": ComposedEvent(
        (
            Release(RandomizedBitsEvent(0.002, 900, 500), Unit.CLIENT, Adjacency.ADD_REMOVE),
            Release(
                GaussianEvent(2.0),
                Unit.CLIENT,
                Adjacency.ADD_REMOVE,
                (PUBLIC,),
                Release(GaussianEvent(9.0), Unit.CLIENT, Adjacency.REPLACE_ONE),
            ),
            Release(GaussianEvent(9.0), Unit.CLIENT, Adjacency.REPLACE_ONE),
        )
    ),
}


def load_verifier():
    spec = importlib.util.spec_from_file_location("verify_ledger", VERIFIER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


verifier = load_verifier()


@pytest.fixture
def ledger(tmp_path):
    """Three rounds of one client, two of another; a secure sum's worth of answers."""
    with Ledger(tmp_path / "ledger.sqlite", clock=lambda: NOW) as opened:
        for number, clients in enumerate(((7, 8), (7, 8), (7,))):
            request = digest(number)
            opened.charge(
                [
                    Charge(c, 'a run, with "quotes"', number, "train", request, LABELS)
                    for c in clients
                ]
            )
            opened.store_reply(request, b"reply")
        yield opened


def exported(ledger, kind="csv"):
    file = io.StringIO()
    (write_csv if kind == "csv" else write_json)(ledger, file, NOW)
    return file.getvalue()


def verify(path, *words):
    command = [sys.executable, str(VERIFIER), str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_verifier_stands_alone_and_is_short():
    lines = VERIFIER.read_text().splitlines()
    assert len(lines) <= 385
    roots = set()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Import):
            roots |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add(node.module.split(".")[0])
    assert roots - set(sys.stdlib_module_names) == {"cryptography", "numpy", "scipy"}


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_third_party_gets_the_same_epsilon(ledger, tmp_path, kind):
    path = tmp_path / f"export.{kind}"
    path.write_text(exported(ledger, kind), newline="")
    done = verify(path, "--id", ledger.id)
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    assert plain["ledger"]["id"] == ledger.id
    assert {(c["unit"], c["adjacency"]) for c in plain["clients"].values()} == {
        ("client", "replace_one")
    }
    assert {client: c["releases"] for client, c in plain["clients"].items()} == {"7": 3, "8": 2}
    for client in (7, 8):
        spent = epsilon(ledger.spent(client), 1e-5).epsilon
        assert plain["clients"][str(client)]["epsilon"] == pytest.approx(spent, rel=1e-6)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_ledger_whose_runs_are_closed_is_verified(ledger, tmp_path, kind):
    body = json.dumps({"clients": ["7"], "peers": "seen", "statement": None})
    assert ledger.close_run('a run, with "quotes"', body) == body
    ledger.close_run("never asked")
    ledger.charge([Charge(7, "another", 1, "train", digest(9), LABELS)])
    ledger.store_reply(digest(9), b"reply")
    ledger.close_run("another")
    path = tmp_path / f"export.{kind}"
    path.write_text(exported(ledger, kind), newline="")
    done = verify(path, "--id", ledger.id)
    assert done.returncode == 0, done.stderr
    clients = json.loads(done.stdout)["clients"]
    assert {client: c["releases"] for client, c in clients.items()} == {"7": 4, "8": 2}


def test_a_charge_after_its_run_was_closed_is_wrong(ledger, tmp_path, monkeypatch):
    ledger.close_run('a run, with "quotes"')
    monkeypatch.setattr(batch, "is_closed", lambda log, run: False)
    ledger.charge([Charge(7, 'a run, with "quotes"', 9, "train", digest(9), LABELS)])
    path = tmp_path / "export.csv"
    path.write_text(exported(ledger), newline="")
    done = verify(path)
    assert done.returncode == 1
    assert "charges what was charged or closed before" in done.stderr


@pytest.mark.parametrize("what", EVENTS)
def test_every_kind_of_release_costs_the_same_there(what):
    plain = json.loads(json.dumps(EVENTS[what].to_dict()))
    theirs = verifier.epsilon(verifier.elementary(plain), 1e-5)
    assert theirs == pytest.approx(epsilon(EVENTS[what], 1e-5).epsilon, rel=1e-6)


def test_its_table_of_neighbours_is_ours():
    assert {Neighbours(*own) for own in verifier.STEPS} == set(STEPS)
    for own, wanted in itertools.product(verifier.STEPS, verifier.KINDS):
        ours = Neighbours(*own).steps(Neighbours(*wanted))
        assert verifier.steps(own, wanted) == (ours or 0)
    for count in (0, 1, 2, 3):
        for found in itertools.combinations(verifier.STEPS, count):
            ours = common(Neighbours(*own) for own in found)
            assert verifier.covered(set(found)) == (ours.unit, ours.adjacency)


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "NewerEvent", "strength": 3},
        {**Release(LABELS, Unit.CLIENT, Adjacency.REPLACE_ONE).to_dict(), "adjacency": "near"},
        {"kind": "GaussianEvent", "noise_multiplier": 1.0, "sampled": True},
        DiscreteGaussianEvent(20.0, 2.0, scalar=True).to_dict(),
        PoissonSampledEvent(0.02, GaussianEvent(2.0)).to_dict(),
        LaplaceEvent(1.0, 1000).to_dict(),
    ],
)
def test_what_it_cannot_derive_it_calls_unsupported(event):
    with pytest.raises(verifier.UnsupportedError):
        verifier.epsilon(verifier.elementary(event), 1e-5)


def edited(text, change):
    """The export with its rows changed, and the chain made to fit again, as anybody can."""
    rows = list(csv.DictReader(io.StringIO(text)))
    rows = change(rows) or rows
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_third_party_reads_blocks_client_by_client(tmp_path, kind):
    path = tmp_path / f"export.{kind}"
    with Ledger(tmp_path / "ledger.sqlite", clock=lambda: NOW) as ledger:
        for number, clients in enumerate((range(300), range(100, 1300))):
            request = digest(number)
            asked = [Charge(c, "run", number, "train", request, LABELS) for c in clients]
            ledger.charge(asked, blocks=True)
            ledger.store_reply(request, b"reply")
        path.write_text(exported(ledger, kind), newline="")
        counts = {client: len(ledger.events(client)) for client in ledger.clients()}
        own = epsilon(ledger.spent(100), 1e-5).epsilon
    charges, _ = verifier.check(str(path), ledger.id)
    assert {client: len(found) for client, found in charges.items()} == counts
    leaves = sum((verifier.elementary(json.loads(body)) for _, body in charges["100"]), Counter())
    assert verifier.epsilon(leaves, 1e-5) == pytest.approx(own, rel=1e-6)
    text = path.read_text()
    assert text.count("100-1123") == 1  # 1,024 clients in one entry, the rest in another
    path.write_text(text.replace("100-1123", "101-1123"), newline="")
    with pytest.raises(ValueError, match="altered"):
        verifier.check(str(path), ledger.id)


@pytest.mark.parametrize("client", ["clients\t0-99999999999", "clients\t", "clients\t1-x"])
def test_a_malformed_block_is_refused(client):
    with pytest.raises(ValueError):
        verifier.names(client)


CHANGES = {
    "a cheaper release": lambda rows: rows[1].update(body=rows[1]["body"].replace("2.5", "0.5")),
    "a client removed": lambda rows: [row for row in rows if row["client"] != "8"],
    "the newest entry removed": lambda rows: rows[:-2] + rows[-1:],
    "the export's signature removed": lambda rows: rows[:-1],
    "an earlier end": lambda rows: [*rows[:6], {**rows[-1], "position": "5"}],
    "another time of export": lambda rows: rows[-1].update(time="2027-01-01"),
    "another key": lambda rows: rows[0].update(
        body=rows[0]["body"].replace('"key":"', '"key":"00')
    ),
    "another beginning": lambda rows: rows[0].update(body=rows[0]["body"].replace("2026", "2025")),
    "entries exchanged": lambda rows: [rows[0], rows[2], rows[1], *rows[3:]],
    "a signature of another entry": lambda rows: rows[3].update(signature=rows[-2]["signature"]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_altered_export_is_noticed(ledger, tmp_path, what):
    path = tmp_path / "export.csv"
    path.write_text(edited(exported(ledger), lambda rows: None), newline="")
    verifier.check(str(path), ledger.id)
    path.write_text(edited(exported(ledger), CHANGES[what]), newline="")
    done = verify(path)
    assert done.returncode == 1 and done.stderr.startswith("WRONG: ") and done.stdout == ""


def test_the_export_of_another_ledger_is_not_taken_for_this_one(ledger, tmp_path):
    path = tmp_path / "export.csv"
    with Ledger(tmp_path / "other.sqlite") as other:
        path.write_text(exported(other), newline="")
    done = verify(path, "--id", ledger.id)
    assert done.returncode == 1 and "it is of ledger" in done.stderr


def test_no_cell_of_an_export_is_a_formula_and_the_export_still_verifies(tmp_path):
    names = ["=HYPERLINK(0)", "+1", "-1", "@SUM(A1)", "'=1", "'plain"]
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for number, name in enumerate(names):
            charge = Charge(name, name, number, "train", digest(number), LaplaceEvent(1.0))
            ledger.charge([charge])
        with open(tmp_path / "out.csv", "w", newline="") as file:
            write_csv(ledger, file, NOW)
    text = (tmp_path / "out.csv").read_text()
    cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    done = subprocess.run([sys.executable, VERIFIER, tmp_path / "out.csv"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["clients"]) == set(names)
