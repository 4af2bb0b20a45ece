"""What differs between runs: jobs that differ in their seed only are one setting, repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fl_app.config.composition import PRECISION
from fl_app.report.reading import Run, number
from fl_app.run.progress import show_epsilon

# Where a run goes, how it is executed or watched changes no result; seeds are what is averaged.
_NO_SETTING = {"seed", "run_dir", "results_dir", "sweep", "keep_checkpoints"}
_NO_GROUP = ("engine", "compute", "tracking", "hydra")
_SHORT = {"privacy.epsilon": "ε", "privacy.delta": "δ", "strategy.gamma": "γ"}


@dataclass(frozen=True)
class Setting:
    """Runs that should be alike but for chance.

    ``family``: the algorithm. ``variant``: what sets it apart from the family's other settings,
    "" for the only one. ``family_index`` and ``variant_index`` choose colours and marks.
    """

    key: str
    family: str
    variant: str
    family_index: int
    variant_index: int
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """Family and variant."""
        return f"{self.family}, {self.variant}" if self.variant else self.family

    @cached_property
    def started(self) -> tuple[Run, ...]:
        """Runs with a row to show."""
        return tuple(run for run in self.runs if run.rows)


@dataclass(frozen=True)
class Grouping:
    """All settings, and which keys tell them apart (``varied``: for each run, key -> value)."""

    settings: tuple[Setting, ...]
    varied: tuple[Mapping[str, str], ...]

    @property
    def families(self) -> list[str]:
        """The algorithms, in order."""
        return list(dict.fromkeys(setting.family for setting in self.settings))


def group(runs: Sequence[Run]) -> Grouping:
    """Runs gathered into settings, each family's in the order of their values."""
    keys = list(dict.fromkeys(key for run in runs for key in typed(run)))
    values = [{key: value_of(run, key) for key in keys} for run in runs]
    differing = [key for key in keys if len({value[key] for value in values}) > 1]
    families = _families(runs)
    # A key that only repeats the algorithm's name (`experiment=`, `strategy=`) is left out.
    telling = [
        key
        for key in differing
        if any(
            len({v[key] for v, f in zip(values, families, strict=True) if f == family}) > 1
            for family in families
        )
    ]
    gathered: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    for run, value, family in zip(runs, values, families, strict=True):
        gathered.setdefault((family, tuple(value[key] for key in telling)), []).append(run)
    names = list(dict.fromkeys(families))
    ordered = sorted(gathered, key=lambda k: (names.index(k[0]), [_natural(v) for v in k[1]]))
    settings, seen = [], dict.fromkeys(names, 0)
    for index, (family, chosen) in enumerate(ordered):
        variant = _variant(dict(zip(telling, chosen, strict=True)))
        alike = tuple(gathered[family, chosen])
        place = (names.index(family), seen[family])
        settings.append(Setting(f"s{index}", family, variant, *place, alike))
        seen[family] += 1
    return Grouping(tuple(settings), tuple({k: v[k] for k in differing} for v in values))


def typed(run: Run) -> dict[str, str]:
    """The overrides that may matter: key -> value as typed."""
    words = (word.lstrip("+~").partition("=") for word in run.overrides)
    return {key: value for key, _, value in words if _matters(key)}


def value_of(run: Run, key: str) -> str:
    """What ``key`` is in ``run``, typed or not; a group's value is the name of its choice."""
    if key in typed(run):
        return typed(run)[key]
    value: Any = run.config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("name") or str(value.get("_target_", "…")).rsplit(".", 1)[-1]
    return "–" if value is None else str(value)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A nested configuration as dotted keys; empty groups stay visible."""
    leaves: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{name}.")
        else:
            leaves[name] = "null" if value is None else str(value)
    return leaves


def _matters(key: str) -> bool:
    if key == PRECISION:
        return True
    return key not in _NO_SETTING and key.replace("/", ".").split(".")[0] not in _NO_GROUP


def _families(runs: Sequence[Run]) -> list[str]:
    """Each run's algorithm, by its statement's name where that tells algorithms apart."""
    short = [value_of(run, "strategy") for run in runs]
    full: dict[str, str] = {}
    for run, name in zip(runs, short, strict=True):
        if name == "–" and "experiment" in typed(run):
            name = typed(run)["experiment"]
        if run.statement is not None:
            full.setdefault(name, run.statement.algorithm)
    clash = len(set(full.values())) < len(full)
    names = []
    for run, name in zip(runs, short, strict=True):
        chosen = typed(run).get("experiment", "run") if name == "–" else name
        names.append(chosen if clash else full.get(chosen, chosen))
    return names


def _variant(chosen: Mapping[str, str]) -> str:
    return ", ".join(
        f"{_short(key, chosen)}\u00a0=\u00a0{_shown(key, v)}" for key, v in chosen.items()
    )


def _short(key: str, among: Mapping[str, str]) -> str:
    last = key.rsplit(".", 1)[-1]
    unique = sum(other.rsplit(".", 1)[-1] == last for other in among) == 1
    return _SHORT.get(key, last if unique else key)


def _shown(key: str, value: str) -> str:
    try:
        figure = number(float(value))
    except ValueError:
        return value
    if figure is None or key != "privacy.epsilon":
        return value
    return show_epsilon("infinity" if figure == float("inf") else figure)


def _natural(value: str) -> tuple[bool, float, str]:
    try:
        return (False, float(value), "")
    except ValueError:
        return (True, 0.0, value)
