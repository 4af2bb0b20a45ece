"""What bubblewrap does not stop by itself: an app's attempts at the kernel, and at its limits."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from murmur.privacy.policy_terms import GuardRules
from murmur_guard import sandbox
from murmur_guard.guard import AppError, _Watched, sandbox_of
from tests import hostile_app
from tests import hostile_kernel as hostile
from tests.federation.loopback import PROJECT
from tests.guarded_devices import needs_lock, needs_root

pytestmark = needs_lock

NOBODY = 65534
THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
RUN = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import sandbox
own = sandbox.Sandbox((sys.argv[2],), 1 << 30, 1 << 24, 500, 60)
command = [sys.executable, "-I", "-B", sys.argv[1] + "/hostile_kernel.py", sys.argv[2]]
locked = sandbox.start(own, command, {}, open("/dev/null", "rb"))
printed, said = locked.process.communicate(timeout=100)
locked.end()
sys.stderr.buffer.write(said)
sys.stdout.buffer.write(printed)
"""


def marks(path):
    found = os.stat(path)
    return found.st_mode, found.st_atime_ns, found.st_mtime_ns


@pytest.fixture(scope="module", params=[None, NOBODY], ids=["this account", "nobody"])
def outcome(request):
    """What became of each attack, and whether it left a mark at the owner's files."""
    user = request.param
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root changes to another account")
    account = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    python = sys.executable if user is None else "/usr/bin/python3"
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        (folder / "code").mkdir()
        (folder / "data").mkdir()
        package = Path(sandbox.__file__).parent
        sources = [hostile.__file__, sandbox.__file__, package / "sandbox.ini"]
        for source in (*sources, *package.glob("*.bpf")):
            shutil.copy(source, folder / "code")
        table = folder / "data" / "table.csv"
        table.write_text("1,2\n")
        for path in (table, folder / "data", folder / "code"):
            path.chmod(0o755)
            if user is not None:
                os.chown(path, user, user)
        os.utime(table, (1, 1))
        before = marks(table), marks("/dev/null")[0]
        done = subprocess.run(
            [python, "-I", "-B", "-c", RUN, str(folder / "code"), str(folder / "data")],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
            **account,
        )
        found = json.loads(done.stdout)
        found["marks"] = before == (marks(table), marks("/dev/null")[0])
    finally:
        shutil.rmtree(folder)
    return found


@pytest.mark.parametrize("name", hostile.ATTACKS)
def test_an_attack_is_stopped_or_is_one_of_those_that_the_page_lists(outcome, name):
    assert (outcome[name] == "out") == (name in hostile.STILL_OUT), outcome[name]


def test_nothing_stays_at_a_file_not_even_when_it_was_read(outcome):
    assert outcome["marks"]


def test_calls_of_other_tables_end_their_process(outcome):
    for name in ("call_of_x32", "call_of_32_bits"):
        if hostile.X86:
            assert outcome[name] == f"ended by signal {int(signal.SIGSYS)}"


def test_the_page_lists_what_still_gets_out_with_its_width():
    page = (PROJECT / "docs" / "any-flower-app.md").read_text("utf-8")
    table = page.partition("| what still gets out |")[2].partition("\n\n")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and "---" not in row]
    assert len(rows) >= len(hostile.STILL_OUT)
    assert all(re.search(r"\d+ bits?|1 bit", row) for row in rows), rows
    tried = (
        f"{len(hostile_app.ATTEMPTS)} ways out and {len(hostile.ATTACKS)} attempts at the kernel"
    )
    assert tried in page


# Limits of all processes together ----------------------------------------------------------------


def ended(code, **changes):
    """The reason for which the Guard ends an app, whose processes have all ended then."""
    limits = {"memory": 500 << 20, "disk": 256 << 20, "processes": 20, "cpu_seconds": 30, **changes}
    rules = GuardRules((), (), app_seconds=20.0, answer_seconds=30.0, **limits)
    command = [sys.executable, "-I", "-c", code]
    with open(os.devnull, "rb") as nothing:
        child = _Watched(sandbox.start(sandbox_of(rules), command, {}, nothing), rules)
    try:
        with pytest.raises(AppError) as found:
            child.answer(1 << 16)
    finally:
        child.end()
    return str(found.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os, time\nfor _ in range(8): os.fork()\ntime.sleep(60)", "processes"),
        # Each child is an orphan at once, and in a session that it may not make.
        (
            "import os, time\nfor _ in range(60):\n"
            " if not os.fork():\n  if not os.fork(): time.sleep(60)\n  os._exit(0)\n"
            "time.sleep(60)",
            "processes",
        ),
        (
            "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * (100 << 20)\ntime.sleep(60)",
            "MiB of memory",
        ),
        (
            "import mmap, time\nx = mmap.mmap(-1, 600 << 20)\n"
            "for n in range(0, 600 << 20, 4096): x[n] = 1\ntime.sleep(60)",
            "MiB of memory|ended without",
        ),
        (
            "import os, time\nfor n in range(110_000):"
            " os.close(os.open(f'/tmp/{n}', os.O_CREAT | os.O_WRONLY))\ntime.sleep(60)",
            "files",
        ),
        ("while True: pass", "ended without a reply"),
    ],
    ids=["forks", "orphans", "memory of many", "shared memory", "inodes", "processor time"],
)
def test_all_of_an_app_is_ended_where_it_takes_too_much(code, said):
    limits = {"cpu_seconds": 1} if "pass" in code else {}
    assert re.search(said, ended(code, **limits))


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """A delegated cgroup, as files in its shape."""
    own = tmp_path / "cgroups" / "murmur.service"
    own.mkdir(parents=True)
    (tmp_path / "own").write_text("4:memory:/elsewhere\n0::/murmur.service\n")
    monkeypatch.setattr(sandbox, "_CGROUPS", tmp_path / "cgroups")
    monkeypatch.setattr(sandbox, "_OWN_CGROUP", tmp_path / "own")
    return own


def delegate(own):
    try:
        os.setxattr(own, "user.delegate", b"1")
    except OSError:
        pytest.skip("this file system keeps no attributes")


def test_a_cgroup_that_was_not_delegated_is_left_alone(cgroups):
    assert sandbox.cgroup() is None
    assert list(cgroups.iterdir()) == []


def test_a_delegated_cgroup_limits_all_of_an_app_together(cgroups, tmp_path, monkeypatch):
    delegate(cgroups)
    assert sandbox.cgroup() == cgroups
    assert (cgroups / "guard" / "cgroup.procs").read_text() == "0"
    assert (cgroups / "cgroup.subtree_control").read_text() == "+memory +pids"
    (tmp_path / "own").write_text("0::/murmur.service/guard\n")  # where it is from now on
    assert sandbox.cgroup() == cgroups
    gone = []
    monkeypatch.setattr(
        Path, "rmdir", lambda path: gone.append(path)
    )  # here it holds files, there it does not
    limits = sandbox.Sandbox((), 1 << 30, 1 << 20, 7, 9)
    with open(os.devnull, "rb") as nothing:
        locked = sandbox.start(limits, ["/bin/true"], {}, nothing)
    locked.end()
    (own,) = gone
    assert own == cgroups / f"app-{locked.group}"
    found = {path.name: path.read_text() for path in own.iterdir()}
    assert found == {
        "memory.max": str((1 << 30) + (1 << 20)),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "7",
        "cgroup.procs": str(locked.group),
    }


@needs_root
def test_a_crash_leaves_no_core_behind(tmp_path):
    """Neither as a file nor to the machine's own program for cores."""
    code = "import os, signal\nos.chdir('/tmp')\nos.kill(os.getpid(), signal.SIGSEGV)"
    assert "without a reply" in ended(code)
    limits = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE), flush=True)"
    rules = GuardRules((), (), 9.0, 10.0, cpu_seconds=9, memory=1 << 29, disk=1 << 20, processes=9)
    with open(os.devnull, "rb") as nothing:
        own = sandbox.start(sandbox_of(rules), [sys.executable, "-I", "-c", limits], {}, nothing)
    assert own.process.communicate()[0] == b"(1, 1)\n"
    own.end()


@pytest.fixture
def own_disk(tmp_path):
    """A disk in a file: the folder where it is, and its name among the machine's devices."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    commands = ["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(place)]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"{command[0]} is not installed")
        if done.returncode:
            said = " ".join(done.stderr.split()) or f"ended with status {done.returncode}"
            pytest.skip(f"no disk of its own: {command[0]}: {said}")
    mounts = Path("/proc/mounts").read_text()
    device = re.search(rf"^/dev/(\S+) {re.escape(str(place))} ", mounts, re.M).group(1)
    yield place, device
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def slow_disk(own_disk):
    """The same, which takes 2 MiB in a second."""
    place, device = own_disk
    number = Path(f"/sys/block/{device}/dev").read_text().strip()
    try:
        THROTTLE.write_text(f"{number} {2 << 20}")
    except OSError as error:
        pytest.skip(f"no disk is slowed down here: {THROTTLE}: {error.strerror}")
    yield place
    THROTTLE.write_text(f"{number} 0")


SYNCS = """
import ctypes, mmap, os, time
file = os.open(TABLE, os.O_RDONLY)
began = time.monotonic()
os.sync()
os.fsync(file)
os.fdatasync(file)
pages = mmap.mmap(file, 0, mmap.MAP_SHARED, mmap.PROT_READ)
libc = ctypes.CDLL(None)
assert libc.syncfs(file) == 0 and libc.sync_file_range(file, 0, 0, 7) == 0
pages.flush()
print(time.monotonic() - began, flush=True)
"""


def syncing(place):
    """How long a locked app takes to sync all disks, its owner's, a file, and its pages."""
    rules = GuardRules(
        (), (place,), 9.0, 10.0, cpu_seconds=9, memory=1 << 29, disk=1 << 20, processes=9
    )
    code = SYNCS.replace("TABLE", repr(str(place / "table.csv")))
    with open(os.devnull, "rb") as nothing:
        own = sandbox.start(sandbox_of(rules), [sys.executable, "-I", "-c", code], {}, nothing)
    said, failed = own.process.communicate()
    own.end()
    assert said, failed
    return float(said)


def test_an_app_does_not_make_its_owners_disk_write(own_disk):
    place, device = own_disk
    count = Path(f"/sys/block/{device}/stat")
    (place / "table.csv").write_text("1,2\n")
    os.sync()
    time.sleep(1)
    (place / "dirty").write_bytes(os.urandom(8 << 20))
    before = int(count.read_text().split()[6])
    syncing(place)
    assert int(count.read_text().split()[6]) == before
    os.sync()
    assert int(count.read_text().split()[6]) - before >= 8 << 11  # sectors: the count counts


def test_an_app_does_not_wait_for_a_slow_disk(slow_disk):
    """No signal would end one that does, so its device would answer late."""
    (slow_disk / "table.csv").write_text("1,2\n")
    (slow_disk / "dirty").write_bytes(os.urandom(16 << 20))
    assert syncing(slow_disk) < 2
    began = time.monotonic()
    subprocess.run(["sync", "--file-system", str(slow_disk)], check=True)
    assert time.monotonic() - began > 4  # what it would have waited
