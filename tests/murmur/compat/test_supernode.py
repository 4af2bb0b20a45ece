"""`murmur supernode` goes on where Flower's own gives up."""

import contextlib

import httpx
import pytest
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supernode import fleet_http_connection
from flwr.supernode import main as supernode
from flwr.supernode import start_client_internal as flower

from fl_app.device.proof import Proving
from murmur.compat import flower_supernode
from murmur.compat.flower_messages import PART_SECONDS, identify
from murmur.compat.flower_supernode import AnswerLoop, mend, patient
from murmur.round.task import REFUSED
from tests.murmur.compat.supernodes import (
    BROKEN,
    NO_ARCHIVE,
    NO_SIGNATURE,
    Node,
    an_answer_that_nobody_waits_for,
    invoke,
    question,
)

MENDED = [
    (supernode, "create_app"),
    (fleet_http_connection, "make_simple_http_retry_invoker"),
    *((flower, name) for name in ("FAB_VERIFICATION_ERROR", "pull_objects")),
    *((flower, name) for name in ("_pull_and_store_message", "_push_messages")),
]
BAD_CERTIFICATE = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")


@pytest.mark.parametrize("error", BROKEN)
def test_connection_that_breaks_off_is_tried_again(error):
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
        mend(lambda app, secret: Proving(app, secret, "127.0.0.1:9092"), REFUSED)
        yield


@pytest.fixture
def node():
    identify()
    return Node(question(1), question(2))


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


@pytest.mark.parametrize(("bundle", "trusted"), [(NO_ARCHIVE, None), (NO_SIGNATURE, {"fpk_1": ""})])
def test_bundle_that_cannot_be_read_is_answered_with_an_error_and_the_next_message_is_taken(
    node, bundle, trusted
):
    first, second = node.messages
    first.metadata.__dict__["_run_id"] = 2  # a run that the SuperNode does not know yet
    node.trusted = trusted
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

    monkeypatch.setattr(flower_supernode.time, "sleep", sleep)
    monkeypatch.setattr(flower_supernode.time, "monotonic", lambda: clock[0])
    loop = AnswerLoop(pull, lambda **step: None, None, REFUSED)
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
        AnswerLoop(pull, None, None, REFUSED).pull(
            receive=node.messages.pop, state=None, object_store=None
        )
