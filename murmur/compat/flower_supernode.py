"""Flower's SuperNode: its words, its start, and what is mended in it.

``run`` starts it in this process, which runs nothing else. Flower's own comes to a halt, its
process still there so that no supervisor starts it again, in the cases that the functions below
name. What goes wrong with a message that has come is an error to the server here, and the next
message is waited for. What else goes wrong ends the process.
"""

import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from murmur.compat.flower_messages import PART_SECONDS
from murmur.format import printable

if TYPE_CHECKING:
    from flwr.supercore.object_store import ObjectStore
    from flwr.supercore.retry import RetryInvoker
    from flwr.supernode.nodestate import NodeState

BROKEN_OFF = "eof"  # in what OpenSSL says of a peer that has gone; not of a refused certificate
BUSY_SECONDS = 10.0  # after an answer, in which the next message is likely
FIRST_LOOK_SECONDS = 0.5  # until the first look then: others answer, too, before there is more
LOOK_SECONDS = 0.25  # between two looks then
ANSWER_LOOK_SECONDS = 0.05  # between two looks, in this process's memory, for the app's answer


def node_config_pairs(text: str) -> dict[str, Any]:
    """Returns the pairs of ``--node-config``, as a SuperNode reads it.

    Raises ValueError, without the option's name, where Flower cannot read it.
    """
    from click import ClickException
    from flwr.common.config import parse_config_args

    try:
        return dict(parse_config_args([text]))
    except ClickException as error:
        raise ValueError(" ".join(error.message.split())) from error


def run(words: Sequence[str], served: Callable[[Any, bytes, str], Any], refusal: str) -> None:
    """Starts the SuperNode, mended, and returns when it has ended.

    Args:
        words: of its command line, the program's name first.
        served: makes the application that serves tasks, from Flower's own, the secret, and the
            address of the SuperLink.
        refusal: the reason that a server is told of a message that this SuperNode cannot handle.
    """
    flower: Any = import_module("flwr.supernode.cli.flower_supernode")  # its package has a function
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Flower has its own way to end
    sys.argv = list(words)
    superlink: str = flower._parse_args_run_supernode().parse_args().superlink
    mend(lambda app, secret: served(app, secret, superlink), refusal)
    flower.flower_supernode()


def mend(served: Callable[[Any, bytes], Any], refusal: str) -> None:
    """Replaces functions in Flower's own modules.

    Args:
        served: makes the application that serves tasks, from Flower's own and the secret.
        refusal: as in ``run``.
    """
    serve_through(served)
    retry_broken_connections()
    answer_one_by_one(refusal)
    pull_parts_soon()


def serve_through(served: Callable[[Any, bytes], Any]) -> None:
    """Puts ``served`` around the application that serves tasks.

    Flower 1.41 and 1.42 prove to nobody that they are the SuperNode of a secret, so whoever opens
    its port first is given replies.
    """
    import flwr.supernode.main

    module: Any = flwr.supernode.main
    create = module.create_app

    def create_app(state_factory: Any, superexec_auth_secret: bytes) -> Any:
        return served(create(state_factory, superexec_auth_secret), superexec_auth_secret)

    module.create_app = create_app


def retry_broken_connections() -> None:
    """Mends the SuperNode's connection to the SuperLink: one that breaks off is made again.

    Where a SuperLink ends while it answers a request, the TLS connection ends without a farewell.
    Flower 1.41 and 1.42 take that for a refusal, and ask for no more work.
    """
    from flwr.supernode import fleet_http_connection

    module: Any = fleet_http_connection
    make = module.make_simple_http_retry_invoker
    module.make_simple_http_retry_invoker = lambda: patient(make())


def patient(invoker: "RetryInvoker") -> "RetryInvoker":
    """Changes ``invoker``, which is returned, to try again where a TLS connection breaks off.

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


def answer_one_by_one(refusal: str) -> None:
    """Mends the SuperNode's loop: each message gets its own answer, and a bad one an error.

    In Flower 1.41 and 1.42,

    * where a run ends while one of its messages is received, the device may answer that message,
      which nobody waits for, and whatever is answered later is sent one message too late, for ever;
    * where a run's bundle is no archive, or its signatures cannot be read, the loop ends;
    * three seconds pass between two looks for a message, of which a secure sum takes six.
    """
    from flwr.supernode import start_client_internal

    flower: Any = start_client_internal
    loop = AnswerLoop(
        flower._pull_and_store_message, flower._push_messages, flower._insert_message, refusal
    )
    flower.FAB_VERIFICATION_ERROR = loop.error()
    flower._pull_and_store_message = loop.pull
    flower._push_messages = loop.push


def pull_parts_soon() -> None:
    """Mends how a SuperNode receives: parts of a message on their way are looked for soon.

    Flower 1.41 and 1.42 look for those again after a second.
    """
    from flwr.supernode import start_client_internal

    flower: Any = start_client_internal
    flower.pull_objects = partial(flower.pull_objects, initial_backoff=PART_SECONDS)


def log_error() -> None:
    """Prints the traceback of the current exception on standard error.

    Its text may be a server's: nothing of it moves the cursor of a terminal.
    """
    print(printable(traceback.format_exc(), keep="\n"), file=sys.stderr, flush=True)


@dataclass
class AnswerLoop:
    """Flower's two steps, receive a message and send its answer; the second waits for the app.

    Soon after an answer the first one looks more often.

    Args:
        pull: Flower's own first step.
        push: its second one, which sends whatever answer it finds.
        store: Flower's too, which takes in an answer of the SuperNode's own.
        refusal: the reason of an error that says that no client was touched.
    """

    _pull: Callable[..., int | None]
    _push: Callable[..., None]
    _store: Callable[..., None]
    _refusal: str
    _asked: str = ""
    _answered: float = -math.inf

    def error(self) -> Error:
        """Returns what tells the server that no client was touched, and nothing else."""
        return Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, self._refusal)

    def pull(self, **step: Any) -> int | None:
        """Receives a message, and notes which; answers it with an error if it cannot be handled.

        Returns the run's number, None where no message waits. What goes wrong before there is a
        message is raised.
        """
        soon = self._answered + BUSY_SECONDS
        if time.monotonic() < soon:
            time.sleep(FIRST_LOOK_SECONDS)
        while True:
            run = self._receive(**step)
            if run is not None or time.monotonic() >= soon:
                return run
            time.sleep(LOOK_SECONDS)

    def _receive(
        self,
        *,
        receive: Callable[[], tuple[Message, Any] | None],
        state: "NodeState",
        object_store: "ObjectStore",
        **rest: Any,
    ) -> int | None:
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
            log_error()
            self._store(Message(self.error(), reply_to=message), state, object_store)
            return message.metadata.run_id

    def push(self, *, state: "NodeState", object_store: "ObjectStore", **rest: Any) -> None:
        """Waits for the answer to that message, and sends it."""
        answers = _AnswersTo(self._asked, state, object_store)
        self._push(state=answers, object_store=object_store, **rest)
        self._answered = time.monotonic()


class _AnswersTo:
    """A SuperNode's state that has no answers but those to one message.

    Args:
        asked: the message's id.
        state: Flower's own, on which everything else is done.
        store: holds the parts of answers.
    """

    def __init__(self, asked: str, state: "NodeState", store: "ObjectStore") -> None:
        self._asked = asked
        self._state = state
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_messages_legacy(self, **which: Any) -> Sequence[Message]:
        """Waits for the answers; Flower's own looks twice a second."""
        while not (wanted := self._look(**which)):
            time.sleep(ANSWER_LOOK_SECONDS)
        return wanted

    def _look(self, **which: Any) -> Sequence[Message]:
        """Returns the answers that have come; deletes those that nobody waits for."""
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
