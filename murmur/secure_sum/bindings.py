"""What binds keys, shares and signatures to one secure sum, the same for client and server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from murmur.secure_sum.keys import agree, derive
from murmur.secure_sum.messages import join_ids
from murmur.secure_sum.terms import Terms, context


@dataclass(frozen=True)
class Party:
    """A client ``id`` and what it has advertised, as it travelled."""

    id: int
    advertised: bytes


def box_key(private: bytes, public: bytes, terms: Terms, sender: Party, receiver: Party) -> bytes:
    """The key of the one message that ``sender`` seals for ``receiver``."""
    return derive(agree(private, public), context(terms, "box", *_pair(sender, receiver)))


def mask_key(
    private: bytes,
    public: bytes,
    terms: Terms,
    one: Party,
    other: Party,
    asked: bytes,
    included: Sequence[int],
) -> bytes:
    """The key of the mask that two clients share, the same for both.

    ``asked``: digest of what the sum's clients were asked; ``included``: whose masks are in it.
    Clients that were told other things derive other keys, and their masks do not cancel.
    """
    low, high = sorted((one, other), key=lambda party: party.id)
    told = asked, join_ids(included, terms.clients)
    about = context(terms, "pairwise mask", *_pair(low, high), *told)
    return derive(agree(private, public), about)


def self_mask_key(seed: bytes, terms: Terms, client: Party) -> bytes:
    """The key of the mask that only ``client`` adds."""
    return derive(seed, context(terms, "self mask", client.id, client.advertised))


def about_dealing(terms: Terms, dealer: Party) -> bytes:
    """What binds a dealer's shares to one sum."""
    return context(terms, "sharing", dealer.id, dealer.advertised)


def word_on(
    included: Sequence[int], survivors: Sequence[int], asked: bytes, terms: Terms, signer: Party
) -> bytes:
    """What ``signer`` signs in CONFIRM."""
    lists = (join_ids(ids, terms.clients) for ids in (included, survivors))
    return context(terms, "survivors", signer.id, signer.advertised, asked, *lists)


def _pair(one: Party, other: Party) -> tuple[int, bytes, int, bytes]:
    return one.id, one.advertised, other.id, other.advertised
