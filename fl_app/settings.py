"""The settings that no component owns: who takes part, for how long, and the privacy budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privacy.budget import Budget


@dataclass(frozen=True)
class FederationSettings:
    """``conf/federation``: clients, cohort, rounds, public pool, quorum and deadline."""

    num_clients: int
    clients_per_round: int | None
    num_rounds: int
    public: int | float
    quorum: float
    round_timeout: float

    def __post_init__(self) -> None:
        if self.num_clients < 1:
            raise ValueError(f"num_clients={self.num_clients}: must be at least 1")
        if not 1 <= self.cohort_size <= self.num_clients:
            raise ValueError(
                f"clients_per_round={self.clients_per_round}: must lie in 1..{self.num_clients} "
                "(federation.num_clients), or be null for all"
            )
        if self.num_rounds < 1:
            raise ValueError(f"num_rounds={self.num_rounds}: must be at least 1")
        if self.public < 0 or (isinstance(self.public, float) and self.public >= 1):
            raise ValueError(
                f"public={self.public}: must be a share of the training set in [0, 1) or a count"
            )
        if not 0 < self.quorum <= 1:
            raise ValueError(f"quorum={self.quorum}: must lie in (0, 1]")
        if not self.round_timeout > 0:
            raise ValueError(f"round_timeout={self.round_timeout}: must be above 0 seconds")

    @property
    def cohort_size(self) -> int:
        """Clients asked in each round."""
        return self.num_clients if self.clients_per_round is None else self.clients_per_round

    def public_size(self, train_size: int) -> int:
        """Examples in the public pool; a share is rounded up."""
        if isinstance(self.public, int):
            return self.public
        return math.ceil(self.public * train_size)


@dataclass(frozen=True)
class PrivacySettings:
    """``conf/privacy``: the budget of one client, its noise, and its device's policy."""

    epsilon: float
    delta: float
    per: str
    noise: str
    policy: str | None

    def __post_init__(self) -> None:
        self.budget(1)
        if self.noise not in ("os", "seeded"):
            raise ValueError(f"noise={self.noise!r}: must be 'os' or 'seeded'")

    def budget(self, rounds: int) -> Budget:
        """The budget for a run of ``rounds`` rounds."""
        return Budget(self.epsilon, self.delta, self.per, rounds)
