"""What a server has asked so far, kept on disk for the statement that it signs in the end.

A JSON line for each question, before it leaves, and for each secure sum, when its clients have
confirmed it. A server that is killed and asks the same again adds nothing. Models are in it by
their digests only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from murmur.files import owner_only, owner_only_folder
from murmur.secure_sum.terms import join_ids

if TYPE_CHECKING:
    from murmur.secure_sum.server import SecureServer

_QUESTION = "question"
_SUM = "sum"
_JSON = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False)


@dataclass(frozen=True)
class OpenedQuestion:
    """A question that clients were asked.

    Attributes:
        round, purpose: of the phase.
        question: its digest, in hex (``murmur.round.task.question``).
        opened: what the digest is of, part by part.
    """

    round: int
    purpose: str
    question: str
    opened: Mapping[str, Any]


@dataclass(frozen=True)
class OpenedSum:
    """A secure sum whose masked answers the server has taken.

    Attributes:
        round, purpose, question: of the question that it is for.
        terms: digest of its terms, in hex.
        opened: the terms (``SumTerms.to_dict``).
        included, survivors: whose masks may be in the sum, and whose vectors are, in hex
            (``join_ids`` among the sum's clients).
        keys: what the clients that have confirmed have advertised, in hex.
        confirmations: signatures of clients that have confirmed both lists, in hex.
    """

    round: int
    purpose: str
    question: str
    terms: str
    opened: Mapping[str, Any]
    included: str
    survivors: str
    keys: Mapping[str, str]
    confirmations: Mapping[str, str]

    @classmethod
    def of(cls, one: SecureServer) -> OpenedSum:
        """A sum before its last phase."""
        terms = one.terms
        return cls(
            round=terms.round,
            purpose=terms.purpose,
            question=one.asked.hex(),
            terms=terms.terms_digest.hex(),
            opened=terms.to_dict(),
            included=join_ids(one.included, terms.clients).hex(),
            survivors=join_ids(one.survivors, terms.clients).hex(),
            keys={str(client): one.advertised(client).hex() for client in one.confirmed},
            confirmations={str(client): word.hex() for client, word in one.confirmed.items()},
        )

    def shortened(self) -> OpenedSum:
        """A copy with as many confirmations as the sum's threshold."""
        kept = sorted(self.confirmations, key=int)[: self.opened["threshold"]]
        return replace(
            self,
            keys={client: self.keys[client] for client in kept},
            confirmations={client: self.confirmations[client] for client in kept},
        )


class AskedLog:
    """The questions and sums of one run.

    Args:
        path: the file; a line that a kill has cut short is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: set[object] = set()
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)
            questions, sums = self.read()
            self._known = {*map(_about_question, questions), *(one.terms for one in sums)}

    def add_question(self, one: OpenedQuestion) -> None:
        """Keep a question that is about to be asked; it is on disk when this returns."""
        self._add(_about_question(one), {_QUESTION: one.__dict__})

    def add_sum(self, one: OpenedSum) -> None:
        """Keep a secure sum; it is on disk when this returns."""
        self._add(one.terms, {_SUM: one.__dict__})

    def read(self) -> tuple[tuple[OpenedQuestion, ...], tuple[OpenedSum, ...]]:
        """All questions and all sums, in the order in which they were asked.

        ValueError where the file is damaged.
        """
        questions: list[OpenedQuestion] = []
        sums: list[OpenedSum] = []
        content = self.path.read_bytes() if self.path.exists() else b""
        try:
            for line in content.splitlines():
                plain = json.loads(line)
                if _QUESTION in plain:
                    questions.append(OpenedQuestion(**plain[_QUESTION]))
                else:
                    sums.append(OpenedSum(**plain[_SUM]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: is damaged") from error
        return tuple(questions), tuple(sums)

    def _add(self, about: object, plain: dict[str, Any]) -> None:
        """Append a line, unless there is one ``about`` the same."""
        if about in self._known:
            return
        owner_only_folder(self.path.parent)
        with open(self.path, "ab", opener=owner_only) as file:
            file.write(_JSON.encode(plain).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._known.add(about)


def _about_question(one: OpenedQuestion) -> tuple[int, str, str]:
    return one.round, one.purpose, one.question
