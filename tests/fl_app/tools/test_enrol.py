"""`murmur enrol` enters a node's key and its clients into the server's table, once."""

import subprocess
from pathlib import Path

import pytest

from fl_app.tools.enrol import main
from murmur.round.placement import Enrolment

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "node-key.sh"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("a", "b"):
        subprocess.run([SCRIPT, folder / name], check=True, capture_output=True)
    return [folder / "a.pub", folder / "b.pub"]


def enrol(key, clients, table):
    return main([str(key), "--clients", clients, "--table", str(table)])


def test_two_nodes_are_entered(keys, tmp_path):
    table = tmp_path / "enrolled.txt"
    assert enrol(keys[0], "0,3", table) == 0
    assert enrol(keys[1], "1", table) == 0
    assert sorted(Enrolment.load(table).clients.values()) == [(0, 3), (1,)]


@pytest.mark.parametrize(
    ("key", "clients", "said"),
    [
        (0, "5", "this key is enrolled already"),
        (1, "3,4", "client 3 is hosted by another key"),
        (1, "all", "must be clients' ids"),
    ],
)
def test_what_contradicts_the_table_leaves_it_as_it_was(keys, tmp_path, capsys, key, clients, said):
    table = tmp_path / "enrolled.txt"
    assert enrol(keys[0], "0,3", table) == 0
    before = table.read_bytes()
    assert enrol(keys[key], clients, table) == 2
    assert said in capsys.readouterr().err
    assert table.read_bytes() == before


def test_private_key_is_refused(keys, tmp_path, capsys):
    table = tmp_path / "enrolled.txt"
    assert enrol(keys[0].with_suffix(""), "0", table) == 2
    assert "is no public key" in capsys.readouterr().err
    assert not table.exists()
