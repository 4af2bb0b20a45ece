"""The run header is read strictly, and the server's keys are kept, pinned and succeeded."""

import json
import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fl_app.cli import main as murmur
from murmur.privacy.events import Adjacency, GaussianEvent, Unit
from murmur.privacy.run_header import PlannedPhase, RunHeader, ServerKey, SignedHeader, is_trusted
from murmur.privacy.signing import require_public_key


def header(key, **other):
    said = {
        "name": "a run",
        "server": key.public_key,
        "algorithm": "nbafl",
        "unit": Unit.CLIENT,
        "adjacency": Adjacency.REPLACE_ONE,
        "delta": 1e-5,
        "threat": "local",
        "schedule": {"kind": "random", "clients": 4, "cohort": 2, "rounds": 3},
        "secret": False,
        "phases": (PlannedPhase("train", 1, 3, event=GaussianEvent(2.0)),),
        "settings": {"seed": 1.0, "hidden": [8.0], "none": None},
        "successions": key.successions,
    }
    return RunHeader(**{**said, **other})


@pytest.fixture
def key():
    return ServerKey.generate()


def test_a_header_is_what_was_signed(key):
    said = header(key.successor())
    signed = SignedHeader.of(said, key)
    assert RunHeader.read(said.to_bytes()) == said
    assert RunHeader.read(said.to_bytes()).to_bytes() == signed.text


def test_two_headers_of_one_plan_differ(key):
    one, other = header(key), header(key)
    assert one.to_bytes() != other.to_bytes() and len(bytes.fromhex(one.bits)) == 16
    assert one.is_same_plan(other) and not one.is_same_plan(header(key, delta=1e-6))


def test_a_signed_header_goes_through_the_ledger(key):
    signed = SignedHeader.of(header(key), key)
    again = SignedHeader.from_text(signed.to_text())
    assert (again.text, again.digest) == (signed.text, signed.digest)


def test_signatures_of_others_are_refused(key):
    signed = SignedHeader.of(header(key), key)
    with pytest.raises(ValueError, match="does not match"):
        SignedHeader.verified(signed.text + b" ", key.public_key, signed.signature)
    other = ServerKey.generate()
    mine = SignedHeader.of(header(key), other)
    with pytest.raises(ValueError, match="names another key"):
        SignedHeader.verified(mine.text, other.public_key, mine.signature)


def changed(key, **values):
    return json.dumps({**json.loads(header(key).to_bytes()), **values}).encode()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"more": 1}, "and nothing else"),
        ({"format": 2}, "another format"),
        ({"delta": 1}, "delta: must lie"),
        ({"secret": 0}, "secret: must be of another type"),
        ({"name": 3}, "name: must be text"),
        ({"unit": "town"}, "not a valid Unit"),
        ({"phases": {}}, "must be lists"),
        ({"phases": [{"purpose": "train"}]}, "and nothing else"),
        ({"successions": [["a"]]}, "with their signatures"),
        ({"schedule": {"rounds": 2**53 + 1}}, "is beyond 2\\^53"),
        ({"delta": float("nan")}, "is no number of JSON"),
        ({"settings": json.loads("[" * 25 + "]" * 25)}, "nested more than 20 deep"),
        ({"name": "x" * 2**20}, "longer than"),
    ],
)
def test_what_is_no_header_is_refused(key, values, said):
    with pytest.raises(ValueError, match=said):
        RunHeader.read(changed(key, **values))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"a":1,"a":2}', "given twice"),
        (b'{"a":1e999}', "no finite number"),
        (b"\xff", "utf-8"),
        (b"{", "Expecting"),
        (b"[" * 100_000, "nested"),
        (b"", "Expecting"),
    ],
)
def test_bad_json_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        RunHeader.read(text)


def test_what_is_planned_is_told_from_what_is_not(key):
    every = PlannedPhase("evaluate", 2, 6, every=2)
    said = header(key, phases=(PlannedPhase("train", 1, 3, event=GaussianEvent(2.0)), every))
    said.require_planned("train", 3, GaussianEvent(2.0))
    said.require_planned("evaluate", 4, GaussianEvent(9.0))
    for purpose, number in (("train", 4), ("evaluate", 3), ("evaluate", 8), ("label", 1)):
        with pytest.raises(ValueError, match="does not plan it"):
            said.require_planned(purpose, number, GaussianEvent(2.0))
    with pytest.raises(ValueError, match="plans another event"):
        said.require_planned("train", 1, GaussianEvent(1.0))


def test_keys_follow_one_another(tmp_path, key):
    second = key.successor()
    third = second.successor()
    assert is_trusted(third.public_key, third.successions, [key.public_key])
    assert is_trusted(third.public_key, third.successions, [second.public_key])
    assert not is_trusted(third.public_key, (), [key.public_key])
    assert not is_trusted(key.public_key, (), [third.public_key])
    stranger = ServerKey.generate()
    forged = ((key.public_key, third.successions[0][1]),)
    assert not is_trusted(stranger.public_key, forged, [key.public_key])
    third.save(tmp_path / "k")
    assert ServerKey.load(tmp_path / "k").successions == third.successions


@pytest.mark.parametrize(
    "weak",
    [
        "00" * 32,
        "01" + "00" * 31,
        "ec" + "ff" * 30 + "7f",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "ed" + "ff" * 30 + "7f",
    ],
)
def test_keys_of_small_order_are_refused(weak):
    with pytest.raises(ValueError, match="small order"):
        require_public_key(weak)


@pytest.mark.parametrize("text", ["", "AB" * 32, "ab" * 31, None, 7])
def test_what_is_no_key_is_refused(text):
    with pytest.raises(ValueError, match="must be a public key"):
        require_public_key(text)


def test_the_command_makes_a_key_that_only_its_owner_reads(tmp_path, capsys):
    path = tmp_path / "server.key"
    assert murmur(["server-key", str(path)]) == 0
    key = ServerKey.load(path)
    assert f"servers: [{key.public_key}]" in capsys.readouterr().out
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public_key))
    assert murmur(["server-key", str(tmp_path / "new.key"), "--sign-new", str(path)]) == 0
    new = ServerKey.load(tmp_path / "new.key")
    assert is_trusted(new.public_key, new.successions, [key.public_key])


def test_the_command_overwrites_no_key_and_names_what_is_wrong(tmp_path, capsys):
    path = tmp_path / "server.key"
    assert murmur(["server-key", str(path)]) == 0
    before = path.read_bytes()
    assert murmur(["server-key", str(path)]) == 2
    assert path.read_bytes() == before
    assert murmur(["server-key", str(tmp_path / "b"), "--sign-new", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err and not (tmp_path / "b").exists()
    (tmp_path / "server.key.pub").write_text("00" * 32)
    with pytest.raises(ValueError, match="is not of the key"):
        ServerKey.load(path)
