"""What binds keys, shares and signatures to one secure sum, the same for client and server."""

from __future__ import annotations

from collections.abc import Sequence

from privacy.secure_aggregation.keys import agree, derive
from privacy.secure_aggregation.messages import join_ids
from privacy.secure_aggregation.terms import Terms


def mask_key(private: bytes, public: bytes, terms: Terms, one: int, other: int) -> bytes:
    """The key of the mask that two clients share, the same for both."""
    low, high = min(one, other), max(one, other)
    return derive(agree(private, public), terms.digest(), b"pairwise mask", low, high)


def self_mask_key(seed: bytes, terms: Terms, client: int) -> bytes:
    """The key of the mask that only ``client`` adds."""
    return derive(seed, terms.digest(), b"self mask", client)


def about_dealing(terms: Terms, dealer: int) -> bytes:
    """What binds a dealer's shares to one sum."""
    return terms.digest() + dealer.to_bytes(8, "big")


def word_on(included: Sequence[int], survivors: Sequence[int], terms: Terms) -> tuple[bytes, ...]:
    """What a client signs in CONFIRM."""
    lists = (join_ids(ids, terms.clients) for ids in (included, survivors))
    return (terms.digest(), b"survivors", *lists)
