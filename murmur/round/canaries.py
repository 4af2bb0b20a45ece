"""What a strategy lets an audit's canary clients do in a simulation (``fl_app.audit.canaries``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import Sum
from murmur.privacy.statement import Exposure


class Canaries(Protocol):
    """Clients without data, which take part in every round that counts."""

    def join(
        self,
        number: int,
        model: NDArray[np.float32],
        arrays: Mapping[str, NDArray],
        settings: Mapping[str, int],
        total: Sum,
    ) -> None:
        """Add the canaries' releases of round ``number`` to ``total``, which has all others'."""

    def look(self, mean: NDArray[np.float64]) -> None:
        """See what a trusted server publishes of the sum, (d,)."""

    def state(self) -> dict[str, NDArray]:
        """What a checkpoint must hold."""

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up what ``state`` returned."""

    def compose(self, exposures: Sequence[Exposure]) -> list[Exposure]:
        """``exposures`` with what was measured."""
