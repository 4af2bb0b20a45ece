"""The server's signatures on their way: put into a message, and read from one.

The record ``signed`` of a message that asks for a release holds:

* ``run``: digest of the run's header, 32 bytes;
* ``terms``: digests of the terms of the secure sums that its clients are in; one empty one where
  there is no sum;
* ``words``: for each of them the server's signature over header, round, purpose, question and
  terms;
* ``header``, ``key``, ``signature``: the header itself, its key and its signature, for clients that
  have not answered yet. They keep it.

The signatures are alike for all clients of a phase and a sum, so each is made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from murmur.format import framed
from murmur.privacy.ledger import Asked, Ledger
from murmur.privacy.policy import Policy, Refusal
from murmur.privacy.run_header import (
    RunHeader,
    ServerKey,
    SignedHeader,
    require_signed_question,
    sign_question,
)
from murmur.round.asked_log import AskedLog
from murmur.round.task import SIGNED, RequestError, Task

NO_SUM = b""  # in place of the digest of a sum's terms
_MAX_SUMS = 1_000  # that one message is for


class QuestionSigner:
    """Signs the questions of one run.

    Attributes:
        key: The server's.
        signed: The run's header.
        known: Clients that have answered, and so have kept the header.
        log: What was asked so far, for the statement; None: none will be signed.
    """

    def __init__(self, key: ServerKey, header: RunHeader) -> None:
        self.key = key
        self.signed = SignedHeader.of(header, key)
        self.known: set[int] = set()
        self.log: AskedLog | None = None
        self._words: dict[bytes, bytes] = {}  # of the phase that was asked last
        self._last: tuple[int, str, bytes] | None = None

    def sign(
        self,
        content: RecordDict,
        clients: Iterable[int],
        number: int,
        purpose: str,
        question: bytes,
        terms: Sequence[bytes],
    ) -> None:
        """Put the record ``signed`` into ``content``, the message to ``clients``.

        Args:
            content: The message, complete but for this.
            clients: Whom it names.
            number: The round.
            purpose: The phase's.
            question: Digest of the question.
            terms: Digests of the sums' terms, or ``NO_SUM`` alone.
        """
        phase = number, purpose, question
        if phase != self._last:
            self._last = phase
            self._words = {}
        for digest in terms:
            if digest not in self._words:
                text = question_text(self.signed.digest, *phase, digest)
                self._words[digest] = sign_question(self.key, text)
        record: dict[str, Any] = {
            "run": bytes.fromhex(self.signed.digest),
            "terms": list(terms),
            "words": [self._words[digest] for digest in terms],
        }
        if not self.known.issuperset(clients):
            record["header"] = self.signed.text
            record["key"] = bytes.fromhex(self.key.public_key)
            record["signature"] = self.signed.signature
        content[SIGNED] = ConfigRecord(record)


def read_signed(
    content: RecordDict, task: Task, question: bytes, run: str, ledger: Ledger, policy: Policy
) -> Asked:
    """Reads a message's question, with the server's signatures as far as they hold.

    Where the policy names servers, everything must hold: a header by one of them, and a signature
    of this very question. Where it names none, what does not hold is left out.

    Args:
        content: The message, which may be hostile.
        task: One of those that it asks for.
        question: Digest of the question.
        run: The run's name in the ledger.
        ledger: Has the header of a run that was charged before.
        policy: The owner's.

    Raises:
        Refusal: The policy names servers, and the header or the signature is missing, wrong, of
            another server or of another run.
    """
    is_binding = policy.servers is not None
    asked = Asked(question.hex(), is_binding=is_binding)
    try:
        asked = _read(content, task, question, run, ledger, is_binding)
    except (KeyError, TypeError, ValueError, RequestError) as error:
        if is_binding:
            raise Refusal(f"signatures: {error}", "signature") from error
    policy.require_server(asked.header)
    return asked


def require_terms(asked: Asked, terms: Iterable[bytes]) -> None:
    """Refusal where the owner has pinned a server, and it has not signed the sums' ``terms``."""
    if asked.is_binding and not {digest.hex() for digest in terms} <= set(asked.terms):
        raise Refusal("signatures: the server has not signed the terms of this sum", "signature")


def _read(
    content: RecordDict, task: Task, question: bytes, run: str, ledger: Ledger, is_binding: bool
) -> Asked:
    """``read_signed`` where everything holds; KeyError, TypeError or ValueError elsewhere."""
    if SIGNED not in content.config_records:
        return Asked(question.hex(), is_binding=is_binding)
    record: dict[str, Any] = dict(content.config_records[SIGNED])
    header = ledger.run_header(run)
    if "header" in record:
        text, key, signature = (_bytes(record[name]) for name in ("header", "key", "signature"))
        sent = SignedHeader.verified(text, key.hex(), signature)
        if header is not None and is_binding and sent.digest != header.digest:
            raise ValueError(f"run {run} has another header, and a run has one")
        header = sent
    if header is None:
        raise ValueError(f"run {run}: its header has not come")
    if _bytes(record["run"]).hex() != header.digest:
        raise ValueError("the question is of another run than the header")
    terms, words = record["terms"], record["words"]
    if not isinstance(terms, list) or not 1 <= len(terms) <= _MAX_SUMS:
        raise ValueError("terms: must be a list")
    for digest, word in zip(terms, words, strict=True):
        text = question_text(header.digest, task.round, task.purpose, question, digest)
        require_signed_question(header, text, word)
    return Asked(
        question.hex(), header, tuple(digest.hex() for digest in terms), tuple(words), is_binding
    )


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("the record must hold bytes")
    return value


def question_text(run: str, number: int, purpose: str, question: bytes, terms: bytes) -> bytes:
    """The text that the server signs of one question, or of one sum that it is for.

    ``run``: digest of the header, in hex. ``terms``: digest of the sum's terms, or ``NO_SUM``.
    """
    return framed(bytes.fromhex(run), number.to_bytes(8, "big"), purpose.encode(), question, terms)
