"""What Flower's runtime reports as a node's error ends a simulation before its round counts."""

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fl_app.engines.inline import identify
from fl_app.server_app import without_lost_nodes
from murmur.round.task import RunError

LOST = "<class 'ray.exceptions.ActorUnavailableError'>:<'The actor is unavailable'>"


class Grid:
    """Answers everything with the same error."""

    def __init__(self, code):
        self.code = code

    def send_and_receive(self, messages, *, timeout=None):
        return [Message(Error(self.code, LOST), reply_to=each) for each in messages]


def ask(code):
    identify()
    message = Message(RecordDict(), dst_node_id=101, message_type="train")
    return without_lost_nodes(Grid(code)).send_and_receive([message])


def test_error_of_the_runtime_ends_the_run_in_one_sentence():
    with pytest.raises(RunError, match=r"simulation lost a node: .*ActorUnavailableError"):
        ask(ErrorCode.UNKNOWN)


def test_error_of_a_client_is_its_own():
    (reply,) = ask(ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
    assert reply.has_error()
