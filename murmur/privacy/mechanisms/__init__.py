"""Mechanisms: frozen values that privatise data and say, as an event, what they did.

``privatize(x, rng)`` returns a private copy of ``x``, ``event()`` what accounting needs to know.
Noise is discrete throughout: floating-point noise on floating-point data reveals low bits of it.
"""
