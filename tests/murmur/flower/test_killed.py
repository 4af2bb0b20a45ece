"""A client's process is killed: one charge, and one answer at most."""

import multiprocessing
import os
import signal

import pytest
from flwr.serverapp.strategy import FedAvg

from murmur.flower import private
from murmur.privacy.ledger import Ledger
from tests.murmur.flower.nodes import MODEL, Nodes, SilentError, app_of, changed, record

VICTIM = 2
FORK = multiprocessing.get_context("fork")


def in_its_own_process(app):
    """``app`` as on a device: each message has a process, which may be killed."""

    def child(there, message, context):
        there.send(app(message, context))

    def answer(message, context):
        here, there = FORK.Pipe(duplex=False)
        process = FORK.Process(target=child, args=(there, message, context))
        process.start()
        there.close()
        try:
            return here.recv()
        except EOFError as error:
            raise SilentError from error
        finally:
            process.join()

    return answer


class Once:
    """``kill`` ends the process that calls it at once, but only the first one."""

    def __init__(self, folder):
        self.mark = folder / "killed"

    def kill(self):
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def _while_training(once, monkeypatch):
    return once.kill


def _before_the_reply_is_stored(once, monkeypatch):
    store = Ledger.store_reply

    def killed(self, *arguments):
        if str(VICTIM) == self.path.parent.name:
            once.kill()
        return store(self, *arguments)

    monkeypatch.setattr(Ledger, "store_reply", killed)


def _before_the_reply_leaves(once, monkeypatch):
    store = Ledger.store_reply

    def killed(self, *arguments):
        stored = store(self, *arguments)
        if str(VICTIM) == self.path.parent.name:
            once.kill()
        return stored

    monkeypatch.setattr(Ledger, "store_reply", killed)


@pytest.mark.parametrize(
    ("when", "trained", "answered"),
    [
        (_while_training, 2, 4),
        (_before_the_reply_is_stored, 2, 4),  # nothing has left, as its ledger knows
        (_before_the_reply_leaves, 1, 4),
    ],
)
def test_a_client_that_is_killed_pays_once_and_answers_once(
    tmp_path, monkeypatch, caplog, when, trained, answered
):
    devices = tmp_path / "devices"
    begun = tmp_path / "trained"
    once = Once(tmp_path)
    at_training = when(once, monkeypatch)

    def train(place):
        if place == VICTIM:
            with begun.open("a") as lines:
                lines.write("once more\n")
            if at_training is not None:
                at_training()
        return changed(place)

    grid = Nodes(in_its_own_process(app_of(train)), 4, devices=devices)
    with caplog.at_level("INFO"):
        private(FedAvg(), epsilon=8.0, delta=1e-5, clip=1.0).start(
            grid, record(MODEL), num_rounds=1, timeout=6.0
        )
    assert once.mark.exists()
    assert f"Received {answered} results and 0 failures" in caplog.text
    assert len(begun.read_text().splitlines()) == trained
    with Ledger(devices / str(VICTIM) / "ledger.sqlite", create=False) as ledger:
        assert [entry.kind for entry in ledger.entries()].count("charge") == 1
        assert ledger.releases() == 1
    sent = [
        reply.content["contribution"]["masked"].data
        for reply in grid.replies
        if reply.metadata.message_type == "train" and "contribution" in reply.content
    ]
    assert len(sent) == len(set(sent)) == answered
