"""Replies too large for a row of the ledger: files beside it, held to the same promises."""

import stat

import pytest

from murmur.privacy.ledger import Ledger, LedgerError, replies
from tests.murmur.privacy.ledger.ledger_cases import beside, charges, digest

LARGE = b"a reply of more than ten bytes"


@pytest.fixture(autouse=True)
def ten_bytes_are_many(monkeypatch):
    monkeypatch.setattr(replies, "MAX_ROW_BYTES", 10)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


def store(ledger, number, reply=LARGE, **how):
    ledger.charge(charges(number))
    return ledger.store_reply(digest(number), reply, **how)


def files(path):
    return {file.name for file in beside(path, ".replies").iterdir()}


def test_the_same_question_gets_the_same_bytes_also_from_another_process(path):
    with Ledger(path) as ledger:
        store(ledger, 1)
        assert ledger.reply(digest(1)) == LARGE
    with Ledger(path) as again:
        assert again.reply(digest(1)) == LARGE
        assert again.store_reply(digest(1), b"another answer, as large") == LARGE
        again.verify()


def test_a_reply_in_pieces_is_stored_as_one(path):
    pieces = [memoryview(LARGE)[:7], memoryview(LARGE)[7:]]
    with Ledger(path) as ledger:
        assert store(ledger, 1, pieces) == pieces
        assert ledger.reply(digest(1)) == LARGE
        store(ledger, 2, [memoryview(b"short")])
        assert ledger.reply(digest(2)) == b"short"


def test_its_file_is_the_owners_only_and_named_by_the_request(path):
    with Ledger(path) as ledger:
        store(ledger, 1)
    assert files(path) == {digest(1)}
    folder = beside(path, ".replies")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / digest(1)).stat().st_mode) == 0o600


def test_files_go_as_rows_do(path):
    with Ledger(path) as ledger:
        for number in range(4):
            store(ledger, number, keep_rounds=2)
        assert files(path) == {digest(2), digest(3)}
        store(ledger, 4, b"short")
        assert files(path) == set()


def test_what_a_kill_has_left_goes_with_the_next_reply(path):
    with Ledger(path) as ledger:
        store(ledger, 1)
        for left in (digest("never committed"), f".{digest(2)}.new"):
            (beside(path, ".replies") / left).write_bytes(LARGE)
        store(ledger, 2)
    assert files(path) == {digest(2)}


def test_a_reply_that_was_not_committed_is_none(path, monkeypatch):
    with Ledger(path) as ledger:
        ledger.charge(charges(1))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(replies.Replies, "_keep_row", _killed)
            ledger.store_reply(digest(1), LARGE)
    assert files(path) == {digest(1)}
    with Ledger(path) as again:
        assert again.reply(digest(1)) is None
        assert again.store_reply(digest(1), b"fresh noise, as large") == b"fresh noise, as large"
        assert again.reply(digest(1)) == b"fresh noise, as large"


def _killed(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda file: file.write_bytes(LARGE + b"!"), r"stored reply .* is not the one"),
        (lambda file: file.write_bytes(b""), r"stored reply .* is not the one"),
        (lambda file: file.unlink(), r"the file of the reply .* is missing"),
    ],
    ids=["altered", "emptied", "missing"],
)
def test_a_file_that_is_not_what_was_given_is_not_sent(path, tamper, reason):
    with Ledger(path) as ledger:
        store(ledger, 1)
        tamper(beside(path, ".replies") / digest(1))
        for use in (lambda: ledger.reply(digest(1)), ledger.verify):
            with pytest.raises(LedgerError, match=reason) as raised:
                use()
            assert "\n" not in str(raised.value)


def test_an_empty_reply_is_one(path):
    with Ledger(path) as ledger:
        store(ledger, 1, b"")
        assert ledger.reply(digest(1)) == b""
