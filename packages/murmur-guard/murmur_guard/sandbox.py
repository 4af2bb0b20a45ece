"""Locks this process in: what it may still read, write and ask of the kernel. Linux; ctypes alone.

``lock`` is called once, in a process with one thread that has run nothing foreign yet; nothing
takes it back, and what the process starts is locked in as well. Three parts, each of which stops
what the others leave open:

* **namespaces** (user, mount, network, IPC, process): no network but an empty one, a /dev/shm and
  a folder of its own that end with it, no other process in sight.
* **Landlock**: files are read below the paths that are named, and written in one folder.
* **seccomp**: no socket of any kind, nothing that reaches into another process or the kernel,
  nothing that outlasts the run at a file which may only be read (its flags and version), and no
  calls of another architecture or newer than that table. Without Landlock's scopes (ABI 6, Linux
  6.12) no signals are sent either.

Besides: no capabilities, no new privileges, limits on memory, processor time, processes and file
sizes, and the first to be ended where memory runs out. What the kernel lacks ``missing`` names.

Sources: landlock(7), seccomp(2), user_namespaces(7); the numbers of calls are in
``sandbox.ini``.
"""

import configparser
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PARTS = ("landlock", "seccomp", "namespaces")
_LISTS = configparser.ConfigParser()
# Read here: a locked process might not.
_LISTS.read_string(Path(__file__).with_name("sandbox.ini").read_text(encoding="utf-8"))

SYSTEM = _LISTS["readable"]["paths"].split()
"""What every program may read; Python's own paths come to it."""

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SHARED_MEMORY = "/dev/shm"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Sandbox:
    """Limits of a locked process: its files, memory, processes and time.

    Attributes:
        folder: the one place where it writes; it may read and execute there too.
        readable: paths that it may read, with what is below them.
        memory, disk: bytes; of one process's own memory, and of one file (in namespaces also of all
            files together).
        processes: how many there may be; not counted for root, which has no such limit.
        cpu: seconds of processor time, of one process.
        without: parts of ``PARTS`` that are left out.
    """

    folder: str
    readable: tuple[str, ...]
    memory: int
    disk: int
    processes: int
    cpu: int
    without: tuple[str, ...] = ()


def missing() -> list[str]:
    """Which of ``PARTS`` this kernel does not give to this process."""
    found = []
    if landlock_version() < MIN_LANDLOCK_ABI:
        found.append("landlock")
    if platform.machine() not in _ARCHITECTURES or _libc.prctl(_GET_SECCOMP, 0, 0, 0, 0) < 0:
        found.append("seccomp")
    child = os.fork()
    if child == 0:
        try:
            _enter_namespaces(tempfile.gettempdir(), 4096)
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        found.append("namespaces")
    return found


def lock(sandbox: Sandbox) -> None:
    """Lock this process in; it returns in a child, whose end ends the caller as well.

    OSError where a part that is not in ``without`` cannot be had; nothing foreign may run then.
    """
    parent = os.getppid()
    _call("prctl", _DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    Path("/proc/self/oom_score_adj").write_text("1000")
    if "namespaces" not in sandbox.without:
        _enter_namespaces(sandbox.folder, sandbox.disk)
    _limit(sandbox)
    _drop_capabilities()
    if "landlock" not in sandbox.without:
        _restrict_files(sandbox)
    if "seccomp" not in sandbox.without:
        _restrict_calls()


def _call(name: str, *arguments: object) -> int:
    """A function of the C library; OSError where it fails."""
    done: int = getattr(_libc, name)(*arguments)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return done


# prctl ------------------------------------------------------------------------------------------

_DEATH_SIGNAL = 1
_GET_SECCOMP = 21
_DROP_BOUNDING = 24
_NO_NEW_PRIVILEGES = 38
_CAPABILITIES_VERSION = 0x20080522


def _drop_capabilities() -> None:
    """None are left, and none come back: not by a setuid program, nor by root's name."""
    for number in range(64):
        if _libc.prctl(_DROP_BOUNDING, number, 0, 0, 0) < 0:
            break  # there are no more, or an ordinary user, who has none
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    _call("capset", header, bytes(24))
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def _limit(sandbox: Sandbox) -> None:
    """Limits that the kernel keeps for each process."""
    limits = {
        resource.RLIMIT_DATA: sandbox.memory,
        resource.RLIMIT_FSIZE: sandbox.disk,
        resource.RLIMIT_CPU: sandbox.cpu,
        resource.RLIMIT_NPROC: sandbox.processes,
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for which, most in limits.items():
        _, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(which, (most, most))


# Namespaces -------------------------------------------------------------------------------------

_MOUNTS = 0x00020000
_NAMESPACES = 0x10000000 | _MOUNTS | 0x40000000 | 0x08000000 | 0x20000000  # user, net, IPC, PID
_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
_NO_DEVICES = 0x2 | 0x4  # MS_NOSUID | MS_NODEV


def _enter_namespaces(folder: str, disk: int) -> None:
    """New ones, under this user's own number; the first process there goes on, this one waits.

    ``folder`` and /dev/shm become empty ones, in memory, of ``disk`` bytes each.
    """
    user = os.geteuid()
    group = os.getegid()
    _call("unshare", _NAMESPACES)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", b"none", b"/", None, _PRIVATE, None)
    for place, mode in ((_SHARED_MEMORY, 0o1777), (folder, 0o700)):
        options = f"size={disk},nr_inodes=100000,mode={mode:o}"
        _call("mount", b"murmur", place.encode(), b"tmpfs", _NO_DEVICES, options.encode())
    inside = os.fork()
    if inside:
        os.waitpid(inside, 0)
        os._exit(0)
    _call("prctl", _DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


# Landlock ---------------------------------------------------------------------------------------

MIN_LANDLOCK_ABI = 3  # from which on a file that may be read cannot be truncated
_SCOPED_LANDLOCK = 6  # from which on signals can be kept in
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_EXECUTE = 1
_READ_FILE = 1 << 2
_READ_FOLDER = 1 << 3
_OF_FILES = _EXECUTE | 1 << 1 | _READ_FILE | 1 << 14 | 1 << 15
_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract unix sockets, signals


def landlock_version() -> int:
    """Landlock's ABI; below 1 where there is none."""
    version: int = _libc.syscall(_CREATE_RULESET, None, 0, 1)
    return version


def _restrict_files(sandbox: Sandbox) -> None:
    """Reading below the named paths, writing in the folder, no TCP, no signals to others."""
    version = landlock_version()
    if version < MIN_LANDLOCK_ABI:
        raise OSError(f"Landlock ABI {version}: {MIN_LANDLOCK_ABI} is needed")
    everything = (1 << 15) - 1
    if version >= 5:
        everything = (1 << 16) - 1
    handled = struct.pack("=Q", everything)
    if version >= 4:
        handled += struct.pack("=Q", _TCP)
    if version >= _SCOPED_LANDLOCK:
        handled += struct.pack("=Q", _SCOPES)
    rules = _call("syscall", _CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    reading = _READ_FILE | _READ_FOLDER
    for path in programs():
        _allow(rules, path, reading | _EXECUTE)
    for path in sandbox.readable:
        _allow(rules, path, reading)
    for path in _DEVICES:
        _allow(rules, path, _READ_FILE | 1 << 1)
    _allow(rules, sandbox.folder, everything)
    if "namespaces" not in sandbox.without:
        _allow(rules, _SHARED_MEMORY, everything)
    _call("syscall", _RESTRICT_SELF, rules, 0)
    os.close(rules)


def programs() -> list[str]:
    """Paths that every locked process may read: the system's and those of Python's packages."""
    own = filter(os.path.isabs, sys.path)
    return list(dict.fromkeys((*SYSTEM, sys.prefix, sys.base_prefix, *own)))


def _allow(rules: int, path: str, rights: int) -> None:
    """A rule for what is below ``path``; none where it is not there."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        rights &= _OF_FILES
    try:
        _call("syscall", _ADD_RULE, rules, 1, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


# seccomp ----------------------------------------------------------------------------------------

_ARCHITECTURES = {"x86_64": (0xC000003E, 0, 317), "aarch64": (0xC00000B7, 1, 277)}
"""AUDIT_ARCH, column in ``_CALLS``, and the number of seccomp itself."""

_NEWEST = 462  # mseal, Linux 6.10: whatever comes after it is unknown here
_X32 = 0x40000000


def _calls(kind: str) -> dict[str, tuple[int | None, ...]]:
    """The calls of ``kind`` by name: their numbers on x86-64 and on arm64."""
    return {
        name: tuple(int(number) if number != "-" else None for number in numbers.split())
        for name, numbers in _LISTS[kind].items()
    }


_CALLS = _calls("refused")
_PRETENDED = _calls("pretended")
_SIGNALS = _calls("signals")
_CLONE = (56, 220)
_CLONE3 = (435, 435)  # its flags are in memory, which no filter sees; the C library does without
_PRLIMIT = (302, 261)
_PRCTL = (157, 167)
_FCNTL = (72, 25)
_SET_OWNERS = (8, 15)  # F_SETOWN, F_SETOWN_EX: who gets a signal when a file can be read
_IOCTL = (16, 29)
# TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: what Python and the C library
# ask of a descriptor. Any other may leave something at a file that is only read, or at a device.
_ASKED = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*

_KILL = 0x80000000
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_FIRST_ARGUMENT_AT = 16  # its low half; both architectures are little-endian
_SECOND_ARGUMENT_AT = 24
_EPERM = 1
_ENOSYS = 38


def filter_program(machine: str, scoped: bool) -> bytes:
    """The filter, as instructions of 8 bytes (classic BPF).

    Args:
        machine: x86_64 or aarch64.
        scoped: whether Landlock keeps signals in; else none can be sent.
    """
    architecture, column, _ = _ARCHITECTURES[machine]
    refused = dict(_CALLS)
    if not scoped:
        refused |= _SIGNALS
    program = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
        _step(_AT_LEAST, _X32, 0, 1),
        _step(_RETURN, _KILL),
        _step(_AT_LEAST, _NEWEST + 1, 0, 1),
        _step(_RETURN, _FAIL | _ENOSYS),
        _step(_EQUAL, _CLONE3[column], 0, 1),
        _step(_RETURN, _FAIL | _ENOSYS),
    ]
    for calls, answer in ((refused, _FAIL | _EPERM), (_PRETENDED, _FAIL)):
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                program += [_step(_EQUAL, number, 0, 1), _step(_RETURN, answer)]
    # New namespaces, limits of another process, signals to one by a file, flags of files. And
    # whether this process ends with the one that started it: nothing is done and success is told,
    # as PyTorch wants it.
    refuse = _FAIL | _EPERM
    for numbers, place, test, values, answer, otherwise in (
        (_CLONE, _FIRST_ARGUMENT_AT, _ANY_BIT, [_NEW_NAMESPACES], refuse, _ALLOW),
        (_PRLIMIT, _FIRST_ARGUMENT_AT, _ANY_BIT, [0xFFFFFFFF], refuse, _ALLOW),
        (_FCNTL, _SECOND_ARGUMENT_AT, _EQUAL, _SET_OWNERS, refuse, _ALLOW),
        (_IOCTL, _SECOND_ARGUMENT_AT, _EQUAL, _ASKED, _ALLOW, refuse),
        (_PRCTL, _FIRST_ARGUMENT_AT, _EQUAL, [_DEATH_SIGNAL], _FAIL, _ALLOW),
    ):
        left = len(values)
        program += [_step(_EQUAL, numbers[column], 0, left + 3), _step(_LOAD, place)]
        program += [_step(test, value, left - tried) for tried, value in enumerate(values)]
        program += [_step(_RETURN, otherwise), _step(_RETURN, answer)]
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    """One instruction; ``if_so`` and ``if_not``: how many it jumps over."""
    return struct.pack("=HBBI", code, if_so, if_not, value)


def _restrict_calls() -> None:
    """Put the filter on, for all threads; it holds also for what is started from here."""
    machine = platform.machine()
    scoped = landlock_version() >= _SCOPED_LANDLOCK
    program = ctypes.create_string_buffer(filter_program(machine, scoped))
    header = struct.pack("@HP", (len(program) - 1) // 8, ctypes.addressof(program))
    _call("syscall", _ARCHITECTURES[machine][2], 1, 1, header)  # SECCOMP_SET_MODE_FILTER, TSYNC
