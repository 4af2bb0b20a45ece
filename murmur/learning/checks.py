"""Refusals of bad settings: each names the setting, its value, and what is allowed."""

from __future__ import annotations

import numpy as np


def require_integer(name: str, value: object, least: int) -> None:
    """Raises ValueError unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}={value}: must be an integer of at least {least}")


def require_number(name: str, value: object, least: float, most: float) -> None:
    """Raises ValueError unless ``value`` is a number in [``least``, ``most``]; a NaN is not."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{name}={value}: must be a number in [{least:g}, {most:g}]")
    if not least <= value <= most:
        raise ValueError(f"{name}={value}: must lie in [{least:g}, {most:g}]")
