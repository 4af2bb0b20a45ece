"""Keys and choices of ``conf`` under their earlier names.

A word that is typed with an earlier name is answered with the present one. Words of recorded runs
are read with it, and so are their configurations.
"""

from collections.abc import Mapping
from typing import Any

from fl_app.config.errors import ConfigError

CHOICES = {"partition": {"legacy": "privatekt_authors"}}
KEYS = {
    "strategy.aggregation": "aggregation",
    "strategy.trimmed": "aggregation.trimmed",
    "strategy.malicious": "aggregation.malicious",
    "strategy.selected": "aggregation.selected",
}
_RULES = {  # the classes of earlier ``strategy.aggregation``, and the settings that each reads
    "median": ("Median", ()),
    "trimmed_mean": ("TrimmedMean", ("trimmed",)),
    "krum": ("Krum", ("malicious", "selected")),
}
TARGETS = {
    "murmur.learning.data.partitions.Legacy": (
        "murmur.algorithms.privatekt.partition.AuthorsPartition"
    ),
    "murmur.papers.dpfl_bnn.network.bnn": "murmur.algorithms.dpfl_bnn.network.bnn",
}


def require_present(group: str, choice: str) -> None:
    """ConfigError, which has the present name, for a ``choice`` under its earlier one."""
    name = CHOICES.get(group, {}).get(choice)
    if name is not None:
        raise ConfigError(f"{group}={choice}: is called {name} now; set {group}={name}")


def current(word: str) -> str:
    """An override of a recorded run, ``KEY=VALUE``, under its present name."""
    key, _, value = word.partition("=")
    if key in KEYS:
        return f"{KEYS[key]}={value}"
    return f"{key}={CHOICES[key][value]}" if value in CHOICES.get(key, {}) else word


def present_targets(settings: Any) -> Any:
    """A recorded configuration with the present names of classes that have moved."""
    if isinstance(settings, Mapping):
        return {key: present_targets(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [present_targets(value) for value in settings]
    if isinstance(settings, str):
        return TARGETS.get(settings, settings)
    return settings


def present_keys(settings: Any) -> Any:
    """A recorded configuration with ``aggregation`` in place of the strategy's earlier keys."""
    strategy = settings.get("strategy", {})
    rule = strategy.get("aggregation") if isinstance(strategy, Mapping) else None
    if not isinstance(rule, str) or rule not in _RULES or "aggregation" in settings:
        return settings
    name, taken = _RULES[rule]
    made: dict[str, Any] = {"_target_": f"strategies.robust.{name}", "_partial_": True}
    made |= {key: strategy[key] for key in taken}
    rest = {key: value for key, value in strategy.items() if f"strategy.{key}" not in KEYS}
    rest["server"] = {**strategy["server"], "aggregation": made}
    return {**settings, "strategy": rest, "aggregation": made}
