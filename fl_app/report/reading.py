"""Runs as the report sees them: read-only, and whatever is missing or damaged is said, not raised.

``fl_app.run.results.RunFolder`` writes runs and creates what is missing; a report must neither
touch a folder that others may still be writing to, nor fail because one of sixty jobs was killed.
What a run holds may come from anywhere: nothing of it is executed, and every file is checked for
its form.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from omegaconf import OmegaConf
from pydantic import NonNegativeInt, TypeAdapter

from fl_app.config.errors import ConfigError
from fl_app.run.data_card import DataCard
from murmur.common import counted
from murmur.privacy.statement import Statement

_SIGNS = ("config.yaml", "overrides.json", "rounds.jsonl", "error.json", "metrics.json")
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError)


@dataclass(frozen=True)
class Held:
    """Who holds what, as a run's ``partition.json`` has it.

    Attributes:
        shown: clients, of many an even choice.
        counts: examples of each of these (rows) and class (columns).
        clients: how many there are in all.
        examples: how many they hold in all.
    """

    shown: tuple[int, ...]
    counts: tuple[tuple[NonNegativeInt, ...], ...]
    clients: int
    examples: int


@dataclass(frozen=True)
class Run:
    """What one run has left so far.

    Attributes:
        name: its folder's.
        overrides: the words typed.
        config: nested, as composed; {} where none was written.
        rows: one mapping for each round, with infinite ε as ``math.inf``.
        metrics: the last figures; None: it has not finished.
        statement: of its privacy; None: not yet, or it cannot be read.
        statement_text: the same for people; "" without one.
        error: why it failed; None: it did not.
        partition: who holds how many examples of which class.
        card: what was understood of its data.
        provenance: versions, commit and dates.
        problems: files that are there and could not be read.
        layer: weights (classes, bins) of a finished linear model whose features are a table's bins.
    """

    name: str
    overrides: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    rows: tuple[dict[str, Any], ...] = ()
    metrics: dict[str, Any] | None = None
    statement: Statement | None = None
    statement_text: str = ""
    error: str | None = None
    partition: Held | None = None
    card: DataCard | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    layer: NDArray[np.float32] | None = None

    @property
    def state(self) -> str:
        """``finished``, ``failed``, ``unfinished`` or ``not started``."""
        if self.metrics is not None:
            return "finished"
        if self.error is not None:
            return "failed"
        if self.rows or self.config:
            return "unfinished"
        return "not started"

    @property
    def is_void(self) -> bool:
        """Whether no ε of it may be relied on: by its statement, or since its noise is seeded."""
        if self.statement is not None:
            return bool(self.statement.doubts)
        return bool(self.config.get("privacy", {}).get("noise") == "seeded")

    @property
    def at_chance(self) -> bool | None:
        """Whether it is no better than chance; None where it is not finished, or does not say."""
        if self.metrics is None:
            return None
        return self.metrics.get("at_chance")

    @property
    def planned_rounds(self) -> int | None:
        """How many rounds the configuration asks for."""
        planned = self.config.get("federation", {}).get("num_rounds")
        if isinstance(planned, int):
            return planned
        return None

    @property
    def last_round(self) -> int:
        """The last round that has a row; 0 without one."""
        return max((row["round"] for row in self.rows), default=0)

    @property
    def seed(self) -> Any:
        """The experiment's seed, or None."""
        return self.config.get("seed")


@dataclass(frozen=True)
class Source:
    """What the report is about: a run, the runs of a sweep, or all that lie in a folder.

    Attributes:
        name: of the folder.
        runs: one, or the sweep's jobs in their order, begun or not.
        is_sweep: whether they are several by intent.
        overrides: as typed for the sweep or the run.
        sweeps: how many sweeps the runs of a folder are from; None: it is a run or a sweep itself.
    """

    name: str
    runs: tuple[Run, ...]
    is_sweep: bool
    overrides: tuple[str, ...] = ()
    sweeps: int | None = None

    @property
    def title(self) -> str:
        """What it is, in words."""
        if self.sweeps is not None:
            found = counted(len(self.runs), "run")
            if self.sweeps:
                found += f", those of {counted(self.sweeps, 'sweep')} among them"
            return f"All of {self.name}: {found}"
        return f"{'Sweep' if self.is_sweep else 'Run'} {self.name}"


def read(path: Path) -> Source:
    """The run, the sweep or the folder of runs in ``path``.

    Raises:
        ConfigError: it holds none of them, or the sweep's list of jobs is damaged.
    """
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise ConfigError(f"RUN_OR_SWEEP={path}: is no folder; name one that `murmur` has written")
    if (path / "sweep.json").exists():
        return _read_sweep(path)
    if is_run(path):
        run = read_run(path)
        return Source(path.name, (run,), False, run.overrides)
    runs: list[Run] = []
    sweeps = 0
    for child in sorted(path.iterdir()):
        if (child / "sweep.json").exists():
            sweeps += 1
            runs += [replace(r, name=f"{child.name}/{r.name}") for r in _read_sweep(child).runs]
        elif is_run(child):
            runs.append(read_run(child))
    if not runs:
        raise ConfigError(
            f"RUN_OR_SWEEP={path}: holds neither a run nor a sweep (no {', '.join(_SIGNS)} or "
            "sweep.json, here or one folder below); name a folder that `murmur` has written"
        )
    return Source(path.name, tuple(runs), True, sweeps=sweeps)


def is_run(path: Path) -> bool:
    """Whether ``path`` is a run's folder, however far the run came."""
    return path.is_dir() and any((path / name).exists() for name in _SIGNS)


def _read_sweep(path: Path) -> Source:
    """All jobs of the sweep in ``path``, those that have not begun as well.

    Raises:
        ConfigError: its ``sweep.json`` cannot be read.
    """
    try:
        plain = json.loads((path / "sweep.json").read_text(encoding="utf-8"))
        jobs = [(str(job["key"]), tuple(map(str, job["overrides"]))) for job in plain["jobs"]]
        overrides = tuple(map(str, plain.get("overrides", ())))
    except _DAMAGE as error:
        raise ConfigError(
            f"{path / 'sweep.json'}: cannot be read ({error}); remove it to report the runs in "
            "this folder as they are"
        ) from error
    return Source(path.name, tuple(read_run(path / k, words) for k, words in jobs), True, overrides)


def read_run(path: Path, overrides: Sequence[str] = ()) -> Run:
    """The run in ``path``, however far it came.

    Files that cannot be read are in ``problems``, and otherwise as if they were missing.

    Args:
        path: the run's folder.
        overrides: its words, if the sweep knows them; else those that the run has written.
    """
    problems: list[str] = []

    def part(name: str, parse: Callable[[bytes], Any], default: Any) -> Any:
        file = path / name
        if not file.exists():
            return default
        try:
            return parse(file.read_bytes())
        except _DAMAGE as error:
            problems.append(f"{name}: {' '.join(str(error).split())[:200]}")
            return default

    metrics = part("metrics.json", _metrics, None)
    before = len(problems)
    rows = part("rounds.jsonl", _rows, ())
    last = max((row["round"] for row in rows), default=0)
    if metrics is not None and last != metrics["rounds"] and len(problems) == before:
        problems.append(f"rounds.jsonl: ends with round {last} of {metrics['rounds']}")
    config = part("config.yaml", _config, {})
    layer = None
    if str(config.get("features", {}).get("_target_", "")).endswith(".bins"):
        layer = part("model/model.safetensors", _layer, None)
    typed = part("overrides.json", lambda raw: tuple(map(str, json.loads(raw))), ())
    return Run(
        name=path.name,
        overrides=tuple(overrides) or typed,
        config=config,
        rows=rows,
        metrics=metrics,
        statement=part("privacy.json", lambda raw: Statement.from_dict(json.loads(raw)), None),
        statement_text=part("privacy.txt", lambda raw: raw.decode(), ""),
        error=part("error.json", lambda raw: str(_mapping(raw)["error"]), None),
        provenance=part("provenance.json", _mapping, {}),
        partition=part("partition.json", _held, None),
        card=part("data.json", DataCard.from_json, None),
        problems=tuple(problems),
        layer=layer,
    )


def read_stated(path: Path) -> tuple[Run, Statement]:
    """The run in ``path`` and its privacy statement.

    Raises:
        ConfigError: there is no run, or its statement is missing or damaged.
    """
    if not is_run(path):
        raise ConfigError(f"{path}: is no run; name a folder that `murmur` has written")
    run = read_run(path)
    if run.statement is None:
        why = "; ".join(run.problems) or "it has no privacy.json yet"
        raise ConfigError(f"{path}: holds no privacy statement ({why})")
    return run, run.statement


def number(value: Any) -> float | None:
    """A JSON value as a float.

    Returns:
        ``math.inf`` for "infinity", None for what is no number.
    """
    if value == "infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def _config(raw: bytes) -> dict[str, Any]:
    """A run's ``config.yaml``, its references followed; ValueError where it is none."""
    plain = OmegaConf.to_container(OmegaConf.create(raw.decode()), resolve=True)
    if not isinstance(plain, dict) or not {"strategy", "federation", "seed"} <= set(plain):
        raise ValueError("is no run's configuration")
    return {str(key): value for key, value in plain.items()}


def _held(raw: bytes) -> Held:
    """A run's ``partition.json``; ValueError where it holds no counts by client and class."""
    held = TypeAdapter(Held).validate_json(raw, strict=True)
    classes = {len(row) for row in held.counts}
    if len(classes) != 1 or classes == {0} or len(held.counts) != len(held.shown):
        raise ValueError("holds no matrix of clients and classes")
    return held


def _mapping(raw: bytes) -> dict[str, Any]:
    """A file of JSON that must hold a mapping; else ValueError."""
    plain = json.loads(raw)
    if not isinstance(plain, dict):
        raise ValueError("is no mapping")
    return plain


def _layer(raw: bytes) -> NDArray[np.float32] | None:
    """The one matrix of a linear model; None where there are several."""
    from safetensors.numpy import load

    found = [values for values in load(raw).values() if values.ndim == 2]
    if len(found) != 1:
        return None
    return found[0]


def _metrics(raw: bytes) -> dict[str, Any]:
    """A run's ``metrics.json``, which says at least how many rounds there were; else ValueError."""
    plain = _mapping(raw)
    if not isinstance(plain.get("rounds"), int):
        raise ValueError("does not say how many rounds there were")
    return plain


def _rows(raw: bytes) -> tuple[dict[str, Any], ...]:
    """All whole lines; a kill may have left half of the last one."""
    whole = raw.decode()[: raw.decode().rfind("\n") + 1].splitlines()
    rows = [json.loads(line) for line in whole]
    return tuple(row for row in rows if isinstance(row["round"], int))
