"""``private(..., server_key=FILE)``: owners who pin the key answer what it has signed, no more."""

import json

import pytest

from fl_app.cli import main as murmur
from murmur.privacy.ledger import Ledger
from murmur.privacy.run_header import ServerKey
from murmur.round.task import SIGNED
from tests.murmur.flower.nodes import POLICY, Nodes, app_of
from tests.murmur.flower.test_rounds import started

COUNT = 4


@pytest.fixture
def key(tmp_path):
    made = ServerKey.generate()
    made.save(tmp_path / "server.key")
    return made


@pytest.fixture
def devices(tmp_path, key):
    for place in range(COUNT):
        folder = tmp_path / "devices" / str(place)
        folder.mkdir(parents=True)
        pinned = POLICY.replace("servers: any", f"servers: [{key.public_key}]")
        (folder / "policy.yaml").write_text(pinned)
    return tmp_path / "devices"


def entries(devices, kind):
    found = []
    for place in range(COUNT):
        path = devices / str(place) / "ledger.sqlite"
        if path.exists():
            with Ledger(path, create=False) as ledger:
                found += [each for each in ledger.entries() if each.kind == kind]
    return found


def statement_in(folder):
    (path,) = folder.glob("murmur-results/*/statement.json")
    return path


def test_a_signed_run_is_answered_kept_and_stated(tmp_path, key, devices, capsys):
    grid = Nodes(app_of(metrics={"loss": 1.0}), COUNT, devices=devices)
    started(grid, rounds=2, evaluate={"loss": (0, 2)}, server_key=tmp_path / "server.key")
    assert len(entries(devices, "run")) == COUNT
    assert len({entry.request for entry in entries(devices, "run")}) == 1
    assert len(entries(devices, "charge")) == len(entries(devices, "question")) == 4 * COUNT
    confirmed = [json.loads(entry.body) for entry in entries(devices, "confirmed")]
    assert [one["survivors"] for one in confirmed] == [COUNT] * 4 * COUNT
    assert {entry.round for entry in entries(devices, "confirmed")} == {1, 2}
    for place in range(COUNT):  # the owner alone
        words = ["verify", str(statement_in(tmp_path)), "--mine", "--state"]
        assert murmur([*words, str(devices / str(place))]) == 0
        said = capsys.readouterr().out
        assert "4 charges of 1 client in 2 rounds, 4 confirmed secure sums" in said


def test_a_run_without_a_key_charges_nobody(devices):
    grid = Nodes(app_of(), COUNT, devices=devices)
    started(grid)
    assert entries(devices, "charge") == []


def test_less_noise_than_signed_charges_nobody(tmp_path, devices):
    def louder(message, place):
        ask = message.content.config_records.get("murmur", {}).get("ask")
        if ask is not None and SIGNED in message.content:
            plain = json.loads(ask)
            plain["noise_multiplier"] /= 2
            message.content["murmur"]["ask"] = json.dumps(plain, sort_keys=True)
        return message

    grid = Nodes(app_of(), COUNT, devices=devices, spoil=louder)
    started(grid, server_key=tmp_path / "server.key")
    assert entries(devices, "charge") == []


def test_a_file_that_holds_no_key_is_refused(tmp_path):
    (tmp_path / "no.key").write_text("nothing")
    with pytest.raises(ValueError, match="holds no key that `murmur server-key` made"):
        started(None, server_key=tmp_path / "no.key")
