"""Probabilities as integers over a power of two, with rounding as the only error.

A double carries 53 bits, so a threshold computed with it is off by up to 2⁻⁵⁴, and by far more
in relative terms where the probability is small. The thresholds are therefore computed with 60
decimal digits (199 bits), once, when a mechanism is constructed.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction

ONE = 1 << 64
"""The integer that stands for probability 1."""

# Exponents of any size the arguments can produce; tiny results round up to one unit anyway.
CONTEXT = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def exp_neg(x: float | Fraction | Decimal) -> Decimal:
    """e⁻ˣ to 60 digits, for x ≥ 0."""
    return CONTEXT.exp(-to_decimal(x))


def to_decimal(x: float | Fraction | Decimal) -> Decimal:
    """``x`` to 60 digits; a float counts as the binary number that it is."""
    if isinstance(x, Fraction):
        return CONTEXT.divide(Decimal(x.numerator), Decimal(x.denominator))
    return CONTEXT.create_decimal(x)


def round_up(probability: Decimal, bits: int = 64) -> int:
    """The smallest integer number of 2⁻ᵇⁱᵗˢ units that is not below ``probability``."""
    return _scaled(probability, bits, decimal.ROUND_CEILING)


def round_down(probability: Decimal, bits: int = 64) -> int:
    """The largest integer number of 2⁻ᵇⁱᵗˢ units that is not above ``probability``."""
    return _scaled(probability, bits, decimal.ROUND_FLOOR)


def _scaled(probability: Decimal, bits: int, rounding: str) -> int:
    return int(CONTEXT.multiply(probability, Decimal(1 << bits)).to_integral_value(rounding))


def log_ratio(numerator: int, denominator: int) -> float:
    """ln(numerator / denominator) of positive integers, to double precision."""
    if numerator == denominator:
        return 0.0
    # log1p keeps the digits of a ratio near one, which a difference of logarithms loses.
    excess = Fraction(numerator - denominator, denominator)
    return math.log1p(excess) if abs(excess) < 1 else math.log(numerator) - math.log(denominator)
