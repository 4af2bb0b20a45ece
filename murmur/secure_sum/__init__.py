"""Secure aggregation: the server learns the sum of integer vectors and nothing about any of them.

``client.SecureClient`` and ``server.SecureServer`` are the two ends, six phases each;
``terms.SumTerms`` is what they agree on, ``settings.SecureSumSettings`` what a user sets,
``settings.OwnerRules`` what a device's owner asks of every sum, ``store.SumStates`` clients' memory
between phases, ``identity.identity_in`` a device's own key.
See ``docs/secure-aggregation.md`` for the protocol, what it protects from, and what not.
"""

from murmur.secure_sum.client import SecureClient
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.settings import SecureSumSettings

__all__ = ["SecureClient", "SecureServer", "SecureSumSettings"]
