"""``murmur supernode``: Flower's SuperNode, which runs nothing that it is sent, and goes on.

Flower 1.41's own comes to a halt, its process still there so that no supervisor starts it again,

* where the SuperLink ends while it answers a request: the TLS connection then ends without a
  farewell, which Flower takes for a refusal, and asks for no more work;
* where a run ends while it receives one of its messages: the device may answer that message, which
  nobody waits for, and whatever is answered later is sent one message too late, for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.supercore.object_store import ObjectStore
    from flwr.supercore.retry import RetryInvoker
    from flwr.supernode.nodestate import NodeState

# What OpenSSL says of a peer that has gone; a certificate that is refused is another matter.
BROKEN_OFF = "eof"


def main(argv: list[str]) -> int:
    """Run Flower's SuperNode with the words after ``murmur supernode``; does not return."""
    import signal

    from flwr.supernode.cli.flower_supernode import flower_supernode

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Flower has its own way to end
    sys.argv = ["murmur supernode", *argv, "--isolation", "process"]
    with mended():
        flower_supernode()
    return 0


@contextmanager
def mended() -> Iterator[None]:
    """Flower's SuperNode as it should be, in this process, for as long as this lasts."""
    from flwr.supernode import fleet_http_connection, start_client_internal

    network: Any = fleet_http_connection
    flower: Any = start_client_internal
    make = network.make_simple_http_retry_invoker
    pull, push = flower._pull_and_store_message, flower._push_messages
    loop = OneByOne(pull, push)
    network.make_simple_http_retry_invoker = lambda: patient(make())
    flower._pull_and_store_message, flower._push_messages = loop.pull, loop.push
    try:
        yield
    finally:
        network.make_simple_http_retry_invoker = make
        flower._pull_and_store_message, flower._push_messages = pull, push


def patient(invoker: RetryInvoker) -> RetryInvoker:
    """``invoker``, which from now on also tries again where a TLS connection breaks off."""
    import httpx

    gives_up: Callable[[Exception], bool] | None = invoker.should_giveup

    def should_giveup(error: Exception) -> bool:
        if isinstance(error, httpx.TransportError) and BROKEN_OFF in str(error).lower():
            return False
        return gives_up is not None and gives_up(error)

    invoker.should_giveup = should_giveup
    return invoker


class OneByOne:
    """Flower's two steps, receive a message and send its answer, of which the second waits for it.

    ``pull`` and ``push`` are Flower's own, which sends whatever answer it finds.
    """

    def __init__(self, pull: Callable[..., int | None], push: Callable[..., None]) -> None:
        self._pull, self._push, self._asked = pull, push, ""

    def pull(self, *, receive: Callable[[], tuple[Message, Any] | None], **rest: Any) -> int | None:
        """Receive a message, and note which."""

        def noted() -> tuple[Message, Any] | None:
            received = receive()
            if received is not None:
                self._asked = received[0].metadata.message_id
            return received

        return self._pull(receive=noted, **rest)

    def push(self, *, state: NodeState, object_store: ObjectStore, **rest: Any) -> None:
        """Wait for the answer to that message, and send it."""
        answers = _AnswersTo(self._asked, state, object_store)
        self._push(state=answers, object_store=object_store, **rest)


class _AnswersTo:
    """``state``, which has no answers but those to the message ``asked``."""

    def __init__(self, asked: str, state: NodeState, store: ObjectStore) -> None:
        self._asked, self._state, self._store = asked, state, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_messages_legacy(self, **which: Any) -> Sequence[Message]:
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
