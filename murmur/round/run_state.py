"""Everything that a resumed run needs of its server, as one value with one form on disk.

The names of arrays and facts are those of ``checkpoint.safetensors`` and keep their spelling. Raw
sums and secret cohorts may be in it, so whoever writes it keeps it readable by its user only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.round.question import Outcome

Arrays = dict[str, NDArray]

_STRATEGY = "strategy."  # begins the names of all that the parts below hold
_COHORT = "cohort"  # the next round's number, and its clients
_BEFORE = "before"  # clients and how often they answered before the rounds
_EVALUATION = "evaluation."
_CANARIES = "canaries."
_SUMS = ("least_survivors", "blame")


@dataclass
class RunState:
    """A run after a round, or after the training of the round that follows.

    Attributes:
        round: The last finished round; 0: none, and ``model`` is the initial one.
        model: (d,) float32. The global parameters.
        trained: Outcome of round ``round`` + 1, where all else is as after its training, and it is
            not evaluated yet; None otherwise.
        participations: How often each client may have released something. The statement charges by
            these, so they are never lost with a round.
        before: Participations before the rounds alone, where that is another release.
        cohort: The next round's number and its clients, where cohorts are secret.
        num_nodes: How many nodes share the cohort of the round that comes next; 0: not known.
        algorithm, sums: What the algorithm and the sums of its trainings remember.
        evaluation, canaries: State of an evaluation on clients and of an audit's canaries;
            empty without one.
    """

    round: int
    model: NDArray[np.float32]
    trained: Outcome | None = None
    participations: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    cohort: tuple[int, NDArray[np.int64]] | None = None
    num_nodes: int = 0
    algorithm: Arrays = field(default_factory=dict)
    sums: Arrays = field(default_factory=dict)
    evaluation: Arrays = field(default_factory=dict)
    canaries: Arrays = field(default_factory=dict)

    def to_arrays(self) -> Arrays:
        """Returns the arrays of a checkpoint; the rest of it is in ``facts``."""
        clients, counts = participation_arrays(self.participations)
        parts = {**self.algorithm, **self.sums}
        if self.cohort is not None:
            number, asked = self.cohort
            parts[_COHORT] = np.array([number, *asked], np.int64)
        if self.before:
            parts[_BEFORE] = np.array(sorted(self.before.items()), np.int64)
        for prefix, arrays in ((_EVALUATION, self.evaluation), (_CANARIES, self.canaries)):
            parts |= {f"{prefix}{name}": values for name, values in arrays.items()}
        return {
            "model": self.model,
            "round": np.array([self.round], np.int64),
            "participation.clients": clients,
            "participation.counts": counts,
            **{f"{_STRATEGY}{name}": values for name, values in parts.items()},
        }

    def facts(self) -> dict[str, Any]:
        """Returns what is no array, as JSON has it."""
        trained = None
        if self.trained is not None:
            trained = self.trained.facts()
        return {"shares": self.num_nodes, "trained": trained}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray], facts: Mapping[str, Any]) -> RunState:
        """Returns the state that ``to_arrays`` and ``facts`` were made of."""
        clients, counts = arrays["participation.clients"], arrays["participation.counts"]
        parts = _with_prefix(arrays, _STRATEGY)
        state = cls(
            int(arrays["round"][0]),
            arrays["model"],
            participations=dict(zip(clients.tolist(), counts.tolist(), strict=True)),
            num_nodes=facts["shares"],
        )
        if facts["trained"] is not None:
            state.trained = Outcome.of(facts["trained"])
        if _COHORT in parts:
            number, *asked = parts.pop(_COHORT).tolist()
            state.cohort = number, np.array(asked, np.int64)
        if _BEFORE in parts:
            state.before = dict(parts.pop(_BEFORE).tolist())
        state.sums = {name: parts.pop(name) for name in _SUMS if name in parts}
        state.evaluation = _with_prefix(parts, _EVALUATION)
        state.canaries = _with_prefix(parts, _CANARIES)
        others = (_EVALUATION, _CANARIES)
        state.algorithm = {k: v for k, v in parts.items() if not k.startswith(others)}
        return state


def participation_arrays(counts: Mapping[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns clients, ascending, and how often each took part."""
    clients = np.fromiter(counts.keys(), np.int64, len(counts))
    times = np.fromiter(counts.values(), np.int64, len(counts))
    order = np.argsort(clients)
    return clients[order], times[order]


def _with_prefix(arrays: Mapping[str, NDArray], prefix: str) -> Arrays:
    """Returns the arrays whose names begin with ``prefix``, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
