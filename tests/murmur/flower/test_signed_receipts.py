"""Receipts of devices beside the statement of their run, as whoever has no Murmur checks them."""

import json
from dataclasses import replace

import pytest

from murmur.privacy.envelope import Envelope
from murmur.privacy.ledger import Ledger
from murmur.privacy.ledger.chain import LedgerSigner
from murmur.privacy.receipt import RECEIPT_TYPE, RunEntries, receipt_of
from murmur.privacy.run_header import ServerKey
from murmur.round.statement_file import read_envelope
from tests.deploy.receipt_worlds import verifier
from tests.murmur.flower.nodes import POLICY, Nodes, app_of
from tests.murmur.flower.test_rounds import started

COUNT = 4


@pytest.fixture
def run(tmp_path):
    """A run's folder with its statement, receipts and two rosters, one with keys for sums."""
    key = ServerKey.generate()
    key.save(tmp_path / "server.key")
    devices = [tmp_path / "devices" / str(place) for place in range(COUNT)]
    for folder in devices:
        folder.mkdir(parents=True)
        pinned = POLICY.replace("servers: any", f"servers: [{key.public_key}]")
        (folder / "policy.yaml").write_text(pinned)
    grid = Nodes(app_of(metrics={"loss": 1.0}), COUNT, devices=tmp_path / "devices")
    started(grid, rounds=2, evaluate={"loss": (0, 2)}, server_key=tmp_path / "server.key")
    (path,) = tmp_path.glob("murmur-results/*/statement.json")
    signed = read_envelope(path.read_bytes())
    keys = json.loads(signed.payload)["predicate"]["sums"][0]["keys"]
    (path.parent / "receipts").mkdir(exist_ok=True)
    rosters = {"keys.txt": "", "roster.txt": ""}
    for place, folder in enumerate(devices):
        with Ledger(folder / "ledger.sqlite", create=False) as ledger:
            charge = next(entry for entry in ledger.entries() if entry.kind == "charge")
            entries = RunEntries(ledger, charge.run)
            said = receipt_of(entries, charge.clients[0], statement=signed.digest, peers="seen")
        said = replace(said, client=str(place))
        signer = LedgerSigner.from_pem((folder / "ledger.sqlite.key").read_bytes())
        made = Envelope.of(RECEIPT_TYPE, said.subjects, said.to_predicate(), signer)
        (path.parent / "receipts" / f"{place}.json").write_bytes(made.to_bytes())
        rest = f"{signer.public_key} owner {place}\n"
        in_sums = keys[str(said.entries[0].masked.place)]
        rosters["keys.txt"] += f"{place} {in_sums[:64]} {rest}"
        rosters["roster.txt"] += f"{place} - {rest}"
    for name, text in rosters.items():
        (path.parent / name).write_text(text)
    return path.parent


@pytest.mark.parametrize("roster", ["keys.txt", "roster.txt"])
def test_receipts_of_devices_fit_the_statement_of_their_run(run, roster, capsys):
    status = verifier.main([str(run), "--roster", str(run / roster)])
    said = capsys.readouterr().out
    assert (status, "CONTRADICTED" in said) == (4, False), said
    assert "owners of 4 clients have not pinned these keys" in said
    assert verifier.main([str(run), "--roster", str(run / roster), "--against", "local"]) == 4
    assert "questions: 4 asked: receipts of all 4 clients agree" in said
