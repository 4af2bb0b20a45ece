"""Murmur's protection in anybody's Flower app: three lines, and the rest of the app stays.

``private`` wraps the server's strategy; ``ClientApp`` stands in the client's file in place of
Flower's. Each is imported when it is asked for: a client needs nothing of the server's half.
"""

import importlib
from typing import Any

_HOME = {"private": "murmur.flower.server", "ClientApp": "murmur.flower.client"}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import the half that is asked for, and no more."""
    if name not in _HOME:
        raise AttributeError(f"module 'murmur.flower' has no attribute {name!r}; it has {__all__}")
    return getattr(importlib.import_module(_HOME[name]), name)
