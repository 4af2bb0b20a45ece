"""The settings that no component owns: who takes part, for how long, and the privacy budget.

Ranges stand at the fields; ``fl_app.config.instantiate`` turns what they refuse into a sentence.
What several fields must keep together is checked below them, by a ValueError that begins with the
field. Server and clients build the same values from the same configuration.

Of data on devices (``DeviceDataSpec``) the server sends digests only. What a device's data look
like its owner says (``fl_app.device.node_settings``), and a server's word about it counts for
nothing there.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from murmur.learning.objective import Objective
from murmur.privacy.budget import Budget
from murmur.round.cohorts import Schedule
from murmur.secure_sum.settings import SecureSumSettings
from murmur.settings import Count, settings

MIN_EPSILON = 1e-9


@dataclass(frozen=True)
class DeviceDataSpec:
    """``federation.devices``; `murmur engine=deploy` fills in what is null from the server's data.

    Attributes:
        shape: (C, H, W) of an image.
        classes: how many, at least 2, or their names in the order of their labels.
        public: digest of the public pool (``pool_digest``), of which every device has a copy.
        sizes: every client's number of examples, where the federation has made them public.
        features: digest of what the run's features were fitted with (``conf/features``), if there
            are any.
        label_range: of a regression's labels, [low, high], in place of classes.
        labels: names of several labels, in place of classes.

    Raises:
        ValueError: a value is out of its range.
    """

    shape: list[int] | None = None
    classes: int | list[str] | None = None
    public: str | None = None
    sizes: list[int] | None = None
    features: str | None = None
    label_range: list[float] | None = None
    labels: list[str] | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and (len(self.shape) != 3 or min(self.shape) < 1):
            raise ValueError(f"devices.shape={self.shape}: must be [channels, height, width]")
        try:
            has_classes = self.objective.has_classes
        except ValueError as error:
            raise ValueError(f"devices.{error}") from error
        if self.classes is not None and not has_classes:
            raise ValueError(
                f"devices.classes={self.classes}: label_range or labels is given too; leave one out"
            )
        if self.classes is not None and self.num_classes < 2:
            raise ValueError(f"devices.classes={self.classes}: must be at least 2, or their names")
        if self.sizes is not None and min(self.sizes, default=0) < 1:
            raise ValueError(f"devices.sizes={self.sizes}: every client has at least one example")

    @property
    def objective(self) -> Objective:
        """The task that labels of this form are of."""
        return Objective.of(self.label_range, self.labels)

    @property
    def num_classes(self) -> int:
        """How many classes, or outputs of another task; 0 where that is not said."""
        if self.label_range is not None:
            return 1
        if self.labels is not None:
            return len(self.labels)
        if isinstance(self.classes, list):
            return len(self.classes)
        return self.classes or 0


def pool_digest(images: NDArray[np.float32]) -> str:
    """SHA-256 of a public pool (P, C, H, W), in hexadecimal: shape and pixels as float32.

    Server and devices compute it from their copies; a device refuses a run for another pool.
    """
    state = hashlib.sha256(repr(images.shape).encode())
    state.update(np.ascontiguousarray(images, np.float32).tobytes())
    return state.hexdigest()


@settings
class FederationSettings:
    """``conf/federation``: clients, cohort, rounds, public pool, quorum and deadline.

    Attributes:
        num_clients: of the federation.
        clients_per_round: asked in each round; None: all.
        num_rounds: of training.
        public: the public pool, as a share of the training set or a number of examples.
        quorum: the share of a cohort that must answer for a round to count.
        round_timeout: seconds until a round is closed without the answers that are missing.
        schedule: who is asked when (``murmur.round.cohorts.Schedule``).
        validation: training examples that neither a client nor the pool has.
        score: whether models are scored on these or on the test set.
        pilot: examples of each client of a federation that is made of labelled public examples
            alone; None: a real federation.
        devices: settings of ``DeviceDataSpec`` where clients are on devices; None in simulations.
        enrolled: the table of devices' keys (``murmur.round.placement``), which the server reads.
        peers: clients' long-term keys in secure sums, as their owners have pinned them.
        server_key: the file of the key that signs what clients are asked; None: a simulation makes
            one in its folder, and a run on devices signs nothing.
        roster: the file of the clients that owners have agreed on (``murmur.privacy.roster``),
            whose digest the run header names; None: it names none.
        offer_model: whether devices are sent the finished model (``fl_app.run.offer``).
    """

    num_clients: Count
    clients_per_round: Count | None
    num_rounds: Count
    public: Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)]
    quorum: Annotated[float, Field(gt=0, le=1)]
    round_timeout: Annotated[float, Field(gt=0)]
    schedule: Literal["random", "rotate", "poisson"] = "random"
    validation: Annotated[int, Field(ge=0)] = 0
    score: Literal["test", "validation"] = "test"
    pilot: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    devices: Mapping[str, Any] | None = None
    enrolled: str | None = None
    peers: str | None = None
    server_key: str | None = None
    roster: str | None = None
    offer_model: Literal["never", "finite", "any"] = "finite"

    def __post_init__(self) -> None:
        if self.cohort_size > self.num_clients:
            raise ValueError(
                f"clients_per_round={self.clients_per_round}: must lie in 1..{self.num_clients} "
                "(federation.num_clients), or be null for all"
            )
        if self.score == "validation" and not self.validation:
            raise ValueError("score=validation: set federation.validation above 0")
        terms = self.device_data_spec()
        if terms is None:
            if self.peers is not None:
                raise ValueError(
                    f"peers={self.peers}: nobody pins keys in a simulation; leave it out, or use "
                    "engine=deploy"
                )
            return
        if self.validation or self.pilot:
            raise ValueError("validation and pilot: are for simulations, not for devices")
        if terms.sizes and len(terms.sizes) != self.num_clients:
            raise ValueError(
                f"devices.sizes={terms.sizes}: must be one for each of {self.num_clients} clients"
            )

    @property
    def on_held_out(self) -> bool:
        """True if models are scored on held-out training examples."""
        return self.pilot is not None or self.score == "validation"

    def device_data_spec(self) -> DeviceDataSpec | None:
        """Requirements on devices' data; None in simulations. ValueError for an unknown key."""
        if self.devices is None:
            return None
        _require_known("devices", self.devices, [f.name for f in fields(DeviceDataSpec)])
        return DeviceDataSpec(**self.devices)

    @property
    def cohort_size(self) -> int:
        """Clients asked in each round."""
        return self.clients_per_round or self.num_clients

    def schedule_of(self, seed: int) -> Schedule:
        """Who is asked when, in a run of this seed.

        Random and rotating cohorts follow from the seed, which everybody knows. Poisson cohorts are
        drawn from the noise stream and stay secret.
        """
        return Schedule(self.schedule, self.num_clients, self.cohort_size, self.num_rounds, seed)

    def public_size(self, train_size: int) -> int:
        """Examples in the public pool; a share is rounded up."""
        if isinstance(self.public, int):
            return self.public
        return math.ceil(self.public * train_size)


@settings
class ComputeSettings:
    """``conf/compute``: what a process computes with; results depend on it by rounding at most.

    Attributes:
        device: of PyTorch.
        stack: clients that a node trains at once; with 1, only where that changes no bit.
        mixed_precision: products in bfloat16 in the training of such a stack.
        fused: whether convolutions are compiled with their pooling, on a processor.
        precision: of the convolutions after the first, on a processor.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    stack: Count = 1
    mixed_precision: bool = False
    fused: bool = False
    precision: Literal["fp32", "bf16", "auto"] = "fp32"

    def __post_init__(self) -> None:
        if self.mixed_precision and self.stack == 1:
            raise ValueError("mixed_precision=True: is that of a stack; set compute.stack above 1")
        if self.precision == "bf16" and self.stack > 1:
            raise ValueError("precision=bf16: is for clients one by one; set compute.stack=1")


@settings
class PrivacySettings:
    """``conf/privacy``: the budget of the whole run, its noise, devices' policy, secure sums.

    Attributes:
        epsilon: the budget's ε, of all that the run releases of one unit; infinity for runs that
            are not private.
        delta: its δ.
        unit: everything that a client holds, or one record of it.
        paper: whether the ε is that of the strategy's paper, in the paper's own terms, instead
            (``murmur.privacy.budget.Budget``).
        noise: from the operating system, or seeded: for tests and reproductions only.
        policy: the file with what a device's owner allows; None: a simulation without one.
        threat: the adversary that the budget is meant for. Local: whoever reads a client's
            messages, the server included; secure_aggregation: a server that sees sums only;
            central: whoever sees what a trusted server publishes. Where nobody sets it, it is the
            strategy's own (``compose.decide_threat``).
        secure_aggregation: whether clients mask what they send; None: what ``threat`` asks for.
        secure_sum: the settings of ``SecureSumSettings`` beside its mode.
        sensitivity: for strategies that have a choice there (NbAFL), which check it.
        calibration: the same.
        search: whether a search counts the choice of its best trial (``fl_app.sweep.search``).
    """

    epsilon: int | float  # an integer stays one: statements say what was typed
    delta: int | float
    noise: Literal["os", "seeded"]
    policy: str | None
    unit: Literal["client", "record"] = "client"
    paper: bool = False
    threat: Literal["local", "secure_aggregation", "central"] = "local"
    secure_aggregation: Literal["on", "off", "simulated"] | None = None
    secure_sum: Mapping[str, Any] = field(default_factory=dict)
    sensitivity: str | None = None
    calibration: str | None = None
    search: Literal["uncounted", "charged"] = "uncounted"

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        if self.epsilon < MIN_EPSILON:
            raise ValueError(
                f"epsilon={self.epsilon}: must be at least {MIN_EPSILON:g}; below it a release "
                "says nothing in floating point"
            )
        if self.secure_aggregation == "off" and self.threat == "secure_aggregation":
            raise ValueError(
                "secure_aggregation=off: privacy.threat=secure_aggregation means a server that "
                "sees sums only; set it to on, simulated or null (on)"
            )
        self.secure_sums()

    def secure_sums(self) -> SecureSumSettings:
        """Settings of secure sums; ``server.py`` adds the peers file.

        Simulated: sums are taken without masks, as if the server forgot what it summed. Where
        nothing is set masks are on for the threat that sees sums only, else off.

        Raises:
            ValueError: a setting under ``secure_sum`` is unknown or out of range.
        """
        names = [f.name for f in fields(SecureSumSettings) if f.name not in ("mode", "peers")]
        _require_known("secure_sum", self.secure_sum, names)
        mode: str = self.secure_aggregation or "off"
        if self.secure_aggregation is None and self.threat == "secure_aggregation":
            mode = "on"
        try:
            return SecureSumSettings(**{"mode": mode, **self.secure_sum})
        except ValueError as error:
            raise ValueError(f"secure_sum.{error}") from error

    def require_delta(self, units: int) -> None:
        """ValueError where δ is too large for so many protected units, by public numbers.

        A mechanism that shows one unit in δ·n of all runs, and keeps the others, would keep such a
        budget. A tenth of 1/n is the most that is taken; papers take what they take.
        """
        most = 1 / (10 * units)
        if self.delta > most and not self.paper and self.epsilon < math.inf:
            raise ValueError(
                f"delta={self.delta:g}: must be at most {most:.2g}, a tenth of one in {units:,} "
                f"{self.unit}s: a larger one lets whole {self.unit}s leak"
            )

    def budget(self, schedule: Schedule) -> Budget:
        """The budget of one client for a run with these cohorts.

        Against a server that sees sums only, it counts on the noise of the clients that are sure to
        be in each sum and are no colluders, and sets aside of δ the probability that a sum's ring
        of neighbours hides nothing.

        Raises:
            ValueError: the schedule amplifies for whoever trusts the server, and nobody here does.
        """
        honest = 1
        failure = 0.0
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
            schedule.rounds,
            threat=self.threat,
            honest_clients=honest,
            participations=schedule.participations,
            failure=failure,
            unit=self.unit,
            paper_semantics=self.paper,
        )


def _require_known(group: str, given: Mapping[str, Any], names: list[str]) -> None:
    for key, value in given.items():
        if key not in names:
            raise ValueError(f"{group}.{key}={value}: unknown; known are {', '.join(names)}")
