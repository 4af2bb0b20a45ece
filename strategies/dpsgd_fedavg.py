"""Federated averaging over clients that train by DP-SGD, the server: the mean by size.

Abadi et al., CCS 2016 (``murmur.algorithms.dpsgd``), inside McMahan et al., AISTATS 2017. The usual
way to protect records in a federation, and KD-DPFL's competitor ("DP-SGD over all clients"). Sizes
are public: they are the weights and set the lots' sampling rates, so neighbours differ by one
record nulled, which costs what one record less does.
"""

import numpy as np

from murmur.algorithms.dpsgd import LocalDpSgd, signal_to_noise
from murmur.learning.codec import Integers, WeightCodec
from murmur.learning.objective import KINDS
from murmur.privacy.events import ComposedEvent, Event, NonPrivateEvent, RepeatedEvent
from strategies.base import (
    Adjacency,
    Claimed,
    Claims,
    CohortStrategy,
    Forecast,
    Parameters,
    ServerSetup,
)


class DpSgdFedAvg(CohortStrategy):
    """w ← Σ n_i w_i / Σ n_i over clients that train by DP-SGD.

    Nothing is hidden in a sum: the budget holds, for a record or a client, against whoever reads
    the client's messages. To protect a client takes as many times the noise as it has records.
    Each client has noise of its own, by its size. ValueError where sizes are not public.

    Args:
        setup: What the ServerApp gives.
        local: The lots of the clients' DP-SGD, from which the statement follows; the same as
            theirs.
    """

    algorithm = "federated averaging with DP-SGD on every client"
    tasks = KINDS
    units = ("client", "record")
    has_paper_budget = True
    adjacency = Adjacency.REPLACE_SPECIAL
    weighted = True
    claim = "every client's uploads together are (ε, δ)-differentially private"

    def __init__(self, setup: ServerSetup, *, local: LocalDpSgd) -> None:
        super().__init__(setup)
        if setup.client_sizes is None:
            raise ValueError("client_sizes=None: sizes must be public, they set the sampling rates")
        self.sizes = setup.client_sizes
        self.unit = setup.budget.record_unit
        self.schedule = local.schedule(setup.budget.releases, self.unit)
        for client in range(len(self.sizes)):
            self._upload(client)  # ValueError here rather than in the first round

    def codec(self) -> WeightCodec:
        """All parameters (d,)."""
        return WeightCodec(self.trainer.num_parameters)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The weighted mean, post-processing of what clients have noised."""
        return self.codec().mean(total, weight).astype(np.float32)

    def forecast(self) -> Forecast | None:
        """Returns the signal-to-noise ratio of the gradients of clients of median size."""
        budget = self.setup.budget
        if not budget.is_private:
            return None
        size = int(np.median(self.sizes))
        clients, numbers = self.setup.cohort_size, self.trainer.num_parameters
        ratio = signal_to_noise(self.schedule, budget, size, clients, numbers)
        return Forecast.of(self.setup, ratio)

    # Privacy --------------------------------------------------------------------------------

    def _upload(self, client: int) -> Event:
        """Returns the privacy event of one upload for the client's records."""
        budget = self.setup.budget
        if not budget.is_private:
            return NonPrivateEvent()
        return self.schedule.event(budget.epsilon, budget.delta, self.sizes[client])

    def _path(self, client: int) -> Event:
        count = self.rounds.participations[client]
        return ComposedEvent((RepeatedEvent(self._upload(client), count),) if count else ())

    def release_event(self) -> Event:
        """One upload of the client that spends most in a round, whether it is asked or not."""
        return self.rounds.costliest(map(self._upload, range(len(self.sizes))))

    def claims(self, claimed: Claimed = (None, None), before: Event | None = None) -> Claims:
        """Each client's uploads, as whoever sees its messages does; the budget is claimed."""
        budget = self.setup.budget
        if budget.is_private:
            claimed = None, budget.epsilon
        server = "a curious server, which reads every client's message"
        return self.rounds.claims_of_paths(self._path, server, claimed)
