"""``murmur verify`` with receipts: the same file as whoever has nothing of Murmur runs."""

import json
import zipfile
from dataclasses import replace

import pytest

from fl_app.tools import verify, verify_receipts
from tests.deploy.receipt_worlds import make
from tests.fl_app.running import run_inline
from tests.wheels import CORE, built


def test_a_run_is_compared_with_a_roster_and_its_receipts(tmp_path, capfd):
    folder = make(tmp_path).write(without=[5])
    words = [str(folder), "--roster", str(folder / "roster.txt")]
    assert verify.main(words) == 3
    assert "receipts of 4 of 5 agree; 5: the server's word" in capfd.readouterr().out
    assert verify.main([*words, "--against", "local", "--json"]) == 3
    assert json.loads(capfd.readouterr().out)["status"] == 3


def test_of_a_simulation_arithmetic_is_checked(tmp_path, capfd):
    world = make(tmp_path)
    folder = world.write(without=world.clients)
    plain = json.loads(world.receipt(1).payload)["predicate"]
    entries = [[*entry[:4], "1-5"] for entry in plain["entries"]]
    world.put("simulation", world.receipt(1, {"client": "1-5", "entries": entries}))
    assert verify.main([str(folder)]) == 0
    assert "Only arithmetic was checked" in capfd.readouterr().out


def test_what_it_needs_is_named(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(verify_receipts.importlib.util, "find_spec", lambda name: None)
    assert verify.main([str(tmp_path)]) == 2
    assert "pip install 'dp-accounting" in capfd.readouterr().err


def test_a_report_says_whose_word_it_is(tmp_path):
    world = make(tmp_path)
    folder = world.write(without=[5])
    roster = folder / "roster.txt"
    words = verify_receipts.whose_word(folder, roster)
    assert words == "not contradicted: receipts of 4 of 5 agree"
    assert verify_receipts.whose_word(folder, None) == "the server's word"
    world.charged[2].append(replace(world.charged[2][0], round=9))
    world.write()
    assert verify_receipts.whose_word(folder, roster).startswith("CONTRADICTED")
    (folder / "statement.json").write_text("{")
    assert "cannot be read" in verify_receipts.whose_word(folder, roster)


def test_the_model_that_a_run_leaves_is_that_of_its_statement(tmp_path, capfd):
    run = run_inline(tmp_path / "run", "strategy=fedavg", "federation.num_rounds=1")
    model = run.path / "model" / "model.safetensors"
    words = [str(run.path), "--arithmetic", "--model"]
    assert verify.main([*words, str(model)]) == 0
    assert "model: it was in no question: the server's word;" in capfd.readouterr().out
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    other = tmp_path / "other.safetensors"
    other.write_bytes(content)
    assert verify.main([*words, str(other)]) == 1
    assert "is another model than the statement's" in capfd.readouterr().out
    other.write_bytes(content[:40])
    assert verify.main([*words, str(other)]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(CORE, tmp_path_factory.mktemp("wheel"))


def test_a_wheel_has_the_same_file(wheel):
    with zipfile.ZipFile(wheel) as packed:
        there = packed.read("fl_app/tools/verify_statement.py")
    assert there == verify_receipts.verifier().read_bytes()
