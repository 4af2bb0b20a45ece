"""On devices every client is asked on the node whose key was enrolled for it, or not at all."""

import pytest
from flwr.proto.node_pb2 import NodeInfo

from murmur.round.placement import DevicePlacement, Enrolment, SimulatedPlacement
from tests.node_keys import openssh, told


class Grid:
    """``online``: {node: number of its key}; nodes are told with their keys, as by a SuperLink."""

    def __init__(self, online):
        self.online = online

    def get_node_ids(self):
        return list(self.online)

    def get_nodes(self):
        known = self.online.items()
        return [NodeInfo(node_id=n, public_key=told(k)) for n, k in known]


def hosts(*enrolled, quorum=0.5):
    """``enrolled``: the clients of each key."""
    table = Enrolment({})
    for number, clients in enumerate(enrolled):
        table = table.with_node(openssh(number), clients)
    return DevicePlacement(table, quorum, timeout=0.01)


def test_virtual_clients_are_split_evenly_over_all_nodes():
    placement = SimulatedPlacement().place(Grid({12: 0, 11: 1}), [3, 4, 5])
    assert placement.asked == {11: [3, 4], 12: [5]}
    assert placement.unavailable == {}


def test_device_clients_are_asked_on_the_node_of_the_key_that_they_were_enrolled_with():
    placement = hosts([2, 5], [0], [1]).place(Grid({11: 0, 12: 1, 13: 2}), [0, 2, 5])
    assert placement.asked == {11: [2, 5], 12: [0]}
    assert placement.unavailable == {}


def test_node_that_is_not_enrolled_is_asked_for_nothing():
    # Its key is registered at the SuperLink, so that it is online; it may claim what it likes.
    placement = hosts([0], [1]).place(Grid({11: 0, 12: 1, 13: 2}), [0, 1, 2])
    assert placement.asked == {11: [0], 12: [1]}
    assert "no node that hosts it is online" in placement.unavailable[2]


def test_device_that_comes_back_under_another_node_id_is_known_by_its_key():
    device_hosts = hosts([0], [1])
    assert device_hosts.place(Grid({11: 0, 12: 1}), [0, 1]).asked == {11: [0], 12: [1]}
    assert device_hosts.place(Grid({11: 0, 99: 1}), [0, 1]).asked == {11: [0], 99: [1]}


def test_client_whose_node_is_away_is_not_asked_and_named():
    placement = hosts([0], [1], [2]).place(Grid({11: 0, 12: 1}), [0, 1, 2])
    assert placement.asked == {11: [0], 12: [1]}
    assert list(placement.unavailable) == [2]


def test_nobody_is_asked_while_fewer_than_the_quorum_are_online():
    placement = hosts([0], [1], quorum=1.0).place(Grid({11: 0, 12: 1}), [0, 1, 2])
    assert placement.asked == {}
    assert sorted(placement.unavailable) == [0, 1, 2]
    assert "fewer than 3 of 3" in placement.unavailable[0]


def test_table_says_the_same_when_it_is_read_again(tmp_path):
    table = tmp_path / "enrolled.txt"
    table.write_text(f"0,3 {openssh(0)} somebody@clinic\n\n7 {openssh(1)}\n")
    assert Enrolment.load(table).clients == {told(0): (0, 3), told(1): (7,)}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("x {0}", "line 1: 'x': must be clients' ids"),
        ("-1 {0}", "line 1: '-1': must be clients' ids"),
        ("3,3 {0}", "line 1: '3,3': names a client twice"),
        ("3 ecdsa-sha2-nistp384 AAAA", "line 1: .*is no public key"),
        ("3", "line 1: .*is no public key"),
        ("3 {0}\n4 {0}", "line 2: this key is enrolled already, for clients 3"),
        ("3 {0}\n3 {1}", "line 2: client 3 is hosted by another key already"),
    ],
)
def test_table_that_is_wrong_is_refused_by_line(tmp_path, lines, said):
    table = tmp_path / "enrolled.txt"
    table.write_text(lines.format(openssh(0), openssh(1)))
    with pytest.raises(ValueError, match=said):
        Enrolment.load(table)


def test_table_that_is_missing_is_said():
    with pytest.raises(ValueError, match="`murmur enrol` makes it"):
        Enrolment.load("/nowhere/enrolled.txt")
