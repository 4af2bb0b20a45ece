"""Amplification by shuffling: reports of a cohort, seen without their senders.

Clones (Feldman, McMillan, Talwar 2021, theorem 3.2): each of the n − 1 other honest reports
is, with probability w, drawn from one of the two neighbours' own distributions by a fair coin.
Everything else is given to the adversary, who then sees how many of the c clones and the
report in question say "0". For k-ary randomised response w = 2/(e^{ε0}+C−1), and the report
says neither with probability (C−2)/(e^{ε0}+C−1); for any ε0-DP report w = e^{−ε0}.

Needs a shuffler that does not collude with the server, reports without identifiers, and n − 1
others who do add their noise. The ε is against who sees the shuffled reports only.
dp-accounting has no shuffling.
"""

from __future__ import annotations

import math

import numpy as np

from murmur.privacy.accounting.binomial import probabilities
from murmur.privacy.accounting.lattice import LatticeLoss
from murmur.privacy.accounting.randomized_response import report_probabilities
from murmur.privacy.events import Event, RandomizedResponseEvent

# More clones only help, so a larger cohort may be accounted as this one.
_MOST_CLIENTS = 4096
# Numbers of clones less likely than this are counted at the full ε.
_NEGLIGIBLE = 1e-30
_BELOW_ONE = 1 - 2.0**-53


def loss(event: Event, epsilon: float, honest_clients: int) -> LatticeLoss:
    """Privacy loss of one shuffled report, ``event`` with pure ``epsilon``.

    Rounded up to a lattice; never above ``epsilon``.
    """
    if isinstance(event, RandomizedResponseEvent):
        true, other = report_probabilities(epsilon, event.categories)
        clone, says_either = 2 * other, min(1.0, true + other)
    else:
        clone, says_either = math.exp(-epsilon), 1.0
    others = min(honest_clients, _MOST_CLIENTS) - 1
    keep = 1 / (1 + math.exp(-epsilon))
    losses, masses = [np.zeros(1)], [np.array([1 - says_either])]
    for clones, chance in enumerate(
        probabilities(others, min(max(clone, _NEGLIGIBLE), _BELOW_ONE))
    ):
        if chance < _NEGLIGIBLE:
            losses.append(np.array([epsilon]))
            masses.append(np.array([says_either * chance]))
            continue
        zeros = np.arange(clones + 2, dtype=np.float64)
        rest = clones + 1 - zeros
        coins = probabilities(clones, 0.5)
        mass = keep * np.append(0, coins) + (1 - keep) * np.append(coins, 0)
        # (e^ε z + c+1−z) / (z + e^ε (c+1−z)), both divided by e^ε
        shrunk = math.exp(-epsilon)
        losses.append(np.log((zeros + shrunk * rest) / (shrunk * zeros + rest)))
        masses.append(says_either * chance * mass)
    all_losses, all_masses = np.concatenate(losses), np.concatenate(masses)
    deviation = math.sqrt(float(all_masses @ all_losses**2))
    cells = math.ceil(min(max(512.0, 256 * epsilon / deviation), 2.0**16))
    return LatticeLoss.of(all_losses, all_masses, epsilon / cells)
