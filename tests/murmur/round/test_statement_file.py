"""The signed statement's file: what is written is read again, and nothing else is."""

import json
from dataclasses import replace

import pytest

from murmur.privacy.accounting import Adjacency, Unit
from murmur.privacy.envelope import Envelope
from murmur.privacy.exposure import by_ledgers
from murmur.privacy.run_header import RunHeader, ServerKey, SignedHeader
from murmur.privacy.statement import Statement
from murmur.round import statement_file
from murmur.round.asked_log import OpenedQuestion, OpenedSum
from murmur.round.statement_file import (
    PREDICATE_TYPE,
    SignedStatement,
    read_envelope,
    read_statement,
)
from murmur.round.task import question_digest
from murmur.secure_sum.identity import ADVERTISED_BYTES

KEY = ServerKey.generate()
HEADER = SignedHeader.of(
    RunHeader(
        name="run",
        server=KEY.public_key,
        algorithm="FedAvg",
        unit=Unit.CLIENT,
        adjacency=Adjacency.REPLACE_ONE,
        delta=1e-5,
        threat="local",
        schedule={},
        secret=False,
        phases=(),
        settings={},
    ),
    KEY,
)
OPENED = {
    "kind": "train",
    "started": "",
    "arrays": [["model", [["model", "float32", [2], "ab" * 32]]]],
    "settings": [["task", [["round", "1"]]]],
    "metrics": [],
}
QUESTION = OpenedQuestion(1, "train", question_digest(OPENED).hex(), OPENED)
SUM = OpenedSum(
    *(1, "train", "ab" * 32, "cd" * 32, {"run": "x"}),
    *("01", "01", {"0": "ef" * ADVERTISED_BYTES}, {"0": "ef" * 64}),
)


def statement():
    privacy = Statement.without_epsilon(
        RuntimeError(),
        algorithm="FedAvg",
        unit=Unit.CLIENT,
        adjacency=Adjacency.REPLACE_ONE,
        delta=1e-5,
        exposures=[by_ledgers({0: 1})],
        claim="",
        difference="",
    )
    return SignedStatement(HEADER, privacy, "12" * 32, (QUESTION,), (SUM,))


def changed(**values):
    """The file with other values in its predicate, signed."""
    payload = json.loads(statement().signed(KEY).payload)
    subjects = {each["name"]: each["digest"]["sha256"] for each in payload["subject"]}
    predicate = {**payload["predicate"], **values}
    return Envelope.of(PREDICATE_TYPE, subjects, predicate, KEY)


def test_what_is_written_is_read_again():
    envelope = statement().signed(KEY)
    read = read_statement(read_envelope(envelope.to_bytes()), KEY.public_key)
    assert read == statement() and read.payload_digest == envelope.digest


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"more": 1}, "predicate: must have"),
        ({"format": 2}, "another format"),
        ({"signature": "ab"}, "signature: must be 128 hex digits"),
        ({"signature": "ab" * 64}, "signature does not match"),
        ({"questions": {}}, "questions: must be a list"),
        ({"questions": [{**QUESTION.__dict__, "more": 1}]}, "questions: must have"),
        ({"questions": [{**QUESTION.__dict__, "round": 0}]}, "round: must be"),
        ({"questions": [{**QUESTION.__dict__, "question": "AB" * 32}]}, "question: must be"),
        ({"questions": [{**QUESTION.__dict__, "opened": {}}]}, "opened: must have"),
        ({"questions": [{**QUESTION.__dict__, "opened": {**OPENED, "kind": 1}}]}, "is no question"),
        ({"questions": [{**QUESTION.__dict__, "opened": {**OPENED, "kind": "x"}}]}, "not of what"),
        ({"sums": [{**SUM.__dict__, "keys": {"0": "ab"}}]}, "keys: must be .* hex digits"),
        ({"sums": [{**SUM.__dict__, "confirmations": []}]}, "confirmations: must be"),
        ({"privacy": {}}, "not a privacy statement"),
        ({"privacy": 1}, "must be text and an object"),
    ],
)
def test_anything_else_is_refused(values, reason):
    with pytest.raises(ValueError, match=reason):
        read_statement(changed(**values), KEY.public_key)


def test_another_key_and_another_header_are_refused():
    other = ServerKey.generate()
    with pytest.raises(ValueError, match="no valid signature"):
        read_statement(statement().signed(KEY), other.public_key)
    with pytest.raises(ValueError, match="header's signature does not match"):
        read_statement(statement().signed(other), other.public_key)
    wrong = replace(statement(), header=SignedHeader(HEADER.text, HEADER.signature))
    payload = json.loads(wrong.signed(KEY).payload)
    envelope = Envelope.of(
        PREDICATE_TYPE, {"header": "ab" * 32, "model": "ab" * 32}, payload["predicate"], KEY
    )
    with pytest.raises(ValueError, match="of another header"):
        read_statement(envelope, KEY.public_key)


def test_a_statement_that_would_be_too_long_keeps_the_confirmations_that_reveal(monkeypatch):
    many = {str(client): "ef" * ADVERTISED_BYTES for client in range(4)}
    words = dict.fromkeys(many, "ef" * 64)
    long = replace(SUM, keys=many, confirmations=words, opened={"threshold": 3})
    whole = replace(statement(), sums=(long,))
    size = len(whole.signed(KEY).payload)
    monkeypatch.setattr(statement_file, "MAX_BYTES", size - 1)
    read = read_statement(read_envelope(whole.signed(KEY).to_bytes()), KEY.public_key)
    assert [set(one.confirmations) for one in read.sums] == [{"0", "1", "2"}]
    monkeypatch.setattr(statement_file, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="would be longer than 1000 bytes"):
        whole.signed(KEY)
