"""The flower engine: submit the run to Flower's simulation runtime, exactly as `flwr run` does.

The SuperLink that Flower would start and leave behind is started here instead, on a free port of
this machine alone, with the installation of dependencies switched off (this environment already has
them, and with torch they are gigabytes). It has its own FLWR_HOME, so the user's Flower
configuration has no effect on it. All of it ends with this process (``family``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import tomli_w

from fl_app.config.composition import CONF
from fl_app.config.errors import ConfigError
from fl_app.config.run_config import to_run_config
from fl_app.engines.family import adopt_orphans, end_children
from fl_app.engines.packing import copy_app
from fl_app.engines.ray_start import ENVIRONMENT
from fl_app.run.results import RunFolder
from rounds.errors import RunError

PROJECT = CONF.parent
CONNECTION = "private"  # its name in the Flower configuration of the run
STOP_TIMEOUT = 10.0  # seconds until what does not end is killed
START_TIMEOUT = 180.0  # seconds: on a crowded machine imports alone take a minute


class FlowerEngine:
    """``workers`` processes serve ``nodes`` virtual SuperNodes (None: one for each worker)."""

    def __init__(
        self, workers: int | None = None, nodes: int | None = None, gpus_per_worker: float = 0.0
    ) -> None:
        for name, value in (("workers", workers), ("nodes", nodes)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1, or null")
        if gpus_per_worker < 0:
            raise ValueError(f"gpus_per_worker={gpus_per_worker}: must be at least 0")
        self.workers = workers or os.cpu_count() or 1
        self.nodes, self.gpus = nodes or self.workers, gpus_per_worker

    def begin(self) -> None:
        """Start the SuperLink, which takes seconds, while the run is still being validated."""
        SuperLink.shared()

    def run(self, overrides: list[str], folder: RunFolder) -> None:
        """Submit, wait for the end, and raise RunError if the run did not finish."""
        if not (PROJECT / "pyproject.toml").exists():
            raise ConfigError(
                f"engine=flower: Flower packs the app from its project folder, but {PROJECT} has "
                "no pyproject.toml; install with `pip install -e`, or use engine=inline"
            )
        link = SuperLink.shared()
        link.wait()
        run_config = folder.path / "flower-run-config.toml"
        run_config.write_text(tomli_w.dumps(to_run_config(overrides)))
        federation = f"num-supernodes={self.nodes} client-resources-num-cpus=1"
        if "RAY_ADDRESS" not in os.environ:
            federation += f" init-args-num-cpus={self.workers}"
        if self.gpus:
            federation += f" client-resources-num-gpus={self.gpus}"
        log = folder.path / "flower.log"
        with open(log, "ab") as output:
            app = copy_app(PROJECT, link.home / "app")
            command = [_script("flwr"), "run", str(app), CONNECTION, "--stream"]
            command += ["--run-config", str(run_config), "--federation-config", federation]
            status = subprocess.run(
                command, env=link.environment, stdout=output, stderr=subprocess.STDOUT, check=False
            ).returncode
        if folder.metrics() is None:
            why = folder.error() or f"flwr ended with status {status}"
            raise RunError(f"{why} (the whole log: {log})")


class SuperLink:
    """A SuperLink in simulation mode, owned by this process."""

    _shared: SuperLink | None = None

    @classmethod
    def shared(cls) -> SuperLink:
        """The one of this process; started on first use, stopped at exit."""
        if cls._shared is None or cls._shared.process.poll() is not None:
            cls._shared = cls()
        return cls._shared

    def __init__(self) -> None:
        adopt_orphans()
        self.home = Path(tempfile.mkdtemp(prefix="murmur-flower-"))  # this user's alone
        port = _free_port()
        connection = {"address": f"127.0.0.1:{port}", "insecure": True}
        flower = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (self.home / "config.toml").write_text(tomli_w.dumps(flower))
        self.environment = {
            **ENVIRONMENT,
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": os.environ.get("FLWR_TELEMETRY_ENABLED", "0"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }
        command = [_script("flower-superlink"), "--insecure", "--simulation"]
        command += ["--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port)]
        guard = [sys.executable, "-P", "-m", "fl_app.engines.family", str(os.getpid())]
        log = self.home / "superlink.log"
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*guard, str(self.home), *command],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        atexit.register(self.stop)
        self._port, self._log = port, log

    def wait(self) -> None:
        """Return as soon as it takes runs; RunError if it does not start."""
        deadline = time.monotonic() + START_TIMEOUT
        while not _answers(self._port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                why = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
                self.stop()
                raise RunError(f"Flower's SuperLink did not start: {why}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the SuperLink and everything that it started, a run and its Ray among them."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
        end_children(self._started)
        shutil.rmtree(self.home, ignore_errors=True)
        atexit.unregister(self.stop)
        type(self)._shared = None

    def _started(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            return process.environ().get("FLWR_HOME") == str(self.home)
        return False


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    import httpx

    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=0.5).is_success
    except httpx.HTTPError:
        return False
