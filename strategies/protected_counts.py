"""Protected evaluation of supervised models, the server: accuracy from noisy counts.

Every client answers with its right and wrong predictions, each count under integer noise
(``murmur.papers.protected_results.counts``), Gaussian noise also under secure sums; the accuracy is
Σ right / Σ (right + wrong).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from murmur.learning.codec import Codec, GridCodec, Integers
from murmur.papers.protected_results import ProtectedCounts
from murmur.privacy.accounting import Unit
from murmur.privacy.events import Event
from murmur.round.client_evaluation import CLEAN, ClientEvaluation
from murmur.round.setup import ServerSetup


class ProtectedAccuracy(ClientEvaluation):
    """The server half. See ``conf/evaluation/protected_counts.yaml`` for every knob.

    Its ε stands beside the run's budget and is composed into the same statement. With Gaussian
    noise clients add their shares to a sum; with Laplace noise each row is private by itself.

    Parameters
    ----------
    setup : ServerSetup
        Of the run; who shares the noise of a sum follows from its budget.
    clients, every, show_clean : int, int, bool
        How many are asked, in which rounds, and whether simulated clients also send the true
        counts.
    counts : mapping
        The fields of ``ProtectedCounts``; ValueError where they are out of range.
    """

    name = "protected evaluation (accuracy)"
    is_on = True

    def __init__(
        self,
        setup: ServerSetup,
        *,
        clients: int,
        every: int,
        show_clean: bool,
        counts: Mapping[str, Any],
    ) -> None:
        self.counts = ProtectedCounts.of(counts, setup.budget)
        self.summed, self.row = self.counts.is_summed, self.counts.codec
        super().__init__(setup, clients=clients, every=every, show_clean=show_clean)
        self.unit = Unit(self.counts.unit)

    def codec(self, purpose: str) -> Codec:
        """Two counts, right and wrong; whole numbers where they are clean."""
        return GridCodec(2) if purpose == CLEAN else self.row

    def event(self) -> Event:
        """One release of both counts, by one client's own noise."""
        return self.counts.event()

    def score(
        self, number: int, rows: Integers, clean: tuple[Integers, Integers] | None
    ) -> dict[str, float]:
        """The accuracy, its standard error through the noise, and in simulations the true one.

        The estimate is cut to [0, 1], and left out where noise makes the total 0 or less. The error
        is that of the noise alone, to first order: that clients are a sample is not in it.
        """
        right, wrong = (float(count) for count in self.row.mean(rows.sum(axis=0), 1))
        total = right + wrong
        scores: dict[str, float] = {}
        if total > 0:
            accuracy = float(np.clip(right / total, 0, 1))
            # Of right/(right + wrong) to first order; each sum has n times the noise's variance.
            spread = math.hypot(1 - accuracy, accuracy) / total
            scores["protected_accuracy"] = accuracy
            scores["protected_accuracy_error"] = self.counts.deviation(self.answered) * spread
        if clean is not None:
            truth = clean[1].sum(axis=0)
            scores["clean_accuracy"] = float(truth[0] / truth.sum())
        return scores
