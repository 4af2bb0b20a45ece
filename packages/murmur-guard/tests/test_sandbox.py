"""A locked process: a hostile app's attempts, each of which gets out where nothing is locked."""

import importlib.util
import json
import os
import platform
import select
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from murmur_guard import sandbox
from tests import hostile_app as hostile
from tests.guarded_devices import needs_lock, needs_root

NOBODY = 65534
# What this machine may lack, or nothing keeps from happening where it is not tried on purpose.
NO_CONTROL = {"inherited", "crypto_of_the_kernel", "kernel_memory", "old_calls", "setuid_program"}
NO_CONTROL |= {"vsock", "performance", "load_bpf", "page_faults", "io_uring", "curl", "host_name"}
NO_CONTROL |= {"mark_a_file", "number_a_file", "attributes_of_a_file"}  # as its file system has it


def python_of(user):
    """A Python that an account may run."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run([python, "-I", "-c", ""], check=True, user=user, group=user)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip("no Python that another account may run")


def outcome(lock=True, user=None):
    """What became of each attempt, of a victim and an attacker under one account."""
    account = {}
    python = sys.executable
    if user is not None:
        python = python_of(user)
        account = {"user": user, "group": user, "extra_groups": []}
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir(0o700)
        code = folder / "code"
        code.mkdir()
        code.chmod(0o755)
        package = Path(sandbox.__file__).parent
        sources = [hostile.__file__, sandbox.__file__, package / "sandbox.ini"]
        for source in (*sources, *package.glob("*.bpf")):
            shutil.copy(source, code)
        if user is not None:
            os.chown(folder, user, user)
            os.chown(home, user, user)
        limits = {"memory": 1 << 30, "disk": 1 << 26, "processes": 500, "cpu": 60}
        at = {
            "home": str(home),
            "code": str(code),
            "lock": lock,
            "sandbox": limits,
        }
        script = str(code / Path(hostile.__file__).name)
        done = subprocess.run(
            [python, "-I", "-B", script, "victim", json.dumps(at)],
            env={"PATH": os.environ["PATH"], "SECRET": hostile.SECRET},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            **account,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder)
    assert found.keys() == hostile.ATTEMPTS.keys()
    return found


@needs_lock
@pytest.mark.parametrize(
    "user", [None, pytest.param(NOBODY, marks=needs_root)], ids=["this account", "nobody"]
)
def test_no_attempt_gets_out(user):
    found = outcome(user=user)
    assert [name for name, said in found.items() if said == "out"] == []


@needs_root
def test_every_attempt_gets_out_where_nothing_is_locked():
    """So that each of them is one: else a mistyped attempt would count as withstood."""
    found = outcome(lock=False)
    stopped = {name: said for name, said in found.items() if said != "out"}
    assert {name: said for name, said in stopped.items() if name not in NO_CONTROL} == {}


def test_the_specification_names_23_attempts_and_twenty_more_are_ours():
    names = list(hostile.ATTEMPTS)
    assert names.index("setuid_program") == 22 and len(names) - 23 >= 20


def locked(code, readable=(), **limits):
    """A Python locked in, for the caller to end."""
    own = {"memory": 1 << 30, "disk": 1 << 26, "processes": 500, "cpu": 60, **limits}
    command = [sys.executable, "-I", "-c", code]
    with open(os.devnull, "rb") as nothing:
        return sandbox.start(sandbox.Sandbox(tuple(readable), **own), command, {}, nothing)


def printed(code, readable=(), **limits):
    """What a Python prints that is locked in."""
    started = locked(code, readable, **limits)
    try:
        said, failed = started.process.communicate(timeout=100)
        assert started.process.returncode == 0, failed.decode()
    finally:
        started.end()
    return said.decode()


@needs_lock
def test_what_an_app_needs_works(tmp_path):
    """Files of its own, programs, threads, processes and what they share."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table.csv").write_text("1,2\n")
    found = json.loads(
        printed(
            f"""
import json, multiprocessing, os, shutil, subprocess, tempfile
data = {str(tmp_path / "data")!r}
found = {{"data": open(data + "/table.csv").read()}}
shutil.copy2(data + "/table.csv", "/tmp")  # with its mode and its time, it is told
reading, writing = os.pipe()
os.set_inheritable(reading, True)
os.set_blocking(reading, False)
assert not os.isatty(reading) and os.get_inheritable(reading)
with tempfile.NamedTemporaryFile("w+") as file:
    file.write("x")
    os.fsync(file)
found["program"] = subprocess.run(["/bin/echo", "on"], capture_output=True, text=True).stdout
os.kill(os.getpid(), 0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    found["pool"] = pool.map(abs, [-1, -2])
print(json.dumps(found))
""",
            [str(tmp_path / "data")],
        )
    )
    assert found == {"data": "1,2\n", "program": "on\n", "pool": [1, 2]}


@needs_lock
def test_its_files_are_of_the_size_that_the_owner_has_said_wherever_they_are():
    code = """
import os
made = 0
for path in ("/tmp/one", "/dev/shm/two", "/tmp/three"):
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                made += file.write(bytes(1 << 16))
        except OSError:
            pass
print(made)
"""
    assert int(printed(code, disk=1 << 21)) <= 1 << 21


@needs_lock
@pytest.mark.parametrize("tries", ["0", "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)"])  # not to
def test_a_locked_process_ends_with_the_one_that_started_it(tries):
    inside = f"""
import ctypes, time
assert {tries} == 0
print("locked", flush=True)
time.sleep(100)
"""
    code = f"""
import sys
sys.path.insert(0, {str(Path(sandbox.__file__).parent)!r})
from sandbox import Sandbox, start
command = [sys.executable, "-I", "-c", {inside!r}]
own = start(Sandbox((), 1 << 30, 1 << 26, 500, 60), command, {{}}, open("/dev/null", "rb"))
sys.stdout.buffer.write(own.process.stdout.readline())
sys.stdout.flush()
print(own.group, flush=True)
own.process.wait()
"""
    guard = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert guard.stdout is not None
    assert guard.stdout.readline() == b"locked\n"
    first = os.pidfd_open(int(guard.stdout.readline()))
    guard.kill()
    guard.communicate(timeout=30)
    assert select.select([first], [], [], 30)[0]  # with which the kernel ends all others
    os.close(first)


@needs_lock
def test_all_of_it_has_ended_when_its_end_returns():
    code = """
import os, time
for _ in range(4):
    os.fork()
print("started", flush=True)
time.sleep(100)
"""
    started = locked(code)
    assert started.process.stdout.readline() == b"started\n"
    started.end()
    states = [
        text.rpartition(")")[2].split()[0]
        for text in map(_stat, Path("/proc").glob("[0-9]*"))
        if text and text.rpartition(")")[2].split()[2] == str(started.group)
    ]
    assert set(states) <= {"Z"}  # the first, whom the machine's first process forgets


def _stat(place):
    try:
        return (place / "stat").read_text()
    except OSError:
        return ""  # it has ended


# What a machine lacks -----------------------------------------------------------------------------


def test_a_machine_without_bubblewrap_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sandbox.missing() == "bubblewrap is not installed: apt install bubblewrap, or its like"


def test_an_old_bubblewrap_is_told(monkeypatch, tmp_path):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho bubblewrap 0.4.1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sandbox.missing() == "bubblewrap 0.4.1 is here, 0.8 or newer is needed"


def test_a_machine_that_has_no_filter_is_told(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert "no filter of system calls for riscv64" in sandbox.missing()


@needs_lock
@needs_root
def test_a_container_without_user_namespaces_is_told_in_one_sentence():
    """A namespace in which no further one may be made."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(sandbox.__file__).parent)!r})
import sandbox
open("/proc/sys/user/max_user_namespaces", "w").write("0")
print(sandbox.missing())
"""
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = done.stdout.strip()
    assert said.startswith("bubblewrap gets no namespaces of its own here (bwrap: ")
    assert said.endswith("says how to let it") and "\n" not in said


# The filter, on a machine of thirty lines: the other architecture's too ---------------------------

AUDITED = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {  # of both tables
    "read": (0, 63), "openat": (257, 56), "socket": (41, 198), "ptrace": (101, 117),
    "mount": (165, 40), "unshare": (272, 97), "io_uring_setup": (425, 425), "bpf": (321, 280),
    "userfaultfd": (323, 282), "keyctl": (250, 219), "memfd_create": (319, 279),
    "clone": (56, 220), "clone3": (435, 435), "prlimit64": (302, 261), "prctl": (157, 167),
    "fcntl": (72, 25), "ioctl": (16, 29), "sync": (162, 81), "msync": (26, 227),
    "setsid": (112, 157), "seccomp": (317, 277), "io_submit": (209, 2), "mseal": (462, 462),
}  # fmt: skip
ALLOWED, PRETENDED, UNKNOWN, KILLED = 0x7FFF0000, 0x00050000, 0x00050026, 0x80000000


def decided(machine, name, *arguments, architecture=None):
    """What a filter says of a call, by name or number."""
    number = name
    if name in CALLS:
        number = CALLS[name][machine == "aarch64"]
    six = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture or AUDITED[machine], 0, *six)
    program = sandbox.filter_of(machine).read_bytes()
    value = 0
    place = 0
    while True:
        code, if_so, if_not, operand = struct.unpack_from("=HBBI", program, 8 * place)
        place += 1
        if code == 0x20:  # load
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x54:  # and
            value &= operand
        elif code == 0x05:  # jump
            place += operand
        elif code == 0x06:  # return
            return operand
        else:
            holds = {0x15: value == operand, 0x25: value > operand, 0x35: value >= operand}
            place += if_so if holds[code] else if_not


BOTH = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


@BOTH
def test_filter_knows_what_is_listed_and_nothing_else(machine):
    for name in ("read", "openat"):
        assert decided(machine, name) == ALLOWED
    for name in ("sync", "msync"):
        assert decided(machine, name) == PRETENDED
    refused = "socket ptrace mount unshare io_uring_setup bpf userfaultfd keyctl memfd_create"
    for name in (*refused.split(), "clone3", "setsid", "seccomp", "io_submit", "mseal"):
        assert decided(machine, name) == UNKNOWN
    assert decided(machine, 500) == UNKNOWN
    assert decided(machine, "read", architecture=AUDITED[machine] ^ 1) == KILLED


def test_filter_kills_calls_of_32_bits():
    """Those of i386, by its own table, and of x32, by their numbers."""
    assert decided("x86_64", "read", architecture=0x40000003) == KILLED
    for number in (0, 41, 512, 545):
        assert decided("x86_64", 0x40000000 | number) == KILLED


@BOTH
def test_filter_looks_at_arguments_in_whole(machine):
    """A number of 64 bits of which the kernel reads 32 is no other than it seems."""
    for request in (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451):
        assert decided(machine, "ioctl", 3, request) == ALLOWED
        assert decided(machine, "ioctl", 3, 1 << 32 | request) == UNKNOWN
    for request in (0x40086602, 0x40046602, 0x40087602, 0x40047602, 0x401C5820, 0x5412, 0x40049409):
        assert decided(machine, "ioctl", 3, request) == UNKNOWN
    kept = {0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032}
    for command in range(2048):
        said = ALLOWED if command in kept else UNKNOWN
        assert decided(machine, "fcntl", 8, command) == said
        assert decided(machine, "fcntl", 8, 1 << 32 | command) == UNKNOWN
    assert decided(machine, "clone", 0x11 | 0x3D0F00) == ALLOWED  # a thread
    for flag in (0x80, 0x00020000, 0x02000000, 0x04000000, 0x10000000, 0x20000000, 0x40000000):
        assert decided(machine, "clone", flag | 0x11) == UNKNOWN
        assert decided(machine, "clone", 1 << 32 | flag | 0x11) == UNKNOWN
    assert decided(machine, "prlimit64", 0, 7, 0x1000) == ALLOWED
    assert decided(machine, "prlimit64", 0, 4, 0) == ALLOWED
    for wrong in ((1234, 7, 0), (0, 4, 0x1000), (0, 1 << 32 | 4, 0x1000), (1 << 32, 7, 0x1000)):
        assert decided(machine, "prlimit64", *wrong) == UNKNOWN
    for option in (4, 22, 35, 62, 0x59616D61, 1 << 32 | 1):  # a filter, MM, core scheduling, Yama
        assert decided(machine, "prctl", option) == UNKNOWN


def _maker():
    path = Path(sandbox.__file__).parents[1] / "filters" / "make.py"
    spec = importlib.util.spec_from_file_location("make", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@BOTH
def test_filters_are_what_libseccomp_makes(machine):
    maker = _maker()
    seccomp = maker.library()
    if seccomp is None:
        pytest.skip("libseccomp is not installed: apt install libseccomp2")
    if maker.version(seccomp) != maker.VERSION:
        pytest.skip(
            f"libseccomp {maker.version(seccomp)} is here, the files are of {maker.VERSION}"
        )
    assert maker.made(seccomp, machine) == sandbox.filter_of(machine).read_bytes()
