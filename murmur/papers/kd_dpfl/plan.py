"""KD-DPFL's plan: who gets which ε, from a total, the clients' needs and the grouping.

The arithmetic is ``murmur.papers.kd_dpfl.budget``; here it meets clients. Units: one record,
nulled or not. A general client is exposed by its own uploads (ε_g); a large one by the labels
(ε_label), in the abstract's reading also by the special client's uploads (ε_s = r·ε_g), and by
its own uploads where it joins the federated stage. Every part is calibrated at the run's δ; what
a path costs as a whole is composed from its events and converted once, at the same δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from murmur.papers.kd_dpfl import budget as shares

MODES = ("conservative", "tight")
RULES = ("equal", "by_size")


@dataclass(frozen=True)
class Needs:
    """What the parties ask for.

    ``mode``: ``conservative`` (the abstract's reading) or ``tight`` (labels once private, what
    is trained on them is post-processing). ``general_epsilon``: ε_g; a number, or one for each
    client of the federated stage in the order of ids; None for 3/8 of the total (conservative;
    1/4 if large clients join) or all of it (tight; 1/2). ``rule``: ``equal``, or ``by_size``: in
    proportion to sizes, the number being the largest. ``ratio``: r.
    ``joining``: whether large clients join
    the federated stage. ``label_epsilon``: at most what is left for labels; a number, or one for
    each large client; None for all that is left. ``special`` and ``general``: whether there is a
    special client, and whether general clients train; without them, the controls.
    """

    mode: str = "conservative"
    general_epsilon: float | Sequence[float] | None = None
    rule: str = "equal"
    ratio: float = 1.5
    joining: bool = False
    label_epsilon: float | Sequence[float] | None = None
    special: bool = True
    general: bool = True

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}: must be one of {', '.join(MODES)}")
        if self.rule not in RULES:
            raise ValueError(f"rule={self.rule!r}: must be one of {', '.join(RULES)}")
        if not (self.special or self.general):
            raise ValueError("special=False: then general clients must train (general=true)")


@dataclass(frozen=True)
class Plan:
    """Who may spend what; ids to ε. Infinite where nothing is private.

    ``general``: clients of the federated stage, large ones that join it included. ``label``:
    the large clients whose teachers label. ``special``: the special client's ε; 0 if its
    uploads are post-processing and carry no noise.
    """

    total: float
    delta: float
    large: tuple[int, ...]
    general: dict[int, float] = field(default_factory=dict)
    label: dict[int, float] = field(default_factory=dict)
    special: float = 0.0

    def sum_of(self, client: int) -> float:
        """What basic composition charges a client for all its paths, by the plan."""
        labels = self.label.get(client)
        spent = self.general.get(client, 0.0)
        return spent if labels is None else spent + labels + self.special


def make_plan(
    total: float, delta: float, sizes: Sequence[int], large: Sequence[int], needs: Needs
) -> Plan:
    """Share ``total`` by ``needs``; ``sizes`` of all clients by id, ``large`` ids among them.

    Raises:
        ValueError: the needs cannot be met; the message names the term that binds.
    """
    small = [client for client in range(len(sizes)) if client not in set(large)]
    if needs.special and not large:
        raise ValueError(
            "large=[]: no client is large, so nobody teaches; lower grouping.factor, or set "
            "grouping.top_k"
        )
    joined = list(large) if needs.joining else []
    training = sorted(small + joined) if needs.general else []
    if needs.general and not training:
        raise ValueError("general=true: every client is large; raise grouping.factor")
    if math.isinf(total):
        label = dict.fromkeys(large, math.inf) if needs.special else {}
        return Plan(total, delta, tuple(large), dict.fromkeys(training, math.inf), label, 0.0)
    general = _general(total, sizes, training, needs)
    if not needs.special:
        shares.tight(total, list(general.values()))
        return Plan(total, delta, tuple(large), general)
    joining = max((general[client] for client in joined if client in general), default=0.0)
    if needs.mode == "tight" or not needs.general:
        budget = shares.tight(total, list(general.values()) or [total], joining)
    else:
        budget = shares.conservative(total, list(general.values()), needs.ratio, joining)
    label = _label(budget.label, large, needs.label_epsilon)
    return Plan(total, delta, tuple(large), general, label, budget.special)


def _general(
    total: float, sizes: Sequence[int], training: Sequence[int], needs: Needs
) -> dict[int, float]:
    if not training:
        return {}
    asked = needs.general_epsilon
    if asked is None:
        asked = total * _default_share(needs)
    if isinstance(asked, Sequence):
        if len(asked) != len(training):
            raise ValueError(
                f"general_epsilon={list(asked)}: names {len(asked)} budgets for the "
                f"{len(training)} clients of the federated stage; give a number, or one for each"
            )
        return {client: float(each) for client, each in zip(training, asked, strict=True)}
    if needs.rule == "equal":
        return dict.fromkeys(training, float(asked))
    largest = max(sizes[client] for client in training)
    return {client: float(asked) * sizes[client] / largest for client in training}


def _default_share(needs: Needs) -> float:
    """ε_g/ε_total where nobody asks: all of it where no path adds to it."""
    if not needs.special:
        return 1.0
    if needs.mode == "conservative":
        return 1 / 4 if needs.joining else 3 / 8
    return 1 / 2 if needs.joining else 1.0


def _label(
    left: float, large: Sequence[int], asked: float | Sequence[float] | None
) -> dict[int, float]:
    if asked is None:
        return dict.fromkeys(large, left)
    each = list(asked) if isinstance(asked, Sequence) else [float(asked)] * len(large)
    if len(each) != len(large):
        raise ValueError(
            f"label_epsilon={each}: names {len(each)} budgets for {len(large)} large clients; "
            "give a number, or one for each"
        )
    if not min(each) > 0 or max(each) > left:
        raise ValueError(
            f"label_epsilon={each}: must lie above 0 and at most {left:g}, which is what the "
            "total leaves for the labels"
        )
    return {client: float(epsilon) for client, epsilon in zip(large, each, strict=True)}
