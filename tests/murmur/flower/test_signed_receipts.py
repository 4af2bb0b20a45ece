"""Receipts that devices of a Flower app hand over, as whoever has no Murmur checks them."""

import json

import pytest

from murmur.privacy.ledger import Ledger
from murmur.privacy.ledger.chain import LedgerSigner
from murmur.privacy.run_header import ServerKey
from murmur.round.statement_file import read_envelope
from murmur.secure_sum.identity import identity_in, public_identity
from tests.deploy.receipt_worlds import verifier
from tests.murmur.flower.nodes import POLICY, Nodes, app_of
from tests.murmur.flower.test_rounds import started

COUNT = 4


class World:
    """Devices of a Flower app, the last of which gives no receipt, and a server with a key."""

    def __init__(self, folder, pins=False):
        self.folder = folder
        self.key = ServerKey.generate()
        self.key.save(folder / "server.key")
        self.devices = [folder / "devices" / str(place) for place in range(COUNT)]
        policy = POLICY.replace("servers: any", f"servers: [{self.key.public_key}]")
        for device in self.devices:
            device.mkdir(parents=True)
            (device / "policy.yaml").write_text(f"{policy}receipts: run, sizes\n")
            Ledger(device / "ledger.sqlite").close()  # makes its key
        self.keys = [
            public_identity(identity_in(device / "identity.key")).hex() for device in self.devices
        ]
        for device in self.devices if pins else ():
            (device / "peers").write_text("\n".join(self.keys))

    def run(self, rounds=2, **terms):
        """The folder of a run that is over."""
        grid = Nodes(app_of(metrics={"loss": 1.0}), COUNT, devices=self.folder / "devices")
        before = set(self.folder.glob("murmur-results/*"))
        key = self.folder / "server.key"
        started(grid, rounds=rounds, evaluate={"loss": (0, 2)}, server_key=key, **terms)
        (run,) = set(self.folder.glob("murmur-results/*")) - before
        return run

    def roster(self, with_keys=True):
        """Its file; by the devices' own word, which their owners have written down."""
        lines = []
        for place, device in enumerate(self.devices):
            signer = LedgerSigner.from_pem((device / "ledger.sqlite.key").read_bytes())
            key = self.keys[place] if with_keys else "-"
            lines.append(f"clinic-{place} {key} {signer.public_key} owner {place}\n")
        path = self.folder / "roster.txt"
        path.write_text("".join(lines))
        return path


def checked(run, roster, capsys, *words):
    """Status and text of the verifier."""
    status = verifier.main([str(run), "--roster", str(roster), *words])
    said = capsys.readouterr().out
    return status, " ".join(said.split())


@pytest.mark.parametrize("with_keys", [True, False])
def test_receipts_of_devices_fit_the_statement_of_their_run(tmp_path, with_keys, capsys):
    world = World(tmp_path)
    run = world.run()
    assert len(list((run / "receipts").iterdir())) == COUNT
    status, said = checked(run, world.roster(with_keys), capsys)
    assert (status, "CONTRADICTED" in said) == (4, False), said
    assert "owners of 4 clients have not pinned these keys" in said
    status, said = checked(run, world.roster(with_keys), capsys, "--against", "local")
    assert status == 4 and "questions: 4 asked: receipts of all 4 clients agree" in said


def test_sums_are_shown_where_owners_have_pinned_the_keys_of_the_roster(tmp_path, capsys):
    world = World(tmp_path, pins=True)
    run = world.run(roster=world.roster())
    _, said = checked(run, world.roster(), capsys)
    assert "shown sums: 4; receipts of all 4 clients agree" in said
    assert "CONTRADICTED" not in said and "have not pinned" not in said
    status, said = checked(run, world.roster(with_keys=False), capsys)
    assert status == 1 and "the header was signed for another roster than this" in said


def test_an_owner_that_gives_no_receipt_is_named_and_no_trial_is_asked(tmp_path, capsys):
    world = World(tmp_path)
    policy = world.devices[3] / "policy.yaml"
    policy.write_text(policy.read_text().replace("receipts: run, sizes", "receipts: none"))
    run = world.run()
    assert len(list((run / "receipts").iterdir())) == COUNT - 1
    _, said = checked(run, world.roster(), capsys)
    assert "receipts of 3 of 4 agree; clinic-3: the server's word" in said
    assert "none to be given" in (world.devices[3] / "errors.log").read_text()
    trials = Nodes(app_of(metrics={"loss": 1.0}), COUNT)
    started(trials, evaluate={"loss": (0, 2)}, server_key=tmp_path / "server.key")
    assert len(list(tmp_path.glob("murmur-results/*/receipts"))) == 1


def test_a_round_that_is_left_out_is_found_and_a_closed_run_answers_no_more(tmp_path, capsys):
    world = World(tmp_path)
    run = world.run()
    path = run / "statement.json"
    signed = read_envelope(path.read_bytes())
    plain = json.loads(signed.payload)["predicate"]
    kept = [one for one in plain["questions"] if one["round"] == 1]
    sums = [one for one in plain["sums"] if one["round"] == 1]
    subjects = {
        each["name"]: each["digest"]["sha256"] for each in json.loads(signed.payload)["subject"]
    }
    lie = {**plain, "questions": kept, "sums": sums}
    made = type(signed).of(json.loads(signed.payload)["predicateType"], subjects, lie, world.key)
    path.write_bytes(made.to_bytes())
    status, said = checked(run, world.roster(), capsys)
    assert status == 1
    assert "was asked in round 2 (train), and the statement has no such round" in said
    with Ledger(world.devices[0] / "ledger.sqlite", create=False) as ledger:
        kinds = [entry.kind for entry in ledger.entries()]
        assert kinds[-1] == "closed"
        ledger.verify()


def test_a_roster_without_a_key_that_signs_it_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"roster='roster\.txt': needs server_key=FILE"):
        started(None, roster="roster.txt")


def test_a_run_that_is_over_is_not_lost_with_its_receipts(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setattr("murmur.round.receipts.signed_request", broken)
    run = world.run()
    assert (run / "statement.json").exists() and not (run / "receipts").exists()


def broken(*args):
    raise ConnectionError("the SuperLink is gone")
