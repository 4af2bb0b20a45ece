"""The settings of ``private``: budget, releases, and the noise that keeps the budget."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from murmur.flower.ask import ALGORITHM, Ask
from murmur.privacy.events import Adjacency, Unit
from murmur.privacy.run_header import PlannedPhase, RunHeader, ServerKey
from murmur.secure_sum.settings import SecureSumSettings
from murmur.secure_sum.terms import LYING, Server

if TYPE_CHECKING:
    from murmur.privacy.protection.base import Clipping  # loads SciPy

COLLUDERS = 1  # clients that may side with the server
MIN_SUM_NODES = COLLUDERS + 2  # two honest ones hide each other
MIN_SUM_FRACTION = 0.67  # of a cohort
EVALUATION_NOISE = 2.0  # the noise on evaluations, in that on trainings
BIT_WEIGHT = 0.5  # clipping norms: the bit of an adaptive one lengthens the vector by 3%
SUMS = SecureSumSettings(
    "on",
    threshold=None,
    minimum=MIN_SUM_FRACTION,
    neighbours=2**62,  # all that there are
    colluders=COLLUDERS,
)

Ranges = Mapping[str, tuple[float, float]]


def adaptive_clipping() -> "Clipping":
    """How an adaptive norm begins, and follows the median length of updates.

    The start is that of Andrew et al. 2021. The learning rate is five times theirs, since an app
    has tens of rounds where the paper has thousands.
    """
    from murmur.privacy.protection.base import Clipping

    return Clipping(norm=0.1, adaptive=True, quantile=0.5, learning_rate=1.0)


def named_ranges(given: Ranges | None) -> tuple[tuple[str, float, float], ...]:
    """Returns names and ranges as an ask has them, in the order of names; all numbers as floats."""
    ranges = sorted((given or {}).items())
    return tuple((name, float(low), float(high)) for name, (low, high) in ranges)


@dataclass(frozen=True)
class PrivacySettings:
    """The arguments of ``private``, and the number of rounds once the strategy starts.

    Attributes:
        epsilon, delta, frozen, simulated, server: As in ``private``.
        clip: The clipping norm of the first round.
        adaptive: How it follows the clients' changes; None: it stays.
        metrics: (name, low, high) of each metric, under "train" and "evaluate".
        rounds: The noise is made for so many; 1 until the run starts, when only ranges are checked.
        roster: Digest of the list of clients that owners have agreed on; None: there is none.
    """

    epsilon: float
    delta: float
    clip: float
    metrics: Mapping[str, tuple[tuple[str, float, float], ...]]
    frozen: tuple[str, ...]
    simulated: bool
    rounds: int = 1
    adaptive: "Clipping | None" = None
    server: Server = LYING
    roster: str | None = None

    def __post_init__(self) -> None:
        # An ask refuses what is out of range, before anything is started.
        for purpose in ("train", "evaluate"):
            if purpose == "train" or self.metrics[purpose]:
                self.ask(purpose, 1, self.minimum(100))

    @cached_property
    def noise(self) -> dict[str, float]:
        """Noise multiplier of each purpose: σ of the noise on a sum over its sensitivity.

        All that one client can be asked keeps the budget: with r rounds, r (1/z_train² + 1/z_ev²) =
        1/z², where z alone would keep it. An evaluation gets twice the noise of a training. A
        client is taken to be asked in every round, whatever the strategy samples: nothing is gained
        from sampling.
        """
        from murmur.privacy.accounting.calibrate import discrete_noise_multiplier  # loads SciPy

        releases = self.rounds
        share = 1.0
        if self.metrics["evaluate"]:
            releases = 2 * self.rounds
            share = (1 + 1 / EVALUATION_NOISE**2) / 2
        multiplier = discrete_noise_multiplier(self.epsilon, self.delta, releases)
        train = multiplier * math.sqrt(share)
        return {"train": train, "evaluate": EVALUATION_NOISE * train}

    def minimum(self, clients: int) -> int:
        """Returns the fewest of ``clients`` whose sum is revealed: 67% of them, at least three."""
        return self.sums.least_survivors(clients)

    @property
    def sums(self) -> SecureSumSettings:
        """Settings of a cohort's sum: one group, each client shares its secrets with all others."""
        if self.simulated:
            return replace(SUMS, mode="simulated")
        return replace(SUMS, server=self.server)

    def header(self, name: str, key: ServerKey) -> RunHeader:
        """Returns the header of the run ``name``, which ``key`` is to sign.

        Its phases name no event: how much of a sum's noise is one client's follows from the
        cohort's size, which may be another one in each round.
        """
        phases = []
        settings: dict[str, Any] = {}
        for purpose in ("train", "evaluate"):
            if purpose == "train" or self.metrics[purpose]:
                phases.append(PlannedPhase(purpose, 1, self.rounds))
                settings |= self.ask(purpose, 1, self.minimum(100)).run_settings()
        return RunHeader(
            name=name,
            server=key.public_key,
            algorithm=ALGORITHM,
            unit=Unit.CLIENT,
            adjacency=Adjacency.REPLACE_ONE,
            delta=float(self.delta),
            threat="secure_aggregation",
            schedule={"kind": "strategy", "rounds": self.rounds},
            secret=False,
            phases=tuple(phases),
            settings=settings,
            roster=self.roster,
            successions=key.successions,
        )

    def following(self, ask: Ask) -> Ask | None:
        """Returns the ask after ``ask``, of as many clients, in the order of Flower's rounds.

        None after the last round, and where the next clipping norm follows from this one's answers.
        """
        purpose, number = "train", ask.round + 1
        if ask.purpose == "train" and self.metrics["evaluate"]:
            purpose, number = "evaluate", ask.round
        if ask.bit_weight or number > self.rounds:
            return None
        return self.ask(purpose, number, ask.minimum, ask.clip)

    def ask(self, purpose: str, number: int, minimum: int, clip: float | None = None) -> Ask:
        """Returns what round ``number`` asks of each client.

        ``purpose``: "train" or "evaluate". ``minimum``: of this round's cohort. ``clip``: its norm,
        the first round's by default. ValueError for a value that an ask refuses.
        """
        bit_weight = 0.0
        if self.adaptive is not None and purpose == "train":
            bit_weight = BIT_WEIGHT
        return Ask(
            purpose=purpose,  # type: ignore[arg-type]
            round=number,
            rounds=self.rounds,
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            noise_multiplier=self.noise[purpose],
            clip=float(self.clip if clip is None else clip),
            minimum=minimum,
            colluders=COLLUDERS,
            frozen=self.frozen,
            metrics=self.metrics[purpose],
            simulated=self.simulated,
            bit_weight=bit_weight,
            server=self.server,
        )
