"""`murmur supernode` goes on where Flower's own gives up, and ends where nothing else helps."""

import contextlib
import ssl

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from fl_app.tools.supernode import mended, patient

BROKEN = [
    httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"),
    httpx.ReadError(str(ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF)"))),
]
REFUSED = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")


def invoke(make, error):
    """How often a call is made that fails twice with ``error``."""
    calls = []

    def call():
        calls.append(1)
        if len(calls) < 3:
            raise error

    invoker = make()
    invoker.wait_function = lambda seconds: None
    with contextlib.suppress(httpx.TransportError):
        invoker.invoke(call)
    return len(calls)


@pytest.mark.parametrize("error", BROKEN)
def test_connection_that_breaks_off_is_tried_again(error):
    assert invoke(make_simple_http_retry_invoker, error) == 1  # Flower's own gives up
    assert invoke(lambda: patient(make_simple_http_retry_invoker()), error) == 3


def test_certificate_that_is_refused_ends_it():
    assert invoke(lambda: patient(make_simple_http_retry_invoker()), REFUSED) == 1


def test_lost_network_is_waited_for_as_before():
    lost = httpx.ConnectError("Connection refused")
    assert invoke(lambda: patient(make_simple_http_retry_invoker()), lost) == 3


class Node:
    """A SuperNode's state, and a SuperLink that hands out ``messages`` and takes answers."""

    def __init__(self, *messages):
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state = factory.state()
        self.store = factory.objectstore_factory.store()
        self.state.store_run(Run.create_empty(run_id=1))
        self.messages, self.sent, self.run_ends = list(messages), [], False

    def pull(self, step):
        def confirm(run_id, object_id):
            if self.run_ends:
                raise RunNotRunningException

        message = self.messages.pop(0)
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        return step(
            state=self.state,
            object_store=self.store,
            node_config={},
            receive=lambda: (message, get_object_tree(message)),
            get_run=None,
            get_fab=None,
            pull_object=lambda run_id, name: objects[name],
            confirm_message_received=confirm,
            trusted_entities=None,
        )

    def device_answers(self):
        """What `murmur device` does with the oldest message."""
        (message,) = self.state.get_messages_legacy(is_reply=False, limit=1)
        self.store.delete(message.metadata.message_id)
        self.state.record_message_processing_start(message.metadata.message_id)
        reply = Message(RecordDict(), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.state.store_message(reply)
        self.store.preregister(1, get_object_tree(reply))
        for name, each in get_all_nested_objects(reply).items():
            self.store.put(name, each.deflate())
        self.state.record_message_processing_end(message.metadata.message_id)

    def push(self, step):
        step(
            state=self.state,
            object_store=self.store,
            send=lambda message, tree, runtime: self.sent.append(message) or (set(), "session"),
            push_object=lambda *about: None,
        )


def question(number):
    content = RecordDict({"task": ConfigRecord({"number": number})})
    message = Message(content, dst_node_id=1, message_type="query")
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


@pytest.fixture
def node():
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    return Node(question(1), question(2))


def an_answer_that_nobody_waits_for(node, pull):
    """A run ends while one of its messages is received, and the device answers that one."""
    node.run_ends = True
    assert node.pull(pull) is None
    node.device_answers()
    node.run_ends = False
    assert node.pull(pull) == 1


def test_flowers_own_sends_an_answer_that_nobody_waits_for_instead_of_the_next(node, monkeypatch):
    first, _ = node.messages
    monkeypatch.setattr(flower.time, "sleep", lambda seconds: pytest.fail("it waits"))
    an_answer_that_nobody_waits_for(node, flower._pull_and_store_message)
    node.push(flower._push_messages)
    assert [m.metadata.reply_to_message_id for m in node.sent] == [first.metadata.message_id]


def test_answer_that_nobody_waits_for_is_dropped_and_the_next_is_sent(node, monkeypatch):
    _, second = node.messages
    own = flower._pull_and_store_message, flower._push_messages
    with mended():
        an_answer_that_nobody_waits_for(node, flower._pull_and_store_message)
        monkeypatch.setattr(flower.time, "sleep", lambda seconds: node.device_answers())
        node.push(flower._push_messages)
    assert [m.metadata.reply_to_message_id for m in node.sent] == [second.metadata.message_id]
    assert node.state.msg_store == {} and len(node.store) == 0
    assert (flower._pull_and_store_message, flower._push_messages) == own
