"""What a place remembers of sums and peers is bounded, and nothing that protects is forgotten."""

import hashlib
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from flwr.app import ConfigRecord, RecordDict

from murmur.format import framed
from murmur.privacy.policy import Policy
from murmur.round.secure_party import SecureParties
from murmur.round.site import DeviceSite
from murmur.round.task import RECORD, REFUSED
from murmur.secure_sum import identity
from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.identity import SeenPeers, read_peers
from murmur.secure_sum.settings import OwnerRules
from murmur.secure_sum.store import JoinedSums
from murmur.secure_sum.terms import SecureSumError, Stage, join
from tests.murmur.secure_sum.secure_summing import terms

ME = 0


class Place:
    """A device that a server asks to join sums."""

    def __init__(self, folder):
        self.folder = folder
        site = DeviceSite(folder, "a run", Policy.simulation())
        self.parties = SecureParties(site, [ME], OwnerRules(), True)

    def joins(self, run, round=1, phase=Stage.ADVERTISE, message=None):
        """Its answer, or None; what it says of a refusal is always the same."""
        agreed = terms(3, run=run, round=round)
        asked = {"phase": phase.value, "run": run, "round": round, "clients": [ME], "which": [0]}
        content = {**asked, "messages": [message or agreed.sent]}
        reply = self.parties.answer(RecordDict({RECORD: ConfigRecord(content)}))
        about = reply.config_records[RECORD]
        if about["clients"]:
            return about["messages"][0]
        assert about["reasons"] == [REFUSED]
        return None

    def shown(self, run, keys):
        """Whether it shares with clients of other keys, in a sum of its own."""
        clients = (ME, *keys)
        agreed = terms(run=run, clients=clients)
        assert self.joins(agreed.run, agreed.round, message=agreed.sent) is not None
        sent = {}
        for client, key in keys.items():
            sent[client] = SecureClient.join(agreed, client, key).advertise()
        return self.joins(run, 1, Stage.SHARE, join(sent, agreed.neighbours_of(ME)))

    @property
    def size(self):
        """Bytes of what lasts: neither states, nor the log, which is bounded by itself."""
        kept = self.folder / "clients" / "secure_sum"
        return sum(path.stat().st_size for path in kept.iterdir())


@pytest.mark.parametrize(
    ("requests", "most"), [(200, 20), pytest.param(100_000, 4096, marks=pytest.mark.long)]
)
def test_a_servers_requests_do_not_grow_what_is_remembered_without_end(tmp_path, requests, most):
    known = JoinedSums(tmp_path / "joined", most)
    for number in range(most):
        known.add([ME], "one run", number + 1)  # takes one entry
    before = 0
    for number in range(requests):
        if number < most - 1:
            known.add([ME], f"run {number}", 7)
            before = known.path.stat().st_size
            continue
        with pytest.raises(SecureSumError, match="of no more it can be remembered"):
            known.add([ME], f"run {number}", 7)
    assert known.path.stat().st_size == before <= 200 * most + 2**14
    for number in range(most - 1):  # and nothing was forgotten
        with pytest.raises(SecureSumError, match="was joined before"):
            known.add([ME], f"run {number}", 7)
    known.add([ME], "one run", most + 1)  # a run that is known goes on


def test_a_device_that_remembers_as_many_runs_as_it_can_says_no_more_than_ever(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(JoinedSums.__init__, "__defaults__", (3,))
    place = Place(tmp_path)
    first = [place.joins(run) for run in "abc"]
    size = place.size
    for number in range(20):
        assert place.joins(f"d{number}") is None
        assert place.joins("c") == first[2]  # the same again, from its disk
    assert place.size == size
    assert place.joins("b", round=2) is not None
    assert place.joins("b", round=1) is None
    assert "of no more it can be remembered" in (tmp_path / "errors.log").read_text()


def test_a_sum_that_was_joined_is_not_joined_again_however_many_came_after(tmp_path):
    place = Place(tmp_path)
    assert place.joins("first", round=5) is not None
    for number in range(6, 40):
        assert place.joins("first", round=number) is not None
        assert place.joins(f"other {number}") is not None
    for round in (1, 5, 6, 38, 39):
        assert place.joins("first", round=round) is None, round  # replayed, or below the last one
    assert place.joins("other 7") is None


def test_sums_that_an_older_version_has_noted_are_joined_by_nobody(tmp_path):
    names = tmp_path / "joined"
    name = hashlib.sha256(framed(b"old", b"3")).hexdigest()
    names.write_text(f"{'0' * 64} 1 2\n{name} 0 4\n")
    known = JoinedSums(names)
    assert known.last("old", 3) == {0: 3, 4: 3} and known.last("old", 2) == {}
    for clients in ([0], [1, 4]):
        with pytest.raises(SecureSumError, match="was joined before"):
            known.add(clients, "old", 3)
    known.add([1], "old", 3)
    assert known.last("old", 3) == {0: 3, 1: 3, 4: 3}
    assert names.read_text().count("\n") == 2
    assert stat.S_IMODE(known.path.stat().st_mode) == 0o600


def test_of_two_processes_that_join_one_sum_at_once_one_does(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for number in range(1, 9):
            tries = [(tmp_path / "joined", number)] * 6
            assert sum(pool.starmap(_joins, tries)) == 1
    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(lambda _: _joins(tmp_path / "joined", 50), range(16))) == 1


def _joins(names, number):
    try:
        JoinedSums(names).add([ME], "run", number)
    except SecureSumError:
        return False
    return True


WRITER = """
import itertools, sys
from pathlib import Path
from murmur.secure_sum.identity import SeenPeers
from murmur.secure_sum.store import JoinedSums

folder, first = Path(sys.argv[1]), int(sys.argv[2])
for number in itertools.count(first):
    JoinedSums(folder / "joined").add([0, 1], "run", number)
    seen = SeenPeers(folder / "seen.peers")
    assert seen.accepts(number, number.to_bytes(32, "big"))
    seen.keep()
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", range(1, 9))
def test_what_was_kept_before_a_kill_is_there_after_it(tmp_path, lines):
    first = 1
    for _ in range(2):
        words = [sys.executable, "-c", WRITER, str(tmp_path), str(first)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ) as writer:
            said = [int(writer.stdout.readline()) for _ in range(lines)]
            writer.send_signal(signal.SIGKILL)
            said += map(int, writer.stdout.read().split())
        last = JoinedSums(tmp_path / "joined").last("run", 0)
        assert last[0] == last[1] >= said[-1]
        peers = read_peers(tmp_path / "seen.peers")
        assert peers.keys() >= set(said) and last[0] - 1 <= max(peers) <= last[0]
        with pytest.raises(SecureSumError, match="was joined before"):
            JoinedSums(tmp_path / "joined").add([1], "run", last[1])
        first = last[0] + 1


def test_a_damaged_file_refuses_all(tmp_path):
    known = JoinedSums(tmp_path / "joined")
    known.add([ME], "run", 1)
    known.path.write_bytes(b"x" * 5000)
    for use in (lambda: known.last("run", 2), lambda: known.add([ME], "run", 2)):
        with pytest.raises(SecureSumError, match=r"joined\.sqlite"):
            use()


# Peers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "most"), [(300, 40), pytest.param(100_000, 200, marks=pytest.mark.long)]
)
def test_a_server_that_shows_ever_others_does_not_grow_the_file_without_end(
    tmp_path, requests, most
):
    path = tmp_path / "seen.peers"
    size = 0
    for number in range(requests):
        seen = SeenPeers(path, most)
        key = hashlib.sha256(number.to_bytes(8, "big")).digest()
        if number < most:
            assert seen.accepts(2**63 - 1 - number, key)
            seen.keep()
            size = path.stat().st_size
            continue
        with pytest.raises(SecureSumError, match="has not been seen before"):
            seen.accepts(2**63 - 1 - number, key)
        seen.keep()
    assert path.stat().st_size == size <= 86 * most
    seen = SeenPeers(path, most)
    own = hashlib.sha256(bytes(8)).digest()
    assert seen.accepts(2**63 - 1, own) and not seen.accepts(2**63 - 1, bytes(32))


def test_the_shipped_bound_holds_for_one_message_of_many_peers(tmp_path):
    path = tmp_path / "seen.peers"
    seen = SeenPeers(path)
    for client in range(identity.MAX_PEERS):
        assert seen.accepts(client, client.to_bytes(32, "big"))
    seen.keep()
    assert path.stat().st_size <= 86 * identity.MAX_PEERS
    with pytest.raises(SecureSumError):
        SeenPeers(path).accepts(identity.MAX_PEERS, b"\xff" * 32)


def test_a_device_takes_no_part_beside_more_than_it_can_remember(tmp_path, monkeypatch):
    keys = {client: identity.new_identity() for client in (1, 2, 3, 4)}
    monkeypatch.setattr("murmur.round.secure_party.MAX_PEERS", 1)  # and itself
    place = Place(tmp_path)
    assert place.shown("a", {c: keys[c] for c in (1, 2)}) is not None
    assert place.shown("b", {c: keys[c] for c in (1, 3)}) is None
    assert place.shown("c", {c: keys[c] for c in (1, 2)}) is not None  # who is known stays
    assert read_peers(tmp_path / "clients" / "secure_sum" / "seen.peers").keys() == {1, 2}


def test_of_two_messages_at_once_the_one_that_comes_too_late_for_the_bound_is_refused(tmp_path):
    path = tmp_path / "seen.peers"
    one, other = SeenPeers(path, 1), SeenPeers(path, 1)
    assert one.accepts(1, bytes(32)) and other.accepts(2, b"\1" * 32)
    one.keep()
    with pytest.raises(SecureSumError, match="has not been seen before"):
        other.keep()
    assert read_peers(path) == {1: bytes(32)}
