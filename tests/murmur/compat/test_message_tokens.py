"""A reply counts only if it is the asked node's and holds what only that node was sent."""

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from murmur.compat.flower_grid import DeviceGrid

ASKED, OTHER = 101, 102


class Grid:
    """Answers each message by ``answer``."""

    def __init__(self, answer):
        self.answer = answer

    def get_node_ids(self):
        return [ASKED, OTHER]

    def push_messages(self, messages):
        self.sent = {}
        for message in messages:
            name = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent[name] = message
        return list(self.sent)

    def pull_messages(self, message_ids):
        return [reply for name in message_ids for reply in self.answer(self.sent[name])]


@pytest.fixture(autouse=True)
def task():
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def a_message():
    return Message(RecordDict(), dst_node_id=ASKED, message_type="train", group_id="7")


def honest(message):
    reply = Message(RecordDict(), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = ASKED
    return reply


def forged(message):
    reply = honest(message)
    reply.metadata.group_id = "7"  # all that a run's other nodes know
    return reply


def in_its_own_name(message):
    reply = honest(message)
    reply.metadata.__dict__["_src_node_id"] = OTHER
    return reply


@pytest.mark.parametrize("false", [forged, in_its_own_name])
def test_another_nodes_answer_is_dropped_and_the_asked_nodes_counts(false):
    for answers in ([false, honest], [honest, false]):
        grid = DeviceGrid(Grid(lambda message, a=answers: [make(message) for make in a]))
        (reply,) = grid.send_and_receive([a_message()])
        assert (reply.metadata.src_node_id, reply.metadata.group_id) == (ASKED, "7")


def test_no_two_messages_have_the_same_token_and_one_answer_counts():
    seen = []
    grid = DeviceGrid(
        Grid(lambda message: seen.append(message.metadata.group_id) or [honest(message)] * 2)
    )
    assert len(list(grid.send_and_receive([a_message(), a_message()]))) == 2
    assert len(set(seen)) == 2 and all(len(token) == 32 for token in seen)
    assert grid.get_node_ids() == [ASKED, OTHER]
