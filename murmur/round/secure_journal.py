"""The server's journal of a secure sum on disk, from which an interrupted sum is resumed.

In phase MASK the clients pay, and they answer once. A server that forgot their keys and shares
could not read what they answered, and could not ask again. So it keeps the terms, the replies to
each phase, and the masked total: nothing that it has not been sent, and no secret of a client's.
With the same terms and replies it sends the same messages, which get the same answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from murmur.learning.array_file import replace_file
from murmur.secure_sum import Phase, Terms

if TYPE_CHECKING:
    from murmur.round.setup import Round

_FACTS, _TOTAL = "facts", "total"  # JSON as bytes, beside the arrays


class Journal:
    """The secure sums of round ``number``; empty, or as an interrupted server left them.

    ``path``: the run's file of them, which each round's replace; None: nothing is kept.
    ``terms``: of each sum; none before the clients were asked. ``masked``: of each sum, whose
    vectors are in it, and the masked total; None before phase MASK is over. ``asked``: digest of
    what clients were asked in it. ``participations``: of the whole run, as they were then.
    """

    def __init__(self, number: int, path: Path | None) -> None:
        self.number, self.path = number, path
        self.terms: list[Terms] = []
        self.replies: dict[Phase, dict[int, bytes]] = {}
        self.masked: list[tuple[list[int], NDArray]] | None = None
        self.asked = b""
        self.participations: dict[int, int] = {}
        self._about: dict[str, Any] = {}
        if path is not None and path.exists():
            self._read(load(path.read_bytes()))

    def restore(self, about: Round) -> None:
        """Add what had happened in the round before the interruption to ``about``."""
        if self._about:
            for name in ("failed", "accused"):
                before = {int(c): why for c, why in self._about[name].items()}
                setattr(about, name, before | getattr(about, name))
            about.away += self._about["away"]
            about.bytes_up += self._about["bytes_up"]
            about.bytes_down += self._about["bytes_down"]

    def keep_replies(self, phase: Phase, replies: Mapping[int, bytes], about: Round) -> None:
        """``replies`` are all that came in ``phase``."""
        if self.path is not None:
            self.replies[phase] = dict(replies)
            self._keep(self.path, about)

    def keep_masked(
        self,
        masked: list[tuple[list[int], NDArray]],
        asked: bytes,
        participations: Mapping[int, int],
        about: Round,
    ) -> None:
        """Phase MASK is over."""
        if self.path is not None:
            self.masked, self.asked = masked, asked
            self.participations = dict(participations)
            self._keep(self.path, about)

    def _keep(self, path: Path, about: Round) -> None:
        names = ("away", "failed", "accused", "bytes_up", "bytes_down")
        facts = {
            "round": self.number,
            "terms": [terms.to_dict() for terms in self.terms],
            "masked": None if self.masked is None else [clients for clients, _ in self.masked],
            "asked": self.asked.hex(),
            "participations": self.participations,
            "about": {name: getattr(about, name) for name in names},
        }
        arrays = {_FACTS: np.frombuffer(json.dumps(facts).encode(), np.uint8)}
        for phase, replies in self.replies.items():
            for client, reply in replies.items():
                arrays[f"{phase}.{client}"] = np.frombuffer(reply, np.uint8)
        for place, (_, total) in enumerate(self.masked or []):
            arrays[f"{_TOTAL}.{place}"] = total
        replace_file(path, save(arrays))

    def _read(self, arrays: dict[str, NDArray]) -> None:
        facts = json.loads(arrays.pop(_FACTS).tobytes())
        if facts["round"] != self.number:
            return  # a round that was finished
        self.terms = [Terms.from_dict(terms) for terms in facts["terms"]]
        self.participations = {int(c): n for c, n in facts["participations"].items()}
        self.asked = bytes.fromhex(facts["asked"])
        self._about = facts["about"]
        if facts["masked"] is not None:
            self.masked = [
                (clients, arrays.pop(f"{_TOTAL}.{place}"))
                for place, clients in enumerate(facts["masked"])
            ]
        for name, reply in arrays.items():
            phase, _, client = name.partition(".")
            self.replies.setdefault(Phase(phase), {})[int(client)] = reply.tobytes()
