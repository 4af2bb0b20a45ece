"""`murmur device` answers a SuperNode's tasks with what is installed, and runs nothing else."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
from flwr.supercore.constant import TaskType

from fl_app.cli import main
from fl_app.config.overrides import to_run_config
from fl_app.device.proof import proven_runtime
from fl_app.device.service import Device, is_refusal
from murmur.compat import flower_runtime
from murmur.compat.flower_runtime import RuntimeApiError
from murmur.round.task import REFUSED
from tests.federation.loopback import wait_for
from tests.federation.supernode import BUNDLE, SECRET, SuperNode
from tests.fl_app.device_under_test import Device as Files
from tests.fl_app.device_under_test import model_size, question

SMALL = ["strategy=privatekt", "strategy.K=2", "model=mlp", "model.hidden=[4]"]


@pytest.fixture
def supernode():
    node = SuperNode()
    yield node
    node.close()


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def asked(files, *more):
    words = files.words(*SMALL, *more)
    model = np.zeros(model_size(words), np.float32)
    content = question(model, clients=(3,), arrays={"indices": np.arange(2)})
    return to_run_config(words), content


def answer(device, supernode):
    """Let ``device`` answer the task that waits, in this process; the reply."""
    task = proven_runtime(supernode.address, SECRET).claim()
    device.work(task, threading.Event())
    return supernode.reply()


@pytest.fixture
def serving(supernode, files, tmp_path):
    """`murmur device` as it is started, with forks of its own."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    pairs = (f'{k}="{v}"' for k, v in files.node_config.items())
    words = ["--node-config", " ".join(pairs), "--superexec-auth-secret-file", str(secret)]
    command = [sys.executable, "-m", "fl_app.cli", "device", *words]
    process = subprocess.Popen([*command, "--runtime-api-address", supernode.address])
    yield process
    process.terminate()
    assert process.wait(30) in (0, 130)  # 130: ended while it was still starting


def test_message_is_answered_by_the_installed_app_with_its_owners_files(supernode, files):
    # The SuperNode's words name client 99 and no policy, and the bundle cannot even be unpacked.
    run_config, content = asked(files)
    supernode.run(run_config)
    task = supernode.ask(content)
    assert not answer(Device(files.node_config), supernode).has_error()
    assert supernode.status(task) == "finished:completed"
    assert [client for client, *_ in files.charged()] == ["3"]


@pytest.mark.parametrize(
    ("app", "version", "said"),
    [
        ("evil/app", "1.0.0", "runs no code that is sent to it"),
        ("murmur/murmur-fl", "9.1.0", "the run is of version 9.1.0"),
    ],
)
def test_run_that_is_not_of_this_murmur_is_refused(supernode, files, app, version, said):
    run_config, content = asked(files)
    supernode.run(run_config, app, version)
    supernode.ask(content)
    assert answer(Device(files.node_config), supernode).error.reason == REFUSED
    assert said in files.log() and files.charged() == []


@pytest.mark.parametrize("named", [True, False])
def test_owner_may_name_the_bundles_that_may_ask(supernode, files, named):
    run_config, content = asked(files)
    supernode.run(run_config)
    supernode.ask(content)
    digest = hashlib.sha256(BUNDLE if named else b"another").hexdigest()
    assert answer(Device(files.node_config, [digest]), supernode).has_error() != named


@pytest.mark.parametrize("kind", [TaskType.AGENT_APP, TaskType.SERVER_APP])
def test_task_of_another_type_is_taken_and_refused(supernode, files, kind):
    run_config, content = asked(files)
    supernode.run(run_config)
    task = supernode.ask(content, task_type=kind)
    reply = answer(Device(files.node_config), supernode)
    assert reply.error.reason == REFUSED
    assert supernode.status(task) == "finished:failed"
    assert "ClientApp tasks only" in files.log() and files.charged() == []


def test_message_of_a_kind_that_the_app_does_not_have_is_refused(supernode, files):
    run_config, content = asked(files)
    supernode.run(run_config)
    supernode.ask(content, kind="train.shell")
    reply = answer(Device(files.node_config), supernode)
    assert reply.error.reason == REFUSED


def test_reply_that_does_not_arrive_leaves_the_task_to_expire(supernode, files, monkeypatch):
    # A task that ended as failed has no error reply, so that the server would wait for ever.
    run_config, content = asked(files)
    supernode.run(run_config)
    task = supernode.ask(content)

    def lost(*_):
        raise ConnectionError("cut")

    monkeypatch.setattr(flower_runtime, "push_message", lost)
    with pytest.raises(SystemExit):
        answer(Device(files.node_config), supernode)
    assert supernode.status(task) == "running:"
    assert len(files.charged()) == 1


def test_connection_that_rested_too_long_costs_no_answer(supernode, files, monkeypatch):
    # A SuperNode closes it after 5 s, maybe just when the reply is to be pushed.
    run_config, content = asked(files)
    supernode.run(run_config)
    supernode.ask(content)
    send, calls = httpx.Client.send, []

    def closed(client, request, **options):
        if request.url.path.endswith("push-messages"):
            calls.append(request)
            if len(calls) == 1:
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return send(client, request, **options)

    monkeypatch.setattr(httpx.Client, "send", closed)
    assert not answer(Device(files.node_config), supernode).has_error()
    assert len(calls) == 2 and len(files.charged()) == 1


def test_server_is_told_of_a_task_whose_process_died_before_it_had_begun(
    supernode, files, monkeypatch
):
    run_config, content = asked(files)
    supernode.run(run_config)
    task = supernode.ask(content)
    monkeypatch.setattr(flower_runtime, "MAX_MESSAGE_LOOKS", 1)
    with proven_runtime(supernode.address, SECRET).claim() as opened:
        opened._message_tree()  # and then its process dies
    supernode.expire(task)
    again = proven_runtime(supernode.address, SECRET).claim()
    assert again.number == task
    with pytest.raises(SystemExit):
        Device(files.node_config).work(again, threading.Event())
    supernode.expire(task)
    assert "stopped responding" in supernode.reply().error.reason


def test_another_secret_is_refused_in_words(supernode):
    with pytest.raises(RuntimeApiError, match="another --superexec-auth-secret-file"):
        proven_runtime(supernode.address, b"another").claim()


def test_no_supernode_yet_is_waited_for():
    assert proven_runtime("127.0.0.1:9", SECRET).claim() is None


def test_another_version_of_flower_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(flower_runtime, "version", lambda _: "1.50.0")
    with pytest.raises(RuntimeApiError, match=r"flwr 1\.50\.0 is installed.*1\.41"):
        proven_runtime("127.0.0.1:9", SECRET)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runtime-api-address", "10.0.0.8:9094"], "must be HOST:PORT with a host of 127.0.0.1"),
        (["--bundle-sha256", "abc"], "must be 64 hexadecimal digits"),
        (["--superexec-auth-secret-file", "/nowhere"], "No such file"),
    ],
)
def test_bad_words_get_one_clear_error(tmp_path, capsys, words, said):
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    needed = ["--node-config", "clients=3", "--superexec-auth-secret-file", str(secret)]
    try:
        status = main(["device", *needed, *words])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert said in capsys.readouterr().err


def test_nothing_of_one_message_is_left_for_the_next(serving, supernode, files):
    run_config, content = asked(files)
    supernode.run(run_config)
    supernode.ask(content, late=0.5)  # a task exists before its message does
    assert not supernode.reply().has_error()
    (files.folder / "policy.yaml").unlink()  # its owner takes part no longer
    content["task"]["round"] = 2
    supernode.ask(content)
    supernode.reply()
    assert len(files.charged()) == 1
    assert (files.state / "ledger.sqlite").stat().st_mode & 0o077 == 0


def test_device_outlives_a_message_whose_process_dies(serving, supernode, files):
    run_config, content = asked(files, "strategy.local.epochs=1000")
    supernode.run(run_config)
    supernode.ask(content)
    wait_for(files.charged, 60, "the charge")
    (child,) = Path(f"/proc/{serving.pid}/task/{serving.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    supernode.ask(content, kind="query.nothing")
    assert supernode.reply().has_error()


def test_message_that_never_came_whole_is_given_up_for_the_next(serving, supernode, files):
    """As in a SuperNode whose SuperLink died while it received a message: nothing is charged."""
    run_config, content = asked(files)
    supernode.run(run_config)
    lost = supernode.ask(content, broken_off=True)
    wait_for(lambda: supernode.status(lost) == "running:", 60, "the task to be taken")
    supernode.ask(content)
    assert not supernode.reply().has_error()
    assert len(files.charged()) == 1


@pytest.mark.parametrize(
    ("app", "ended"), [("murmur/murmur-fl", "answered"), ("evil/app", "refused")]
)
def test_the_log_says_of_a_task_whether_it_was_answered_or_refused(
    supernode, files, capfd, app, ended
):
    run_config, content = asked(files)
    supernode.run(run_config, app)
    supernode.ask(content)
    runtime = proven_runtime(supernode.address, SECRET)
    Device(files.node_config)._attend(runtime.claim(), runtime)
    said = capfd.readouterr().out
    assert f": {ended}, " in said and ("answered" in said) == (ended == "answered")


def test_a_reply_in_which_every_client_refuses_is_a_refusal(supernode, files):
    policy = files.node_config["policy"]
    Path(policy).write_text("nothing: like a policy")
    run_config, content = asked(files)
    supernode.run(run_config)
    supernode.ask(content)
    assert is_refusal(answer(Device(files.node_config), supernode))
