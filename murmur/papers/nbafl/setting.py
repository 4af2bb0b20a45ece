"""NbAFL's setting: what its noise depends on, checked, and the sensitivity that follows.

Wei et al., IEEE TIFS 15 (2020), arXiv 1911.00222. Symbols as in
``murmur.papers.nbafl.closed_forms``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from murmur.common import require_count, require_positive
from murmur.privacy.budget import Budget
from murmur.privacy.events import Assumption

SENSITIVITIES = ("paper", "worst", "erm", "dpsgd")
CALIBRATIONS = ("paper", "proven")

BOUNDED_CHANGE = Assumption(
    "bounded_change",
    "one record moves a trained model by 2C/m at most (sensitivity=paper), which holds for "
    "averages of per-sample minimisers, not for a network trained by SGD",
)
"""What the paper's sensitivity rests on."""


@dataclass(frozen=True)
class NbaflSetting:
    """What NbAFL's noise depends on; constructing it validates it.

    Attributes:
        epsilon: ε for the whole run; infinite: no noise.
        delta: δ.
        rounds: T.
        participations: rounds in which one client is asked at most, by the schedule.
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
    participations: int
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
            require_count(name, getattr(self, name))
        if self.smallest_dataset < 1:
            raise ValueError(
                f"smallest_dataset={self.smallest_dataset}: every client needs an example; "
                "have fewer clients, or a partition with min_size=1"
            )
        if not 1 <= self.participations <= self.rounds:
            raise ValueError(f"participations={self.participations}: must lie in 1..{self.rounds}")
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
        _require_numbers(clip=self.clip, proximal_mu=self.proximal_mu)
        require_positive("clip", self.clip)
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
        sensitivity: str = "paper",
        calibration: str | None = None,
        **settings: Any,
    ) -> Self:
        """The setting of a configuration and clients of ``sizes`` (None: not public).

        None stands for all clients, all rounds, the smallest of ``sizes``, and the paper's own
        calibration of the paper's sensitivity, the proven one of all others.
        """
        if calibration is None:
            calibration = "paper" if sensitivity == "paper" else "proven"
        _require_whole(
            clients_per_round=clients_per_round,
            exposures=exposures,
            smallest_dataset=smallest_dataset,
        )
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
            participations=budget.releases,
            exposures=budget.rounds if exposures is None else exposures,
            clients=num_clients,
            scheduled=num_clients if clients_per_round is None else clients_per_round,
            smallest_dataset=smallest_dataset,
            dimension=dimension,
            sensitivity=sensitivity,
            calibration=calibration,
            **settings,
        )

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the sensitivity rests on, by name; nothing where it holds for any training."""
        if self.sensitivity == "paper":
            return (BOUNDED_CHANGE,)
        if self.sensitivity == "erm":
            return (
                Assumption(
                    "exact_minimiser",
                    "every client solves its proximal problem exactly (sensitivity=erm)",
                ),
                Assumption(
                    "lipschitz",
                    f"losses of examples are convex, with a Lipschitz constant of "
                    f"{self.lipschitz:g} (sensitivity=erm)",
                ),
            )
        return ()

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


def _require_whole(**settings: object) -> None:
    for name, value in settings.items():
        if value is not None and type(value) is not int:
            raise ValueError(f"{name}={value!r}: must be a whole number, or null")


def _require_numbers(**settings: object) -> None:
    for name, value in settings.items():
        if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
            raise ValueError(f"{name}={value!r}: must be a number, finite")
