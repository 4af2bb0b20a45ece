"""DP-FedAvg, the server: a secret cohort, a sum of clipped updates, Gaussian noise on the sum.

McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR
2018 (fixed clipping). Andrew, Thakkar, McMahan, Ramaswamy, "Differentially private learning with
adaptive clipping", NeurIPS 2021. One round:

1. every client joins by itself with probability q = K/N; nobody outside learns who did
2. clients answer Δ_i, clipped to C, and b_i = 1[‖Δ_i‖ ≤ C]                (``clients.dp_fedavg``)
3. w ← w + η_s (Σ Δ_i + N(0, (z_Δ C)² I)) / (qN)
4. b̃ = ½ + (Σ (b_i − ½) + N(0, σ_b²)) / (qN);  C ← C · exp(−η_C (b̃ − γ))

Symbols: K = ``cohort_size``, z = ``noise_multiplier`` for all of a round, σ_b = ``bit_noise``,
γ = ``quantile``, η_s = ``server_learning_rate``, η_C = ``clip_learning_rate``. The update and the
bit are one Gaussian release: 1/z² = 1/z_Δ² + 1/(2σ_b)², so the quantile's cost is in z. The
denominator qN does not depend on who came, which keeps the sensitivity at C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learning.contribution import Integers
from learning.grid_codec import GridCodec
from privacy.accounting import Adjacency, Threat, Unit, dpsgd, fine_gaussian
from privacy.events import (
    Assumption,
    ComposedEvent,
    Event,
    NonPrivateEvent,
    Release,
    RepeatedEvent,
)
from privacy.mechanisms import DiscreteGaussian
from privacy.mechanisms.clipped_grid import CLIP_STEPS
from privacy.mechanisms.sampled_gaussian import SampledGaussian
from privacy.noise import NoiseGenerator
from privacy.statement import Exposure
from rounds.setup import ServerSetup
from strategies.algorithm import Parameters
from strategies.base import CohortStrategy

SECRET_COHORT = Assumption(
    "secret_cohort", "nobody who sees the models learns who was asked in which round"
)


@dataclass(frozen=True)
class Clipping:
    """How updates are clipped: ``norm`` C of round 1, which adapts or not.

    ``quantile`` γ: the share of updates that should be short enough; ``learning_rate`` η_C;
    ``bit_noise`` σ_b, None for a twentieth of the cohort, as Andrew et al. recommend.
    """

    norm: float
    adaptive: bool = False
    quantile: float = 0.5
    learning_rate: float = 0.2
    bit_noise: float | None = None

    def __post_init__(self) -> None:
        if not (self.norm > 0 and math.isfinite(self.norm)):
            raise ValueError(f"clipping.norm={self.norm}: must be finite and above 0")
        if not 0 < self.quantile < 1:
            raise ValueError(f"clipping.quantile={self.quantile}: must lie in (0, 1)")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(
                f"clipping.learning_rate={self.learning_rate}: must be finite and above 0"
            )
        if self.bit_noise is not None and not (0 < self.bit_noise < math.inf):
            raise ValueError(
                f"clipping.bit_noise={self.bit_noise}: must be finite and above 0, or null"
            )


class DPFedAvg(CohortStrategy):
    """The server half. See ``conf/strategy/dp_fedavg.yaml`` for every knob."""

    algorithm = "DP-FedAvg"
    claim = (
        "all published models together are (ε, δ)-differentially private for a client, where "
        "the server is trusted (McMahan et al. 2018; Andrew et al. 2021)"
    )
    difference = "by rounding only, against whom the claim is made; a curious server sees updates."
    adjacency = Adjacency.ADD_REMOVE

    def __init__(
        self,
        setup: ServerSetup,
        *,
        clipping: Mapping[str, Any],
        noise_multiplier: float | None,
        server_learning_rate: float,
    ) -> None:
        super().__init__(setup)
        if not (server_learning_rate > 0 and math.isfinite(server_learning_rate)):
            raise ValueError(
                f"server_learning_rate={server_learning_rate}: must be finite and above 0"
            )
        self.clipping = Clipping(**clipping)
        self.clip = float(self.clipping.norm)
        self.bit_noise = self.clipping.bit_noise or setup.cohort_size / 20
        rate = setup.cohort_size / setup.num_clients
        self.noise_multiplier = self._multiplier(noise_multiplier, rate)
        # Without protection there is still a cohort to draw.
        self.mechanism = SampledGaussian(rate, self.noise_multiplier or 1.0, CLIP_STEPS)
        self.update_multiplier = self._update_multiplier()
        self.server_learning_rate = server_learning_rate
        self.published = 0

    def _multiplier(self, given: float | None, rate: float) -> float:
        """z: as given, or the smallest that keeps the budget; 0 without protection."""
        budget = self.setup.budget
        if given is not None:
            if not (given > 0 and math.isfinite(given)):
                raise ValueError(f"noise_multiplier={given}: must be finite and above 0, or null")
            return given
        if not budget.is_private:
            return 0.0
        rounds = budget.rounds if budget.per == "run" else 1
        if rate == 1:
            together = fine_gaussian.noise_multiplier(budget.epsilon, budget.delta, rounds)
            if together is not None:
                return together * math.sqrt(rounds)
        return dpsgd.noise_multiplier(budget.epsilon, budget.delta, rate, rounds)

    def _update_multiplier(self) -> float:
        """z_Δ: what is left for the update once the bit has had its share."""
        if not self.clipping.adaptive or not self.noise_multiplier:
            return self.noise_multiplier
        left = 1 / self.noise_multiplier**2 - 1 / (2 * self.bit_noise) ** 2
        if left <= 0:
            raise ValueError(
                f"clipping.bit_noise={self.bit_noise:g}: must be above "
                f"{self.noise_multiplier / 2:g}, half the noise multiplier; a larger cohort "
                "needs less"
            )
        return 1 / math.sqrt(left)

    # The round ------------------------------------------------------------------------------

    def cohort(self, number: int) -> NDArray[np.int64]:
        """A Poisson sample from the noise stream: the run's seed does not tell who is in it."""
        drawn = self.mechanism.sample(self.setup.num_clients, self.setup.noise("cohort", number))
        return np.flatnonzero(drawn)

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """The clipping norm of this round."""
        return {"clip": np.array([self.clip])}, {}

    def codec(self) -> GridCodec:
        """The update (d,), then the bit where clipping adapts."""
        return GridCodec(self.trainer.num_parameters + self.clipping.adaptive, bound=CLIP_STEPS)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The noised mean update, and the next clipping norm."""
        size, expected = self.trainer.num_parameters, self.setup.cohort_size
        noise = self.setup.noise("update", number)
        step = self.clip / CLIP_STEPS
        mean = self._noised(total[:size], self.update_multiplier, noise) * (step / expected)
        if self.clipping.adaptive:
            # ±CLIP_STEPS stands for b − ½ = ±½.
            bits = self._noised(total[size:], 2 * self.bit_noise, noise)
            share = 0.5 + float(bits[0]) / (2 * CLIP_STEPS * expected)
            gap = share - self.clipping.quantile
            self.clip *= math.exp(-self.clipping.learning_rate * gap)
        self.published += 1
        return (model + self.server_learning_rate * mean).astype(np.float32)

    def _noised(self, total: Integers, multiplier: float, noise: NoiseGenerator) -> Integers:
        if not self.noise_multiplier:
            return total
        return DiscreteGaussian(multiplier * CLIP_STEPS, CLIP_STEPS).privatize_integers(
            total, noise
        )

    # Privacy --------------------------------------------------------------------------------

    def release_event(self) -> Event:
        """One published model: update and bit together, on a Poisson sample of the clients."""
        if not self.noise_multiplier:
            return NonPrivateEvent()
        sampled = self.mechanism.event()
        if self.mechanism.rate == 1:
            return Release(sampled, Unit.CLIENT, Adjacency.ADD_REMOVE)
        always = replace(self.mechanism, rate=1.0).event()
        return Release(sampled, Unit.CLIENT, Adjacency.ADD_REMOVE, (SECRET_COHORT,), always)

    def claimed_epsilon(self) -> tuple[float | None, float | None]:
        """The budget, where there is one."""
        budget = self.setup.budget
        if not budget.is_private:
            return None, None
        if budget.per == "run":
            return None, budget.epsilon
        return budget.epsilon, None

    def spent(self) -> Event:
        """All models published so far; every client could have been in each."""
        return RepeatedEvent(self.release_event(), max(1, self.published))

    def exposures(self) -> list[Exposure]:
        """Whoever sees the models, and the server itself, which is trusted."""
        per_round, total = self.claimed_epsilon()
        everything = ComposedEvent((self.spent(),) if self.published else ())
        models = Exposure(
            threat=Threat.CENTRAL,
            adversary="anyone who sees every published model",
            per_round=self.release_event(),
            clients={"each client": everything},
            sizes={"each client": self.setup.num_clients},
            claimed_per_round=per_round,
            claimed_total=total,
            notes=("the server is trusted: it adds the noise, and keeps updates to itself",),
        )
        released = dict(sorted(self.participations.items())) or {0: 0}
        server = Exposure(
            threat=Threat.LOCAL,
            adversary="the server, if it is curious",
            per_round=NonPrivateEvent(),
            clients={
                str(client): ComposedEvent((NonPrivateEvent(),) * min(1, count))
                for client, count in released.items()
            },
        )
        return [models, server]

    # Checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """The clipping norm and how many models were published."""
        return {"clip": np.array([self.clip]), "published": np.array([self.published], np.int64)}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The clipping norm and how many models were published."""
        self.clip, self.published = float(state["clip"][0]), int(state["published"][0])
