"""Killed at any instant, or written by many at once, the ledger never shows too little."""

import hashlib
import os
import signal
import time

import numpy as np
import pytest

from murmur.privacy.events import PureEvent, RandomizedResponseEvent
from murmur.privacy.ledger import Charge, Ledger, LedgerError, database, key_and_anchor
from murmur.privacy.policy import Refusal

CLIENTS = (1, 2, 3)
EVENT = RandomizedResponseEvent(2.5, 10)


def digest(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def charges(number, clients=CLIENTS, run="run"):
    return [Charge(c, run, number, "train", digest(run, number), EVENT) for c in clients]


def in_child(work):
    """Run ``work`` in a forked process and return its process id; it exits with work's result."""
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        status = work() or 0
    finally:
        os._exit(status)


def exit_status(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def release_rounds(path, released, first, progress, blocks):
    """A device at work: charge, answer, store, and only then let the bytes leave.

    ``blocks``: it is a simulation's node.
    """
    ledger = Ledger(path)
    out = os.open(released, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(first, 10**9):
        os.write(progress, b".")
        outcomes = ledger.charge(charges(number), blocks=blocks)
        request = digest("run", number)
        if any(outcome.may_compute for outcome in outcomes):
            reply = ledger.store_reply(request, os.urandom(8))
        else:
            reply = ledger.reply(request)
        os.write(out, f"{number} {reply.hex()}\n".encode())
        os.fsync(out)


def kill_at_work(work, questions, share, pace):
    """Kill ``work`` a ``share`` into a question after this many; returns the seconds for one.

    The instant is in the child's own time: ``pace``, the last known time for a question, tells
    how long to wait, so that a busy machine does not move all kills to the same place.
    """
    reading, progress = os.pipe()
    process = in_child(lambda: work(progress))
    os.close(progress)
    ticks = [time.perf_counter() for _ in range(questions) if os.read(reading, 1)]
    assert len(ticks) == questions, "the child ended by itself"
    if questions >= 2:
        pace = ticks[-1] - ticks[-2]
    time.sleep(share * pace)
    os.kill(process, signal.SIGKILL)
    os.close(reading)
    assert exit_status(process) == -signal.SIGKILL
    return pace


def test_killed_200_times_the_ledger_never_shows_less_than_was_released(tmp_path, monkeypatch):
    """Eight ledgers, since each is read whole after each kill; half of them charge in blocks."""
    monkeypatch.setattr(database, "SNAPSHOT_EVERY", 50)
    rng = np.random.default_rng(20230803)
    hits = []
    for ledger in range(8):
        (tmp_path / str(ledger)).mkdir()
        hits.append(killed_25_times(tmp_path / str(ledger), rng, blocks=ledger % 2 == 1))
    released, half_done, replayed = np.sum(hits, axis=0)
    # The kills did hit: many in the middle of a question, some after its reply was stored.
    assert released > 100 and half_done > 20 and replayed > 0


def killed_25_times(folder, rng, blocks):
    """How many questions were answered, killed half done, and killed with their reply stored."""
    path, released = folder / "ledger.sqlite", folder / "released"
    left, first, half_done, replayed, pace = {}, 0, 0, 0, 0.01
    for questions, share in zip(rng.integers(0, 5, size=25), rng.random(25), strict=True):
        pace = kill_at_work(
            lambda progress, first=first: release_rounds(path, released, first, progress, blocks),
            questions,
            share,
            pace,
        )
        text = released.read_text() if released.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                number, reply = line.split()
                # However often a round is asked again, only the same bytes ever leave.
                assert left.setdefault(int(number), reply) == reply
        if not path.with_name("ledger.sqlite.key").exists():
            continue
        with Ledger(path) as ledger:
            ledger.verify()
            charged = [entry.round for entry in ledger.entries(1)]
            assert set(left) <= set(charged)
            # One entry for each question, and at most one of them without a release.
            assert charged == list(range(len(charged)))
            assert len(charged) - len(left) <= 1
            assert len(set(map(len, (ledger.events(c) for c in CLIENTS)))) == 1
            first = len(left)
            half_done += len(charged) > first
            stored = ledger.reply(digest("run", first))
            replayed += stored is not None
    return len(left), half_done, replayed


@pytest.mark.parametrize("step", range(1, 8))
def test_killed_at_any_step_of_its_creation_it_can_still_be_begun(tmp_path, step):
    path = tmp_path / "ledger.sqlite"

    def work():
        calls = []

        def killed_at_step(name):
            original = getattr(os, name)

            def call(*arguments, **keywords):
                calls.append(name)
                if len(calls) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **keywords)

            setattr(os, name, call)

        killed_at_step("fsync")
        killed_at_step("replace")
        Ledger(path).close()

    status = exit_status(in_child(work))
    assert status == (-signal.SIGKILL if step <= 6 else 0)
    with Ledger(path) as ledger:
        assert ledger.charge(charges(0))[0].status == "charged"
        ledger.verify()


def test_killed_between_the_commit_and_the_anchor_the_charge_counts(tmp_path):
    path = tmp_path / "ledger.sqlite"

    def work():
        ledger = Ledger(path)
        ledger.charge(charges(0))
        key_and_anchor.KeyAndAnchor.write_anchor = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        ledger.charge(charges(1))

    assert exit_status(in_child(work)) == -signal.SIGKILL
    with Ledger(path) as ledger:
        ledger.verify()
        assert len(ledger.events(1)) == 2
        assert ledger.charge(charges(1))[0].status == "repeated"


def test_killed_before_the_commit_nothing_is_charged(tmp_path):
    path = tmp_path / "ledger.sqlite"

    def work():
        Ledger(path).charge(charges(0), lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    assert exit_status(in_child(work)) == -signal.SIGKILL
    with Ledger(path) as ledger:
        assert ledger.clients() == []
        assert ledger.charge(charges(0))[0].status == "charged"


def test_a_charge_whose_anchor_cannot_be_written_is_refused_but_counted(tmp_path, monkeypatch):
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        with monkeypatch.context() as patch:

            def full(*_):
                raise OSError(28, "No space left on device")

            patch.setattr(key_and_anchor, "_sync_data", full)
            with pytest.raises(LedgerError, match="No space left"):
                ledger.charge(charges(0))
        assert ledger.charge(charges(0))[0].status == "repeated"
        assert len(ledger.events(1)) == 1
        ledger.verify()


def test_processes_that_write_at_once_charge_each_question_once(tmp_path):
    path = tmp_path / "ledger.sqlite"
    workers, rounds = 4, 25

    def work():
        ledger = Ledger(path)  # all of them at once: one begins it
        for number in range(rounds):
            mine = charges(number, clients=[os.getpid()], run="mine")
            statuses = {o.status for o in ledger.charge(charges(number) + mine)}
            if not statuses <= {"charged", "repeated", "answered"}:
                return 1
            sent = ledger.store_reply(digest("run", number), os.urandom(8), keep_rounds=rounds)
            if sent != ledger.reply(digest("run", number)):
                return 2
        ledger.verify()
        return 0

    processes = [in_child(work) for _ in range(workers)]
    assert [exit_status(process) for process in processes] == [0] * workers
    with Ledger(path) as ledger:
        ledger.verify()
        for client in CLIENTS:
            assert [e.round for e in ledger.entries(client)] == list(range(rounds))
        assert {len(ledger.events(process)) for process in processes} == {rounds}
        answers = [entry for entry in ledger.entries(run="run") if entry.kind == "answer"]
        assert len(answers) == rounds


def test_processes_that_race_for_the_last_of_a_budget_do_not_exceed_it(tmp_path):
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()

    def admit(charge, spent):
        if sum(getattr(event, "count", 1) for event in spent.events) >= 10:
            raise Refusal("spent", "epsilon-per-lifetime")

    def work():
        ledger = Ledger(path)
        name = str(os.getpid())
        return sum(
            ledger.charge([Charge(1, name, n, "train", digest(name, n), PureEvent(1.0))], admit)[
                0
            ].may_compute
            for n in range(10)
        )

    processes = [in_child(work) for _ in range(4)]
    assert sum(exit_status(process) for process in processes) == 10
    with Ledger(path) as ledger:
        assert len(ledger.events(1)) == 10


def test_a_forked_process_must_open_its_own(tmp_path):
    with Ledger(tmp_path / "ledger.sqlite") as ledger:

        def work():
            try:
                ledger.charge(charges(0))
            except LedgerError as error:
                return 0 if "another process" in str(error) else 1
            return 2

        assert exit_status(in_child(work)) == 0
        assert ledger.charge(charges(0))[0].status == "charged"


def test_a_writer_that_never_lets_go_leads_to_a_refusal_not_to_a_hang(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger, Ledger(path, busy_seconds=0.05) as waiting:

        def admit(*_):
            with pytest.raises(LedgerError, match=r"another process has been writing for 0\.05 s"):
                waiting.charge(charges(1))

        ledger.charge(charges(0, clients=[1]), admit)
        assert waiting.charge(charges(1))[0].status == "charged"
