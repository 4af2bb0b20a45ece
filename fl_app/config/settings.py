"""The settings that no component owns: who takes part, for how long, and the privacy budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fl_app.device import DeviceTerms
from murmur.common import require_count
from murmur.privacy.budget import Budget
from murmur.round.cohorts import Schedule
from murmur.secure_sum.settings import MODES, SecureSumSettings

LEAST_EPSILON = 1e-9


@dataclass(frozen=True)
class FederationSettings:
    """``conf/federation``: clients, cohort, rounds, public pool, quorum and deadline.

    ``schedule``: see ``murmur.round.cohorts.Schedule``. ``validation``: training examples that
    nobody has; ``score``: whether models are scored on these or on the test set. ``pilot``:
    examples of each client of a federation that is made of labelled public examples alone; None: a
    real one. ``devices``: the settings of ``DeviceTerms`` where clients are on devices; None in
    simulations. ``enrolled``: the table of their nodes' keys (``murmur.round.enrolment``), which
    the server reads. ``peers``: clients' long-term keys in secure sums, as their owners have
    pinned them.
    """

    num_clients: int
    clients_per_round: int | None
    num_rounds: int
    public: int | float
    quorum: float
    round_timeout: float
    schedule: Literal["random", "rotate", "poisson"] = "random"
    validation: int = 0
    score: Literal["test", "validation"] = "test"
    pilot: int | None = None
    devices: Mapping[str, Any] | None = None
    enrolled: str | None = None
    peers: str | None = None

    def __post_init__(self) -> None:
        require_count("num_clients", self.num_clients)
        if not 1 <= self.cohort_size <= self.num_clients:
            raise ValueError(
                f"clients_per_round={self.clients_per_round}: must lie in 1..{self.num_clients} "
                "(federation.num_clients), or be null for all"
            )
        require_count("num_rounds", self.num_rounds)
        if self.public < 0 or (isinstance(self.public, float) and self.public >= 1):
            raise ValueError(
                f"public={self.public}: must be a share of the training set in [0, 1) or a count"
            )
        self._require_held_out()
        if not 0 < self.quorum <= 1:
            raise ValueError(f"quorum={self.quorum}: must lie in (0, 1]")
        if not self.round_timeout > 0:
            raise ValueError(f"round_timeout={self.round_timeout}: must be above 0 seconds")
        terms = self.device_terms()
        if self.peers is not None and terms is None:
            raise ValueError(
                f"peers={self.peers}: nobody pins keys in a simulation; leave it out, or use "
                "engine=deploy"
            )
        if terms is not None and terms.sizes and len(terms.sizes) != self.num_clients:
            raise ValueError(
                f"devices.sizes={terms.sizes}: must be one for each of {self.num_clients} clients"
            )

    def _require_held_out(self) -> None:
        if self.validation < 0:
            raise ValueError(f"validation={self.validation}: must be at least 0")
        if self.score == "validation" and not self.validation:
            raise ValueError("score=validation: set federation.validation above 0")
        if self.pilot is not None and self.pilot < 1:
            raise ValueError(f"pilot={self.pilot}: must be at least 1, or null")
        if self.devices is not None and (self.validation or self.pilot):
            raise ValueError("validation and pilot: are for simulations, not for devices")

    @property
    def on_held_out(self) -> bool:
        """Whether models are scored on training examples that were held out."""
        return self.pilot is not None or self.score == "validation"

    def device_terms(self) -> DeviceTerms | None:
        """What devices' data must be like; None in simulations."""
        if self.devices is None:
            return None
        known = [f.name for f in fields(DeviceTerms)]
        for key, value in self.devices.items():
            if key not in known:
                raise ValueError(f"devices.{key}={value}: unknown; known are {', '.join(known)}")
        return DeviceTerms(**self.devices)

    @property
    def cohort_size(self) -> int:
        """Clients asked in each round."""
        return self.num_clients if self.clients_per_round is None else self.clients_per_round

    def schedule_of(self, seed: int) -> Schedule:
        """Who is asked when, in a run of this seed."""
        return Schedule(self.schedule, self.num_clients, self.cohort_size, self.num_rounds, seed)

    def public_size(self, train_size: int) -> int:
        """Examples in the public pool; a share is rounded up."""
        if isinstance(self.public, int):
            return self.public
        return math.ceil(self.public * train_size)


@dataclass(frozen=True)
class ComputeSettings:
    """``conf/compute``: what a process computes with; results depend on it by rounding at most.

    ``stack``: clients that a node trains at once. ``mixed_precision``: of their stack. ``fused``:
    whether a first convolution and its pooling are one compiled kernel, on a processor.
    ``precision``: of the convolutions after the first, on a processor.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    stack: int = 1
    mixed_precision: bool = False
    fused: bool = False
    precision: Literal["fp32", "bf16", "auto"] = "fp32"

    def __post_init__(self) -> None:
        require_count("stack", self.stack)
        if self.mixed_precision and self.stack == 1:
            raise ValueError("mixed_precision=True: is that of a stack; set compute.stack above 1")
        if self.precision == "bf16" and self.stack > 1:
            raise ValueError("precision=bf16: is for clients one by one; set compute.stack=1")


@dataclass(frozen=True)
class PrivacySettings:
    """``conf/privacy``: the budget of one client, its noise, its device's policy, secure sums.

    ``threat``: against whom the budget holds. ``secure_aggregation``: None for what it asks for.
    ``secure_sum``: the settings of ``SecureSumSettings`` beside its mode. ``sensitivity`` and
    ``calibration`` belong to strategies that have a choice there (NbAFL), which check them.
    """

    epsilon: float
    delta: float
    per: str
    noise: str
    policy: str | None
    threat: Literal["local", "secure_aggregation", "central"] = "local"
    secure_aggregation: str | None = None
    secure_sum: Mapping[str, Any] = field(default_factory=dict)
    sensitivity: str | None = None
    calibration: str | None = None

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta, self.per)
        if self.epsilon < LEAST_EPSILON:
            raise ValueError(
                f"epsilon={self.epsilon}: must be at least {LEAST_EPSILON:g}; below it a release "
                "says nothing in floating point"
            )
        if self.noise not in ("os", "seeded"):
            raise ValueError(f"noise={self.noise!r}: must be 'os' or 'seeded'")
        if self.secure_aggregation not in (None, *MODES):
            raise ValueError(
                f"secure_aggregation={self.secure_aggregation}: must be one of {', '.join(MODES)}, "
                "or null"
            )
        if self.secure_aggregation == "off" and self.threat == "secure_aggregation":
            raise ValueError(
                "secure_aggregation=off: privacy.threat=secure_aggregation means a server that "
                "sees sums only; set it to on, simulated or null (on)"
            )
        self.secure_sums()

    @property
    def secure_mode(self) -> str:
        """Whether clients mask what they send; on where the budget is meant for such a server."""
        if self.secure_aggregation is not None:
            return self.secure_aggregation
        return "on" if self.threat == "secure_aggregation" else "off"

    def secure_sums(self) -> SecureSumSettings:
        """Whether and how contributions are summed securely."""
        known = [f.name for f in fields(SecureSumSettings) if f.name not in ("mode", "peers")]
        for key, value in self.secure_sum.items():
            if key not in known:
                raise ValueError(f"secure_sum.{key}={value}: unknown; known are {', '.join(known)}")
        try:
            return SecureSumSettings(**{"mode": self.secure_mode, **self.secure_sum})
        except ValueError as error:
            raise ValueError(f"secure_sum.{error}") from error

    def budget(self, schedule: Schedule) -> Budget:
        """The budget of one client for a run with these cohorts."""
        honest, failure = 1, 0.0
        if self.threat == "secure_aggregation":
            sums = self.secure_sums()
            honest = sums.least_survivors(schedule.size) - sums.colluders
            failure = sums.failure_probability(schedule.size)
        if schedule.kind == "poisson" and self.threat != "central" and self.epsilon < math.inf:
            raise ValueError(
                "schedule=poisson: who is in a cohort is secret from those only who trust the "
                "server; set privacy.threat=central, or federation.schedule=rotate"
            )
        return Budget(
            self.epsilon,
            self.delta,
            self.per,
            schedule.rounds,
            threat=self.threat,
            honest_clients=honest,
            participations=schedule.participations,
            failure=failure,
        )
