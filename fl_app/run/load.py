"""Loads run folders read-only: what is missing or damaged is reported, not raised.

``fl_app.run.results.RunFolder`` writes runs and creates what is missing. Whoever reads them must
neither touch a folder that is still being written, nor fail because one of sixty jobs was killed.
A run's files may come from anywhere: nothing in them is executed, and each is checked for its
form. `fl_app.api`, `murmur statement` and searches read runs here; so do packages, through
`fl_app.api`.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from pydantic import NonNegativeInt, TypeAdapter

from fl_app.config.errors import ConfigError
from fl_app.config.job_key import MACHINE, PRECISION
from fl_app.run.data_card import DataCard
from fl_app.run.scores import leading_score
from murmur.format import pluralize
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import NEIGHBOURS, UNITS

# Overrides that tell no two results apart; seeds are what is averaged.
_NO_SETTING = ("seed", "hydra", *MACHINE)
_PROMISE = ("unit", "neighbours", "adversary", "delta", "epsilon", "condition", "void")
_SIGNS = ("config.yaml", "overrides.json", "rounds.jsonl", "error.json", "metrics.json")
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError)


@dataclass(frozen=True)
class PartitionCounts:
    """Examples by client and class, from a run's ``partition.json``.

    Attributes:
        shown: ids of the clients that have a row; of many an even choice.
        counts: examples of each of these (rows) and class (columns).
        clients: number of all clients.
        examples: number of all examples.
    """

    shown: tuple[int, ...]
    counts: tuple[tuple[NonNegativeInt, ...], ...]
    clients: int
    examples: int


@dataclass(frozen=True)
class Run:
    """The files of one run so far.

    Attributes:
        name: name of its folder.
        overrides: the words typed.
        config: nested, as composed; {} where none was written.
        rows: one mapping for each round, with infinite ε as ``math.inf``.
        metrics: the last figures; None: it has not finished.
        statement: the privacy statement; None: not yet, or unreadable.
        statement_text: the same for people; "" without one.
        error: why it failed; None: it did not.
        partition: examples by client and class.
        card: what was understood of its data.
        provenance: versions, commit and dates.
        problems: files that are there and could not be read.
        folder: where it lies; None: nowhere.
    """

    name: str
    overrides: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    rows: tuple[dict[str, Any], ...] = ()
    metrics: dict[str, Any] | None = None
    statement: Statement | None = None
    statement_text: str = ""
    error: str | None = None
    partition: PartitionCounts | None = None
    card: DataCard | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    folder: Path | None = field(default=None, compare=False)

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
    def score(self) -> str:
        """Name of the score that its configuration puts first."""
        return leading_score(self.config)

    @property
    def is_void(self) -> bool:
        """True where no ε of it may be relied on: its statement says so, or its noise is seeded."""
        if self.statement is not None:
            return bool(self.statement.doubts)
        return bool(self.config.get("privacy", {}).get("noise") == "seeded")

    @property
    def at_chance(self) -> bool | None:
        """True where it is no better than chance; None: not finished, or not recorded."""
        if self.metrics is None:
            return None
        return self.metrics.get("at_chance")

    @property
    def planned_rounds(self) -> int | None:
        """Number of rounds that the configuration asks for."""
        planned = self.config.get("federation", {}).get("num_rounds")
        if isinstance(planned, int):
            return planned
        return None

    @property
    def last_round(self) -> int:
        """Number of the last round that has a row; 0 without one."""
        return max((row["round"] for row in self.rows), default=0)

    @property
    def seed(self) -> Any:
        """The experiment's seed, or None."""
        return self.config.get("seed")


@dataclass(frozen=True)
class RunSet:
    """A run, the runs of a sweep, or all runs of a folder.

    Attributes:
        name: name of the folder.
        runs: one, or the sweep's jobs in their order, begun or not.
        is_sweep: several runs by intent.
        overrides: as typed for the sweep or the run.
        sweeps: number of sweeps among a folder's runs; None: it is a run or a sweep itself.
    """

    name: str
    runs: tuple[Run, ...]
    is_sweep: bool
    overrides: tuple[str, ...] = ()
    sweeps: int | None = None

    @property
    def title(self) -> str:
        """Heading: its kind, its name, its number of runs."""
        if self.sweeps is not None:
            found = pluralize(len(self.runs), "run")
            if self.sweeps:
                found += f", those of {pluralize(self.sweeps, 'sweep')} among them"
            return f"All of {self.name}: {found}"
        return f"{'Sweep' if self.is_sweep else 'Run'} {self.name}"


def load_runs(path: Path) -> RunSet:
    """Loads the run, the sweep or the folder of runs in ``path``.

    Raises:
        ConfigError: it holds none of them, or the sweep's list of jobs is damaged.
    """
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise ConfigError(f"RUN_OR_SWEEP={path}: is no folder; name one that `murmur` has written")
    if (path / "sweep.json").exists():
        return _load_sweep(path)
    if is_run(path):
        run = load_run(path)
        return RunSet(path.name, (run,), False, run.overrides)
    runs: list[Run] = []
    sweeps = 0
    for child in sorted(path.iterdir()):
        if (child / "sweep.json").exists():
            sweeps += 1
            runs += [replace(r, name=f"{child.name}/{r.name}") for r in _load_sweep(child).runs]
        elif is_run(child):
            runs.append(load_run(child))
    if not runs:
        raise ConfigError(
            f"RUN_OR_SWEEP={path}: holds neither a run nor a sweep (no {', '.join(_SIGNS)} or "
            "sweep.json, here or one folder below); name a folder that `murmur` has written"
        )
    return RunSet(path.name, tuple(runs), True, sweeps=sweeps)


def is_run(path: Path) -> bool:
    """Tells whether ``path`` is a run's folder, however far the run came."""
    return path.is_dir() and any((path / name).exists() for name in _SIGNS)


def _load_sweep(path: Path) -> RunSet:
    """Loads all jobs of the sweep in ``path``, also those that have not begun.

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
    return RunSet(path.name, tuple(load_run(path / k, words) for k, words in jobs), True, overrides)


def load_run(path: Path, overrides: Sequence[str] = ()) -> Run:
    """Loads the run in ``path``, however far it came.

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
        partition=part("partition.json", _partition, None),
        card=part("data.json", DataCard.from_json, None),
        problems=tuple(problems),
        folder=path,
    )


def load_stated(path: Path) -> tuple[Run, Statement]:
    """Loads the run in ``path`` and its privacy statement.

    Raises:
        ConfigError: there is no run, or its statement is missing or damaged.
    """
    if not is_run(path):
        raise ConfigError(f"{path}: is no run; name a folder that `murmur` has written")
    run = load_run(path)
    if run.statement is None:
        why = "; ".join(run.problems) or "it has no privacy.json yet"
        raise ConfigError(f"{path}: holds no privacy statement ({why})")
    return run, run.statement


def number(value: Any) -> float | None:
    """Converts a JSON value to a float.

    Returns:
        ``math.inf`` for "infinity", None for what is no number.
    """
    if value == "infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def _config(raw: bytes) -> dict[str, Any]:
    """Parses a run's ``config.yaml``, with its references resolved.

    Raises:
        ValueError: it is no run's configuration.
    """
    plain = OmegaConf.to_container(OmegaConf.create(raw.decode()), resolve=True)
    if not isinstance(plain, dict) or not {"strategy", "federation", "seed"} <= set(plain):
        raise ValueError("is no run's configuration")
    return {str(key): value for key, value in plain.items()}


def _partition(raw: bytes) -> PartitionCounts:
    """Parses a run's ``partition.json``.

    Raises:
        ValueError: it holds no counts by client and class.
    """
    partition = TypeAdapter(PartitionCounts).validate_json(raw, strict=True)
    classes = {len(row) for row in partition.counts}
    if len(classes) != 1 or classes == {0} or len(partition.counts) != len(partition.shown):
        raise ValueError("holds no matrix of clients and classes")
    return partition


def _mapping(raw: bytes) -> dict[str, Any]:
    """Parses JSON that must be a mapping; else ValueError."""
    plain = json.loads(raw)
    if not isinstance(plain, dict):
        raise ValueError("is no mapping")
    return plain


def _metrics(raw: bytes) -> dict[str, Any]:
    """Parses a run's ``metrics.json``, which has at least its number of rounds; else ValueError."""
    plain = _mapping(raw)
    if not isinstance(plain.get("rounds"), int):
        raise ValueError("does not say how many rounds there were")
    return plain


def _rows(raw: bytes) -> tuple[dict[str, Any], ...]:
    """Parses all whole lines; a kill may have left half of the last one."""
    whole = raw.decode()[: raw.decode().rfind("\n") + 1].splitlines()
    rows = [json.loads(line) for line in whole]
    return tuple(row for row in rows if isinstance(row["round"], int))


def typed(run: Run) -> dict[str, str]:
    """Returns the overrides that may change a result: dotted key -> value as typed."""
    words = (word.lstrip("+~").partition("=") for word in run.overrides)
    return {key: value for key, _, value in words if _matters(key)}


def value_of(run: Run, key: str) -> str:
    """Returns the value of ``key`` in ``run``, typed or not.

    Returns:
        A text; a group's value is the name of its choice, and "–" stands for none.
    """
    if key in typed(run):
        return typed(run)[key]
    value: Any = run.config
    for part in key.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        else:
            value = None
    if isinstance(value, Mapping):
        value = value.get("name") or str(value.get("_target_", "…")).rsplit(".", 1)[-1]
    if value is None:
        return "–"
    return str(value)


def varied_values(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Returns for each run the values of the typed keys in which the runs differ."""
    keys = list(dict.fromkeys(key for run in runs for key in typed(run)))
    values = [{key: value_of(run, key) for key in keys} for run in runs]
    differing = [key for key in keys if len({value[key] for value in values}) > 1]
    return [{key: value[key] for key in differing} for value in values]


def run_records(source: RunSet) -> list[dict[str, Any]]:
    """Returns one record for each run: its folder, what differs between runs, seed, state, figures.

    `fl_app.api.results` makes a frame of them, and `murmur report --csv` a file.
    """
    records = []
    for run, varied in zip(source.runs, varied_values(source.runs), strict=True):
        record = {"run": run.name, "strategy": run.config.get("strategy", {}).get("name")}
        record |= {key: _parsed(value) for key, value in varied.items() if key != "strategy"}
        record |= {"seed": run.seed, "state": run.state}
        record |= _promised(run.statement)
        for key, value in (run.metrics or {}).items():
            as_float = number(value)
            record[key] = value if as_float is None else as_float
        records.append(record)
    return records


def _promised(statement: Statement | None) -> dict[str, Any]:
    """Returns whom a run's ε protects, against whom and on which condition; all None without."""
    if statement is None:
        return dict.fromkeys(_PROMISE)
    first = statement.guarantees[0]
    values = (
        UNITS[statement.unit],
        NEIGHBOURS[statement.adjacency],
        first.adversary,
        statement.delta,
        None if statement.doubts else first.stated,
        "; ".join(first.assumptions) or "none: proven",
        "; ".join(statement.doubts) or None,
    )
    return dict(zip(_PROMISE, values, strict=True))


def _parsed(text: str) -> Any:
    """Returns a typed value as an integer or a float where it is one, else as typed."""
    try:
        if "." in text or "e" in text.lower():
            return float(text)
        return int(text)
    except ValueError:
        return text


def _matters(key: str) -> bool:
    """Tells whether an override may change a result."""
    if key == PRECISION:
        return True
    plain = key.replace("/", ".")
    return not any(plain == name or plain.startswith(f"{name}.") for name in _NO_SETTING)
