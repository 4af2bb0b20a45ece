"""The flower engine: submit the run to Flower's simulation runtime, exactly as `flwr run` does.

The SuperLink that Flower would start and leave behind is started here instead, on a free port of
this machine alone, with the installation of dependencies switched off (this environment already has
them, and with torch they are gigabytes). It has its own FLWR_HOME, so the user's Flower
configuration has no effect on it, and it takes commands from this process only
(``private_superlink``). All of it ends with this process (``family``), or as soon as one of the
run's processes is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import tomli_w

from fl_app.config.help_text import CONF
from fl_app.config.run_config import to_run_config
from fl_app.engines.family import adopt_orphans, end_children
from fl_app.engines.packing import copy_app
from fl_app.engines.private_superlink import refuses_strangers, write_token
from fl_app.engines.ray_start import ENVIRONMENT, require_named_cluster
from fl_app.engines.sockets import socket_folder
from fl_app.engines.workers import WorkerEngine
from fl_app.run.results import RunFolder
from murmur.learning.array_file import private
from murmur.round.task import RunError

PROJECT = CONF.parent
CONNECTION = "private"  # its name in the Flower configuration of the run
STOP_TIMEOUT = 10.0  # seconds until what does not end is killed
LOOK_SECONDS = 0.5  # between two looks at a run's processes
END_SECONDS = (
    1.0  # the time that flwr has to end after them; a finished run has its figures by then
)
# The processes without which a run does not go on, by a word of their command.
PARTS = {
    "private_superlink": "Flower's SuperLink",
    "flower-superexec": "Flower's SuperExec",
    "flwr-simulation": "Flower's simulation, with the ServerApp in it,",
    "gcs_server": "Ray's GCS",
    "raylet/raylet": "Ray's raylet",
    "ray::ClientAppActor": "one of Flower's workers, which it does not replace,",
}
START_TIMEOUT = 180.0  # seconds: on a crowded machine imports alone take a minute


class FlowerEngine(WorkerEngine):
    """Runs the apps in Flower's simulation runtime."""

    def begin(self) -> None:
        """Start the SuperLink, which takes seconds, while the run is still being validated."""
        require_named_cluster()
        SuperLink.shared()

    def run(self, overrides: list[str], folder: RunFolder) -> None:
        """Submit, wait for the end, and raise RunError if the run did not finish."""
        link = SuperLink.shared()
        link.wait()
        run_config = folder.path / "flower-run-config.toml"
        run_config.write_text(tomli_w.dumps(to_run_config(overrides)), encoding="utf-8")
        nodes = max(self.nodes, folder.shares())
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        if "RAY_ADDRESS" not in os.environ:
            federation += f" init-args-num-cpus={self.workers}"
        if self.gpus:
            federation += f" client-resources-num-gpus={self.gpus}"
        log = folder.path / "flower.log"
        with open(log, "ab", opener=private) as output:
            app = copy_app(PROJECT, link.home / "app")
            command = [_script("flwr"), "run", str(app), CONNECTION, "--stream"]
            command += ["--run-config", str(run_config), "--federation-config", federation]
            flwr = subprocess.Popen(
                command, env=link.environment, stdout=output, stderr=subprocess.STDOUT
            )
            lost = link.wait_for(flwr)
        if lost is not None or folder.metrics() is None:
            link.stop(at_once=True)  # Flower would wait a minute, or for ever
            gc.freeze()  # this process ends next: its last collection takes seconds otherwise
        if folder.metrics() is None:
            why = folder.error() or lost or f"flwr ended with status {flwr.returncode}"
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
        self.address = f"127.0.0.1:{port}"
        write_token(self.home, self.address)
        connection = {"address": self.address, "insecure": True}
        flower = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (self.home / "config.toml").write_text(tomli_w.dumps(flower))
        # Flower's Ray as well takes nothing from strangers.
        private = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        private["RAY_TMPDIR"] = socket_folder()
        self.environment = {
            **ENVIRONMENT,
            **({} if "RAY_ADDRESS" in os.environ else private),
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": os.environ.get("FLWR_TELEMETRY_ENABLED", "0"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }
        python = [sys.executable, "-P", "-m"]
        command = [*python, "fl_app.engines.private_superlink", str(port)]
        guard = [*python, "fl_app.engines.family", str(os.getpid())]
        log = self.home / "superlink.log"
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*guard, str(self.home), *command],
                env=self.environment,
                cwd=self.home,  # workers import from there first: the user's folder may hide ours
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        atexit.register(self.stop)
        self._log = log

    def wait(self) -> None:
        """Return as soon as it takes runs; RunError if it does not start, or takes anybody's."""
        deadline = time.monotonic() + START_TIMEOUT
        while not _answers(self.address):
            if self.process.poll() is not None or time.monotonic() > deadline:
                why = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
                self.stop()
                raise RunError(f"Flower's SuperLink did not start: {why}")
            time.sleep(0.05)
        if not refuses_strangers(self.address):
            self.stop()
            raise RunError("Flower's SuperLink takes commands from anybody; use engine=ray")

    def wait_for(self, flwr: subprocess.Popen[bytes]) -> str | None:
        """Wait until ``flwr`` ends; which of the run's processes was gone before, if one was.

        ``flwr`` is ended then, and what else is left is to be.
        """
        seen: dict[psutil.Process, str] = {}
        lost: dict[psutil.Process, float] = {}
        while flwr.poll() is None:
            time.sleep(LOOK_SECONDS)
            seen |= parts(self._family())
            for each in seen.keys() - lost.keys():
                if not each.is_running() or each.status() == psutil.STATUS_ZOMBIE:
                    lost[each] = time.monotonic()
            # At the end of a run its processes go before flwr does.
            if lost and time.monotonic() - min(lost.values()) > END_SECONDS:
                flwr.kill()
                flwr.wait()
                return f"{seen[min(lost, key=lambda each: lost[each])]} was ended from outside"
        return None

    def stop(self, *, at_once: bool = False) -> None:
        """End the SuperLink and everything that it started, a run and its Ray among them."""
        self.process.terminate()
        try:
            self.process.wait(0.0 if at_once else STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
        end_children(self._started, at_once=at_once)
        shutil.rmtree(self.home, ignore_errors=True)
        atexit.unregister(self.stop)
        type(self)._shared = None

    def _family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

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


def parts(family: list[psutil.Process]) -> dict[psutil.Process, str]:
    """Those without which a run does not go on.

    A process that one of them forks to start another program looks like its parent until then,
    and may end at any time.
    """
    named = {each.pid: name for each in family if (name := _part(each))}
    found = {}
    for each in family:
        with contextlib.suppress(psutil.Error):
            if each.pid in named and named.get(each.ppid()) != named[each.pid]:
                found[each] = named[each.pid]
    return found


def _part(process: psutil.Process) -> str | None:
    """What ``process`` is in a run; None: nothing that it rests on."""
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline()[:4])
        return next((name for word, name in PARTS.items() if word in command), None)
    return None


def _answers(address: str) -> bool:
    import httpx

    try:
        return httpx.get(f"http://{address}/health", timeout=0.5).is_success
    except httpx.HTTPError:
        return False
