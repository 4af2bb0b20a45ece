"""A node of several clients is killed at each durable write of a secure sum, and asked again."""

import os

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from murmur.learning.codec import BitCodec
from murmur.privacy.ledger import Ledger
from murmur.round.collectors import collector_for
from murmur.round.secure_party import SecureParties
from murmur.round.site import SimulatedSite
from murmur.round.task import RECORD, RunFacts, question
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.settings import OwnerRules
from murmur.secure_sum.store import JoinedSums
from murmur.secure_sum.terms import SecureSumError, Stage, join_ids
from tests.murmur.secure_sum.secure_summing import terms

CLIENTS = range(6)
CODEC = BitCodec(8)
AGREED = terms(6, length=9, bits=4)
RUN = RunFacts("", 1e-5, 1)
VECTORS = {c: np.random.default_rng(c).integers(0, 2, 8, bool) for c in CLIENTS}


class Node:
    """Clients of one place; every message finds a new process, as on a device."""

    def __init__(self, folder, clients):
        self.folder = folder
        self.clients = clients
        with Ledger(folder / "ledger.sqlite"):  # has charged them before a sum is confirmed
            pass

    def ask(self, phase, messages, settings=None, charged=True):
        """What its clients answer, by client; those that refuse are not there."""
        here = {c: messages[c] for c in self.clients if c in messages}
        if not here:
            return {}
        asked = {"phase": phase.value, "run": AGREED.run, "round": AGREED.round}
        who = {"clients": list(here), "messages": list(here.values()), "which": [*range(len(here))]}
        content = RecordDict({RECORD: ConfigRecord({**asked, **who})})
        if settings is not None:
            content["settings"] = ConfigRecord(settings)
        site = SimulatedSite.of(self.folder)
        parties = SecureParties(site, CLIENTS, OwnerRules(), True)
        if phase is Stage.MASK:
            collector = collector_for(parties, content, "train", RUN, lambda: charged)
            try:
                for client in here:
                    collector.add(client, CODEC, CODEC.pack(VECTORS[client]), 1)
            except SecureSumError:  # it has masked for another message, or the ledger is older
                return {}
            collector.keep()
            rows = collector.arrays["masked"]
            return {c: row.tobytes() for c, row in zip(here, rows, strict=True)}
        answer = parties.answer(content).config_records[RECORD]
        return dict(zip(answer["clients"], answer["messages"], strict=True))


class Power:
    """It fails at the write number ``place``, before or after that is on disk."""

    def __init__(self, monkeypatch, place, after):
        self.left = place
        self.after = after
        for where, name in ((os, "replace"), (JoinedSums, "add")):
            monkeypatch.setattr(where, name, self._failing(getattr(where, name)))

    def _failing(self, plainly):
        def write(*arguments):
            self.left -= 1
            if self.left == 0 and not self.after:
                raise KeyboardInterrupt
            plainly(*arguments)
            if self.left == 0:
                raise KeyboardInterrupt

        return write

    @property
    def failed(self):
        return self.left <= 0


def summed(nodes):
    """The sum and who is in it; a node is asked again where its process has ended.

    And once more, which changes nothing. None where too few are left.
    """
    server = SecureServer(AGREED)
    server.asked = question(RecordDict(), "train", "")

    def ask(phase, messages):
        found = {}
        for node in nodes:
            try:
                answers = node.ask(phase, messages)
            except KeyboardInterrupt:
                answers = node.ask(phase, messages)
            if phase is not Stage.MASK:  # whose answer the ledger keeps
                assert node.ask(phase, messages) == answers
            found |= answers
        return found

    advertised = ask(Stage.ADVERTISE, dict.fromkeys(CLIENTS, AGREED.sent))
    if len(advertised) < AGREED.minimum:
        return None
    keys = server.keys(advertised)
    server.checked(ask(Stage.CHECK, server.shares(ask(Stage.SHARE, keys))))
    masked = ask(Stage.MASK, server.lists())
    if len(masked) < AGREED.minimum:
        return None
    for client, vector in masked.items():
        server.add(client, vector)
    words = server.confirmations(ask(Stage.CONFIRM, server.survivors_list()))
    return server.total(ask(Stage.REVEAL, words)), server.survivors


@pytest.mark.parametrize("after", [False, True])
def test_a_killed_node_answers_the_same_and_the_sum_is_exact(tmp_path, monkeypatch, after):
    seen = []
    power = None
    while power is None or power.failed:
        place = len(seen) + 1
        nodes = [
            Node(tmp_path / f"{place}-{i}", them) for i, them in enumerate(((0, 1, 2, 3), (4, 5)))
        ]
        with monkeypatch.context() as patch:
            power = Power(patch, place, after)
            found = summed(nodes)
        seen.append(found)
        if found is not None:
            total, survivors = found
            assert np.array_equal(total[:-1], sum(VECTORS[c].astype(int) for c in survivors))
    out = [i for i, found in enumerate(seen) if found is None or found[1] != tuple(CLIENTS)]
    # Who is killed between its name and its state has joined, which is not done twice: it is out.
    assert out == ([0, 2] if after else [1, 3])
    assert len(seen) == 1 + 2 * 8


def test_who_has_masked_masks_again_for_the_very_same_message_only(tmp_path):
    node = Node(tmp_path, CLIENTS)
    server = SecureServer(AGREED)
    keys = server.keys(node.ask(Stage.ADVERTISE, dict.fromkeys(CLIENTS, AGREED.sent)))
    server.checked(node.ask(Stage.CHECK, server.shares(node.ask(Stage.SHARE, keys))))
    lists = server.lists()
    masked = node.ask(Stage.MASK, lists)
    assert node.ask(Stage.MASK, lists) == masked
    fewer = dict.fromkeys(CLIENTS[1:], join_ids(CLIENTS[1:], CLIENTS))
    assert node.ask(Stage.MASK, fewer) == {}
    assert node.ask(Stage.MASK, lists, {"another": 1.0}) == {}
    assert node.ask(Stage.MASK, lists, charged=False) == {}
    server.asked = question(RecordDict(), "train", "")
    for client, vector in masked.items():
        server.add(client, vector)
    node.ask(Stage.CONFIRM, server.survivors_list())
    assert node.ask(Stage.MASK, lists) == {}


def test_who_is_asked_out_of_turn_still_has_its_last_answer_and_goes_on(tmp_path):
    node = Node(tmp_path, CLIENTS)
    server = SecureServer(AGREED)
    keys = server.keys(node.ask(Stage.ADVERTISE, dict.fromkeys(CLIENTS, AGREED.sent)))
    boxes = server.shares(node.ask(Stage.SHARE, keys))
    held = node.ask(Stage.CHECK, boxes)
    assert node.ask(Stage.SHARE, keys) == {}  # a message that was sent twice, and came late
    assert node.ask(Stage.CHECK, boxes) == held
