"""`murmur supernode` goes on where Flower's own gives up, and ends where nothing else helps."""

import contextlib
import ssl
import subprocess
import sys

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection
from flwr.supernode import main as supernode
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from fl_app.cli import main
from fl_app.tools import device
from fl_app.tools.device import OneByOne, mend, patient
from murmur.round.task import PART_SECONDS, REFUSED

MENDED = [
    (supernode, "create_app"),
    (fleet_http_connection, "make_simple_http_retry_invoker"),
    *((flower, name) for name in ("FAB_VERIFICATION_ERROR", "pull_objects")),
    *((flower, name) for name in ("_pull_and_store_message", "_push_messages")),
]
BROKEN = [
    httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"),
    httpx.ReadError(str(ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF)"))),
]
BAD_CERTIFICATE = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")


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
    assert invoke(lambda: patient(make_simple_http_retry_invoker()), BAD_CERTIFICATE) == 1


def test_lost_network_is_waited_for_as_before():
    lost = httpx.ConnectError("Connection refused")
    assert invoke(lambda: patient(make_simple_http_retry_invoker()), lost) == 3


@contextlib.contextmanager
def mended():
    """Flower's SuperNode as `murmur supernode` makes it, for as long as this lasts."""
    with pytest.MonkeyPatch.context() as own:
        for module, name in MENDED:
            own.setattr(module, name, getattr(module, name))
        mend()
        yield


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
    own = flower._pull_and_store_message, flower._push_messages, flower.pull_objects
    with mended():
        assert flower.pull_objects.keywords == {"initial_backoff": PART_SECONDS}
        an_answer_that_nobody_waits_for(node, flower._pull_and_store_message)
        monkeypatch.setattr(flower.time, "sleep", lambda seconds: node.device_answers())
        node.push(flower._push_messages)
    assert [m.metadata.reply_to_message_id for m in node.sent] == [second.metadata.message_id]
    assert node.state.msg_store == {} and len(node.store) == 0
    assert (flower._pull_and_store_message, flower._push_messages, flower.pull_objects) == own


NO_ARCHIVE = Fab("0" * 64, b"not even an archive", {"valid_license": "yes"})
NO_SIGNATURE = Fab("0" * 64, b"", {"valid_license": "yes", "fpk_1": "no JSON"})


@pytest.mark.parametrize(("bundle", "trusted"), [(NO_ARCHIVE, None), (NO_SIGNATURE, {"fpk_1": ""})])
def test_bundle_that_cannot_be_read_is_answered_with_an_error_and_the_next_message_is_taken(
    node, bundle, trusted
):
    first, second = node.messages
    first.metadata.__dict__["_run_id"] = 2  # a run that the SuperNode does not know yet
    node.trusted = trusted
    with pytest.raises(Exception, match=r"zip|Expecting value"):
        node.pull(flower._pull_and_store_message, bundle)  # Flower's own ends
    node.messages.insert(0, first)
    with mended():
        assert node.pull(flower._pull_and_store_message, bundle) == 2
        node.push(flower._push_messages)
        node.trusted = None
        assert node.pull(flower._pull_and_store_message) == 1
    (answer,) = node.sent
    assert answer.metadata.reply_to_message_id == first.metadata.message_id
    assert answer.error.reason == REFUSED
    (waiting,) = node.state.get_messages_legacy(is_reply=False)
    assert waiting.metadata.message_id == second.metadata.message_id


def test_bundle_that_nobody_vouches_for_gets_the_same_answer(node):
    (first, _), node.trusted = node.messages, {"fpk_1": ""}
    first.metadata.__dict__["_run_id"] = 2
    with mended():
        assert node.pull(flower._pull_and_store_message, Fab("0" * 64, b"", {})) == 2
        node.push(flower._push_messages)
    (answer,) = node.sent
    assert answer.error.reason == REFUSED
    assert answer.error.code == ErrorCode.LOAD_CLIENT_APP_EXCEPTION


def test_after_an_answer_it_looks_again_soon_and_then_as_seldom_as_flower(node, monkeypatch):
    clock = [100.0]
    looks = []
    arrive = [102.0]

    def sleep(seconds):
        clock[0] += seconds

    def pull(**step):
        looks.append(clock[0])
        if arrive and clock[0] >= arrive[0]:
            arrive.pop()
            return 1
        return None

    monkeypatch.setattr(device.time, "sleep", sleep)
    monkeypatch.setattr(device.time, "monotonic", lambda: clock[0])
    loop = OneByOne(pull, lambda **step: None, None)
    step = {"receive": None, "state": None, "object_store": None}
    assert loop.pull(**step) is None and looks == [100.0]
    loop.push(state=None, object_store=None)
    assert loop.pull(**step) == 1 and looks[1:] == [100.5 + 0.25 * n for n in range(7)]
    loop.push(state=None, object_store=None)
    assert loop.pull(**step) is None and clock == [112.0]
    assert loop.pull(**step) is None and clock == [112.0]  # Flower then waits its 3 seconds


def test_what_goes_wrong_before_a_message_has_come_ends_the_process(node):
    node.messages.clear()

    def pull(*, receive, **rest):
        receive()

    with pytest.raises(IndexError):
        OneByOne(pull, None, None).pull(receive=node.messages.pop, state=None, object_store=None)


def test_supernode_that_ends_with_an_error_leaves_no_process_behind():
    # The thread that serves its runtime API would keep it.
    code = """
import sys
import threading
import flwr.supernode.cli.flower_supernode
from fl_app.cli import main

def fails():
    threading.Thread(target=threading.Event().wait).start()
    raise OSError("gone")

sys.modules["flwr.supernode.cli.flower_supernode"].flower_supernode = fails
main(["supernode", "--superexec-auth-secret-file", "FILE"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "OSError: gone" in done.stderr


def test_supernode_without_a_secret_is_not_started(capsys):
    assert main(["supernode", "--insecure"]) == 2
    assert "--superexec-auth-secret-file FILE: must be given" in capsys.readouterr().err
