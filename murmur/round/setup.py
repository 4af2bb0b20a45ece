"""What a strategy is built with.

``SumSetup`` is the part that phases and sums read, so that somebody else's app can have them
without the rest (``murmur.flower.server``); ``ServerSetup`` is all of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.budget import Budget
from murmur.privacy.noise import NoiseGenerator
from murmur.round.cohorts import Schedule
from murmur.round.placement import ClientPlacement, SimulatedPlacement
from murmur.secure_sum import SecureSumSettings

if TYPE_CHECKING:  # they load PyTorch, which a server of somebody else's app may not have
    from murmur.learning.data.datasets import Examples
    from murmur.learning.metrics import Metric
    from murmur.learning.training.trainer import Trainer


class SumSetup(Protocol):
    """What a phase and its sums need to know of a run; see ``ServerSetup`` for the names.

    Attributes
    ----------
    query : str
        Flower's type of the messages in which a secure sum's protocol travels.
    """

    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def num_clients(self) -> int: ...  # noqa: D102
    @property
    def seeded_noise(self) -> bool: ...  # noqa: D102
    @property
    def secure_sums(self) -> SecureSumSettings: ...  # noqa: D102
    @property
    def round_timeout(self) -> float: ...  # noqa: D102
    @property
    def placement(self) -> ClientPlacement: ...  # noqa: D102
    @property
    def strategy(self) -> str: ...  # noqa: D102
    @property
    def query(self) -> str: ...  # noqa: D102
    @property
    def least_survivors(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class ServerSetup:
    """What the ServerApp gives to a strategy.

    Attributes
    ----------
    trainer : Trainer
        The model on the server, for its first parameters and its test.
    public : float32 array (P, C, H, W)
        The unlabelled pool, which everybody may see.
    test : Examples
        The server's own test set.
    budget : Budget
        ε and δ, for how many rounds, and against whom.
    seed : int
        From which all draws follow that are no noise.
    num_clients, cohort_size : int
        Clients of the federation, and how many of them a round samples.
    quorum : float
        The share of the cohort that must answer for a round to count, in (0, 1].
    client_sizes : tuple of int, or None
        Examples of every client, public by configuration; None: they are not public.
    seeded_noise : bool
        For reproductions; the statement is then void.
    secure_sums : SecureSumSettings
        Whether clients mask what they send.
    round_timeout : float
        Seconds for a phase.
    placement : ClientPlacement
        Which node is asked for which client.
    schedule : Schedule or None
        Who is asked when; None: random cohorts.
    metrics : mapping
        Further scores on the test set, by name.
    split : str
        The statement's sentence on owners' rows outside of clients, if there are any.
    warnings : tuple of str
        What the statement says beside the strategy's own warnings, of the data.
    strategy : str
        Its name in the configuration, which clients compare with their own.
    query : str
        Flower's type of the messages of secure sums.

    Raises
    ------
    ValueError
        ``cohort_size`` or ``quorum`` is out of its range.
    """

    trainer: "Trainer"
    public: NDArray[np.float32]
    test: "Examples"
    budget: Budget
    seed: int
    num_clients: int
    cohort_size: int
    quorum: float
    client_sizes: tuple[int, ...] | None = None
    seeded_noise: bool = False
    secure_sums: SecureSumSettings = field(default_factory=SecureSumSettings)
    round_timeout: float = 3600.0
    placement: ClientPlacement = field(default_factory=SimulatedPlacement)
    schedule: Schedule | None = None
    metrics: "Mapping[str, Metric]" = field(default_factory=dict)
    split: str = ""
    warnings: tuple[str, ...] = ()
    strategy: str = ""
    query: str = "query"

    @cached_property
    def cohorts(self) -> Schedule:
        """Who is asked when: the schedule that was given, or random cohorts from the run's seed."""
        rounds = self.budget.rounds
        return self.schedule or Schedule(
            "random", self.num_clients, self.cohort_size, rounds, self.seed
        )

    @property
    def least_survivors(self) -> int:
        """The fewest clients whose shared noise keeps the budget; 0 where none is shared."""
        honest = self.budget.honest_clients
        if honest > 1:
            return honest + self.secure_sums.colluders
        return 0

    def noise(self, purpose: str, number: int) -> NoiseGenerator:
        """Where the server itself must add noise, or draw in secret, in round ``number``.

        ``purpose``: what it is for; seeded noise is another one for each purpose and round. Else it
        is the operating system's, and a new generator at each call.
        """
        if self.seeded_noise:
            return NoiseGenerator.seeded(self.seed, "server noise", purpose, number)
        return NoiseGenerator.from_os()

    def __post_init__(self) -> None:
        if not 1 <= self.cohort_size <= self.num_clients:
            raise ValueError(
                f"clients_per_round={self.cohort_size}: must lie in 1..{self.num_clients} "
                "(federation.num_clients)"
            )
        if not 0 < self.quorum <= 1:
            raise ValueError(f"quorum={self.quorum}: must lie in (0, 1]")
