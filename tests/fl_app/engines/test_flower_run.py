"""The real Flower runtime: the reduced demo and a bare `flwr run` equal the inline engine."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from safetensors.numpy import load_file

from fl_app.device.flower_runtime import Runtime, RuntimeApiError
from fl_app.engines.flower import SuperLink, parts
from fl_app.run.results import RunFolder
from tests.federation.killed_processes import kills
from tests.federation.loopback import wait_for
from tests.fl_app.running import SMALL, run_inline

PROJECT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def processes_mentioning(word):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if word in command and int(folder.name) != os.getpid():
            yield int(folder.name)


@contextlib.contextmanager
def own_flower(folder):
    """An environment for Flower in ``folder``; what it leaves running is stopped by pid."""
    environment = {
        **os.environ,
        "FLWR_HOME": str(folder / "flwr"),
        "MARK": str(folder),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": free_port(),
        "FLWR_LOCAL_CONTROL_API_PORT": free_port(),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    yield environment
    for pid in processes_mentioning(environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]):
        os.kill(pid, signal.SIGTERM)


@pytest.fixture
def flower(tmp_path):
    with own_flower(tmp_path) as environment:
        yield environment


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """For `flwr run`, which starts a SuperLink and leaves it to the next one."""
    with own_flower(tmp_path_factory.mktemp("flower")) as environment:
        yield environment


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model.safetensors").items()}


def test_demo_on_flower_equals_inline_bit_for_bit_and_leaves_nothing_running(tmp_path, flower):
    """Also where the user's own Flower configuration has a federation of devices as its default."""
    own = tmp_path / "flwr" / "config.toml"
    own.parent.mkdir()
    own.write_text('[superlink]\ndefault = "x"\n[superlink.x]\naddress = "devices.invalid:1"\n')
    words = [word for word in SMALL if not word.startswith("engine")]
    command = [BIN / "murmur", "engine=flower", "engine.workers=2", *words]
    command += [f"run_dir={tmp_path}/ray"]
    done = subprocess.run(
        command, env=flower, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 2/2  accuracy" in done.stdout
    inline = run_inline(tmp_path / "inline")
    assert weights(tmp_path / "ray") == weights(inline.path)
    wait_for(lambda: not list(processes_of(flower)), 10, "all processes to end")


@pytest.fixture
def link():
    link = SuperLink()
    yield link
    link.stop()


def test_the_superlink_of_a_run_takes_commands_from_nobody_else(link):
    link.wait()
    stranger = {**link.environment, "FLWR_HOME": str(link.home / "other")}
    (link.home / "other").mkdir()
    shutil.copy(link.home / "config.toml", link.home / "other")
    ours, theirs = (
        subprocess.run([BIN / "flwr", "list"], env=each, capture_output=True, timeout=120)
        for each in (link.environment, stranger)
    )
    assert (ours.returncode, theirs.returncode) == (0, 1)
    with pytest.raises(RuntimeApiError, match="does not prove that it knows the secret"):
        Runtime(link.address, bytes(32)).claim()
    for path in ("v1/control/start-run", "v1/fleet/pull-messages", "docs"):
        assert httpx.post(f"http://{link.address}/{path}", content=b"").status_code == 401, path


def processes_of(environment):
    """All that was started with this environment, Ray's own processes among them."""
    mark = f"MARK={environment['MARK']}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                yield int(folder.name)


FORKS = """
import os, sys, time
if os.fork() == 0:  # as long as it has not become another program, it looks like its parent
    time.sleep(600)
print("forked", flush=True)
time.sleep(600)
"""


def test_what_a_part_of_a_run_forks_is_no_part_of_it():
    command = [sys.executable, "-c", FORKS, "flwr-simulation"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"forked\n"
            (child,) = psutil.Process(process.pid).children()
            family = [psutil.Process(process.pid), child]
            assert [each.pid for each in parts(family)] == [process.pid]
        finally:
            child.kill()
            process.kill()


@pytest.mark.federation
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_run_leaves_nothing_running(tmp_path, flower, number):
    words = [word for word in SMALL if not word.startswith(("engine", "federation.num_rounds"))]
    words += ["federation.num_rounds=10000", f"run_dir={tmp_path}/ray"]
    command = [BIN / "murmur", "engine=flower", "engine.workers=2", *words]
    running = subprocess.Popen(command, env=flower, cwd=tmp_path, stdout=subprocess.DEVNULL)
    run = RunFolder(tmp_path / "ray")
    wait_for(lambda: len(run.rows()) > 2 or running.poll() is not None, 600, "a round")
    assert len(set(processes_of(flower))) > 5
    running.send_signal(number)
    assert running.wait(600) == (130 if number == signal.SIGTERM else -number)
    wait_for(lambda: not list(processes_of(flower)), 10, "all processes to end")


@pytest.mark.federation
@pytest.mark.parametrize("victim", ["SuperExec", "worker (ClientApp)"])
def test_a_run_of_which_one_process_is_killed_ends_and_can_be_resumed(tmp_path, victim):
    (killed,) = kills(tmp_path, "flower", "local_only", 1, (victim,))
    assert (killed.left, killed.status, killed.same) == (0, 1, True)


@pytest.mark.federation
@pytest.mark.parametrize("strategy", ["scaffold", "fedadam", "dp_ftrl"])
def test_baselines_with_state_on_the_server_equal_the_inline_engine(tmp_path, flower, strategy):
    inline = run_inline(tmp_path / "inline", f"strategy={strategy}")
    words = [word for word in SMALL if not word.startswith("engine")]
    command = [BIN / "murmur", "engine=flower", "engine.workers=2", f"strategy={strategy}", *words]
    done = subprocess.run(
        [*command, f"run_dir={tmp_path}/flower"],
        env=flower,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert weights(tmp_path / "flower") == weights(inline.path)


def test_bare_flwr_run_reaches_the_same_code_through_its_run_config(tmp_path, lasting):
    words = [word for word in SMALL if not word.startswith(("engine", "federation"))]
    run_config = (
        f'num-clients="6" num-rounds="2" overrides="{" ".join(words)} run_dir={tmp_path}/flower"'
    )
    command = [BIN / "flwr", "run", PROJECT, "--stream", "--run-config", run_config]
    command += ["--federation-config", "num-supernodes=3 client-resources-num-cpus=1"]
    done = subprocess.run(
        command, env=lasting, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (tmp_path / "flower" / "metrics.json").exists(), done.stdout + done.stderr
    inline = run_inline(tmp_path / "inline")
    assert weights(tmp_path / "flower") == weights(inline.path)


def test_error_inside_the_runtime_reaches_the_user(tmp_path, lasting):
    """A partition that cannot be drawn is found before the runtime starts; a bad run_dir is not."""
    command = [BIN / "flwr", "run", PROJECT, "--stream"]
    run_config = f'overrides="strategy=privatkt run_dir={tmp_path}/bad"'
    command += ["--run-config", run_config, "--federation-config", "num-supernodes=1"]
    done = subprocess.run(
        command, env=lasting, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert "did you mean privatekt" in done.stdout + done.stderr
    assert not RunFolder(tmp_path / "bad").metrics()
