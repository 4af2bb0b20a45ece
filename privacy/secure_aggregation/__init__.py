"""Secure aggregation: the server learns the sum of integer vectors and nothing about any of them.

``SecureClient`` and ``SecureServer`` are the two ends, five phases each; ``Terms`` is what they
agree on, ``SecureSumSettings`` what a user sets, ``StateFile`` a client's memory between phases.
See ``docs/secure-aggregation.md`` for the protocol, what it protects from, and what not.
"""

from privacy.secure_aggregation.client import SecureClient
from privacy.secure_aggregation.messages import Phase
from privacy.secure_aggregation.server import SecureServer
from privacy.secure_aggregation.settings import SecureSumSettings
from privacy.secure_aggregation.store import StateFile
from privacy.secure_aggregation.terms import SecureSumError, Terms

__all__ = [
    "Phase",
    "SecureClient",
    "SecureServer",
    "SecureSumError",
    "SecureSumSettings",
    "StateFile",
    "Terms",
]
