"""Murmur's protection in anybody's Flower app: three lines, and the rest of the app stays.

``private`` wraps the server's strategy; ``ClientApp`` stands in the client's file in place of
Flower's. Each is imported when it is asked for: a client needs nothing of the server's half.

    # server_app.py
    strategy = private(FedAvg(), epsilon=8, delta=1e-5, clip=1.0)
    # client_app.py
    from murmur.flower import ClientApp

``ask`` holds what both halves agree on, ``client`` and ``server`` a half each. The protection is
client-level differential privacy against a server that sees sums only; what that assumes stands in
the run's privacy statement, which ``server`` writes.
"""

import importlib
from typing import Any

_HOME = {"private": "murmur.flower.server", "ClientApp": "murmur.flower.client"}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import the half that is asked for, and no more.

    Python calls it for ``from murmur.flower import private`` and for attributes. AttributeError for
    any name but those of ``__all__``.
    """
    if name not in _HOME:
        raise AttributeError(f"module 'murmur.flower' has no attribute {name!r}; it has {__all__}")
    return getattr(importlib.import_module(_HOME[name]), name)
