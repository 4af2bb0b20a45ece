"""KD-DPFL's budget: how a total ε is shared by labelling and the federated stage.

A general client is exposed by its own uploads (ε_g). A large client is exposed by the
pseudo-labels (ε_label) and, in the reading of the abstract, by the uploads of the special
client that trains on them (ε_s = r·ε_g). Clients are disjoint: parallel, the maximum counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from murmur.common import require_positive


@dataclass(frozen=True)
class Budget:
    """Who may spend what. ``total`` = max(max ``general``, ``large``).

    ``label``: for the pseudo-labels; ``special``: for the special client's uploads (0: they
    are post-processing and need no noise); ``large``: what a large client's record costs in
    all; ``general``: each general client's.
    """

    total: float
    general: tuple[float, ...]
    label: float
    special: float
    large: float


def conservative(
    total: float, general: Sequence[float], ratio: float, joining: float = 0.0
) -> Budget:
    """The abstract's reading: ε_s = ``ratio``·max ε_g and ε_label = ε_total − ε_s − joining.

    ``joining``: ε_g of a large client that also takes part in the federated stage (0: none
    does). Raises ValueError where nothing is left for the labels.
    """
    worst = _worst(total, general, joining)
    if not ratio >= 1:
        raise ValueError(f"ratio={ratio}: must be at least 1 (above 1 to favour the labels)")
    special = ratio * worst
    label = total - special - joining
    if label <= 0:
        raise ValueError(
            f"total={total}: leaves {label:g} for the labels after the special client's "
            f"{special:g} and {joining:g} for joining; must exceed {special + joining:g}: raise "
            "the total, or lower the general clients' budget or the ratio"
        )
    return Budget(total, tuple(general), label, special, label + special + joining)


def tight(total: float, general: Sequence[float], joining: float = 0.0) -> Budget:
    """What is provable: training on private labels is post-processing, so ε_s = 0.

    The labels may have all of ``total``, less what a large client spends by ``joining``.
    """
    _worst(total, general, joining)
    label = total - joining
    if label <= 0:
        raise ValueError(f"total={total}: must exceed joining={joining:g}")
    return Budget(total, tuple(general), label, 0.0, label + joining)


def _worst(total: float, general: Sequence[float], joining: float) -> float:
    require_positive("total", total)
    if joining < 0:
        raise ValueError(f"joining={joining}: must be at least 0")
    if not general or not min(general) > 0:
        raise ValueError(f"general={list(general)}: needs budgets above 0")
    if max(general) > total:
        raise ValueError(f"general={list(general)}: none may exceed the total {total:g}")
    return max(general)
