"""Settings of the protected evaluation that both of its halves share, and what ε would be useful.

``ResultSettings`` turns what a user writes (mechanism, ε, unit) into the protection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from murmur.common import require_positive, require_probability
from murmur.papers.protected_results.result import (
    ChosenLabel,
    LabelResponse,
    LaplaceResult,
    SplitResult,
)
from murmur.papers.protected_results.rows import ProtectedResult
from murmur.privacy.events import Adjacency, Release, Unit

PRIVACY = ("none", "laplace", "krr", "exponential", "permute_and_flip", "split")
UNITS = ("client", "record")


@dataclass(frozen=True)
class ResultSettings:
    """How a vector is protected.

    Attributes:
        privacy: one of ``PRIVACY``; ``none`` uploads nothing.
        epsilon: ε of one release.
        unit: ``client`` (Δ = 2) or ``record`` (Δ = 2/``records``).
        records: the fewest records behind a vector, a public number; a client with fewer
            refuses. For ``unit=record`` only.
        label_share: how much of ε ``split`` spends on the label.
        seed_compat: noise for Δ = 1, as in the document; only with laplace and clients.
    """

    privacy: str
    epsilon: float
    unit: str = "client"
    records: int | None = None
    label_share: float = 0.5
    seed_compat: bool = False

    def __post_init__(self) -> None:
        if self.privacy not in PRIVACY:
            raise ValueError(f"privacy={self.privacy}: must be one of {', '.join(PRIVACY)}")
        if self.unit not in UNITS:
            raise ValueError(f"unit={self.unit}: must be one of {', '.join(UNITS)}")
        if self.unit == "record" and (self.records is None or self.records < 1):
            raise ValueError(
                f"records={self.records}: unit=record needs a public number of at least 1"
            )
        if self.seed_compat and self.privacy != "laplace":
            raise ValueError(
                f"seed_compat=true: the document's noise is Laplace's, not privacy={self.privacy}"
            )
        require_positive("epsilon", self.epsilon)
        require_probability("label_share", self.label_share)

    @classmethod
    def of(cls, settings: Mapping[str, Any], client_sizes: Sequence[int] | None) -> ResultSettings:
        """From ``settings``, with the least of public ``client_sizes`` for records where unset."""
        filled = dict(settings)
        if filled.get("unit") == "record" and filled.get("records") is None and client_sizes:
            filled["records"] = min(client_sizes)
        return cls(**filled)

    @property
    def change(self) -> float:
        """Δ: the L1 sensitivity of a vector."""
        return 2.0 if self.unit == "client" or self.records is None else 2.0 / self.records

    def release(self, categories: int) -> Release:
        """What one vector of ``categories`` entries costs."""
        event = self.protection(categories).event()
        return Release(event, Unit(self.unit), Adjacency.REPLACE_ONE)

    @property
    def is_on(self) -> bool:
        """Whether anything is sent."""
        return self.privacy != "none"

    def protection(self, categories: int) -> ProtectedResult:
        """The protection of vectors of ``categories`` entries; ValueError for ``none``."""
        match self.privacy:
            case "laplace":
                return LaplaceResult(self.epsilon, categories, self.change, self.seed_compat)
            case "krr":
                return LabelResponse(self.epsilon, categories)
            case "exponential" | "permute_and_flip":
                permute = self.privacy == "permute_and_flip"
                return ChosenLabel(self.epsilon, categories, self.change, permute)
            case "split":
                return SplitResult.of(self.epsilon, categories, self.change, self.label_share)
        raise ValueError("privacy=none: uploads nothing, so there is no protection to ask for")


def epsilon_for_error(error: float, probability: float, sensitivity: float = 2.0) -> float:
    """The ε at which Laplace noise stays within ±``error`` with ``probability``, entry by entry.

    Δ · ln(1/(1−p)) / a, the document's rule. A setting of utility: nothing in it asks whether
    the ε that comes out protects anybody.
    """
    require_positive("error", error)
    require_probability("probability", probability)
    require_positive("sensitivity", sensitivity)
    return sensitivity * -math.log1p(-probability) / error
