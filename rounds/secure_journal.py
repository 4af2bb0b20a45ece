"""The server's journal of a secure sum on disk, from which an interrupted sum is resumed.

In phase MASK the clients pay, and they answer once. A server that forgot their keys and shares
could not read what they answered, and could not ask again. So it keeps the terms, the replies to
each phase, and the masked total: nothing that it has not been sent, and no secret of a client's.
With the same terms and replies it sends the same messages, which get the same answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from privacy.secure_aggregation import Phase, Terms

if TYPE_CHECKING:
    from rounds.setup import Round

_FACTS, _TOTAL = "facts", "total"  # JSON as bytes, beside the arrays


class Storage(Protocol):
    """Where a run keeps it; ``fl_app.run.results.RunFolder``."""

    def save_secure_sum(self, content: bytes) -> None:
        """Keep ``content``, on disk when this returns, instead of what was there."""

    def load_secure_sum(self) -> bytes | None:
        """What was kept last, or None."""


class Journal:
    """The secure sums of round ``number``; empty, or as an interrupted server left them.

    ``terms``: of each sum; none before the clients were asked. ``masked``: of each sum, whose
    vectors are in it, and the masked total; None before phase MASK is over. ``participations``:
    of the whole run, as they were then.
    """

    def __init__(self, number: int, storage: Storage | None) -> None:
        self.number, self.storage = number, storage
        self.terms: list[Terms] = []
        self.replies: dict[Phase, dict[int, bytes]] = {}
        self.masked: list[tuple[list[int], NDArray]] | None = None
        self.participations: dict[int, int] = {}
        self._about: dict[str, Any] = {}
        content = None if storage is None else storage.load_secure_sum()
        if content is not None:
            self._read(load(content))

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
        if self.storage is not None:
            self.replies[phase] = dict(replies)
            self._keep(self.storage, about)

    def keep_masked(
        self,
        masked: list[tuple[list[int], NDArray]],
        participations: Mapping[int, int],
        about: Round,
    ) -> None:
        """Phase MASK is over."""
        if self.storage is not None:
            self.masked, self.participations = masked, dict(participations)
            self._keep(self.storage, about)

    def _keep(self, storage: Storage, about: Round) -> None:
        names = ("away", "failed", "accused", "bytes_up", "bytes_down")
        facts = {
            "round": self.number,
            "terms": [terms.to_dict() for terms in self.terms],
            "masked": None if self.masked is None else [clients for clients, _ in self.masked],
            "participations": self.participations,
            "about": {name: getattr(about, name) for name in names},
        }
        arrays = {_FACTS: np.frombuffer(json.dumps(facts).encode(), np.uint8)}
        for phase, replies in self.replies.items():
            for client, reply in replies.items():
                arrays[f"{phase}.{client}"] = np.frombuffer(reply, np.uint8)
        for place, (_, total) in enumerate(self.masked or []):
            arrays[f"{_TOTAL}.{place}"] = total
        storage.save_secure_sum(save(arrays))

    def _read(self, arrays: dict[str, NDArray]) -> None:
        facts = json.loads(arrays.pop(_FACTS).tobytes())
        if facts["round"] != self.number:
            return  # a round that was finished
        self.terms = [Terms.from_dict(terms) for terms in facts["terms"]]
        self.participations = {int(c): n for c, n in facts["participations"].items()}
        self._about = facts["about"]
        if facts["masked"] is not None:
            self.masked = [
                (clients, arrays.pop(f"{_TOTAL}.{place}"))
                for place, clients in enumerate(facts["masked"])
            ]
        for name, reply in arrays.items():
            phase, _, client = name.partition(".")
            self.replies.setdefault(Phase(phase), {})[int(client)] = reply.tobytes()
