"""A locked process: a hostile app's attempts, each of which gets out where nothing is locked."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from murmur.privacy.policy_terms import ISOLATION
from murmur_guard import sandbox
from tests import hostile_app as hostile
from tests.guarded_devices import lacking, needs_lock, needs_namespaces, needs_root

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


def outcome(lock=True, user=None, without=(), scoped=True):
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
        lists = Path(sandbox.__file__).with_name("sandbox.ini")
        for source in (hostile.__file__, sandbox.__file__, lists):
            shutil.copy(source, folder)
        if user is not None:
            os.chown(folder, user, user)
            os.chown(home, user, user)
        limits = {"memory": 1 << 30, "disk": 1 << 26, "processes": 500, "cpu": 60}
        at = {
            "home": str(home),
            "code": str(folder),
            "lock": lock,
            "scoped": scoped,
            "sandbox": {**limits, "without": list(without)},
        }
        script = str(folder / Path(hostile.__file__).name)
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
@pytest.mark.parametrize("scoped", [True, False], ids=["", "signals by seccomp"])
@pytest.mark.parametrize(
    "without",
    [pytest.param((), marks=needs_namespaces), ("namespaces",)],
    ids=["namespaces", "no namespaces"],
)
@pytest.mark.parametrize(
    "user", [None, pytest.param(NOBODY, marks=needs_root)], ids=["this account", "nobody"]
)
def test_no_attempt_gets_out(user, without, scoped):
    found = outcome(user=user, without=without, scoped=scoped)
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


@needs_lock
def test_what_an_app_needs_works(tmp_path):
    """Files of its own, programs, threads, processes and what they share."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table.csv").write_text("1,2\n")
    (tmp_path / "own").mkdir()
    code = f"""
import json, os, shutil, subprocess, sys, tempfile
sys.path.insert(0, {str(Path(sandbox.__file__).parent)!r})
from sandbox import Sandbox, lock
os.environ["TMPDIR"] = own = {str(tmp_path / "own")!r}
data = {str(tmp_path / "data")!r}
lock(Sandbox(own, (data,), 1 << 30, 1 << 26, 500, 60, {tuple(lacking)!r}))
found = {{"data": open(data + "/table.csv").read()}}
shutil.copy(data + "/table.csv", own)  # sets a mode, and is told that it did
reading, writing = os.pipe()
os.set_inheritable(reading, True)
os.set_blocking(reading, False)
assert not os.isatty(reading) and os.get_inheritable(reading)
with tempfile.NamedTemporaryFile("w+") as file:
    file.write("x")
found["program"] = subprocess.run(["/bin/echo", "on"], capture_output=True, text=True).stdout
os.kill(os.getpid(), 0)
import multiprocessing
if not {bool(lacking)}:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found["pool"] = pool.map(abs, [-1, -2])
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["data"] == "1,2\n" and found["program"] == "on\n"
    assert lacking or found["pool"] == [1, 2]


@needs_lock
def test_a_part_that_the_kernel_lacks_stops_it():
    code = f"""
import sys, tempfile
sys.path.insert(0, {str(Path(sandbox.__file__).parent)!r})
import sandbox
sandbox.MIN_LANDLOCK_ABI = 99
print(sandbox.missing())
sandbox.lock(sandbox.Sandbox(tempfile.mkdtemp(), (), 1 << 30, 1 << 26, 50, 60, {tuple(lacking)!r}))
print("went on")
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert "landlock" in done.stdout and "went on" not in done.stdout
    assert "OSError: Landlock ABI" in done.stderr or not done.stderr


@needs_lock
@pytest.mark.parametrize("tries", ["0", "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)"])  # not to
def test_a_locked_process_ends_with_the_one_that_started_it(tmp_path, tries):
    inside = f"""
import ctypes, sys, time
sys.path.insert(0, {str(Path(sandbox.__file__).parent)!r})
from sandbox import Sandbox, lock
lock(Sandbox({str(tmp_path)!r}, (), 1 << 30, 1 << 26, 500, 60, {tuple(lacking)!r}))
assert {tries} == 0
print("locked", flush=True)
time.sleep(100)
"""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {inside!r}])"
    guard = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert guard.stdout is not None
    assert guard.stdout.readline() == b"locked\n"
    guard.kill()
    assert guard.communicate(timeout=30) == (b"", None)  # whoever held the pipe has ended


def test_owners_name_the_parts_that_there_are():
    assert sandbox.PARTS == ISOLATION


# The filter, on a machine of twenty lines: the other architecture's too ---------------------------


def decided(program, architecture, number, first=0, second=0):
    """What a filter says of a call."""
    data = struct.pack("=iIQQQ", number, architecture, 0, first, second)
    value = 0
    place = 0
    while True:
        code, if_so, if_not, operand = struct.unpack_from("=HBBI", program, 8 * place)
        place += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}
            place += if_so if holds[code] else if_not


ALLOWED, FAILS, KILLED = 0x7FFF0000, 0x00050001, 0x80000000


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("scoped", [True, False])
def test_filter_refuses_what_it_names_and_lets_the_rest_through(machine, scoped):
    program = sandbox.filter_program(machine, scoped)
    architecture, column, _ = sandbox._ARCHITECTURES[machine]
    refused = {numbers[column] for numbers in sandbox._CALLS.values()} - {None}
    signals = {numbers[column] for numbers in sandbox._SIGNALS.values()}
    pretended = {numbers[column] for numbers in sandbox._PRETENDED.values()} - {None}
    for number in range(sandbox._NEWEST + 1):
        said = decided(program, architecture, number)
        if number in refused or (number in signals and not scoped):
            assert said == FAILS
        elif number in pretended:
            assert said == 0x00050000
        elif number == 435:
            assert said == 0x00050026
        elif number == sandbox._IOCTL[column]:
            assert said == FAILS
        else:
            assert said == ALLOWED
    assert decided(program, architecture, sandbox._NEWEST + 1) == 0x00050026
    assert decided(program, architecture ^ 1, 0) == KILLED
    assert decided(program, architecture, 0x40000000) == KILLED


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_looks_at_flags_of_clone_and_of_files_at_whose_limits_are_set_and_who_owns_a_file(
    machine,
):
    program = sandbox.filter_program(machine, True)
    architecture, column, _ = sandbox._ARCHITECTURES[machine]
    clone, limit = sandbox._CLONE[column], sandbox._PRLIMIT[column]
    control = sandbox._FCNTL[column]
    for command in range(1, 2048):
        owner = command in (8, 15)
        assert decided(program, architecture, control, 8, command) == (FAILS if owner else ALLOWED)
    asks = sandbox._IOCTL[column]
    for request in (0x40086602, 0x40046602, 0x40087602, 0x40047602, 0x401C5820, 0x5412, 0x40049409):
        assert decided(program, architecture, asks, 3, request) == FAILS
        assert decided(program, architecture, asks, 3, 1 << 32 | request) == FAILS
    for request in (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451):
        assert decided(program, architecture, asks, 3, request) == ALLOWED
    ends = sandbox._PRCTL[column]
    assert decided(program, architecture, ends, 1) == 0x00050000
    assert decided(program, architecture, ends, 4) == ALLOWED
    assert decided(program, architecture, clone, 0x11 | 0x3D0F00) == ALLOWED  # a thread
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x10000000, 0x20000000, 0x40000000):
        assert decided(program, architecture, clone, flag | 0x11) == FAILS
    assert decided(program, architecture, limit, 0) == ALLOWED
    assert decided(program, architecture, limit, 1234) == FAILS


@pytest.mark.parametrize(
    ("column", "header"), [(0, "x86_64-linux-gnu/asm/unistd_64.h"), (1, "asm-generic/unistd.h")]
)
def test_numbers_are_the_kernels(column, header):
    path = Path("/usr/include") / header
    if not path.exists():  # it comes with a C compiler, which a device does without
        pytest.skip("the kernel's headers are not installed")
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)", path.read_text()))
    assert known
    for calls in (sandbox._CALLS, sandbox._PRETENDED, sandbox._SIGNALS):
        for name, numbers in calls.items():
            number = str(numbers[column])
            assert known.get(name, number) == number
