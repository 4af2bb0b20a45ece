"""Whoever is silent for half of the wait is asked once more; one answer counts."""

import httpx
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from murmur.compat import flower_grid
from murmur.compat.flower_grid import DeviceGrid
from tests.clock import Clock

NODES = (101, 102)


class Grid:
    """``delivered(number)``: whether the message that is sent as the number-th gets an answer.

    After ``seconds``, and ``apart`` more for each one that was sent before.
    """

    def __init__(self, clock, delivered, seconds=0.0, apart=0.0):
        self.clock, self.delivered, self.seconds, self.apart = clock, delivered, seconds, apart
        self.sent, self.ready, self.looks = [], {}, []

    def push_messages(self, messages):
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = f"id-{len(self.sent)}"
            if self.delivered(len(self.sent)):
                self.ready[name] = (
                    self.clock.now + self.seconds + self.apart * len(self.sent),
                    Message(
                        RecordDict({"said": ConfigRecord({"number": len(self.sent)})}),
                        reply_to=message,
                    ),
                )
            self.sent.append(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids):
        self.looks.append(self.clock.now)
        come = [n for n in message_ids if n in self.ready and self.ready[n][0] <= self.clock.now]
        return [self.ready.pop(name)[1] for name in come]


@pytest.fixture
def clock(monkeypatch):
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    clock = Clock()
    monkeypatch.setattr(flower_grid, "time", clock)
    return clock


def questions():
    content = [RecordDict({"task": ConfigRecord({"round": 7})}) for _ in NODES]
    return [
        Message(record, dst_node_id=node, message_type="train", group_id=f"group-{node}")
        for node, record in zip(NODES, content, strict=True)
    ]


def answers(grid, asked=None, timeout=100):
    if asked is None:
        asked = questions()
    return list(grid.send_and_receive(asked, timeout=timeout))


def test_without_losses_every_message_is_sent_once(clock):
    grid = Grid(clock, lambda number: True)
    replies = answers(DeviceGrid(grid))
    assert len(replies) == len(grid.sent) == 2
    assert clock.now == 0


@pytest.mark.parametrize("lost", [0, 1])
def test_one_that_is_lost_is_sent_again_and_its_answer_names_the_first(clock, lost):
    grid = Grid(clock, lambda number: number != lost)
    asked = questions()
    replies = answers(DeviceGrid(grid), asked)
    answered = {reply.metadata.reply_to_message_id for reply in replies}
    assert answered == {"id-0", "id-1"} == {message.metadata.message_id for message in asked}
    assert len(grid.sent) == 3
    again = grid.sent[2]
    assert again.metadata.dst_node_id == NODES[lost]
    assert again.metadata.group_id == asked[lost].metadata.group_id
    assert {reply.metadata.group_id for reply in replies} == {f"group-{node}" for node in NODES}
    assert again.content == asked[lost].content
    assert 50 <= clock.now < 60


def test_who_answers_both_counts_once(clock):
    grid = Grid(clock, lambda number: True, seconds=70.0)  # slower than half of the wait
    replies = answers(DeviceGrid(grid))
    assert sorted(reply.metadata.reply_to_message_id for reply in replies) == ["id-0", "id-1"]
    assert [reply.content["said"]["number"] for reply in replies] == [0, 1]  # the first ones
    assert len(grid.sent) == 4


def test_the_wait_ends_at_the_deadline_and_nobody_is_asked_a_third_time(clock):
    grid = Grid(clock, lambda number: False)
    assert answers(DeviceGrid(grid)) == []
    assert len(grid.sent) == 4
    assert 100 <= clock.now < 110


def test_an_answer_is_given_on_while_others_are_on_their_way(clock):
    grid = Grid(clock, lambda number: True, apart=20.0)
    replies = DeviceGrid(grid).send_and_receive(questions(), timeout=100)
    assert len(grid.sent) == 2 and clock.now == 0  # sent, before anybody takes an answer
    assert next(replies).metadata.src_node_id == NODES[0]
    assert clock.now == 0
    assert next(replies).metadata.src_node_id == NODES[1]
    assert clock.now >= 20


def test_work_on_one_answer_does_not_cost_another_its_time(clock):
    grid = Grid(clock, lambda number: True, apart=20.0)
    replies = DeviceGrid(grid).send_and_receive(questions(), timeout=100)
    next(replies)
    clock.now += 1000
    assert next(replies).metadata.src_node_id == NODES[1]


def test_nothing_to_send_asks_nobody(clock):
    assert answers(DeviceGrid(Grid(clock, None)), []) == []


def test_it_first_looks_after_half_of_the_shortest_wait_until_then(clock):
    grid = Grid(clock, lambda number: True, seconds=4.0)
    asking = DeviceGrid(grid)
    answers(asking)
    asked_at, grid.looks = clock.now, []
    answers(asking)
    assert grid.looks[0] == asked_at + asked_at / 2 and len(grid.looks) <= 6
    asked_at, grid.looks = clock.now, []
    assert answers(asking, timeout=1.0) == []  # never beyond the deadline
    assert grid.looks == [asked_at + 1.0]


def test_a_node_that_the_superlink_reports_as_gone_is_waited_for_no_longer(clock):
    class Gone(Grid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            for message in self.sent[:1]:
                if not self.looks[1:]:
                    gone = Error(ErrorCode.NODE_UNAVAILABLE, "gone")
                    replies.append(Message(gone, reply_to=message))
                    replies[-1].metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
            return replies

    grid = Gone(clock, lambda number: number == 1)
    (reply,) = answers(DeviceGrid(grid))
    assert reply.metadata.src_node_id == NODES[1]
    assert clock.now == 0 and len(grid.sent) == 2


class Failing(Grid):
    """Answers the first look with an HTTP ``status``."""

    status = 500

    def pull_messages(self, message_ids):
        if not self.looks:
            self.looks.append(self.clock.now)
            request = httpx.Request("POST", "https://superlink/pull-messages")
            response = httpx.Response(self.status, request=request)
            response.raise_for_status()
        return super().pull_messages(message_ids)


def test_a_superlink_that_fails_at_one_look_is_asked_again(clock):
    grid = Failing(clock, lambda number: True)
    replies = answers(DeviceGrid(grid))
    assert len(replies) == len(grid.sent) == 2
    assert grid.looks == [0, flower_grid.FIRST_LOOK_SECONDS]


def test_a_superlink_that_refuses_ends_the_run(clock, monkeypatch):
    monkeypatch.setattr(Failing, "status", 403)
    with pytest.raises(httpx.HTTPStatusError):
        answers(DeviceGrid(Failing(clock, lambda number: True)))
