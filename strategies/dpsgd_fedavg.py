"""Federated averaging over clients that train by DP-SGD, the server: the mean by size.

The usual way to protect records in a federation, and KD-DPFL's competitor ("DP-SGD over all
clients"). See ``clients.dpsgd_fedavg``. Sizes are public: they are the weights and set the lots'
sampling rates, so neighbours differ by one record nulled, which costs what one record less does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import Integers, WeightCodec
from murmur.learning.training.dpsgd import SENSITIVITY
from murmur.privacy.accounting import Adjacency, Threat, Unit, epsilon
from murmur.privacy.events import ComposedEvent, Event, NonPrivateEvent, RepeatedEvent
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from murmur.privacy.statement import Exposure
from murmur.round.setup import ServerSetup
from strategies.base import CohortStrategy, Parameters


class DpSgdFedAvg(CohortStrategy):
    """w ← Σ n_i w_i / Σ n_i over clients with budgets of their own.

    ``local``: ``epochs`` and ``lot_size`` of the clients' DP-SGD, for the statement.
    """

    algorithm = "federated averaging with DP-SGD on every client"
    unit = Unit.RECORD
    adjacency = Adjacency.REPLACE_SPECIAL
    weighted = True
    claim = "every client's uploads together are (ε, δ)-differentially private for its records"

    def __init__(self, setup: ServerSetup, *, local: Mapping[str, Any]) -> None:
        super().__init__(setup)
        if setup.client_sizes is None:
            raise ValueError("client_sizes=None: sizes must be public, they set the sampling rates")
        self.sizes = setup.client_sizes
        releases = setup.budget.releases
        self.schedule = LotSchedule(local["lot_size"], local["epochs"], SENSITIVITY, releases)

    def client_epsilon(self, client: int) -> float:
        """The ε that a client may spend on its uploads."""
        return self.setup.budget.epsilon

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """The model is all that a client needs."""
        return {}, {}

    def codec(self) -> WeightCodec:
        """All parameters (d,)."""
        return WeightCodec(self.trainer.num_parameters)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The weighted mean."""
        return self.codec().mean(total, weight).astype(np.float32)

    # Privacy --------------------------------------------------------------------------------

    def upload_event(self, client: int) -> Event:
        """What one upload releases about a client's records."""
        epsilon = self.client_epsilon(client)
        if math.isinf(epsilon):
            return NonPrivateEvent()
        return self.schedule.event(epsilon, self.setup.budget.delta, self.sizes[client])

    def client_event(self, client: int) -> Event:
        """All that a client has released so far."""
        count = self.participations[client]
        return ComposedEvent((RepeatedEvent(self.upload_event(client), count),) if count else ())

    def release_event(self) -> Event:
        """One upload of the client that spends most in a round."""
        return self._worst([self.upload_event(client) for client in range(len(self.sizes))])

    def spent(self) -> Event:
        """All that the most exposed client has released so far."""
        return self._worst([self.client_event(client) for client in self.participations])

    def claimed_epsilon(self) -> tuple[float | None, float | None]:
        """The budget: of the run, or of each round."""
        budget = self.setup.budget
        if not budget.is_private:
            return None, None
        return (None, budget.epsilon) if budget.per == "run" else (budget.epsilon, None)

    def exposures(self) -> list[Exposure]:
        """Whoever sees the clients' messages."""
        per_round, total = self.claimed_epsilon()
        events = {str(c): self.client_event(c) for c in sorted(self.participations)}
        return [
            Exposure(
                threat=Threat.LOCAL,
                adversary=self.adversary(),
                per_round=self.release_event(),
                clients=events or {"nobody": ComposedEvent(())},
                claimed_per_round=per_round,
                claimed_total=total,
                notes=("clients' sizes are public",),
            )
        ]

    def adversary(self) -> str:
        """Who it is, in words."""
        return "a curious server, which reads every client's message"

    def _worst(self, events: list[Event]) -> Event:
        distinct = list(dict.fromkeys(events))
        if len(distinct) == 1:
            return distinct[0]
        delta = self.setup.budget.delta
        return max(distinct, key=lambda event: epsilon(event, delta).epsilon)
