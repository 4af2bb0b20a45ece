"""Secure aggregation: the server learns the sum of integer vectors and nothing about any of them.

``SecureClient`` and ``SecureServer`` are the two ends, six phases each; ``Terms`` is what they
agree on, ``SecureSumSettings`` what a user sets, ``OwnerRules`` what a device's owner asks of
every sum, ``StateFile`` a client's memory between phases, ``identity_in`` a device's own key.
See ``docs/secure-aggregation.md`` for the protocol, what it protects from, and what not.
"""

from privacy.secure_aggregation.client import SecureClient
from privacy.secure_aggregation.identity import identity_in, public_identity
from privacy.secure_aggregation.messages import Phase
from privacy.secure_aggregation.owner import OwnerRules
from privacy.secure_aggregation.peers import Peers, PinnedPeers, SeenPeers, read_peers
from privacy.secure_aggregation.release import release_digest
from privacy.secure_aggregation.server import SecureServer
from privacy.secure_aggregation.settings import SecureSumSettings
from privacy.secure_aggregation.store import StateFile
from privacy.secure_aggregation.terms import SecureSumError, Terms

__all__ = [
    "OwnerRules",
    "Peers",
    "Phase",
    "PinnedPeers",
    "SecureClient",
    "SecureServer",
    "SecureSumError",
    "SecureSumSettings",
    "SeenPeers",
    "StateFile",
    "Terms",
    "identity_in",
    "public_identity",
    "read_peers",
    "release_digest",
]
