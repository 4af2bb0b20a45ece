"""The noise that a model gets in a round, told before anybody is asked."""

import math
import statistics
from collections.abc import Sequence

from murmur.flower.ask import Ask
from murmur.flower.privacy_settings import COLLUDERS, SUMS

LOUD_NOISE = 3.0  # in longest possible mean updates; above it the log warns
MAX_ADVISED_CLIENTS = 10**7


def forecast(ask: Ask, size: int, clients: int) -> tuple[float, str]:
    """Returns the noise on a mean of ``clients`` changes of ``size`` numbers, and what lessens it.

    As a multiple of the longest possible mean change, C: sqrt(d) 2 z r / (C sqrt(h n)), with d =
    ``size``, n = ``clients``, the noise multiplier z, r = ``Ask.radius`` and h honest clients.
    Nothing is released by it: it depends on the settings alone.

    Returns:
        The multiple, and a line for the log. Above three the line also says how many clients, or
        how few numbers, would bring the noise down to that.
    """
    per_number = 2 * ask.noise_multiplier * ask.radius / ask.clip

    def noise(cohort: int) -> float:
        honest = SUMS.least_survivors(cohort) - COLLUDERS
        return per_number * math.sqrt(size / (honest * cohort))

    loud = noise(clients)
    line = (
        f"noise of {loud:.2g} times the longest possible mean update ({clients} clients a round, "
        f"{size} numbers to train)"
    )
    if loud <= LOUD_NOISE:
        return loud, line
    needed = clients
    while needed < MAX_ADVISED_CLIENTS and noise(needed) > LOUD_NOISE:
        needed += max(1, needed // 500)
    numbers = int(size * (LOUD_NOISE / loud) ** 2)
    return loud, (
        f"{line}: above {LOUD_NOISE:g} little is learnt; below would be about {needed} clients a "
        f"round, or {numbers} numbers to train (frozen=[...])"
    )


def compared(ask: Ask, loud: float, lengths: Sequence[float]) -> tuple[bool, str]:
    """Returns whether changes are far shorter than ``Ask.clip``, and a line for the log.

    A look at private data, for simulations alone, and the line says so.

    Args:
        ask: The round's.
        loud: The noise that was foretold, in longest possible mean updates.
        lengths: L2 norms of the clients' changes before clipping.
    """
    median = statistics.median(lengths)
    line = (
        f"a look at private data, as a simulation allows it: changes are {median:.2g} long in the "
        f"median, clip={ask.clip:.2g}"
    )
    if not 0 < median * LOUD_NOISE < ask.clip:
        return False, line
    return True, (
        f"{line}: far shorter, so the noise is {loud * ask.clip / median:.2g} times the longest "
        f"mean update that there is; clip={median:.2g} or clip='adaptive' adds less"
    )
