"""Identifies clients that lied in secure sums: by proof, or by elimination.

Some lies are proven within their sum (``SecureServer.accused``). A masked vector that makes the
sum impossible is not: any of the sum's clients may have sent it. With the cohort in groups, drawn
anew each round, such sums overlap in few. And where a dealer's shares did not reach a holder, one
of the two has lied. This is group testing with a bound: if at most ``most`` of the federation's
clients lie, whoever is in every set of so few clients that would explain all impossible sums and
all such pairs is one of them. That is logic, not chance; it rests on the bound.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from murmur.secure_sum.contradictions import Contradictions

DEDUCED = (
    "no few other clients explain all the sums that were impossible, and shares that did not arrive"
)


class Blame:
    """``accused``: for the rest of the run, with reasons. ``spoiled``: sets with a liar in each.

    ``most``: how many clients of the federation may lie. However many do, so many at most are named
    without a proof. ``contradictions``: for which somebody was left out, not named.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.accused: dict[int, str] = {}
        self.spoiled: list[tuple[int, ...]] = []
        self.contradictions = Contradictions()

    def add(self, accused: Mapping[int, str], spoiled: Iterable[Sequence[int]]) -> dict[int, str]:
        """Take up what a round has shown; who is named for the first time, and why.

        ``spoiled``: in each of these sets of clients is a liar.
        """
        found = {c: why for c, why in accused.items() if c not in self.accused}
        self.accused |= found
        sets = [*self.spoiled, *(tuple(sorted(clients)) for clients in spoiled)]
        self.spoiled = list(dict.fromkeys(sets))
        while named := self._deduced():
            found |= named
            self.accused |= named
        return found

    def state(self) -> dict[str, NDArray]:
        """For a checkpoint."""
        plain = {
            "accused": self.accused,
            "spoiled": self.spoiled,
            "contradictions": sorted(self.contradictions.pairs),
        }
        return {"blame": np.frombuffer(json.dumps(plain).encode(), np.uint8)}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        plain = json.loads(state["blame"].tobytes())
        self.accused = {int(client): why for client, why in plain["accused"].items()}
        self.spoiled = [tuple(clients) for clients in plain["spoiled"]]
        pairs = plain.get("contradictions", ())  # which earlier versions did not keep
        self.contradictions = Contradictions((one, other) for one, other in pairs)

    def _deduced(self) -> dict[int, str]:
        """Those without whom the impossible sums need more liars than there may be."""
        # A failed sum that contains a known liar needs no further explanation.
        self.spoiled = [each for each in self.spoiled if not self.accused.keys() & set(each)]
        left = self.most - len(self.accused)
        if left < 1 or fewest_liars(self.spoiled) > left:
            return {}  # more have lied than may: nothing follows
        pairs = [each for each in self.spoiled if len(each) == 2]
        often = Counter(client for pair in pairs for client in pair)
        if caught := [client for client, count in sorted(often.items()) if count > left]:
            return dict.fromkeys(caught, DEDUCED)  # else all of its counterparts lie
        suspects = set().union(*self.spoiled)
        guilty = [c for c in sorted(suspects) if fewest_liars(self.spoiled, c) > left]
        return dict.fromkeys(guilty, DEDUCED)


def fewest_liars(sums: Sequence[Sequence[int]], honest: int | None = None) -> float:
    """The size of the smallest set with somebody of each of ``sums``, and without ``honest``.

    Infinity where there is none.
    """
    if not sums:
        return 0
    clients = sorted(set().union(*sums) - {honest})
    if not clients:
        return np.inf
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to load, and seldom needed

    incidence = np.array([[client in each for client in clients] for each in sums], float)
    found = milp(
        np.ones(len(clients)),
        integrality=np.ones(len(clients)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(incidence, lb=1),
    )
    if found.success:
        return round(found.fun)
    return np.inf
