"""Protections: what bounds and noises the updates that are averaged, and says what that costs.

One object is both halves of it: ``release`` is what leaves a client, ``mean`` what a server makes
of the sum. Whichever of them draws the noise, the object that draws it states the event.
"""

from murmur.privacy.protection.base import Protection, Unprotected
from murmur.privacy.protection.central import Central
from murmur.privacy.protection.distributed import Distributed
from murmur.privacy.protection.matrix import MatrixFactorization

__all__ = ["Central", "Distributed", "MatrixFactorization", "Protection", "Unprotected"]
