"""A process that is locked in: by bubblewrap, with a filter of system calls that libseccomp made.

It has namespaces of its own (user, mount, network, IPC, process, host name): no network, no other
process, and of the machine's files those that are named, of which it changes nothing, not even when
they were last read. It writes in one folder in memory that ends with it. It has no capability, and
gains none. ``sandbox.ini`` names what it reads and which system calls it has; ``x86_64.bpf`` and
``aarch64.bpf`` are the filters made of that (``filters/make.py``).
"""

import configparser
import json
import os
import platform
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

OWN_FOLDER = "/tmp"
"""Where a locked process writes."""

MIN_VERSION = (0, 8)
_GUARDS = "guard"  # the cgroup of this process itself, where one was delegated
OVERLAY_VERSION = (0, 11)
"""From which bubblewrap on a process may write anywhere in the folders that it reads."""

MAX_ENTRIES = 500
"""How many a folder may have in which a process writes beside what is there, before that."""

_TO_GET = "packages/murmur-guard/README.md says how to let it"
_HERE = Path(__file__).parent
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_LISTS = configparser.ConfigParser()
_LISTS.read_string((_HERE / "sandbox.ini").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Sandbox:
    """Limits of a locked process: its files, memory, processes and time.

    Attributes:
        readable: paths that it may read, with what is below them.
        written: folders there in which it may make files, that end with it.
        memory, disk: bytes; of one process's own memory, and of all files together.
        processes: how many there may be; not counted for root, which has no such limit.
        cpu: seconds of processor time, of one process.
    """

    readable: tuple[str, ...]
    memory: int
    disk: int
    processes: int
    cpu: int
    written: tuple[str, ...] = ()


def missing() -> str:
    """Returns one sentence on why this machine locks nothing in; empty where it does."""
    if not filter_of(platform.machine()).exists():
        return f"there is no filter of system calls for {platform.machine()}: x86-64 or arm64"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed: apt install bubblewrap, or its like"
    found = bubblewrap_version()
    if found < MIN_VERSION:
        wanted = ".".join(map(str, MIN_VERSION))
        return f"bubblewrap {'.'.join(map(str, found))} is here, {wanted} or newer is needed"
    tried = Sandbox((), 1 << 30, 1 << 20, 100, 9)
    with open(os.devnull, "rb") as nothing:
        try:
            locked = start(tried, ["/bin/true"], {}, nothing)
        except OSError as error:
            return f"bubblewrap gets no namespaces of its own here ({error}); {_TO_GET}"
    status = locked.process.wait()
    locked.end()
    if status:
        return f"bubblewrap started nothing here (status {status}); {_TO_GET}"
    return ""


def bubblewrap_version() -> tuple[int, ...]:
    """Returns that of the `bwrap` on the path."""
    done = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True)
    return tuple(int(part) for part in re.findall(r"\d+", done.stdout))


def filter_of(machine: str) -> Path:
    """Returns the file with the filter of ``machine``; it is not there for one that has none."""
    return _HERE / f"{machine}.bpf"


def programs() -> list[str]:
    """Paths that every locked process may read: the system's and those of Python's packages."""
    own = filter(os.path.isabs, sys.path)
    system = _LISTS["readable"]["paths"].split()
    return list(dict.fromkeys((*system, sys.prefix, sys.base_prefix, *own)))


def arguments(sandbox: Sandbox) -> list[str]:
    """Returns bubblewrap's arguments: namespaces and mounts.

    Later mounts lie over earlier ones, so the process's own folder comes first: data may lie below
    a path of the same name. At the end all that bubblewrap has made itself is read-only.
    """
    written = sorted(sandbox.written)
    overlaid: list[str] = []
    if bubblewrap_version() >= OVERLAY_VERSION:
        written, overlaid = [], list(filter(os.path.isdir, sandbox.readable))
    size = str(sandbox.disk // (1 + len(written)))
    words = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    words += ["--cap-drop", "ALL", "--proc", "/proc", "--dir", "/dev"]
    words += ["--size", size, "--tmpfs", OWN_FOLDER]
    words += ["--symlink", OWN_FOLDER, "/dev/shm"]
    for path in _LISTS["devices"]["paths"].split():
        words += ["--dev-bind", path, path]
    for path in sorted({*programs(), *sandbox.readable}):
        words += ["--ro-bind-try", path, path]
    for path in overlaid:
        words += ["--overlay-src", path, "--tmp-overlay", path]
    for path in written:
        words += ["--size", size, "--tmpfs", path]
        for entry in os.scandir(path):
            words += ["--ro-bind-try", entry.path, entry.path]
    return [*words, "--remount-ro", "/proc", "--remount-ro", "/", "--chdir", OWN_FOLDER]


def cgroup() -> Path | None:
    """Returns the cgroup that was delegated to this process; None where there is none.

    Those of locked processes are made in it. A cgroup that limits others has no process of its own,
    so this one moves into one below it.
    """
    lines = _OWN_CGROUP.read_text().splitlines()
    [name] = [line[3:] for line in lines if line.startswith("0::")] or ["/"]
    own = _CGROUPS / name.strip("/")
    moved = own.name == _GUARDS
    if moved:
        own = own.parent
    try:
        if os.getxattr(own, "user.delegate") != b"1":
            return None
        if moved:
            return own
        (own / _GUARDS).mkdir(exist_ok=True)
        (own / _GUARDS / "cgroup.procs").write_text("0")
        (own / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError:  # not delegated, or others are in it
        return None
    return own


def _held(sandbox: Sandbox, process: int) -> Path | None:
    """The cgroup that holds ``process`` and all that it starts; None where there is none.

    Files count as memory there, for they are in no other place.
    """
    above = cgroup()
    if above is None:
        return None
    own = above / f"app-{process}"
    own.mkdir(exist_ok=True)
    (own / "memory.max").write_text(str(sandbox.memory + sandbox.disk))
    with suppress(OSError):  # a kernel without swap
        (own / "memory.swap.max").write_text("0")
    (own / "memory.oom.group").write_text("1")
    (own / "pids.max").write_text(str(sandbox.processes))
    (own / "cgroup.procs").write_text(str(process))
    return own


class Locked:
    """A locked process and all that it has started.

    Attributes:
        process: bubblewrap's own, whose pipes are those of the locked process.
        group: process group of all that is locked in, which it cannot leave.
        cgroup: the one that limits them together; None where the kernel counts each alone.
    """

    def __init__(self, process: subprocess.Popen[bytes], group: int) -> None:
        self.process = process
        self.group = group
        self.cgroup: Path | None = None
        self._first = os.pidfd_open(group)  # with which the kernel ends all others

    def end(self) -> None:
        """End all of it, and wait until it has."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        select.select([self._first], [], [])
        os.close(self._first)
        with suppress(ChildProcessError):
            os.waitpid(self.group, 0)
        if self.cgroup is not None:
            with suppress(OSError):  # an empty one that stays limits nobody
                self.cgroup.rmdir()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def start(
    sandbox: Sandbox, command: Sequence[str], environment: Mapping[str, str], given: IO[bytes]
) -> Locked:
    """Start ``command``, locked in; it ends with the caller.

    Its limits hold before it runs: bubblewrap waits for them.

    Args:
        sandbox: its limits.
        command: a program that it may read, and its arguments.
        environment: all that it finds in it.
        given: its standard input.

    Raises:
        OSError: bubblewrap could not; the error has its words.
    """
    told, tells = os.pipe()
    waits, goes = os.pipe()
    calls = os.open(filter_of(platform.machine()), os.O_RDONLY)
    passed = {"--info-fd": tells, "--block-fd": waits, "--seccomp": calls}
    words = [word for pair in passed.items() for word in map(str, pair)]
    # The first to be ended where memory runs out.
    first = ["/bin/sh", "-c", 'echo 1000 > /proc/self/oom_score_adj; exec "$0" "$@"']
    program = shutil.which("bwrap") or "bwrap"
    with os.fdopen(told) as information, os.fdopen(goes, "wb") as begin:
        try:
            process = subprocess.Popen(
                [*first, program, *words, *arguments(sandbox), "--", *command],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                cwd="/",
                pass_fds=tuple(passed.values()),
            )
        finally:
            for descriptor in passed.values():
                os.close(descriptor)
        text = information.read()
        if not text:
            _, said = process.communicate()
            raise OSError(said.decode(errors="replace").strip() or "bwrap ended at once")
        locked = Locked(process, json.loads(text)["child-pid"])
        try:
            _limit(sandbox, locked.group)
            locked.cgroup = _held(sandbox, locked.group)
        except OSError:
            locked.end()
            raise
        begin.write(b"x")
    return locked


def _limit(sandbox: Sandbox, process: int) -> None:
    """Limits that the kernel keeps for each process that comes of ``process``."""
    limits = {
        resource.RLIMIT_DATA: sandbox.memory,
        resource.RLIMIT_FSIZE: sandbox.disk,
        resource.RLIMIT_CPU: sandbox.cpu,
        resource.RLIMIT_NPROC: sandbox.processes,
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_CORE: 1,  # 0 would start a program that waits for what is dumped: core(5)
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for which, most in limits.items():
        _, hard = resource.prlimit(process, which)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.prlimit(process, which, (most, most))
