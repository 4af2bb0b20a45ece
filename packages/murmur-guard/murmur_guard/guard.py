"""The Guard: a foreign, unmodified ClientApp behind Murmur's protection, on its owner's device.

This process speaks to the SuperNode and is the only one that answers (``murmur.flower.client``):
policy, charge, clipping, noise, masks, stored reply. The app runs in a process of its own, locked
in, once for each message that is charged (``guarded``, ``sandbox``).
Its author is as little trusted as the server's.

What a hostile app is left with: its update, which is clipped and noised, and whether there is one,
which nobody sees, since a zero is released in its place; and its time, which nobody sees either,
since an answer leaves at the instant that the owner's policy fixes.
"""

import hashlib
import math
import os
import selectors
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fl_app.device.api import DeviceError, DeviceService, adopt_orphans, log_error
from murmur.compat.flower_runtime import TaskInput
from murmur.compat.flower_wire import context_bytes, message_bytes
from murmur.files import owner_only_folder, replace_file
from murmur.flower.ask import Ask, array_record
from murmur.flower.client import protect
from murmur.format import framed, printable
from murmur.privacy.policy import Policy
from murmur.privacy.policy_terms import GuardRules
from murmur_guard import guarded
from murmur_guard.sandbox import (
    MAX_ENTRIES,
    OVERLAY_VERSION,
    OWN_FOLDER,
    Locked,
    Sandbox,
    bubblewrap_version,
    missing,
    programs,
    start,
)

LOOK_SECONDS = 0.25  # between two looks at what an app takes
_MAX_HEAD_BYTES = 1 << 16
_MAX_STATE_BYTES = 1 << 20  # and as much as the model
_MAX_FILES = 100_000  # that an app may make
READ_ONLY = "Read-only file system"
"""What an app prints that writes where it may read alone."""

LAST = "last.message"
"""In a device's folder ``apps``: what its app was asked last, for ``murmur doctor guard --run``."""

_STATE_SECONDS = 30 * 24 * 3600.0
_LOG = 4000  # characters of what an app printed


class AppError(Exception):
    """The app gave no answer, or was ended; the message says why, in the device's own log."""


class Guard(DeviceService):
    """Answers tasks with the app of their bundle, locked in.

    Args:
        folder: the device's: policy.yaml with ``guard``, ledger, key, peers.
        node_config: what the app finds in its context.
        clock, sleep: as ``time.monotonic`` and ``time.sleep``.

    Raises:
        DeviceError: the policy cannot be read or has no ``guard``; the machine locks nothing in;
            or what the app may read holds the device's folder.
    """

    def __init__(
        self,
        folder: Path,
        node_config: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        policy = Policy.load(folder / "policy.yaml")
        if policy.defect is not None:
            raise DeviceError(f"{policy.source} is not valid: {policy.defect}")
        if policy.guard is None:
            raise DeviceError(f"{policy.source} has no `guard`: no foreign app may run here")
        self.rules = policy.guard
        self.delta = policy.delta
        lacking = missing()
        if lacking:
            raise DeviceError(f"no foreign app is locked in: {lacking}")
        require_apart(folder, self.rules)
        require_few(self.rules)
        super().__init__({**node_config, "murmur": str(folder)}, folder, self.rules.bundles)
        self.node_config = dict(node_config)
        self.clock = clock
        self.sleep = sleep

    def reply(self, task_input: TaskInput, context: Context) -> Message:
        """The protected reply. Where the app was started, it is given at the fixed instant.

        That is ``answer_seconds`` after the task came, or a whole multiple of that where the
        protection itself took longer.
        """
        began = self.clock()
        app = LockedApp(
            self.rules, self.folder, task_input.bundle, self.node_config, task_input.superlink
        )
        message = task_input.message
        reply = protect(message, context, app, guarded=True, alone=self._alone(message))
        if app.started:
            self._wait(began)
        return reply

    def _alone(self, message: Message) -> Ask | None:
        """Returns the cost of an answer to a server without Murmur; None: it is refused.

        The server states the round, which numbers the answer in the ledger and nothing else.
        """
        rules = self.rules.unprotected
        if rules is None:
            return None
        from murmur.privacy.accounting.calibrate import discrete_noise_multiplier

        numbers = [held.get("server-round") for held in message.content.config_records.values()]
        number = next((n for n in numbers if type(n) is int and n > 0), 1)
        return Ask(
            purpose="train",
            round=number,
            rounds=number,
            epsilon=rules.epsilon,
            delta=self.delta,
            noise_multiplier=discrete_noise_multiplier(rules.epsilon, self.delta, 1),
            clip=rules.clip,
            minimum=1,
            colluders=0,
            simulated=True,
        )

    def _wait(self, began: float) -> None:
        """Until the instant at which an answer to what came at ``began`` leaves."""
        every = self.rules.answer_seconds
        took = self.clock() - began
        turns = max(1, math.ceil(took / every))
        if turns > 1:
            late = DeviceError(
                f"the answer took {took:.1f} s, of which the app had {self.rules.app_seconds:g}; "
                f"raise guard.answer_seconds={every:g} in this device's policy"
            )
            log_error(self.folder, "late", late)
        while (left := began + turns * every - self.clock()) > 0:
            self.sleep(left)


def require_apart(folder: Path, rules: GuardRules) -> None:
    """DeviceError where an app's data hold the device's own folder or a pipe, or are not there."""
    own = folder.resolve()
    for path in (*rules.data, *map(Path, programs())):
        if own.is_relative_to(path.resolve()):
            raise DeviceError(
                f"{folder}: lies in {path}, which an app may read; the ledger and the key of a "
                "device must be elsewhere"
            )
    for path in rules.data:
        if not path.exists():
            raise DeviceError(f"{path}: of guard.data in this device's policy is not there")
        for pipe in _pipes(path):
            raise DeviceError(
                f"{pipe}: is a named pipe, into which an app could write; move it out of guard.data"
            )


def require_few(rules: GuardRules) -> None:
    """DeviceError where a folder of ``writes`` holds more than this bubblewrap can put around."""
    if bubblewrap_version() >= OVERLAY_VERSION:
        return
    for path in rules.writes:
        count = len(os.listdir(path))
        if count > MAX_ENTRIES:
            raise DeviceError(
                f"{path}: of guard.writes holds {count} files, of which this bubblewrap bears "
                f"{MAX_ENTRIES}; install {'.'.join(map(str, OVERLAY_VERSION))} or newer"
            )


def _pipes(path: Path) -> Iterator[str]:
    """Yields the named pipes at ``path`` and below: reading them alone takes no writing on disk."""
    if stat.S_ISFIFO(path.stat().st_mode):
        yield str(path)
    for folder, _, names in os.walk(path):
        for name in names:
            place = os.path.join(folder, name)
            if stat.S_ISFIFO(os.lstat(place).st_mode):
                yield place


class LockedApp:
    """A bundle's app, for one message; called as the app itself would be.

    Args:
        rules: the owner's.
        folder: the device's.
        bundle: Flower's archive of the app; it is unpacked by the locked process.
        node_config: what the app finds in its context.
        superlink: for which the owner's SuperNode was started.

    Attributes:
        started: whether it was called.
    """

    def __init__(
        self,
        rules: GuardRules,
        folder: Path,
        bundle: bytes,
        node_config: Mapping[str, Any],
        superlink: str,
    ) -> None:
        self.rules = rules
        self.folder = folder
        self.bundle = bundle
        self.node_config = dict(node_config)
        self.superlink = superlink
        self.started = False

    def __call__(self, message: Message, context: Context, server: str) -> Message:
        """Runs the app; returns what protection reads of its reply: the arrays sent and metrics.

        What the app keeps in ``Context.state`` stays in the device's folder, for the same run of
        the same server: that of the key that has signed the message, or else that at the SuperLink.
        Another server that gives its run the same number finds nothing of it.

        Raises:
            AppError: there is no answer, within the limits of the policy.
            ValueError, TypeError, KeyError: it is malformed.
        """
        self.started = True
        sent = ArrayRecord()
        record = ""
        if message.metadata.message_type.partition(".")[0] == "train":
            record, sent = array_record(message.content)
        own = Context(
            context.run_id, context.node_id, self.node_config, RecordDict(), context.run_config
        )
        whose = (b"key", server.encode()) if server else (b"superlink", self.superlink.encode())
        name = hashlib.sha256(framed(*whose, str(context.run_id).encode())).hexdigest()
        kept = self.folder / "apps" / f"{name}.state"
        state = kept.read_bytes() if kept.exists() else b""
        # The model in float64, though it may be sent in float16, and a state as large as it is.
        largest = sum(5 * len(array.data) + 512 for array in sent.values()) + _MAX_STATE_BYTES
        owner_only_folder(kept.parent)
        _forget(kept.parent)
        head = {"record": record, "names": list(sent)}
        parts = [message_bytes(message), context_bytes(own), state, self.bundle]
        asked = guarded.pack_frame(head, parts)
        last = kept.with_name(LAST)
        replace_file(last, asked)
        answer = answered(self.rules, last, min(largest, self.rules.memory))
        found, (state, *arrays) = guarded.unpack_frame(answer, _MAX_HEAD_BYTES)
        replace_file(kept, state)
        content = RecordDict({"metrics": MetricRecord(found["metrics"])})
        if record:
            pairs = zip(sent.items(), arrays, strict=True)
            content[record] = ArrayRecord(
                {
                    name: Array(array.dtype, array.shape, array.stype, data)
                    for (name, array), data in pairs
                }
            )
        return Message(content, reply_to=message)


def answered(rules: GuardRules, asked: Path, largest: int) -> bytes:
    """Returns the frame that a locked process answers, of ``largest`` bytes at most.

    Every process of the app has ended when this returns, and whatever it raises.

    Args:
        rules: the owner's.
        asked: a file with the frame that is asked.
        largest: bytes.

    Raises:
        AppError: there is none, within the limits of the policy.
    """
    adopt_orphans()
    command = [sys.executable, "-I", "-B", guarded.__file__]
    with asked.open("rb") as given:
        watched = _Watched(start(sandbox_of(rules), command, _environment(), given), rules)
    try:
        return watched.answer(largest)
    except AppError as error:
        printed = watched.printed()
        advice = ""
        if READ_ONLY in printed:
            advice = "; `murmur doctor guard --run` says where it would write"
        raise AppError(f"{error}{advice}; it printed:\n{printed}") from None
    finally:
        watched.end()


def sandbox_of(rules: GuardRules) -> Sandbox:
    """Returns the limits of one locked process."""
    return Sandbox(
        readable=tuple(map(str, rules.data)),
        memory=rules.memory,
        disk=rules.disk,
        processes=rules.processes,
        cpu=rules.cpu_seconds,
        written=tuple(map(str, rules.writes)),
    )


def _forget(folder: Path) -> None:
    """Remove what an app was asked last, and states of runs, after 30 days without a message."""
    for kept in folder.iterdir():
        if kept.stat().st_mtime < time.time() - _STATE_SECONDS:
            kept.unlink()


def _environment() -> dict[str, str]:
    """All that an app finds in its environment."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": OWN_FOLDER,
        "TMPDIR": OWN_FOLDER,
        "USER": "app",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(os.cpu_count()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
    }


class _Watched:
    """What a locked app takes, and what it answers.

    Args:
        locked: its processes.
        rules: what it may take.
    """

    def __init__(self, locked: Locked, rules: GuardRules) -> None:
        self._locked = locked
        self._process = locked.process
        self._rules = rules
        self._log = b""

    def answer(self, largest: int) -> bytes:
        """Reads the process's answer, up to the length that the answer itself states.

        AppError where it ends, takes too long or too much, or writes more than ``largest``.
        """
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        answer = bytearray()
        cutoff = time.monotonic() + self._rules.app_seconds
        look = 0.0
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            ready.register(self._process.stderr, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= cutoff:
                    raise AppError(f"the app was ended after {self._rules.app_seconds:g} s")
                if now >= look:
                    self._require_modest()
                    look = now + LOOK_SECONDS
                for key, _ in ready.select(min(cutoff, look) - now):
                    part = os.read(key.fd, 1 << 20)
                    if not part:
                        ready.unregister(key.fileobj)
                    if key.fileobj is self._process.stderr:
                        self._log = (self._log + part)[-_LOG:]
                        continue
                    answer += part
                    if len(answer) >= 8:
                        length = int.from_bytes(answer[:8], "little") + 8
                        if length > largest + _MAX_HEAD_BYTES:
                            raise AppError(f"the app's reply is of {length} bytes")
                        if len(answer) >= length:
                            return bytes(answer[:length])
                    if not part:
                        raise AppError("the app ended without a reply")

    def printed(self) -> str:
        """The end of what it wrote to its standard error."""
        assert self._process.stderr is not None
        pipe = self._process.stderr.fileno()
        os.set_blocking(pipe, False)
        with suppress(BlockingIOError):
            self._log += os.read(pipe, 1 << 20)
        return printable(self._log[-_LOG:].decode(errors="replace"), keep="\n")

    def end(self) -> None:
        """End all of it, and wait until it has."""
        self._locked.end()

    def _require_modest(self) -> None:
        """AppError where it takes more of the machine than the policy allows.

        What the kernel counts for each process, this counts for all of them.
        """
        processes = _processes(self._locked.group)
        if len(processes) > self._rules.processes:
            raise AppError(f"the app has {len(processes)} processes")
        memory, files, disk = _taken(processes)
        if memory > self._rules.memory:
            raise AppError(f"the app has {memory >> 20} MiB of memory")
        if files > _MAX_FILES:
            raise AppError(f"the app has {files} files")
        if disk > self._rules.disk:
            raise AppError(f"the app has {disk >> 20} MiB of files")


def _processes(group: int) -> list[Path]:
    """The places in /proc of all processes of ``group``."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):  # it has ended
            # After the name, which may hold anything: state, parent, process group.
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                found.append(place)
    return found


def _taken(processes: list[Path]) -> tuple[int, int, int]:
    """The memory of processes, how many files they have made, and the bytes of these.

    Memory is what no file holds as well. Files lie in their own folder, or over those that they
    read, which a root of memory holds.
    """
    memory = 0
    files = 0
    disk = 0
    for place in processes:
        with suppress(OSError):  # it has ended
            for line in (place / "status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    memory += int(line.split()[1]) << 10
            held = [os.statvfs(f"{place}/root{folder}") for folder in ("/", OWN_FOLDER)]
            files = max(files, sum(each.f_files - each.f_ffree for each in held))
            disk = max(disk, sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in held))
    return memory, files, disk
