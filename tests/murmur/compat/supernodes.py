"""A SuperNode's loop in this process, and the errors of its connections."""

import contextlib
import ssl

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode.nodestate import NodeStateFactory

BROKEN = [
    httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"),
    httpx.ReadError(str(ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF)"))),
]
NO_ARCHIVE = Fab("0" * 64, b"not even an archive", {"valid_license": "yes"})
NO_SIGNATURE = Fab("0" * 64, b"", {"valid_license": "yes", "fpk_1": "no JSON"})


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


class Node:
    """A SuperNode's state, and a SuperLink that hands out ``messages`` and takes answers."""

    def __init__(self, *messages):
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state = factory.state()
        self.store = factory.objectstore_factory.store()
        self.state.store_run(Run.create_empty(run_id=1))
        self.messages, self.sent, self.run_ends = list(messages), [], False
        self.trusted = None

    def pull(self, step, bundle=None):
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
            get_run=lambda number: Run.create_empty(number),
            get_fab=lambda *about: bundle,
            pull_object=lambda run_id, name: objects[name],
            confirm_message_received=confirm,
            trusted_entities=self.trusted,
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


def an_answer_that_nobody_waits_for(node, pull):
    """A run ends while one of its messages is received, and the device answers that one."""
    node.run_ends = True
    assert node.pull(pull) is None
    node.device_answers()
    node.run_ends = False
    assert node.pull(pull) == 1
