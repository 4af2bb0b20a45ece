"""`murmur doctor` finds what is missing on a device or a server, and says what to do."""

import os
import ssl
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from fl_app.tools import doctor
from fl_app.tools.doctor import FAIL, OK, WARN
from tests.fl_app.device.test_node_settings import POLICY

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Certificates and a node's key, as the scripts make them."""
    folder = tmp_path_factory.mktemp("made")
    for words in (["certificates.sh", folder, "127.0.0.1"], ["node-key.sh", folder / "node.key"]):
        subprocess.run([DEPLOY / words[0], *words[1:]], check=True, capture_output=True)
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
    key = ["--auth-supernode-private-key", str(made / "node.key")]
    isolated = ["--isolation", "process", "--superexec-auth-secret-file", str(made / "secret")]
    runs = isolated if runs is None else runs
    return ["device", "--node-config", text, *key, *runs, *more]


def test_device_that_lacks_nothing_passes(device, made, capsys):
    assert doctor.main(words(device, made)) == 0
    assert "5 examples" in capsys.readouterr().out


def test_device_whose_owner_does_not_say_what_its_data_are_like_fails(device, made, capsys):
    del device["shape"]
    assert doctor.main(words(device, made)) == 1
    assert "(shape=, classes=)" in capsys.readouterr().out


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


def test_certificate_states(made):
    own, authority = made / "server.pem", made / "ca.pem"
    now = datetime.now(UTC)
    assert doctor.certificate(own, authority).status == OK
    assert doctor.certificate(own, now=now + timedelta(days=350)).status == WARN
    assert "expired" in doctor.certificate(own, now=now + timedelta(days=366)).found
    assert "valid from" in doctor.certificate(own, now=now - timedelta(days=2)).found
    assert doctor.certificate(own, own).status == FAIL


def test_key_states(made, tmp_path):
    assert doctor.private_key(made / "server.key", made / "server.pem").status == OK
    assert doctor.private_key(made / "node.key").status == OK
    assert "is not the key of" in doctor.private_key(made / "ca.key", made / "server.pem").found
    other = tmp_path / "node.key"
    other.write_bytes((made / "node.key").read_bytes())
    other.chmod(0o644)
    assert "others may read it" in doctor.private_key(other).found
    other.chmod(0o600)
    subprocess.run([DEPLOY / "node-key.sh", tmp_path / "b.key"], check=True, capture_output=True)
    (tmp_path / "node.key.pub").write_bytes((tmp_path / "b.key.pub").read_bytes())
    assert "does not fit" in doctor.private_key(other).found


def test_disk_and_package_states(tmp_path, monkeypatch):
    assert doctor.package("no-such-package").status == FAIL
    assert doctor.package("flwr", ("0.1",)).status == FAIL
    assert doctor.disk(tmp_path / "new").status in (OK, WARN)
    monkeypatch.setattr(doctor, "MIN_DISK_BYTES", 2**60)
    assert doctor.disk(tmp_path).status == FAIL


class Late(BaseHTTPRequestHandler):
    """Answers with the wrong time."""

    def do_GET(self):
        self.send_response_only(200)
        self.send_header("Date", "Tue, 01 Jan 2030 00:00:00 GMT")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_superlink_states(made, tmp_path):
    server = HTTPServer(("127.0.0.1", 0), Late)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "server.pem", made / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    try:
        reached, clock = doctor.superlink(address, made / "ca.pem")
        assert reached.status == OK
        assert clock.status == FAIL
        assert "behind" in clock.found
        other = tmp_path / "other"
        subprocess.run([DEPLOY / "certificates.sh", other, "x"], check=True, capture_output=True)
        (stranger,) = doctor.superlink(address, other / "ca.pem")
        assert "its certificate" in stranger.found
    finally:
        server.shutdown()
        server.server_close()
    (gone,) = doctor.superlink(address, made / "ca.pem")
    assert "no answer" in gone.found


def test_server_that_lacks_nothing_passes_and_a_wrong_key_fails(made, tmp_path, capsys):
    def ask(key):
        files = {"ca-certfile": "ca.pem", "certfile": "server.pem", "keyfile": key}
        options = [w for name, file in files.items() for w in (f"--ssl-{name}", f"{made}/{file}")]
        return doctor.main(["server", *options, "--results", str(tmp_path / "runs")])

    assert ask("server.key") == 0
    assert ask("ca.key") == 1
    assert "is not the key" in capsys.readouterr().out


def test_device_is_told_the_public_keys_by_which_its_peers_can_pin_it(device, made, capsys):
    doctor.main(words(device, made))
    first = capsys.readouterr().out
    doctor.main(words(device, made))
    assert "key of client 3 in secure sums" in first and first == capsys.readouterr().out
