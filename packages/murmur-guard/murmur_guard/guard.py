"""The Guard: a foreign, unmodified ClientApp behind Murmur's protection, on its owner's device.

This process speaks to the SuperNode and is the only one that answers (``murmur.flower.client``):
policy, charge, clipping, noise, masks, stored reply. The app runs in a process of its own, locked
in, once for each message that is charged (``guarded``, ``sandbox``).
Its author is as little trusted as the server's.

What a hostile app is left with: its update, which is clipped and noised, and whether there is one,
which nobody sees, since a zero is released in its place; and its time, which nobody sees either,
since an answer leaves at the instant that the owner's policy fixes.
"""

import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fl_app.device.api import DeviceError, DeviceService, adopt_orphans, log_error
from murmur.compat.flower_runtime import TaskInput
from murmur.compat.flower_wire import context_bytes, message_bytes
from murmur.files import owner_only_folder, replace_file
from murmur.flower.ask import Ask, array_record
from murmur.flower.client import protect
from murmur.format import printable
from murmur.privacy.policy import Policy
from murmur.privacy.policy_terms import GuardRules
from murmur_guard import guarded
from murmur_guard.sandbox import Sandbox, missing, programs

LOOK_SECONDS = 0.25  # between two looks at what an app takes
_MAX_HEAD_BYTES = 1 << 16
_MAX_STATE_BYTES = 1 << 20  # and as much as the model
_MAX_LEDGER_BYTES = 1 << 23  # bytes of a ledger's entries and logs
_FILES = 32  # that may be made beside what is there: states, journals, logs
_STATE_SECONDS = 30 * 24 * 3600.0
_SCRATCH = "scratch"
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
        DeviceError: the policy cannot be read or has no ``guard``; the machine lacks a part of the
            isolation that the policy wants; or what the app may read holds the device's folder.
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
        lacking = [part for part in missing() if part not in self.rules.without]
        if lacking:
            raise DeviceError(
                f"this machine does not give {', '.join(lacking)}; {policy.source} may do without: "
                f"guard.without: [{', '.join(lacking)}]"
            )
        require_apart(folder, self.rules)
        _remove_all(folder / _SCRATCH)  # what a power cut has left
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
        app = LockedApp(self.rules, self.folder, task_input.bundle, self.node_config)
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
    """DeviceError where an app could read the device's own folder, or its data are not there."""
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


class LockedApp:
    """A bundle's app, for one message; called as the app itself would be.

    Args:
        rules: the owner's.
        folder: the device's.
        bundle: Flower's archive of the app; it is unpacked by the locked process.
        node_config: what the app finds in its context.

    Attributes:
        started: whether it was called.
    """

    def __init__(
        self, rules: GuardRules, folder: Path, bundle: bytes, node_config: Mapping[str, Any]
    ) -> None:
        self.rules = rules
        self.folder = folder
        self.bundle = bundle
        self.node_config = dict(node_config)
        self.started = False

    def __call__(self, message: Message, context: Context) -> Message:
        """Runs the app; returns what protection reads of its reply: the arrays sent and metrics.

        What the app keeps in ``Context.state`` stays in the device's folder, for the same run.

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
        kept = self.folder / "apps" / f"{context.run_id}.state"
        state = kept.read_bytes() if kept.exists() else b""
        # The model in float64, though it may be sent in float16, and a state as large as it is.
        largest = sum(5 * len(array.data) + 512 for array in sent.values()) + _MAX_STATE_BYTES
        sums = [kept.stat().st_size for kept in self.folder.glob("clients/*/secure_sum/*")]
        room = 2 * (largest + max(sums, default=0)) + _MAX_LEDGER_BYTES
        with self._scratch() as scratch, _room(self.folder, room):
            sandbox = Sandbox(
                folder=str(scratch),
                readable=tuple(str(path) for path in self.rules.data),
                memory=self.rules.memory,
                disk=self.rules.disk,
                processes=self.rules.processes,
                cpu=self.rules.cpu_seconds,
                without=self.rules.without,
            )
            head = {"sandbox": vars(sandbox), "record": record, "names": list(sent)}
            parts = [
                message_bytes(message),
                context_bytes(own),
                state,
                self.bundle,
            ]
            asked = guarded.pack_frame(head, parts)
            answer = self._run(scratch, asked, min(largest, self.rules.memory))
        found, (state, *arrays) = guarded.unpack_frame(answer, _MAX_HEAD_BYTES)
        owner_only_folder(kept.parent)
        _forget_states(kept.parent)
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

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """An empty folder, whose removal nobody waits for: how long it takes is the app's doing."""
        above = self.folder / _SCRATCH
        owner_only_folder(above)
        _remove_all(above)  # one app runs at a time: what is there, a kill has left
        scratch = Path(tempfile.mkdtemp(dir=above))
        try:
            yield scratch
        finally:
            _remove(scratch)

    def _run(self, scratch: Path, asked: bytes, largest: int) -> bytes:
        """The frame that the locked process answers, of ``largest`` bytes at most.

        Every process of the app has ended when this returns, and whatever it raises. AppError.
        """
        adopt_orphans()
        with tempfile.TemporaryFile(dir=self.folder) as given:
            given.write(asked)
            given.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", guarded.__file__],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(scratch),
                cwd="/",
                start_new_session=True,
            )
        watched = _Watched(process, self.rules, self.folder)
        try:
            return watched.answer(largest)
        except AppError as error:
            raise AppError(f"{error}; it printed:\n{watched.printed()}") from None
        finally:
            watched.end()


@contextmanager
def _room(folder: Path, size: int) -> Iterator[None]:
    """Keep ``size`` bytes and some files for what follows the block, whatever an app writes in it.

    Without namespaces it can fill the disk before anybody looks; the answer would not be stored,
    and its absence would tell. OSError where there is no such room.
    """
    with ExitStack() as held:
        files = [held.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(_FILES)]
        os.posix_fallocate(files[0].fileno(), 0, size)
        yield


def _remove_all(above: Path) -> None:
    """Remove what is in ``above``, which need not be there; ``above`` stays, for the next app."""
    if above.exists():
        for folder in above.iterdir():
            _remove(folder)


def _forget_states(folder: Path) -> None:
    """Remove the states of runs that have asked nothing of an app for 30 days."""
    for kept in folder.glob("*.state"):
        if kept.stat().st_mtime < time.time() - _STATE_SECONDS:
            kept.unlink()


def _remove(folder: Path) -> None:
    """Remove what an app has left; of a tree, by a process that nobody waits for.

    A tree may be deep, wide and closed, as no library function expects.
    """
    try:
        folder.rmdir()
    except OSError:
        removal = 'chmod -R u+rwx -- "$0"; rm -rf -- "$0"'
        subprocess.Popen(["/bin/sh", "-c", removal, folder], stderr=subprocess.DEVNULL)


def _environment(scratch: Path) -> dict[str, str]:
    """All that an app finds in its environment."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "USER": "app",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(os.cpu_count()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
    }


class _Watched:
    """A locked process and all that it started: its process group, which it cannot leave.

    Args:
        process: the first one.
        rules: what it may take.
        folder: on whose disk it writes, where it has no file system of its own.
    """

    def __init__(self, process: subprocess.Popen[bytes], rules: GuardRules, folder: Path) -> None:
        self._process = process
        self._rules = rules
        self._folder = folder
        self._free = shutil.disk_usage(folder).free
        self._files = os.statvfs(folder).f_favail
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
        group = self._process.pid
        os.killpg(group, signal.SIGKILL)
        self._process.wait()
        while True:
            try:
                os.waitpid(-group, 0)
            except ChildProcessError:
                break
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _require_modest(self) -> None:
        """AppError where it takes more of the machine than the policy allows.

        What the kernel counts for each process, this counts for all of them. In namespaces it
        writes on no disk; elsewhere what others write there meanwhile counts as well.
        """
        processes, memory = _taken(self._process.pid)
        if processes > self._rules.processes:
            raise AppError(f"the app has {processes} processes")
        if memory > self._rules.memory:
            raise AppError(f"the app has {memory >> 20} MiB of memory")
        on_disk = "namespaces" in self._rules.without
        if on_disk and self._free - shutil.disk_usage(self._folder).free > self._rules.disk:
            raise AppError("the app fills the disk")
        if on_disk and os.statvfs(self._folder).f_favail < self._files / 2:
            raise AppError("the app fills the disk with files")


def _taken(group: int) -> tuple[int, int]:
    """How many processes ``group`` has, and their memory in bytes: what no file holds as well."""
    count = 0
    memory = 0
    for place in Path("/proc").glob("[0-9]*"):
        try:
            # After the name, which may hold anything: state, parent, process group.
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) != group:
                continue
            status = (place / "status").read_text()
        except (OSError, IndexError):
            continue  # it has ended
        count += 1
        for line in status.splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                memory += int(line.split()[1]) << 10
    return count, memory
