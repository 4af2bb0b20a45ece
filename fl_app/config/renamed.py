"""Keys and choices of ``conf`` under their earlier names.

A word that is typed with an earlier name is answered with the present one. Words of recorded runs
are read with it.
"""

from collections.abc import Mapping
from typing import Any

CHOICES = {"partition": {"legacy": "privatekt_authors"}}

TARGETS = {
    "murmur.learning.data.partitions.Legacy": (
        "murmur.algorithms.privatekt.partition.AuthorsPartition"
    ),
    "murmur.papers.dpfl_bnn.network.bnn": "murmur.algorithms.dpfl_bnn.network.bnn",
}


def new_choice(group: str, choice: str) -> str | None:
    """The present name of a group's ``choice``; None where it has no other."""
    return CHOICES.get(group, {}).get(choice)


def current(word: str) -> str:
    """An override of a recorded run, ``KEY=VALUE``, under its present name."""
    key, _, value = word.partition("=")
    choice = new_choice(key, value)
    if choice is None:
        return word
    return f"{key}={choice}"


def present_targets(settings: Any) -> Any:
    """A recorded configuration with the present names of classes that have moved."""
    if isinstance(settings, Mapping):
        return {key: present_targets(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [present_targets(value) for value in settings]
    if isinstance(settings, str):
        return TARGETS.get(settings, settings)
    return settings
