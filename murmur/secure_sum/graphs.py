"""What thresholds and rings must hold: against whom a sum's graph keeps its clients' secrets.

A ring joins each client with the k/2 next ones on both sides, in an order drawn by lot (Bell et
al., CCS 2020). What its clients cannot see of each other is left to chance, which is computed here:
c* is the most colluders among any one client's neighbours, d* the most dropouts, each but for a
probability 2^-a over all clients. Tails of the hypergeometric distribution, exact in log space.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Server = Literal["honest", "lying"]
HONEST: Server = "honest"  # a server that follows the protocol
LYING: Server = "lying"  # one that does not
SERVERS = (HONEST, LYING)
# A server that lies may try 2^64 names for a ring until one suits it.
PRIVACY_BITS = {HONEST: 40, LYING: 104}
AVAILABILITY_BITS = 40


@lru_cache(maxsize=1024)
def most_marked(clients: int, marked: int, neighbours: int, bits: int) -> int:
    """The least x with clients · P[Hyp(clients − 1, marked, neighbours) > x] ≤ 2^-bits.

    How many of the ``marked`` clients any one client can have among its ``neighbours``, but for
    that probability: c* where colluders are marked, d* where dropouts are.
    """
    others = clients - 1
    least = max(0, neighbours - (others - marked))
    counts = np.arange(least, min(marked, neighbours) + 1)
    logs = _log_choose(marked, counts) + _log_choose(others - marked, neighbours - counts)
    logs -= _log_choose(others, [neighbours])
    allowed = -bits * math.log(2) - math.log(clients)
    above = np.logaddexp.accumulate(logs[::-1])[::-1]  # log P[at least the count at hand]
    too_likely = counts[above > allowed]
    if not len(too_likely):
        return max(least - 1, 0)
    return int(too_likely[-1])


def gap_log2(clients: int, missing: int, neighbours: int) -> float:
    """log2 of a bound on: somewhere k/2 in a row are all among the ``missing``."""
    row = np.arange(neighbours // 2)
    if missing < len(row):
        return -math.inf
    return float(math.log2(clients) + np.log2((missing - row) / (clients - row)).sum())


def least_threshold(
    server: Server, clients: int, neighbours: int, colluders: int, bits: int
) -> int:
    """The least threshold of a ring that ``server`` with ``colluders`` cannot get around.

    ``bits``: the probability that it fails is at most 2^-bits. For a server that follows the
    protocol more shares are needed than colluders can hold. Against one that lies:

    * two lists about one client, with t signers each, share an honest signer: 2t > k + 1 + c*
    * no gap in the ring can be unmasked at its edge: t ≥ k/2 + 2 + c*
    * there is one list for the whole ring: 3t ≥ 2(k + 1 + c*) + 2
    """
    among = most_marked(clients, colluders, neighbours, bits)
    if server == HONEST:
        return among + 1
    one_word = (neighbours + 1 + among) // 2 + 1
    no_gap = neighbours // 2 + 2 + among
    one_list = math.ceil((2 * (neighbours + 1 + among) + 2) / 3)
    return max(one_word, no_gap, one_list)


@lru_cache(maxsize=256)
def ring_for(
    server: Server,
    clients: int,
    colluders: int,
    dropouts: int,
    bits: int | None = None,
    available: int = AVAILABILITY_BITS,
) -> tuple[int, int] | None:
    """The least even k, and a threshold, of a ring that is safe and stays available.

    Args:
        server: against whom it must be safe, HONEST or LYING.
        clients: in the ring.
        colluders: how many of them side with the server.
        dropouts: how many of them may fall silent.
        bits: it fails to protect with probability 2^-bits at most; None for what ``server`` asks.
        available: with probability 2^-available at most somebody's share holders become too few.

    Returns:
        k and t; None where no ring of these clients will do.
    """
    if bits is None:
        bits = PRIVACY_BITS[server]
    missing = min(clients, colluders + dropouts)
    for neighbours in range(2, clients - 1, 2):
        if server == HONEST and gap_log2(clients, missing, neighbours) > -bits:
            continue
        least = least_threshold(server, clients, neighbours, colluders, bits)
        greatest = neighbours - most_marked(clients, dropouts, neighbours, available)
        if least > greatest:
            continue
        if server == HONEST:
            return neighbours, (least + greatest) // 2
        return neighbours, least
    return None


def _log_choose(many: int, some: Iterable[int]) -> NDArray[np.float64]:
    """Ln of the binomial coefficients of ``many`` over each of ``some``."""
    whole = math.lgamma(many + 1)
    found = [whole - math.lgamma(count + 1) - math.lgamma(many - count + 1) for count in some]
    return np.array(found)
