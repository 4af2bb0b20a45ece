"""On devices every client is asked on the node of its owner, or not at all."""

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from rounds.client_placement import RECORD, DeviceHosts, VirtualHosts


class Grid:
    """Nodes that say whom they host; ``None`` for one that does not answer, or anything else."""

    def __init__(self, hosted):
        self.hosted, self.questions = dict(hosted), []

    def get_node_ids(self):
        return list(self.hosted)

    def send_and_receive(self, messages, timeout):
        for message in messages:
            node = message.metadata.dst_node_id
            self.questions.append(node)
            assert dict(message.content.config_records[RECORD]) == {}
            answer = self.hosted[node]
            if answer is not None:
                content = RecordDict({RECORD: ConfigRecord({"clients": answer})})
                message.metadata.__dict__["_message_id"] = str(node)
                yield Message(content, reply_to=message)


def hosts(quorum=0.5):
    return DeviceHosts(quorum, timeout=0.01)


def test_virtual_clients_are_split_evenly_over_all_nodes():
    placement = VirtualHosts().place(Grid({12: [], 11: []}), [3, 4, 5])
    assert placement.asked == {11: [3, 4], 12: [5]}
    assert placement.away == {}


def test_device_clients_are_asked_where_they_live():
    placement = hosts().place(Grid({11: [2, 5], 12: [0], 13: [1]}), [0, 2, 5])
    assert placement.asked == {11: [2, 5], 12: [0]}
    assert placement.away == {}


def test_client_whose_node_is_away_is_not_asked_and_named():
    placement = hosts().place(Grid({11: [0], 12: [1], 13: None}), [0, 1, 2])
    assert placement.asked == {11: [0], 12: [1]}
    assert list(placement.away) == [2]
    assert "no node that hosts it is online" in placement.away[2]


def test_client_that_two_nodes_claim_is_asked_at_neither():
    placement = hosts().place(Grid({11: [0, 1], 12: [1, 2]}), [0, 1, 2])
    assert placement.asked == {11: [0], 12: [2]}
    assert "11 and 12 both say that they host it" in placement.away[1]


def test_nobody_is_asked_while_fewer_than_the_quorum_are_online():
    placement = hosts(quorum=1.0).place(Grid({11: [0], 12: [1]}), [0, 1, 2])
    assert placement.asked == {}
    assert sorted(placement.away) == [0, 1, 2]
    assert "fewer than 3 of 3" in placement.away[0]


@pytest.mark.parametrize("answer", [["a"], [0, 0], 7, [0.5]])
def test_malformed_answer_hosts_nobody(answer):
    placement = hosts().place(Grid({11: answer, 12: [1]}), [0, 1])
    assert placement.asked == {12: [1]}


def test_node_that_fails_to_say_is_asked_again_and_one_that_did_is_not():
    grid, device_hosts = Grid({11: [0], 12: None}), hosts()
    device_hosts.place(grid, [0, 1])
    grid.hosted[12] = [1]
    assert device_hosts.place(grid, [0, 1]).asked == {11: [0], 12: [1]}
    assert grid.questions == [11, 12, 12]


def test_forgotten_node_is_asked_again():
    grid, device_hosts = Grid({11: [0], 12: [1]}), hosts()
    device_hosts.place(grid, [0, 1])
    grid.hosted[12] = [4]
    device_hosts.forget(12)
    assert list(device_hosts.place(grid, [0, 1]).away) == [1]


def test_error_is_no_answer():
    grid, device_hosts = Grid({11: [0], 12: [1]}), hosts()

    def refuse(messages, timeout):
        for message in messages:
            message.metadata.__dict__["_message_id"] = "m"
            yield Message(Error(code=1, reason="no"), reply_to=message)

    grid.send_and_receive = refuse
    assert device_hosts.place(grid, [0, 1]).asked == {}
