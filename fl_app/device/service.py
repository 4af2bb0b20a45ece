"""What stays on a device and answers: takes the SuperNode's tasks, each in a fork of its own.

The fork has imported everything and computes nothing before. So messages share no state, a crash or
a leak ends with its process, and nothing is imported twice.

``murmur device`` and ``murmur guard`` call ``DeviceService.serve``; from there a task goes through
``_attend`` here, and ``work`` and ``answer`` in its fork. What answers is ``reply``: a ``Device``
answers runs of this Murmur with the ClientApp that is installed here, ``murmur-guard`` anybody's
with the app that they send.
"""

import hashlib
import multiprocessing
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from importlib import import_module
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

import fl_app
from fl_app.config.errors import ConfigError
from fl_app.device.node_settings import DeviceError, NodeSettings, device_folder
from fl_app.packages import require_entry
from murmur.compat.flower_runtime import Runtime, RuntimeTask, TaskInput
from murmur.round.task import REFUSED, log_error, reply_to

POLL_SECONDS = 0.5
BUSY_SECONDS = 10.0  # seconds after a task in which the next one is likely: a secure sum takes six
BUSY_POLL_SECONDS = 0.25
_REFUSED = 3  # status of a fork whose reply is a refusal


def is_refusal(reply: Message) -> bool:
    """Tells whether nobody answers in ``reply``: an error, or every client has refused."""
    if reply.has_error():
        return True
    reports = [record for record in reply.content.config_records.values() if "refused" in record]
    return any(each["refused"] for each in reports) and not any(
        each.get("clients") for each in reports
    )


class DeviceService(ABC):
    """Answers tasks for an owner, who alone says what is on the device.

    Args:
        owner: the node-config, as the owner has given it to this process; the SuperNode's own is
            ignored.
        folder: the device's, where its log is.
        bundles: SHA-256, in lower-case hex, of the bundles whose runs may ask; none: any.
    """

    def __init__(
        self, owner: Mapping[str, Any], folder: Path, bundles: Collection[str] = ()
    ) -> None:
        self.owner = dict(owner)
        self.folder = folder
        self.bundles = frozenset(bundles)

    @abstractmethod
    def reply(self, task_input: TaskInput, context: Context) -> Message:
        """Answers a task that may be answered.

        Any error becomes the one refusal that says no client was touched.
        """

    def require_answerable(self, task: RuntimeTask, task_input: TaskInput) -> None:
        """DeviceError unless it is a ClientApp's task, of a bundle that the owner lets ask."""
        if not task.for_client:
            raise DeviceError("this device answers ClientApp tasks only")
        if self.bundles and hashlib.sha256(task_input.bundle).hexdigest() not in self.bundles:
            raise DeviceError("the run's bundle is none of those that the owner has named")

    def serve(self, runtime: Runtime) -> None:
        """Answer tasks one after the other, for ever.

        RuntimeApiError if the SuperNode refuses, or is not the one that knows the secret.
        """
        following: RuntimeTask | None = None
        soon = 0.0
        while True:
            task = following or runtime.claim()
            following = None
            if task is None:
                time.sleep(BUSY_POLL_SECONDS if time.monotonic() < soon else POLL_SECONDS)
                continue
            following = self._attend(task, runtime)
            soon = time.monotonic() + BUSY_SECONDS

    def _attend(self, task: RuntimeTask, runtime: Runtime) -> RuntimeTask | None:
        """Have a fork answer ``task``; a task that was claimed meanwhile, if there is one.

        Where a SuperLink dies while a SuperNode receives a message, Flower 1.41 keeps the task,
        and the rest of its message never comes. It receives one message at a time, so a task that
        follows says that this one is lost.
        """
        fork = multiprocessing.get_context("fork")
        began = time.monotonic()
        pulled = fork.Event()
        process = fork.Process(target=self._work_and_exit, args=(task, pulled))
        process.start()
        following: RuntimeTask | None = None
        try:
            while process.is_alive() and following is None:
                process.join(POLL_SECONDS)
                if process.is_alive() and not pulled.is_set():
                    following = runtime.claim()
            if following is not None:
                process.kill()  # it has begun nothing
        finally:
            process.terminate()
            process.join()
        ended = f"failed ({process.exitcode})"
        if following is not None:
            ended = "given up, its message did not come"
        elif process.exitcode == _REFUSED:
            ended = "refused"
        elif process.exitcode == 0:
            ended = "answered"
        print(f"task {task.number}: {ended}, {time.monotonic() - began:.2f} s", flush=True)
        return following

    def _work_and_exit(self, task: RuntimeTask, pulled: Event) -> None:
        """``work``; SystemExit with ``_REFUSED`` where the reply is a refusal."""
        if is_refusal(self.work(task, pulled)):
            raise SystemExit(_REFUSED)

    def work(self, task: RuntimeTask, pulled: Event) -> Message:
        """Answer one task, in a process of its own; the reply.

        What goes wrong is logged and ends the process with status 1; the SuperNode then reports the
        task as expired.

        Args:
            task: claimed by the parent process.
            pulled: set once all of the task is here: from then on it is not given up.

        Raises:
            SystemExit: the task could not be pulled, or its reply not pushed.
        """
        try:
            with task:
                task_input = task.pull()
                pulled.set()
                answer = self.answer(task, task_input)
                task.reply(task_input, answer)
        except Exception as error:
            log_error(self.folder, f"task {task.number}", error)
            raise SystemExit(1) from error
        return answer

    def answer(self, task: RuntimeTask, task_input: TaskInput) -> Message:
        """The reply, or an error that says no client was touched.

        What answers gets a fresh context with the owner's node-config, and of the SuperNode's
        context only the run's and node's numbers and the run-config. Every refusal from here has
        the same words; why is in the device's log.

        Args:
            task: for whom it is meant.
            task_input: what it asks, which may be hostile.
        """
        given = task_input.context
        run_config = dict(given.run_config)
        context = Context(given.run_id, given.node_id, self.owner, RecordDict(), run_config)
        try:
            self.require_answerable(task, task_input)
            return self.reply(task_input, context)
        except Exception as error:  # also a kind of message that nothing here answers
            log_error(self.folder, f"run {given.run_id}", error)
            # The code says that no client was touched.
            refusal = Error(code=ErrorCode.LOAD_CLIENT_APP_EXCEPTION, reason=REFUSED)
            return reply_to(task_input.message, refusal)


class Device(DeviceService):
    """Answers tasks of runs of this Murmur with the ClientApp that is installed here.

    The code that a server sends along with its run (Flower's bundle) is neither unpacked nor
    imported. Policy, clients and data are those that the owner has named to this process; what the
    SuperNode says about them is ignored. So nothing rests on a server's bundle being honest.

    Args:
        owner: the node-config, as the owner has given it to this process.
        bundles: SHA-256, in lower-case hex, of the bundles whose runs may ask; none: any.

    Raises:
        DeviceError: a client's data cannot be read; or the policy has `guard` and murmur-guard is
            not installed. Once there is a run, nobody is told so but the device's log.
    """

    def __init__(self, owner: Mapping[str, Any], bundles: Collection[str] = ()) -> None:
        from fl_app.device.data import require_readable

        for name in ("fl_app.client_app", "fl_app.device.health", "fl_app.device.hosts"):
            import_module(name)  # so that forks need not
        folder = device_folder(owner)
        _require_guard(owner)
        require_readable(owner, folder)
        super().__init__(owner, folder, bundles)

    def reply(self, task_input: TaskInput, context: Context) -> Message:
        """Returns the ClientApp's answer."""
        from fl_app.client_app import app

        return app(task_input.message, context)

    def require_answerable(self, task: RuntimeTask, task_input: TaskInput) -> None:
        """DeviceError where a task is not for the ClientApp that is installed here.

        It must be a ClientApp's, of this app and minor version, and of a bundle that the owner has
        named, if the owner has named any.
        """
        super().require_answerable(task, task_input)
        if task_input.app.rpartition("/")[2] != fl_app.DISTRIBUTION:
            raise DeviceError(
                "this device runs no code that is sent to it; it answers runs of "
                f"{fl_app.DISTRIBUTION} only"
            )
        mine = fl_app.version()
        if mine.split(".")[:2] != task_input.version.split(".")[:2]:
            raise DeviceError(
                f"this device has {fl_app.DISTRIBUTION} {mine}, the run is of version "
                f"{task_input.version:.20}; both must be of one minor version"
            )


def _require_guard(owner: Mapping[str, Any]) -> None:
    """Raises DeviceError where the policy has `guard` and the package that keeps it is missing."""
    policy = NodeSettings.device(owner, "").policy
    if policy.guard is None:
        return
    try:
        require_entry("murmur.tools", "guard", "murmur-guard", f"{policy.source} has `guard`")
    except ConfigError as error:
        raise DeviceError(str(error)) from error
