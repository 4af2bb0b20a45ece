"""Secure aggregation: the server learns the sum of integer vectors and nothing about any of them.

``SecureClient`` and ``SecureServer`` are the two ends, six phases each; ``Terms`` is what they
agree on, ``SecureSumSettings`` what a user sets, ``OwnerRules`` what a device's owner asks of
every sum, ``SumStates`` clients' memory between phases, ``identity_in`` a device's own key.
See ``docs/secure-aggregation.md`` for the protocol, what it protects from, and what not.
"""

from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.identity import (
    AnyPeers,
    Peers,
    PinnedKeys,
    PinnedPeers,
    SeenPeers,
    identity_in,
    identity_of,
    public_identity,
    read_peers,
)
from murmur.secure_sum.messages import Phase
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.settings import OwnerRules, SecureSumSettings
from murmur.secure_sum.store import STATES, SumStates
from murmur.secure_sum.terms import SecureSumError, Terms, release_digest

__all__ = [
    "STATES",
    "AnyPeers",
    "OwnerRules",
    "Peers",
    "Phase",
    "PinnedKeys",
    "PinnedPeers",
    "SecureClient",
    "SecureServer",
    "SecureSumError",
    "SecureSumSettings",
    "SeenPeers",
    "SumStates",
    "Terms",
    "identity_in",
    "identity_of",
    "public_identity",
    "read_peers",
    "release_digest",
]
