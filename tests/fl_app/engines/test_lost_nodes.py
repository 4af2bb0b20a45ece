"""What Flower's runtime reports as a node's error ends a simulation before its round counts."""

from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fl_app.engines.ray import RayPool
from fl_app.server_app import _lost_node
from murmur.compat.flower_grid import StrictGrid
from murmur.compat.flower_messages import identify
from murmur.round.task import RunError

LOST = "<class 'ray.exceptions.ActorUnavailableError'>:<'The actor is unavailable'>"


class Grid:
    """Answers everything with the same error."""

    def __init__(self, code):
        self.code = code

    def send_and_receive(self, messages, *, timeout=None):
        return [Message(Error(self.code, LOST), reply_to=each) for each in messages]


def ask(grid):
    identify()
    message = Message(RecordDict(), dst_node_id=101, message_type="train")
    return list(StrictGrid(grid, _lost_node).send_and_receive([message]))


def test_error_of_the_runtime_ends_the_run_in_one_sentence():
    with pytest.raises(RunError, match=r"simulation lost a node: .*ActorUnavailableError"):
        ask(Grid(ErrorCode.UNKNOWN))


def test_error_of_a_client_is_its_own():
    (reply,) = ask(Grid(ErrorCode.CLIENT_APP_RAISED_EXCEPTION))
    assert reply.has_error()


class RayError(Exception):
    """Stands for Ray's, which is not imported here: a process has one Ray."""


class RayTaskError(RayError):
    """What the ClientApp raised."""


class GetTimeoutError(RayError):
    """There is no answer yet."""


EXCEPTIONS = SimpleNamespace(
    RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError
)


class RayGrid:
    """Asks a pool of one of Ray's workers, where every answer is ``error``."""

    def __init__(self, error):
        def get(reference, timeout):
            raise error

        self.pool = object.__new__(RayPool)
        self.pool._ray = SimpleNamespace(get=get, exceptions=EXCEPTIONS)
        self.pool._idle = SimpleQueue()
        self.pool._idle.put(SimpleNamespace(answer=SimpleNamespace(remote=lambda *_: None)))

    def send_and_receive(self, messages, *, timeout=None):
        return [self.pool.answer(each, None) for each in messages]


def test_a_worker_that_died_too_often_is_a_lost_node_and_no_failed_client():
    grid = RayGrid(RayError("the actor died"))
    for _ in range(2):  # it is asked again
        with pytest.raises(RunError, match="simulation lost a node: "):
            ask(grid)


def test_what_the_client_app_raises_in_a_worker_passes_through():
    with pytest.raises(RayTaskError):
        ask(RayGrid(RayTaskError("a bug")))
