"""`murmur doctor` finds what is missing on a device or a server, and says what to do."""

import os
from pathlib import Path

import numpy as np
import pytest

from fl_app.tools import doctor
from fl_app.tools.doctor import FAIL, OK, WARN
from tests.fl_app.device.test_node_settings import POLICY


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Secrets: one that does, one that others may read, one that is too short."""
    folder = tmp_path_factory.mktemp("made")
    for name, content in (("secret", bytes(32)), ("open", bytes(32)), ("short", b"abc")):
        (folder / name).write_bytes(content)
        os.chmod(folder / name, 0o644 if name == "open" else 0o600)
    return folder


@pytest.fixture
def device(tmp_path, made):
    """A device that lacks nothing: the words after `murmur doctor`."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    os.chmod(tmp_path / "policy.yaml", 0o600)
    images, labels = np.zeros((5, 1, 8, 8), np.float32), np.arange(5)
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    paths = {"data": "own.npz", "policy": "policy.yaml", "state": "state"}
    placed = {key: f'"{tmp_path / name}"' for key, name in paths.items()}
    return {"clients": 3, "shape": '"1,8,8"', "classes": 10, **placed}


def words(config, made, *more, runs=None):
    text = " ".join(f"{key}={value}" for key, value in config.items())
    isolated = ["--isolation", "process", "--superexec-auth-secret-file", str(made / "secret")]
    runs = isolated if runs is None else runs
    return ["device", "--node-config", text, *runs, *more]


def test_device_that_lacks_nothing_passes(device, made, capsys):
    assert doctor.main(words(device, made)) == 0
    assert "5 examples" in capsys.readouterr().out


def test_device_whose_owner_does_not_say_what_its_data_are_like_fails(device, made, capsys):
    del device["shape"]
    assert doctor.main(words(device, made)) == 1
    assert "(shape=, and classes=" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("runs", "status", "said"),
    [
        ([], 1, "whoever starts a run can read the data"),
        (["--isolation", "subprocess"], 1, "whoever starts a run can read the data"),
        (["--trusted-entities", "trusted.yaml"], 0, "is run where a trusted entity signed it"),
        (["--isolation", "process"], 1, "every account here can answer in this device's name"),
        (["--isolation", "process", "--superexec-auth-secret-file", "open"], 1, "may read it"),
        (["--isolation", "process", "--superexec-auth-secret-file", "short"], 1, "be guessed"),
        (["--isolation", "process", "--superexec-auth-secret-file", "none"], 1, "No such file"),
    ],
)
def test_device_that_would_run_sent_code_fails(
    device, made, capsys, monkeypatch, runs, status, said
):
    monkeypatch.chdir(made)
    assert doctor.main(words(device, made, runs=runs)) == status
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "content", "said"),
    [
        ("policy", "expires: never", "policy"),
        ("policy", POLICY.replace("2099-01-01", "2020-01-01"), "expired"),
        ("data", "no archive", "own.npz"),
    ],
)
def test_bad_file_of_a_device_is_found(device, made, capsys, key, content, said):
    path = Path(device[key].strip('"'))
    path.write_text(content)
    os.chmod(path, 0o600)
    assert doctor.main(words(device, made)) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.full((5, 1, 8, 8), [[[[np.nan]]], *[[[[0.0]]]] * 4]), "blank"),
        (1e6 + np.arange(5)[:, None, None, None] * np.full((1, 8, 8), 1e-3), "32-bit"),
    ],
)
def test_what_an_owner_can_mend_in_his_data_is_a_warning(device, made, capsys, images, said):
    np.savez(device["data"].strip('"'), images=images, labels=np.arange(5))
    assert doctor.main(words(device, made)) == 0
    shown = capsys.readouterr().out
    assert "warn" in shown and said in shown


def test_another_number_of_examples_than_was_published_is_found(device, made, capsys):
    device["sizes"] = '"1,1,1,4"'
    assert doctor.main(words(device, made)) == 1
    assert "published" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["policy", "data", "clients"])
def test_missing_word_in_the_node_config_is_found(device, made, capsys, key):
    del device[key]
    assert doctor.main(words(device, made)) == 1
    assert f"{key}=" in capsys.readouterr().out


def test_policy_that_others_may_write_is_found(device, made, capsys):
    os.chmod(device["policy"].strip('"'), 0o666)
    assert doctor.main(words(device, made)) == 1
    assert "chmod" in capsys.readouterr().out


def test_broken_ledger_is_found(device, made, tmp_path, capsys):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "ledger.sqlite").write_text("not a database")
    assert doctor.main(words(device, made)) == 1
    assert "ledger" in capsys.readouterr().out


def test_disk_and_package_states(tmp_path, monkeypatch):
    assert doctor.package("no-such-package").status == FAIL
    assert doctor.package("flwr", ("0.1",)).status == FAIL
    assert doctor.disk(tmp_path / "new").status in (OK, WARN)
    monkeypatch.setattr(doctor, "MIN_DISK_BYTES", 2**60)
    assert doctor.disk(tmp_path).status == FAIL


def test_server_with_room_for_results_passes(tmp_path):
    assert doctor.main(["server", "--results", str(tmp_path / "runs")]) == 0
    assert (tmp_path / "runs").is_dir()


def test_device_is_told_the_public_keys_by_which_its_peers_can_pin_it(device, made, capsys):
    doctor.main(words(device, made))
    first = capsys.readouterr().out
    doctor.main(words(device, made))
    assert "key of client 3 in secure sums" in first and first == capsys.readouterr().out
