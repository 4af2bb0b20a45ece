"""Flower's own runtime: `flwr run` reaches the same code and gives the inline engine's bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fl_app.run.results import RunFolder
from tests.federation.loopback import free_port
from tests.fl_app.running import SMALL, run_inline

PROJECT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


def processes_mentioning(word):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if word in command and int(folder.name) != os.getpid():
            yield int(folder.name)


@pytest.fixture(scope="module")
def flwr(tmp_path_factory):
    """`flwr run` with an environment of its own; the SuperLink that it leaves is ended by pid."""
    port = str(free_port())
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path_factory.mktemp("flower")),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }

    def run(folder, run_config, nodes):
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        command = [BIN / "flwr", "run", PROJECT, "--stream", "--run-config", run_config]
        done = subprocess.run(
            [*command, "--federation-config", federation],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.stdout + done.stderr

    yield run
    for pid in processes_mentioning(port):
        os.kill(pid, signal.SIGTERM)


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model.safetensors").items()}


def test_everyday_keys_and_overrides_reach_the_same_code(tmp_path, flwr):
    words = [word for word in SMALL if not word.startswith(("engine", "federation"))]
    overrides = f'overrides="{" ".join(words)} run_dir={tmp_path}/flower"'
    printed = flwr(tmp_path, f'num-clients="6" num-rounds="2" {overrides}', nodes=3)
    assert (tmp_path / "flower" / "metrics.json").exists(), printed
    inline = run_inline(tmp_path / "inline")
    assert weights(tmp_path / "flower") == weights(inline.path)


@pytest.mark.federation
@pytest.mark.parametrize("strategy", ["scaffold", "fedadam", "dp_ftrl"])
def test_baselines_with_state_on_the_server_equal_the_inline_engine(tmp_path, flwr, strategy):
    words = [word for word in SMALL if not word.startswith("engine")]
    words += [f"strategy={strategy}", f"run_dir={tmp_path}/flower"]
    printed = flwr(tmp_path, f'overrides="{" ".join(words)}"', nodes=2)
    assert (tmp_path / "flower" / "metrics.json").exists(), printed
    inline = run_inline(tmp_path / "inline", f"strategy={strategy}")
    assert weights(tmp_path / "flower") == weights(inline.path)


def test_error_inside_the_runtime_reaches_the_user(tmp_path, flwr):
    printed = flwr(tmp_path, f'overrides="strategy=privatkt run_dir={tmp_path}/bad"', nodes=1)
    assert "did you mean privatekt" in printed
    assert not RunFolder(tmp_path / "bad").metrics()
