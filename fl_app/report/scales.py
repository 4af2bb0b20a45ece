"""Axes: where a value lies, and which values to mark. Positions are shares of the axis, 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_FINITE_SHARE = 0.9  # of an axis that has a place for ∞
_INFINITE_PLACE = 0.97
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Tick:
    """A marked place on an axis."""

    place: float
    label: str


@dataclass(frozen=True)
class Linear:
    """Evenly spaced values from ``low`` to ``high``."""

    low: float
    high: float
    ticks: tuple[Tick, ...]

    @classmethod
    def over(cls, values: Iterable[float], whole: bool = False) -> Linear:
        """The axis that shows ``values``, ending on round numbers; ``whole``: on whole ones."""
        found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(found), max(found)
        if low == high:
            room = 0.1 * abs(low) or 0.5
            low, high = (low - room, high + room) if not whole else (low, low + 1)
        step = _round_step((high - low) / 4)
        step = max(1.0, step) if whole else step
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        start, end = (low, high) if whole else (first * step, last * step)
        marks = [i * step for i in range(first, last + 1) if start <= i * step <= end]
        places = tuple(Tick((m - start) / (end - start), plain_number(m)) for m in marks)
        return cls(start, end, places)

    @property
    def words(self) -> str:
        """For the page's script."""
        return f"linear - {self.low:.9g} {self.high:.9g}"

    def place(self, value: float) -> float:
        """Where ``value`` lies."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Log:
    """Logarithmic; ``has_infinity`` keeps a place of its own for ∞ behind a gap."""

    low: float
    high: float
    has_infinity: bool
    ticks: tuple[Tick, ...]
    unit: str = ""

    @classmethod
    def over(cls, values: Iterable[float], unit: str = "") -> Log:
        """The axis that shows the positive and infinite ``values``; ``unit="B"`` marks bytes."""
        listed = list(values)
        found = [value for value in listed if value > 0 and math.isfinite(value)] or [1.0]
        low, high = min(found) / 1.25, max(found) * 1.25
        axis = cls(low, high, math.inf in listed, ())
        show = byte_count if unit == "B" else log_number
        ticks = [Tick(axis.place(mark), show(mark)) for mark in _log_marks(low, high)]
        if axis.has_infinity:
            ticks.append(Tick(_INFINITE_PLACE, "∞"))
        return cls(low, high, axis.has_infinity, tuple(ticks), unit)

    @property
    def gap(self) -> float:
        """Where the finite values end and the place for ∞ begins."""
        return (_FINITE_SHARE + _INFINITE_PLACE) / 2

    @property
    def words(self) -> str:
        """For the page's script."""
        ends = f"{_FINITE_SHARE} {_INFINITE_PLACE}" if self.has_infinity else "1 0"
        return f"log {self.unit or '-'} {self.low:.9g} {self.high:.9g} {ends}"

    def place(self, value: float) -> float:
        """Where ``value`` lies; 0 and less at the lower end."""
        if math.isinf(value):
            return _INFINITE_PLACE
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return share * _FINITE_SHARE if self.has_infinity else share


def plain_number(value: float) -> str:
    """Five significant digits, no exponent where it can be helped."""
    return f"{value:,.5g}" if abs(value) < 1e6 else log_number(value)


def log_number(value: float) -> str:
    """1,000 and below in full, then powers of ten."""
    if 0.001 <= value < 10_000:
        return f"{value:,.4g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    digits = value / 10**exponent
    head = "" if abs(digits - 1) < 1e-9 else f"{digits:.3g}·"
    return f"{head}10{str(exponent).translate(_SUPERSCRIPTS)}"


def byte_count(value: float) -> str:
    """Bytes in decimal units, three digits."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size * 0.9995:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"


def _round_step(rough: float) -> float:
    """The step of 1, 2 or 5 times a power of ten next to ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return min((power * m for m in (1, 2, 5, 10)), key=lambda step: abs(step - rough))


def _log_marks(low: float, high: float) -> list[float]:
    """Three to six round values inside the axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for heads in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        marks = [h * 10.0**d for d in decades for h in heads if low <= h * 10.0**d <= high]
        if len(marks) >= 3:
            break
    keep = math.ceil(len(marks) / 6)
    return marks[::keep]
