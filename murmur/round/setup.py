"""What a strategy is built with.

``SumSetup`` is the part that phases and sums read, so that somebody else's app can have them
without the rest (``murmur.flower.private_grid``); ``ServerSetup`` is all of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.budget import Budget
from murmur.privacy.noise import NoiseGenerator
from murmur.random import experiment_rng
from murmur.round.cohorts import Schedule
from murmur.round.placement import ClientPlacement, SimulatedPlacement
from murmur.secure_sum.settings import SecureSumSettings

if TYPE_CHECKING:  # they load PyTorch, which a server of somebody else's app may not have
    from murmur.learning.data.datasets import Examples
    from murmur.learning.metrics import Metric
    from murmur.learning.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class SumSetup:
    """The facts of a run that a phase and its sums need.

    Attributes:
        seed: The seed of all draws that are no noise.
        num_clients: Clients of the federation.
        seeded_noise: For reproductions; the statement is then void.
        secure_sums: Whether clients mask what they send.
        round_timeout: Seconds for a phase.
        placement: Which node is asked for which client.
        strategy: Its name in the configuration, which clients compare with their own.
        query: Flower's type of the messages of secure sums.
        started: Digest of the configuration that clients are started with, to which sums are
            bound.
    """

    seed: int
    num_clients: int
    seeded_noise: bool = False
    secure_sums: SecureSumSettings = field(default_factory=SecureSumSettings)
    round_timeout: float = 3600.0
    placement: ClientPlacement = field(default_factory=SimulatedPlacement)
    strategy: str = ""
    query: str = "query"
    started: str = ""

    @property
    def least_survivors(self) -> int:
        """The fewest clients whose shared noise keeps the budget; 0 where none is shared."""
        return 0


@dataclass(frozen=True, kw_only=True)
class ServerSetup(SumSetup):
    """The facts of a run that a strategy gets from the ServerApp.

    Attributes:
        trainer: The model on the server, for its first parameters and its test.
        public: (P, C, H, W) float32. The unlabelled pool, which everybody may see.
        test: The server's own test set.
        budget: ε and δ, for how many rounds, and against whom.
        cohort_size: How many clients a round samples.
        quorum: The share of the cohort that must answer for a round to count, in (0, 1].
        client_sizes: Examples of every client, public by configuration; None: they are not public.
        schedule: Who is asked when; None: random cohorts.
        metrics: Further scores on the test set, by name.
        split: The statement's sentence on owners' rows outside of clients, if there are any.
        warnings: What the statement says beside the strategy's own warnings, of the data.
    """

    trainer: "Trainer"
    public: NDArray[np.float32]
    test: "Examples"
    budget: Budget
    cohort_size: int
    quorum: float
    client_sizes: tuple[int, ...] | None = None
    schedule: Schedule | None = None
    metrics: "Mapping[str, Metric]" = field(default_factory=dict)
    split: str = ""
    warnings: tuple[str, ...] = ()

    @cached_property
    def cohorts(self) -> Schedule:
        """Who is asked when: the schedule that was given, or random cohorts from the run's seed."""
        rounds = self.budget.rounds
        return self.schedule or Schedule(
            "random", self.num_clients, self.cohort_size, rounds, self.seed
        )

    @property
    def least_survivors(self) -> int:
        """By the budget: so many that its honest clients are among them."""
        honest = self.budget.honest_clients
        if honest > 1:
            return honest + self.secure_sums.colluders
        return 0

    def initial_parameters(self) -> NDArray[np.float32]:
        """The global model (d,) before the first round."""
        return self.trainer.initial(experiment_rng(self.seed, "initial model"))

    def noise(self, purpose: str, number: int) -> NoiseGenerator:
        """Where the server itself must add noise, or draw in secret, in round ``number``.

        ``purpose``: what it is for; seeded noise is another one for each purpose and round. Else it
        is the operating system's, and a new generator at each call.
        """
        if self.seeded_noise:
            return NoiseGenerator.seeded(self.seed, "server noise", purpose, number)
        return NoiseGenerator.from_os()
