"""NbAFL's noise for one setting: sensitivity, both calibrations, and what each adversary sees.

Wei et al., IEEE TIFS 15 (2020), arXiv 1911.00222. Symbols as in ``privacy.accounting.nbafl``.

``paper`` calibration takes the paper's closed forms as they are. ``proven`` keeps σ_D (with b⁺) and
takes the least σ_U with which all that an outsider sees costs at most (ε, δ), by exact composition
of Gaussians, where squares of change over noise add up. Of one client, of weight p, it sees

* L uploads: (Δ_U/σ_U)² each;
* L broadcasts of which it saw all the other uploads: p²Δ_U² / (p²σ_U² + σ_D²) each (by convexity
  the worst case is to see them all in the same L rounds);
* the other T − 2L broadcasts: p²Δ_U² / (σ_U² Σp² + σ_D²) each.

Planned for a full cohort of equal weights, p = 1/K; in rounds with others the server adds what
keeps the last two at what was planned. The bound on the sum is that of the analytic Gaussian
mechanism (Balle & Wang 2018). Nothing is gained from the secrecy of who was scheduled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from privacy.accounting import fine_gaussian, nbafl
from privacy.accounting.search import decreasing_root
from privacy.budget import Budget
from privacy.mechanisms.zcdp import zcdp_from_epsilon_delta

SENSITIVITIES = ("paper", "worst", "erm", "dpsgd")
CALIBRATIONS = ("paper", "proven")

# Noise goes beyond 16σ with probability 1e-57. An upload's entries are 32-bit integers.
_REACH = 16.0
_STEPS = 2.0**31 - 1
# Finer grids than σ/2¹⁸ gain nothing, and the server's noise must stay below 2⁴⁰ steps.
_FINEST = 2.0**18
# The accountant searches Rényi orders on a lattice, which costs it less than this.
_LATTICE = 1 - 1e-5


@dataclass(frozen=True)
class NbaflNoise:
    """The noise of one setting; constructing it validates the setting.

    Attributes:
        epsilon: ε for the whole run; infinite: no noise.
        delta: δ.
        rounds: T.
        exposures: L, uploads of one client that an outsider sees.
        clients: N.
        scheduled: K, clients asked in each round.
        clip: C.
        smallest_dataset: m.
        dimension: d, parameters of the model.
        sensitivity: how the change by one record is bounded: ``paper`` 2C/m, ``worst`` 2C,
            ``erm`` min(2C, 2G/(mμ)), ``dpsgd`` in every step of local training.
        calibration: ``paper`` or ``proven``.
        lipschitz: G, for ``erm``.
        proximal_mu: μ, for ``erm``.

    Raises:
        ValueError: a setting is out of range or does not go with another.
    """

    epsilon: float
    delta: float
    rounds: int
    exposures: int
    clients: int
    scheduled: int
    clip: float
    smallest_dataset: int
    dimension: int
    sensitivity: str = "paper"
    calibration: str = "paper"
    lipschitz: float | None = None
    proximal_mu: float = 0.0

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        if self.is_private and self.delta == 0:
            raise ValueError("delta=0.0: Gaussian noise needs a delta above 0")
        for name in ("rounds", "clients", "dimension"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.smallest_dataset < 1:
            raise ValueError(
                f"smallest_dataset={self.smallest_dataset}: every client needs an example; "
                "have fewer clients, or a partition with min_size=1"
            )
        if not 1 <= self.exposures <= self.rounds:
            raise ValueError(
                f"exposures={self.exposures}: must lie in 1..{self.rounds}: L uploads cannot be "
                "seen in fewer than L rounds (federation.num_rounds)"
            )
        if not 1 <= self.scheduled <= self.clients:
            raise ValueError(
                f"clients_per_round={self.scheduled}: must lie in 1..{self.clients} "
                "(federation.num_clients)"
            )
        if not (self.clip > 0 and math.isfinite(self.clip)):
            raise ValueError(f"clip={self.clip}: must be finite and above 0")
        self._check_modes()

    def _check_modes(self) -> None:
        if self.sensitivity not in SENSITIVITIES:
            raise ValueError(
                f"sensitivity={self.sensitivity!r}: must be one of {', '.join(SENSITIVITIES)} "
                "(privacy.sensitivity)"
            )
        if self.calibration not in CALIBRATIONS:
            raise ValueError(
                f"calibration={self.calibration!r}: must be one of {', '.join(CALIBRATIONS)} "
                "(privacy.calibration)"
            )
        if self.sensitivity == "dpsgd" and self.calibration == "paper":
            raise ValueError(
                "calibration='paper': the paper has no formula for sensitivity=dpsgd; set "
                "privacy.calibration=proven"
            )
        if self.sensitivity == "erm":
            if self.lipschitz is None or not (0 < self.lipschitz < math.inf):
                raise ValueError(
                    f"lipschitz={self.lipschitz}: sensitivity=erm needs the Lipschitz constant "
                    "of the per-sample loss, finite and above 0"
                )
            if not self.proximal_mu > 0:
                raise ValueError(
                    f"proximal_mu={self.proximal_mu}: sensitivity=erm needs a local problem "
                    "made strongly convex by a proximal term above 0"
                )

    @classmethod
    def of(
        cls,
        budget: Budget,
        sizes: Sequence[int] | None,
        dimension: int,
        *,
        num_clients: int,
        clients_per_round: int | None,
        exposures: int | None,
        smallest_dataset: int | None,
        **settings: Any,
    ) -> NbaflNoise:
        """The noise for a configuration and clients of ``sizes`` (None: not public).

        None stands for all clients, all rounds, the smallest of ``sizes``.
        """
        if budget.per != "run":
            raise ValueError(
                f"per={budget.per!r}: NbAFL's epsilon is for the whole run and all exposures; "
                "set privacy.per=run"
            )
        if sizes is not None:
            if len(sizes) != num_clients:
                raise ValueError(f"num_clients={num_clients}: there are {len(sizes)} clients")
            if smallest_dataset is not None and smallest_dataset > min(sizes):
                raise ValueError(
                    f"smallest_dataset={smallest_dataset}: the smallest client has {min(sizes)} "
                    "examples; m may not be larger, or its noise would be too small"
                )
            smallest_dataset = min(sizes) if smallest_dataset is None else smallest_dataset
        if smallest_dataset is None:
            raise ValueError(
                "smallest_dataset=None: clients' sizes are not public here; state the smallest"
            )
        return cls(
            epsilon=budget.epsilon,
            delta=budget.delta,
            rounds=budget.rounds,
            exposures=budget.rounds if exposures is None else exposures,
            clients=num_clients,
            scheduled=num_clients if clients_per_round is None else clients_per_round,
            smallest_dataset=smallest_dataset,
            dimension=dimension,
            **settings,
        )

    @property
    def is_private(self) -> bool:
        """Whether ε is finite."""
        return math.isfinite(self.epsilon)

    @property
    def is_noisy(self) -> bool:
        """Whether uploads carry noise of their own (training carries it with ``dpsgd``)."""
        return self.is_private and self.sensitivity != "dpsgd"

    @property
    def upload_sensitivity(self) -> float:
        """Δ_U, the L2 change of a clipped model by one record (``worst``: by all of them)."""
        worst, m = 2 * self.clip, self.smallest_dataset
        if self.sensitivity == "paper":
            return worst / m
        if self.sensitivity == "erm" and self.lipschitz is not None:
            # Clipping projects onto a ball, which moves no two models apart.
            return min(worst, 2 * self.lipschitz / (m * self.proximal_mu))
        return worst

    @cached_property
    def upload_sigma(self) -> float:
        """σ_U per coordinate, in the units of the weights; 0 without noise."""
        if not self.is_noisy:
            return 0.0
        if self.calibration == "paper":
            return nbafl.upload_sigma(*self._paper, self.smallest_dataset)
        return self._proven_sigma(self.released_sensitivity)

    @cached_property
    def grid(self) -> float:
        """The step, a power of two, of the integers that leave a client."""
        if not self.is_noisy:
            return _grid(self.clip, 0.0)
        if self.calibration == "paper":
            return _grid(self.clip, self.upload_sigma)
        return _grid(self.clip, self._proven_sigma(self.upload_sensitivity))

    @property
    def released_sensitivity(self) -> float:
        """Δ_U with what rounding to the grid adds, √d steps."""
        return self.upload_sensitivity + math.sqrt(self.dimension) * self.grid

    def broadcast_sigma(self, weights: Sequence[float]) -> float:
        """σ_D per coordinate where ``weights`` p_i are those of the clients that answered."""
        if not self.is_noisy:
            return 0.0
        sigma = self._closed_form(weights)
        if self.calibration == "paper":
            return sigma
        uplink, planned = self.upload_sigma**2, self._planned**2
        most, spread = max(weights) ** 2, sum(weight**2 for weight in weights)
        stripped = most * planned
        rest = most * (uplink * self.scheduled + planned) - uplink * spread
        return max(sigma, math.sqrt(max(0.0, stripped, rest)))

    def _closed_form(self, weights: Sequence[float]) -> float:
        epsilon, delta, exposures, clip = self._paper
        return nbafl.broadcast_sigma(
            epsilon, delta, self.rounds, exposures, clip, self.smallest_dataset, weights, self.b
        )

    @cached_property
    def _planned(self) -> float:
        """σ_D/p of a full cohort of equal weights."""
        weights = [1 / self.scheduled] * self.scheduled
        return self._closed_form(weights) * self.scheduled

    @property
    def b(self) -> float:
        """What K-random scheduling divides T by: the paper's b, or b⁺ if proven; 1 for K = N."""
        setting = (self.epsilon, self.rounds, self.clients, self.scheduled)
        if self.scheduled == self.clients:
            return 1.0
        if self.calibration == "proven":
            return nbafl.scheduling_b_proven(*setting)
        return nbafl.scheduling_b(*setting)

    @property
    def _paper(self) -> tuple[float, float, int, float]:
        """ε, δ, L and the C for which 2C/m is this mode's sensitivity."""
        clip = self.upload_sensitivity * self.smallest_dataset / 2
        return self.epsilon, self.delta, self.exposures, clip

    def _proven_sigma(self, sensitivity: float) -> float:
        """The least σ_U with which an outsider's whole view costs at most (ε, δ)."""
        multiplier = fine_gaussian.noise_multiplier(self.epsilon, self.delta, self.rounds)
        if multiplier is not None:
            sigma = self._sigma_for(multiplier, sensitivity)
            if sigma >= fine_gaussian.FINEST * _grid(self.clip, sigma):
                return sigma
        # On a coarse grid the noise is known by its concentrated DP only.
        rho = zcdp_from_epsilon_delta(self.epsilon * _LATTICE, self.delta)
        return self._sigma_for(1 / math.sqrt(2 * rho), sensitivity)

    def _sigma_for(self, multiplier: float, sensitivity: float) -> float:
        """σ_U with which the whole view is one Gaussian release of ``multiplier``."""
        uploads, stripped, rest = nbafl.seen_by_outsider(self.exposures, self.rounds)
        planned = (self._planned / sensitivity) ** 2

        def excess(log_sigma: float) -> float:
            square = math.exp(2 * log_sigma)
            alone = uploads / square + stripped / (square + planned)
            summed = rest / (square * self.scheduled + planned)
            return (alone + summed) * multiplier**2 - 1

        low = math.log(multiplier)
        high = low + math.log(uploads + stripped + rest / self.scheduled) / 2
        return sensitivity * math.exp(decreasing_root(excess, low, high))


def _grid(clip: float, sigma: float) -> float:
    return 2.0 ** math.ceil(math.log2(max((clip + _REACH * sigma) / _STEPS, sigma / _FINEST)))
