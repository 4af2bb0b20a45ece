"""A device's two processes: ``murmur device`` answers the messages that ``murmur supernode`` gets.

They run beside each other on one machine, each under an account of its own: the SuperNode holds the
node's key and speaks to the server, ``murmur device`` holds the data and speaks to the SuperNode.
The code that a server sends is not run. What answers is ``fl_app.device.resident.Device``, over
Flower's runtime API (``fl_app.device.flower_runtime``); the words here are the owner's, and the
only settings that no server chooses.

``murmur supernode`` is Flower's SuperNode, and goes on where Flower 1.41's own comes to a halt, its
process still there so that no supervisor starts it again,

* where the SuperLink ends while it answers a request: the TLS connection then ends without a
  farewell, which Flower takes for a refusal, and asks for no more work;
* where a run ends while it receives one of its messages: the device may answer that message, which
  nobody waits for, and whatever is answered later is sent one message too late, for ever;
* where a run's bundle is no archive, or its signatures cannot be read: whatever goes wrong with a
  message that has come is an error to the server here, and the next message is waited for. What
  else goes wrong ends the process.

It also asks more often for work where more is likely: a secure sum takes six messages, each of
which would wait for up to 3 seconds. And it proves to `murmur device` that it is the one that
knows their secret (``fl_app.device.flower_runtime``).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fl_app.tools.options import parser_of
from murmur.common import printable

if TYPE_CHECKING:
    from flwr.app import Error, Message
    from flwr.supercore.object_store import ObjectStore
    from flwr.supercore.retry import RetryInvoker
    from flwr.supernode.nodestate import NodeState

    from fl_app.device.resident import Resident

# What OpenSSL says of a peer that has gone; a certificate that is refused is another matter.
BROKEN_OFF = "eof"
SECRET = "--superexec-auth-secret-file"
SOON = 10.0  # seconds after an answer in which the next message is likely
SOON_FIRST = 0.5  # seconds until the first look then: others answer, too, before there is more
SOON_LOOK = 0.25  # seconds between two looks then; Flower's own are 3
ANSWER_LOOK = 0.05  # seconds between two looks, in this process's memory, for the app's answer
WHY = "without it every account of this machine could take the device's messages"


def main(argv: list[str]) -> int:
    """Answer a SuperNode's messages until this process is interrupted.

    Args:
        argv: the words after ``murmur device``: the owner's own, which no server can change.

    Returns:
        0: it was interrupted. 1: what listens at the address is not the SuperNode of this secret.
        2: the words, the secret's file or the installed Flower are not what is needed.
    """
    arguments = parser_of("device").parse_args(argv)

    def resident() -> Resident:
        from fl_app.device.resident import Device

        return Device(pairs_in(arguments.node_config), arguments.bundle_sha256)

    return _serve("murmur device", arguments, resident)


def guard(argv: list[str]) -> int:
    """``murmur guard``: answer them with the app that the server sends, locked in and protected.

    The app is unmodified, in a process that reads the owner's data and writes nowhere
    (``fl_app.device.guard.Guard``). Its update is clipped, noised and masked here. What it may do
    is in the device's policy, under ``guard``.

    Args:
        argv: the words after ``murmur guard``: the owner's own, which no server can change.

    Returns:
        0: it was interrupted. 1: what listens at the address is not the SuperNode of this secret.
        2: the words, the secret's file, the device's policy, the installed Flower or this machine
        are not what is needed.
    """
    arguments = parser_of("guard").parse_args(argv)

    def resident() -> Resident:
        from fl_app.device.guard import Guard

        folder = arguments.device.expanduser().absolute()
        return Guard(folder, pairs_in(arguments.node_config))

    return _serve("murmur guard", arguments, resident)


def _serve(tool: str, arguments: argparse.Namespace, resident: Callable[[], Resident]) -> int:
    """Answer a SuperNode's messages until this process is interrupted; the exit status.

    What files it writes only its owner can read.

    Args:
        tool: that speaks on standard error.
        arguments: where the SuperNode is, and the file of its secret.
        resident: makes what answers; an error of its says what its owner must change.
    """
    from fl_app.device.node_settings import DeviceError

    os.umask(0o077)
    try:
        secret = arguments.superexec_auth_secret_file.expanduser().read_bytes()
        if not secret:
            raise ValueError(f"{arguments.superexec_auth_secret_file}: is empty")
        from fl_app.device.flower_runtime import Runtime, RuntimeApiError

        answering = resident()
    except (ImportError, OSError, ValueError, DeviceError) as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return 2
    try:
        answering.serve(Runtime(arguments.runtime_api_address, secret))
    except RuntimeApiError as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def pairs_in(text: str) -> dict[str, Any]:
    """What ``--node-config`` says, as Flower reads it; ValueError where it cannot."""
    from click import ClickException
    from flwr.common.config import parse_config_args

    if not text:
        return {}
    try:
        pairs = dict(parse_config_args([text]))
    except ClickException as error:
        raise ValueError(f"--node-config={text}: {' '.join(error.message.split())}") from error
    if not pairs:
        raise ValueError(f"--node-config={text}: must be pairs such as 'partition-id=0'")
    return pairs


def supernode(argv: list[str]) -> int:
    """Run Flower's SuperNode with the words after ``murmur supernode``.

    What ends the SuperNode ends the process, so that a supervisor starts it again.

    Returns:
        2 where the secret's file is not named; else 0, after ``--help`` and the like only.
    """
    import signal

    from flwr.supernode.cli.flower_supernode import flower_supernode

    enough = {SECRET, "-h", "--help", "-V", "--version"}  # all but the first need no secret
    if enough.isdisjoint(word.partition("=")[0] for word in argv):
        print(f"murmur supernode: {SECRET} FILE: must be given; {WHY}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Flower has its own way to end
    sys.argv = ["murmur supernode", *argv, "--isolation", "process"]
    mend()
    try:
        flower_supernode()
    except Exception:
        _log_error()
        os._exit(1)  # the thread of its runtime API would keep a process that does nothing
    return 0


def _log_error() -> None:
    """The traceback on standard error.

    Its text may be a server's: nothing of it moves the cursor of a terminal.
    """
    print(printable(traceback.format_exc(), keep="\n"), file=sys.stderr, flush=True)


def mend() -> None:
    """Make Flower's SuperNode what it should be, in this process, which runs nothing else.

    Replaced in Flower's own modules: the application that serves tasks (which proves itself first),
    the error for a bundle that is refused, what retries a broken connection, the two steps of its
    loop, and how soon it looks again for a part of a message that is still on its way.
    """
    import flwr.supernode.main
    from flwr.supernode import fleet_http_connection, start_client_internal

    from fl_app.device.flower_runtime import Proving
    from murmur.compat.flower_messages import PART_SECONDS

    served: Any = flwr.supernode.main
    network: Any = fleet_http_connection
    flower: Any = start_client_internal
    create = served.create_app
    make = network.make_simple_http_retry_invoker

    def proving(state_factory: Any, superexec_auth_secret: bytes) -> Proving:
        return Proving(create(state_factory, superexec_auth_secret), superexec_auth_secret)

    loop = OneByOne(flower._pull_and_store_message, flower._push_messages, flower._insert_message)
    served.create_app = proving
    flower.FAB_VERIFICATION_ERROR = _refusal()
    network.make_simple_http_retry_invoker = lambda: patient(make())
    flower._pull_and_store_message = loop.pull
    flower._push_messages = loop.push
    flower.pull_objects = partial(flower.pull_objects, initial_backoff=PART_SECONDS)


def patient(invoker: RetryInvoker) -> RetryInvoker:
    """``invoker``, which from now on also tries again where a TLS connection breaks off.

    A certificate that is refused, or whatever else Flower gives up on, ends it as before.
    """
    import httpx

    gives_up: Callable[[Exception], bool] | None = invoker.should_giveup

    def should_giveup(error: Exception) -> bool:
        if isinstance(error, httpx.TransportError) and BROKEN_OFF in str(error).lower():
            return False
        return gives_up is not None and gives_up(error)

    invoker.should_giveup = should_giveup
    return invoker


@dataclass
class OneByOne:
    """Flower's two steps, receive a message and send its answer, of which the second waits for it.

    Soon after an answer the first one looks more often.

    Args:
        pull: Flower's own first step.
        push: its second one, which sends whatever answer it finds.
        store: Flower's too, which takes in an answer of the SuperNode's own.
    """

    _pull: Callable[..., int | None]
    _push: Callable[..., None]
    _store: Callable[..., None]
    _asked: str = ""
    _answered: float = -math.inf

    def pull(self, **step: Any) -> int | None:
        """Receive a message, and note which; answer it with an error if it cannot be handled.

        Returns the run's number, None where no message waits. What goes wrong before there is a
        message is raised.
        """
        soon = self._answered + SOON
        if time.monotonic() < soon:
            time.sleep(SOON_FIRST)
        while True:
            run = self._receive(**step)
            if run is not None or time.monotonic() >= soon:
                return run
            time.sleep(SOON_LOOK)

    def _receive(
        self,
        *,
        receive: Callable[[], tuple[Message, Any] | None],
        state: NodeState,
        object_store: ObjectStore,
        **rest: Any,
    ) -> int | None:
        from flwr.app import Message as Answer

        message: Message | None = None

        def noted() -> tuple[Message, Any] | None:
            nonlocal message
            received = receive()
            if received is not None:
                message = received[0]
                self._asked = message.metadata.message_id
            return received

        try:
            return self._pull(receive=noted, state=state, object_store=object_store, **rest)
        except Exception:
            if message is None:
                raise
            _log_error()
            self._store(Answer(_refusal(), reply_to=message), state, object_store)
            return message.metadata.run_id

    def push(self, *, state: NodeState, object_store: ObjectStore, **rest: Any) -> None:
        """Wait for the answer to that message, and send it."""
        answers = _AnswersTo(self._asked, state, object_store)
        self._push(state=answers, object_store=object_store, **rest)
        self._answered = time.monotonic()


def _refusal() -> Error:
    """What tells the server that no client was touched, and nothing else."""
    from flwr.app import Error
    from flwr.common.constant import ErrorCode

    from murmur.round.task import REFUSED

    return Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, REFUSED)


class _AnswersTo:
    """``state``, which has no answers but those to the message ``asked``.

    Args:
        asked: the message's id.
        state: Flower's own, on which everything else is done.
        store: holds what answers consist of.
    """

    def __init__(self, asked: str, state: NodeState, store: ObjectStore) -> None:
        self._asked = asked
        self._state = state
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_messages_legacy(self, **which: Any) -> Sequence[Message]:
        """Wait for them; Flower's own looks twice a second."""
        while not (wanted := self._look(**which)):
            time.sleep(ANSWER_LOOK)
        return wanted

    def _look(self, **which: Any) -> Sequence[Message]:
        """Those that have come; an answer that nobody waits for is deleted."""
        wanted = []
        for message in self._state.get_messages_legacy(**which):
            about = message.metadata
            if about.reply_to_message_id == self._asked:
                wanted.append(message)
            else:
                ids = [about.message_id, about.reply_to_message_id]
                self._state.delete_messages(message_ids=ids)
                self._store.delete(about.message_id)
        return wanted
