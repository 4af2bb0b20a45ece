"""A federation on this machine: one SuperLink with TLS and node authentication, and SuperNodes.

Every process is a real one of Flower's, started as ``deploy/README.md`` starts it, on free ports
and in one folder; what was started is stopped by its process id. Only two waits are shortened,
those between two looks for work (``POLL_SECONDS``; Flower's own are 1 and 3 seconds), unless a
federation is ``patient``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from murmur.processes import die_with_parent

PROJECT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
POLL_SECONDS = 0.2
NAME = "loopback"  # of the connection in FLWR_HOME/config.toml

# An owner who allows anything, so that results can be compared with a simulation's.
POLICY = """
expires: 2099-01-01
servers: any
algorithms: [privatekt, fedavg]
mechanisms: {randomized_response: {max_epsilon: 3.0}}
epsilon_per_release: inf
epsilon_per_lifetime: inf
unit: record
assumptions: [bounded_change]
delta: 1.0e-5
threat: local
minimum_surviving_clients: 2
allow_seeded_noise: true
allow_non_private: true
"""

_MARK = "LOOPBACK_PART"  # in the environment of every process that is started here

# Flower has no setting for these two waits, so the processes are started through this line.
_IMPATIENT = "time.sleep = lambda s, sleep=time.sleep: sleep({poll} if s == 3 else s)"


class Federation:
    """``folder`` holds certificates, keys, the SuperLink's database and everybody's logs.

    ``bin``: where `murmur` and Flower's commands are; those of this Python if not said.
    ``patient``: whether processes wait as long between two looks as they do without a test.
    """

    def __init__(self, folder: Path, bin: Path = BIN, patient: bool = False) -> None:
        self.folder, self.bin, self.patient = folder, bin, patient
        folder.mkdir(parents=True, exist_ok=True)
        self.certificates, self.home = folder / "certificates", folder / "flwr"
        self.port, self.table = free_port(), folder / "enrolled.txt"
        self.started: list[subprocess.Popen] = []
        (folder / "supernode.secret").write_bytes(os.urandom(32))
        script("certificates.sh", self.certificates, "127.0.0.1")
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.certificates}/ca.pem"\n'
        )

    @property
    def environment(self) -> dict[str, str]:
        """What Flower's processes of this federation run with."""
        found = {
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        if not self.patient:
            paths = [str(_impatience(self.folder)), os.environ.get("PYTHONPATH", "")]
            found["PYTHONPATH"] = os.pathsep.join(paths)
            found["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = str(POLL_SECONDS)
        return found

    def start_link(self, **environment: str) -> None:
        """Start the SuperLink, with its database on disk, and wait until it answers."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        files = {"ca-certfile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
        for name, file in files.items():
            command += [f"--ssl-{name}", str(self.certificates / file)]
        command += ["--enable-supernode-auth", "--database", str(self.folder / "superlink.db")]
        self._start("superlink", command, **environment)
        wait_for(self.answers, 300, f"the SuperLink; see {self.folder}/superlink.log")

    def answers(self) -> bool:
        """Whether the SuperLink is there."""
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))
        url = f"https://127.0.0.1:{self.port}/health"
        try:
            with urllib.request.urlopen(url, timeout=1, context=context) as reply:
                return reply.status == 200
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def enrol(self, number: int) -> Path:
        """A key pair for node ``number``, enrolled as the host of that client; the private key."""
        key = self.folder / f"node-{number}.key"
        script("node-key.sh", key)
        enter = ["murmur", "enrol", f"{key}.pub", "--clients", str(number), "--superlink", NAME]
        self._run(*enter, "--table", str(self.table))
        return key

    @property
    def words(self) -> list[str]:
        """What a run on these devices is started with."""
        return ["engine=deploy", f"engine.superlink={NAME}", f"federation.enrolled={self.table}"]

    def device(self, client: int, policy: str = POLICY) -> dict[str, Any]:
        """The node-config of a device that hosts ``client``, with its data from ``data/``."""
        (self.folder / "policy.yaml").write_text(policy)
        with np.load(self.folder / "data" / "public.npz") as public:
            shape = public["images"].shape[1:]
        return {
            "clients": client,
            "data": f"{self.folder}/data/client-{client}.npz",
            "public": f"{self.folder}/data/public.npz",
            "shape": ",".join(map(str, shape)),
            "classes": 10,
            "policy": f"{self.folder}/policy.yaml",
            "state": f"{self.folder}/state-{client}",
        }

    def start_node(
        self,
        number: int,
        key: Path,
        config: dict[str, Any],
        *options: str,
        port: int | None = None,
        ca: Path | None = None,
        runs_sent_code: bool = False,
        device: Sequence[str] = ("murmur", "device"),
    ) -> subprocess.Popen:
        """Start SuperNode ``number`` and the device beside it; the SuperNode's process.

        ``port``: of the SuperLink, or of what stands before it. ``runs_sent_code``: without a
        device, as Flower starts a SuperNode by default. ``device``: the command of another one.
        """
        pairs = {k: f'"{v}"' if isinstance(v, str) else v for k, v in config.items()}
        words = " ".join(f"{key}={value}" for key, value in pairs.items())
        runtime, secret = free_port(), str(self.folder / "supernode.secret")
        command = ["--superlink", f"127.0.0.1:{port or self.port}"]
        command += ["--root-certificates", str(ca or self.certificates / "ca.pem")]
        command += ["--auth-supernode-private-key", str(key), "--port", str(runtime), *options]
        name = f"node-{number}"
        if runs_sent_code:
            return self._start(name, ["flower-supernode", *command, "--node-config", words])
        shared = ["--superexec-auth-secret-file", secret]
        beside = [*device, "--runtime-api-address", f"127.0.0.1:{runtime}", *shared]
        self._start(name, [*beside, "--node-config", words], log=f"device-{number}")
        return self._start(name, ["murmur", "supernode", *command, *shared])

    def online(self) -> int:
        """How many nodes the SuperLink has."""
        nodes = json.loads(self.flwr("supernode", "list", NAME, "--format", "json"))["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def flwr(self, *words: str) -> str:
        """Flower's command with these words; RuntimeError where it fails."""
        return self._run("flwr", *words)

    def murmur(self, *words: str) -> subprocess.Popen:
        """`murmur` with these words, started; its output is in murmur.log."""
        return self._start("murmur", ["murmur", *words])

    def kill(self, name: str) -> None:
        """End all processes of ``name`` (superlink, node-0) at once, as a power cut does.

        A SuperNode and the device beside it are one: ``node-0``.
        """
        while self.send(name, signal.SIGKILL):
            pass  # one that was starting another is found by its child
        for process in self.started:
            process.poll()  # what nobody has waited for still looks alive to its children

    def send(self, name: str, number: int) -> int:
        """Send a signal (0: none) to all processes of ``name`` that are left; how many."""
        mark, found = f"{_MARK}={self.folder}/{name}\0".encode(), 0
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                if mark in (place / "environ").read_bytes():
                    os.kill(int(place.name), number)
                    found += 1
        return found

    def processor_seconds(self) -> float:
        """Processor time of all that was started here, and of all that these have waited for."""
        mark = f"{_MARK}={self.folder}/".encode()
        ticks = 0
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                if mark in (place / "environ").read_bytes():
                    # After the name, which may hold anything: 12th to 15th of what follows.
                    fields = (place / "stat").read_text().rpartition(")")[2].split()
                    ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def log(self, name: str) -> str:
        """What ``name`` (superlink, node-0, device-0, murmur) has written."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def story(self, lines: int = 40) -> str:
        """The last lines that everybody has written, for whoever asks why something failed."""
        ends = ((log.name, log.read_text(errors="replace")) for log in self.folder.glob("*.log"))
        tails = [f"--- {name}\n" + "\n".join(t.splitlines()[-lines:]) for name, t in sorted(ends)]
        return "\n".join(tails)

    def close(self) -> None:
        """Stop everything."""
        for log in self.folder.glob("*.log"):
            self.kill(log.stem)
        for process in self.started:
            process.wait()

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _start(
        self, name: str, command: Sequence[str], log: str | None = None, **environment: str
    ) -> subprocess.Popen:
        mark = {_MARK: f"{self.folder}/{name}"}
        with open(self.folder / f"{log or name}.log", "ab") as output:
            process = subprocess.Popen(
                list(command),
                env={**self.environment, **environment, **mark},
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # also where this process is killed
            )
        self.started.append(process)
        return process


class SimulatedRuns:
    """`flwr run` on simulated SuperNodes, with a SuperLink of its own.

    Its files are in ``folder``. It stays between runs, and ``close`` ends it by its process id.

    Attributes:
        environment: what every command is started with.
    """

    def __init__(self, folder: Path) -> None:
        self._port = str(free_port())
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": self._port,
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, app: Path, nodes: int, config: str = "", folder: Path | None = None) -> str:
        """All that ``lines`` gives."""
        return "".join(self.lines(app, nodes, config, folder))

    def lines(
        self, app: Path, nodes: int, config: str = "", folder: Path | None = None
    ) -> Iterator[str]:
        """What ``app`` prints on ``nodes`` simulated nodes, as it comes.

        ``config``: as after ``--run-config``. ``folder``: where it is typed; ``app`` if not said.
        """
        command = ["flwr", "run", str(app), "--stream"]
        if config:
            command += ["--run-config", config]
        command += ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
        for _ in range(4):  # a busy machine does not start a SuperLink within Flower's 15 s
            is_late = False
            for line in lines_of(command, self.environment, folder or app):
                is_late |= "Failed to start local SuperLink within" in line
                yield line
            if not is_late:
                return

    def close(self) -> None:
        """End the SuperLink."""
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                command = (place / "cmdline").read_bytes().decode(errors="replace")
                if self._port in command and int(place.name) != os.getpid():
                    os.kill(int(place.name), signal.SIGTERM)


def lines_of(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[str]:
    """What a command prints, line by line as it comes."""
    with subprocess.Popen(
        list(command),
        env=dict(environment),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield from process.stdout


def _impatience(folder: Path) -> Path:
    """A folder whose ``sitecustomize`` shortens Flower's waits in every process of the test."""
    place = folder / "impatience"
    place.mkdir(exist_ok=True)
    line = _IMPATIENT.format(poll=POLL_SECONDS)
    (place / "sitecustomize.py").write_text(f"import time\n\n{line}\n")
    return place


def script(name: str, *arguments: object) -> None:
    """Run a script of ``deploy/``."""
    words = [str(PROJECT / "deploy" / name), *(str(word) for word in arguments)]
    subprocess.run(words, check=True, capture_output=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait until ``condition`` holds; the seconds it took. TimeoutError names ``what``."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.1)
    return time.monotonic() - begin
