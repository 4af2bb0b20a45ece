"""A run's last finished round, and what must be as it was for the run to go on from there.

It is replaced twice in a round: once with the round's new model, before anything that follows from
that model is sent, evaluated or reported (``trained``), and once when the round is finished. So
noise that the server adds is drawn once for each model that leaves. Raw sums may be in it (the
protection's state), so it can be read by its user only.

``checkpoint.safetensors`` holds model, strategy state and participations, and as its facts the
run's own settings, the versions that made it, and a digest of ``config.yaml`` and of every row so
far: whatever was damaged or edited since is noticed, and the run does not go on from it.

``Checkpoint.save`` writes, ``Checkpoint.load`` reads and checks the file, ``require_config`` and
``require_settings`` say whether a run with other settings may go on from it. The checksum notices
damage and careless edits; it is no signature, and nobody is kept from writing another file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app import DISTRIBUTION
from fl_app.config.composition import MACHINE, PRECISION
from fl_app.config.errors import ConfigError
from fl_app.config.overrides import flat
from murmur.learning.array_file import DamagedError, from_bytes, replace_file, to_bytes

FORMAT = 3  # of the file; another one is refused
_STRATEGY = "strategy."  # begins the names of its arrays
_EXTENDABLE = "federation.num_rounds"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run goes on.

    Attributes:
        round: the last finished one, whose row is among ``rows``; 0: the initial model's.
        model: (d,) float32, the global parameters.
        state: arrays of strategy, sums, evaluation and canaries by name
            (``CohortStrategy.snapshot``). They may hold raw sums and secret cohorts.
        participations: how often each client may have released something, by client id. The
            statement charges by these, so they are never lost with a round.
        settings: the resolved configuration.
        configs: digests of the ``config.yaml`` that may stand beside it; two while it is replaced.
        rows: the lines of ``rounds.jsonl`` so far, each with its line break.
        shares: how many nodes share the cohort of the round that comes next; 0: not known.
        trained: of the round after ``round`` (``Outcome.facts``), where ``model``, ``state`` and
            ``participations`` are those after its training, and it is not evaluated yet; None
            otherwise.
    """

    round: int
    model: NDArray
    state: Mapping[str, NDArray]
    participations: Mapping[int, int]
    settings: Mapping[str, Any]
    configs: Sequence[str]
    rows: Sequence[str]
    shares: int = 0
    trained: Mapping[str, Any] | None = None

    def save(self, path: Path) -> None:
        """Replace ``path``, on disk when this returns; a kill leaves the old file or the new one.

        The rows themselves are not in it, but for the last: their number and digest are, and
        ``load`` takes them from ``rounds.jsonl``.

        Raises:
            OSError: it cannot be written; the old file is still there.
        """
        clients, counts = counted(self.participations)
        arrays = {
            "model": self.model,
            "round": np.array([self.round], np.int64),
            "participation.clients": clients,
            "participation.counts": counts,
            **{f"{_STRATEGY}{name}": values for name, values in self.state.items()},
        }
        facts = {
            "format": FORMAT,
            "versions": _versions(),
            "settings": self.settings,
            "configs": list(self.configs),
            "rows": len(self.rows),
            "rows_digest": digest("".join(self.rows)),
            "last_row": self.rows[-1] if self.rows else "",
            "shares": self.shares,
            "trained": self.trained,
        }
        replace_file(path, to_bytes(arrays, facts))

    @classmethod
    def load(cls, path: Path) -> Checkpoint | None:
        """The checkpoint at ``path`` with the rows beside it; None where there is none.

        Rows beyond those that the checkpoint knows are left out: their rounds are done again.

        Args:
            path: the file; ``rounds.jsonl`` lies in the same folder.

        Raises:
            ConfigError: the file or the rows are not what the run wrote, or another version of
                Murmur wrote them (``FORMAT``).
        """
        lines = _lines(path.parent / "rounds.jsonl")
        if not path.exists():
            return None
        try:
            arrays, facts = from_bytes(path.read_bytes())
        except DamagedError as error:
            raise ConfigError(f"{path}: {error}; start the run anew") from error
        if facts.get("format") != FORMAT:
            raise ConfigError(f"{path}: was written by another version of Murmur; resume it there")
        clients, counts = arrays["participation.clients"], arrays["participation.counts"]
        return cls(
            int(arrays["round"][0]),
            arrays["model"],
            {k.removeprefix(_STRATEGY): v for k, v in arrays.items() if k.startswith(_STRATEGY)},
            dict(zip(clients.tolist(), counts.tolist(), strict=True)),
            facts["settings"],
            facts["configs"],
            _rows_of(lines, facts, path.parent / "rounds.jsonl"),
            facts["shares"],
            facts["trained"],
        )

    def require_config(self, path: Path) -> None:
        """ConfigError unless ``path`` is the run's own ``config.yaml``, byte for byte."""
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if digest(text) not in self.configs:
            raise ConfigError(
                f"{path}: was edited or damaged since the run wrote it; put it back, or start a "
                "new run with the settings that you want"
            )

    def require_settings(self, settings: Mapping[str, Any]) -> int:
        """Whether a run with these settings may go on from here.

        What a result does not depend on (``composition.MACHINE``) may differ, and the number of
        rounds. What devices are told of the data (federation.devices) may be missing:
        engine=deploy fills it in, and the ServerApp compares it then.

        Args:
            settings: the resolved configuration with which it is to go on.

        Returns:
            The number of rounds for which the run was planned before. Where the new number differs,
            the caller must still ask whether the budget allows it (``Experiment.checkpoint``).

        Raises:
            ConfigError: another setting differs (the first by name), or there are fewer rounds
                than were done.
        """
        old = flat(json.loads(json.dumps(self.settings)))  # as a checkpoint keeps them
        new = flat(json.loads(json.dumps(settings)))
        for key in sorted(old.keys() | new.keys()):
            machine = any(key == name or key.startswith(f"{name}.") for name in MACHINE)
            machine = machine and key != PRECISION
            told = key.startswith("federation.devices.") and new.get(key) is None
            if not machine and not told and key != _EXTENDABLE and old.get(key) != new.get(key):
                raise ConfigError(
                    f"{key}={new.get(key)}: this run was started with {old.get(key)}; only "
                    f"{_EXTENDABLE} can be changed on the way"
                )
        rounds, done = int(new[_EXTENDABLE]), self.round + (self.trained is not None)
        if rounds < done:
            raise ConfigError(f"{_EXTENDABLE}={rounds}: this run has done {done} already")
        return int(old[_EXTENDABLE])


def counted(participations: Mapping[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Clients, ascending, and how often each took part."""
    size = len(participations)
    clients = np.fromiter(participations.keys(), np.int64, size)
    counts = np.fromiter(participations.values(), np.int64, size)
    order = np.argsort(clients)
    return clients[order], counts[order]


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in (DISTRIBUTION, "flwr", "torch", "numpy")}


def digest(text: str) -> str:
    """SHA-256 of ``text`` as UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(path: Path) -> list[str]:
    """Whole lines; what a kill cut off is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _rows_of(lines: list[str], facts: Mapping[str, Any], path: Path) -> list[str]:
    """The rows that the checkpoint knows; the last one may not have reached its file.

    The checkpoint is written before the row, so a kill in between leaves ``lines`` one short; the
    checkpoint's own copy of the last row then fills in.

    Args:
        lines: whole lines of ``path``, perhaps more than the checkpoint knows.
        facts: the checkpoint's: ``rows`` (their number), ``rows_digest`` and ``last_row``.
        path: for the error's text.

    Raises:
        ConfigError: they are not the rows of which the checkpoint holds the digest.
    """
    count, last = facts["rows"], facts["last_row"]
    rows = lines[:count] if len(lines) != count - 1 else [*lines, last]
    if digest("".join(rows)) != facts["rows_digest"]:
        raise ConfigError(f"{path}: is missing, shortened or edited; start the run anew")
    return rows
