"""Whoever opens the SuperNode's port first is noticed before anything is shown to it."""

import contextlib
import os
import socket
import subprocess
import sys
import threading

import httpx
import numpy as np
import pytest

import fl_app.device.proof
from fl_app.config.overrides import to_run_config
from fl_app.device.proof import PATH, NotProvenError, ProvenTransport, proof, proven_runtime
from fl_app.device.service import Device
from murmur.compat.flower_runtime import RuntimeApiError
from tests.federation.loopback import free_port, wait_for
from tests.federation.supernode import SECRET, SUPERLINK, SuperNode
from tests.fl_app.device_under_test import Device as Files
from tests.fl_app.device_under_test import model_size, question

SMALL = ["strategy=privatekt", "strategy.K=2", "model=mlp", "model.hidden=[4]"]
HERE, THERE = ("127.0.0.1", 40000), ("127.0.0.1", 9094)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"


@pytest.fixture
def supernode():
    node = SuperNode()
    yield node
    node.close()


@pytest.fixture
def started(tmp_path):
    """`murmur supernode` as it is started; its address."""
    secret, port = tmp_path / "secret", free_port()
    secret.write_bytes(SECRET)
    words = ["--insecure", "--superlink", "127.0.0.1:9", "--port", str(port)]
    command = [sys.executable, "-m", "fl_app.cli", "supernode", *words]
    command += ["--superexec-auth-secret-file", str(secret)]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    environment = {**os.environ, **quiet, "FLWR_HOME": str(tmp_path / "flwr")}
    process = subprocess.Popen(command, env=environment)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


def test_murmur_supernode_proves_itself_to_who_knows_its_secret_and_to_nobody_else(started):
    def answers():
        with contextlib.suppress(httpx.ConnectError):
            return httpx.post(f"http://{started}{PATH}", content=bytes(64))

    wait_for(answers, 60, "the SuperNode")
    assert (answers().status_code, answers().content) == (403, b"")
    assert proven_runtime(started, SECRET).claim() is None  # there is no task
    with pytest.raises(RuntimeApiError, match="does not prove"):
        proven_runtime(started, b"another").claim()
    transport = ProvenTransport(SECRET)
    assert transport.superlink == ""
    with httpx.Client(transport=transport) as client:
        client.get(f"http://{started}/health")
    assert transport.superlink == "127.0.0.1:9"  # for which its owner has started it


def test_a_superlink_that_is_named_on_the_way_is_noticed(supernode):
    def changed(heard):
        head, _, body = relayed(supernode, heard).partition(b"\r\n\r\n")
        return head + b"\r\n\r\n" + body.replace(SUPERLINK.encode(), b"127.0.0.1:9093")

    impostor = Impostor(changed)
    with pytest.raises(RuntimeApiError, match="does not prove"):
        proven_runtime(impostor.address, SECRET).claim()
    impostor.close()


class Impostor:
    """Has opened the port first; ``answer`` makes of the bytes that came those that it sends."""

    def __init__(self, answer, port=0):
        self.answer, self.heard = answer, []
        self.socket = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            with peer, contextlib.suppress(ConnectionError):
                self.heard.append(head := peer.recv(65536))
                if b"\r\n\r\n" in head and len(head.partition(b"\r\n\r\n")[2]) < 64:
                    self.heard[-1] += peer.recv(65536)
                peer.sendall(self.answer(self.heard[-1]))
                self.heard.append(peer.recv(65536))

    def close(self):
        self.socket.close()


def relayed(supernode, heard, forwarded=()):
    """What the true SuperNode answers to the device's proof, which an impostor passes on."""
    body = heard.partition(b"\r\n\r\n")[2]
    reply = httpx.post(f"http://{supernode.address}{PATH}", content=body, headers=dict(forwarded))
    return ANSWER % (len(reply.content), reply.content)


def returned(heard):
    body = heard.partition(b"\r\n\r\n")[2]
    return ANSWER % (len(body), body)


ANSWERS = {
    "no HTTP": lambda heard: b"\0" * 100,
    "another kind of server": lambda heard: b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "noise": lambda heard: ANSWER % (64, bytes(64)),
    "what it heard": returned,
    "too much": lambda heard: ANSWER % (10**6, b"\0" * 10**6),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_impostor_gets_nothing_but_a_proof(answer):
    impostor = Impostor(answer)
    with pytest.raises(RuntimeApiError, match="does not prove"):
        proven_runtime(impostor.address, SECRET).claim()
    impostor.close()
    assert len(impostor.heard[0].partition(b"\r\n\r\n")[2]) == 64
    assert impostor.heard[1:] in ([b""], [])
    assert SECRET not in b"".join(impostor.heard)


def test_who_takes_the_proof_and_says_nothing_hears_no_more(monkeypatch):
    monkeypatch.setattr(fl_app.device.proof, "ANSWER_SECONDS", 0.05)
    held = threading.Event()
    impostor = Impostor(lambda heard: held.wait(60) and b"")
    with pytest.raises(RuntimeApiError, match="does not prove"):
        proven_runtime(impostor.address, SECRET).claim()
    held.set()
    impostor.close()


@pytest.mark.parametrize("header", [{}, {"X-Forwarded-For": "127.0.0.1"}])
def test_proof_that_is_passed_on_from_the_true_supernode_is_none(supernode, header):
    impostor = Impostor(lambda heard: relayed(supernode, heard, header))
    with pytest.raises(RuntimeApiError, match="does not prove"):
        proven_runtime(impostor.address, SECRET).claim()
    impostor.close()


def test_supernode_proves_nothing_where_the_request_says_that_it_was_passed_on(supernode):
    with httpx.Client() as client:
        client.get(f"http://{supernode.address}/health")
        reply = client.post(
            f"http://{supernode.address}{PATH}", headers={"X-Forwarded-For": "127.0.0.1"}
        )
    assert (reply.status_code, reply.content) == (403, b"")


def test_no_reply_is_pushed_to_who_took_the_port_after_the_supernode(supernode, tmp_path):
    files = Files(tmp_path)
    words = files.words(*SMALL)
    supernode.run(to_run_config(words))
    supernode.ask(question(np.zeros(model_size(words), np.float32), clients=(3,)))
    task = proven_runtime(supernode.address, SECRET).claim()
    supernode.close()
    impostor = Impostor(returned, int(supernode.address.rpartition(":")[2]))
    with pytest.raises(SystemExit):
        Device(files.node_config).work(task, threading.Event())
    impostor.close()
    assert all(PATH.encode() in heard for heard in impostor.heard if heard)
    assert files.charged() == []
    assert task.token.encode() not in b"".join(impostor.heard)


def test_a_proxy_that_the_environment_names_is_not_asked(supernode, monkeypatch):
    proxy = Impostor(ANSWERS["noise"])
    monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
    monkeypatch.setenv("ALL_PROXY", f"http://{proxy.address}")
    assert proven_runtime(supernode.address, SECRET).claim() is None  # there is no task
    proxy.close()
    assert proxy.heard == []


def test_no_supernode_is_still_waited_for():
    assert proven_runtime(f"127.0.0.1:{free_port()}", SECRET).claim() is None


def test_a_proof_is_of_one_role_one_connection_and_one_secret():
    words = [
        (SECRET, b"device", b"n", HERE, THERE),
        (SECRET, b"supernode", b"n", HERE, THERE),
        (SECRET, b"device", b"m", HERE, THERE),
        (SECRET, b"device", b"n", THERE, HERE),
        (SECRET, b"device", b"n", ("127.0.0.1", 40001), THERE),
        (SECRET, b"device", b"n", HERE, ("::1", 9094, 0, 0)),
        (b"another", b"device", b"n", HERE, THERE),
    ]
    assert len({proof(*each) for each in words}) == len(words)
    mapped = ("::ffff:127.0.0.1", 40000, 0, 0)
    assert proof(*words[0]) == proof(SECRET, b"device", b"n", mapped, THERE)
    assert issubclass(NotProvenError, Exception) and not issubclass(NotProvenError, httpx.HTTPError)
