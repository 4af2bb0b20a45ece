"""The signed statement of a run, ``statement.json``: what its server says that it has asked.

An envelope (``murmur.privacy.envelope``) by the server's key of the run header. Beside the privacy
statement it opens every question and every secure sum, so that whoever was asked can compare.

Who sets what, and the worst of it: the server sets everything here. It is held to it by what
devices keep in their ledgers, which the signatures in there show to others.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from murmur.privacy.envelope import Envelope
from murmur.privacy.run_header import ServerKey, SignedHeader
from murmur.privacy.statement import Statement
from murmur.round.asked_log import OpenedQuestion, OpenedSum
from murmur.round.task import question_digest
from murmur.secure_sum.identity import ADVERTISED_BYTES, SIGNATURE_BYTES

FILE = "statement.json"
PREDICATE_TYPE = "urn:murmur:statement:1"
FORMAT = 1
MAX_BYTES = 64 * 2**20  # of the payload
_MAX_FILE_BYTES = 2 * MAX_BYTES  # with the payload in base64
_HEX = re.compile(r"(?:[0-9a-f]{2})*")


@dataclass(frozen=True)
class SignedStatement:
    """The statement that a run's server has signed when the run was over.

    Attributes:
        header: the run's, with the server's signature.
        privacy: the privacy statement.
        model: SHA-256 of the final model's values (float32, little-endian, C order), in hex.
        questions: by round and purpose.
        sums: by round and purpose.
        payload_digest: SHA-256 of the signed payload, in hex; "" before it is signed.
    """

    header: SignedHeader
    privacy: Statement
    model: str
    questions: tuple[OpenedQuestion, ...]
    sums: tuple[OpenedSum, ...] = ()
    payload_digest: str = field(default="", compare=False)

    def signed(self, key: ServerKey) -> Envelope:
        """The file's content, signed; ValueError where it would be too long to be read again.

        Where it would be with all confirmations, of each sum only as many are left as reveal it.
        """
        envelope = self._envelope(self.sums, key)
        if len(envelope.payload) > MAX_BYTES:
            envelope = self._envelope([each.shortened() for each in self.sums], key)
        if len(envelope.payload) > MAX_BYTES:
            raise ValueError(f"the statement would be longer than {MAX_BYTES} bytes")
        return envelope

    def _envelope(self, sums: Iterable[OpenedSum], key: ServerKey) -> Envelope:
        """``signed`` with these ``sums``."""
        predicate = {
            "format": FORMAT,
            "header": self.header.text.decode(),
            "signature": self.header.signature.hex(),
            "privacy": self.privacy.to_dict(),
            "questions": [dict(each.__dict__) for each in self.questions],
            "sums": [dict(each.__dict__) for each in sums],
        }
        subjects = {"header": self.header.digest, "model": self.model}
        return Envelope.of(PREDICATE_TYPE, subjects, predicate, key)


def read_envelope(content: bytes) -> Envelope:
    """The envelope in a statement's file; ValueError for anything else. Nothing is verified."""
    return Envelope.read(content, _MAX_FILE_BYTES)


def read_statement(envelope: Envelope, key: str) -> SignedStatement:
    """The statement that the public ``key`` has signed, and whose header it has signed.

    ValueError for a wrong signature, and for what is no statement.
    """
    subjects, plain = envelope.predicate(PREDICATE_TYPE, key, MAX_BYTES)
    names = ("format", "header", "signature", "privacy", "questions", "sums")
    _require_names("predicate", plain, names)
    if plain["format"] != FORMAT:
        raise ValueError("statement: is of another format")
    text, signature = plain["header"], plain["signature"]
    if not isinstance(text, str) or not isinstance(plain["privacy"], dict):
        raise ValueError("header, privacy: must be text and an object")
    _require_hex("signature", signature, 64)
    header = SignedHeader.verified(text.encode(), key, bytes.fromhex(signature))
    _require_names("subject", subjects, ("header", "model"))
    if subjects["header"] != header.digest:
        raise ValueError("subject: is of another header")
    _require_hex("model", subjects["model"], 32)
    return SignedStatement(
        header,
        Statement.from_dict(plain["privacy"]),
        subjects["model"],
        tuple(map(_question, _list("questions", plain["questions"]))),
        tuple(map(_sum, _list("sums", plain["sums"]))),
        envelope.digest,
    )


def _question(plain: Any) -> OpenedQuestion:
    """A question of the file; ValueError for anything else."""
    _require_names("questions", plain, [each.name for each in fields(OpenedQuestion)])
    _require_phase(plain)
    one = OpenedQuestion(**plain)
    _require_opened(one)
    return one


def _sum(plain: Any) -> OpenedSum:
    """A secure sum of the file; ValueError for anything else."""
    _require_names("sums", plain, [each.name for each in fields(OpenedSum)])
    _require_phase(plain)
    _require_hex("terms", plain["terms"], 32)
    for name in ("included", "survivors"):
        _require_hex(name, plain[name])
    for name, size in (("keys", ADVERTISED_BYTES), ("confirmations", SIGNATURE_BYTES)):
        if not isinstance(plain[name], dict):
            raise ValueError(f"{name}: must be an object")
        for value in plain[name].values():
            _require_hex(name, value, size)
    return OpenedSum(**plain)


def _require_phase(plain: Mapping[str, Any]) -> None:
    """ValueError unless round, purpose, question and what is opened are of the right types."""
    if type(plain["round"]) is not int or plain["round"] < 1:
        raise ValueError("round: must be an integer of at least 1")
    if not isinstance(plain["purpose"], str):
        raise ValueError("purpose: must be text")
    _require_hex("question", plain["question"], 32)
    if not isinstance(plain["opened"], dict):
        raise ValueError("opened: must be an object")


def _require_opened(one: OpenedQuestion) -> None:
    """ValueError unless the question's digest is of what is opened."""
    _require_names("opened", one.opened, ("kind", "started", "arrays", "settings", "metrics"))
    try:
        digest = question_digest(one.opened).hex()
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError("opened: is no question") from error
    if digest != one.question:
        raise ValueError(
            f"round {one.round}, {one.purpose}: the question's digest is not of what is opened"
        )


def _list(name: str, value: Any) -> list[Any]:
    """``value`` if it is a list; ValueError for anything else."""
    if not isinstance(value, list):
        raise ValueError(f"{name}: must be a list")
    return value


def _require_names(what: str, plain: Any, names: Collection[str]) -> None:
    """ValueError unless ``plain`` is a mapping with exactly these ``names``."""
    if not isinstance(plain, dict) or set(plain) != set(names):
        raise ValueError(f"{what}: must have {', '.join(sorted(names))} and nothing else")


def _require_hex(name: str, value: Any, size: int | None = None) -> None:
    """ValueError unless ``value`` is hex of ``size`` bytes; None: of any number of bytes."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"{name}: must be small hex digits")
    if size is not None and len(value) != 2 * size:
        raise ValueError(f"{name}: must be {2 * size} hex digits")
