"""Who is left out where one client denies what another claims, and nothing shows which is right.

A client may not accept another's long-term key, or say that it holds no share of another's secrets.
A sum goes on without one of the two. Such a pair has a client in it that is at *fault*: it lies, or
it shows another key than before. So whoever is at fault covers all pairs.

**At most as many others are left out as are at fault**, over all sums of a run. Let F be those at
fault in a sum, H all others; no pair lies within H. ``Contradictions`` takes a least fractional
cover of all pairs so far, x_u + x_v ≥ 1 with Σ x least, whose vertices have entries 0, ½ and 1
only (Nemhauser and Trotter 1975), and leaves out who has ½ or more and is in a pair of this sum.

* Those of H with x = 1 can be matched with different ones of F with x = 0: by Hall's theorem, for
  else some of them could be lowered to ½, and their fewer neighbours with x = 0 raised to ½.
* Those of H with x = ½ likewise with ones of F with x = ½.
* Those of H that an earlier cover had, and that have x = 0 now, have neighbours only that have
  x = 1 or are proven liars by now, and were matched with some of these before.

So there is always a matching of all of H that were ever left out with different ones of F.
"""

from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np

Contradiction = tuple[int, int]  # a client, and another of whom it denies something


class Contradictions:
    """All pairs of a run so far, by ``(client, other)``: ``client`` denies what ``other`` claims.

    Attributes:
        pairs: each once.
    """

    def __init__(self, pairs: Iterable[Contradiction] = ()) -> None:
        self.pairs: set[Contradiction] = set(pairs)

    def left_out(self, pairs: Collection[Contradiction], accused: Collection[int] = ()) -> set[int]:
        """Without whom nobody of the sum's ``pairs`` is beside whom it contradicts.

        ``accused``: proven liars, whose pairs say nothing of others. Of a single pair it is who
        denies, or one liar could keep out whom it likes.
        """
        self.pairs |= set(pairs)
        known = set(accused)
        open_pairs = sorted(pair for pair in self.pairs if not known.intersection(pair))
        cover = _cover(open_pairs) | known
        return cover.intersection(client for pair in pairs for client in pair)


def _cover(pairs: Collection[Contradiction]) -> set[int]:
    """Who has ½ or more in a least fractional cover of ``pairs``.

    Of covers that are as small it is one of those who deny most: whoever does costs less, but by so
    little that all of it together is below ½.
    """
    if not pairs:
        return set()
    from scipy.optimize import linprog  # slow to load, and seldom needed
    from scipy.sparse import coo_array

    clients = sorted({client for pair in pairs for client in pair})
    place = {client: at for at, client in enumerate(clients)}
    edges = sorted({(min(pair), max(pair)) for pair in pairs})
    rows = np.repeat(np.arange(len(edges)), 2)
    columns = [place[client] for edge in edges for client in edge]
    incidence = coo_array((np.ones(len(rows)), (rows, columns)), (len(edges), len(clients)))
    denials = Counter(client for client, _ in pairs)
    cost = [2 * len(pairs) + 1 - denials[client] for client in clients]
    found = linprog(
        cost, A_ub=-incidence.tocsr(), b_ub=-np.ones(len(edges)), bounds=(0, 1), method="highs-ds"
    )
    return {client for client, share in zip(clients, found.x, strict=True) if share > 0.25}
