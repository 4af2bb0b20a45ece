"""NbAFL's noise: the paper's closed forms, what they need to know, and what is proven of them.

Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor: "Federated learning with differential privacy:
algorithms and performance analysis", IEEE TIFS 15 (2020), arXiv 1911.00222. Symbols: T rounds, L
exposures per client, N clients, K of them drawn per round, C clip, m the smallest data set's size,
p_i weights, Δ_U the change of an upload by one record, c = √(2 ln(1.25/δ)). All σ are per
coordinate. c is valid below ε = 1 only; what the noise proves is another matter.

``paper`` calibration takes the paper's closed forms as they are (theorem 1 and K-random
scheduling). ``proven`` keeps σ_D (with b⁺) and takes the least σ_U with which all that an outsider
sees costs at most (ε, δ), by exact composition of Gaussians, where squares of change over noise add
up. Of one client, of weight p, it sees, where the schedule asks that client in P of the T rounds at
most,

* L uploads: (Δ_U/σ_U)² each;
* L broadcasts of which it saw all the other uploads: p²Δ_U² / (p²σ_U² + σ_D²) each (by convexity
  the worst case is to see them all in the same L rounds);
* the other P − 2L broadcasts of those rounds: p²Δ_U² / (σ_U² Σp² + σ_D²) each.

Planned for a full cohort of equal weights, p = 1/K; in rounds with others the server adds what
keeps the last two at what was planned. The bound on the sum is that of the analytic Gaussian
mechanism (Balle & Wang 2018). Nothing is gained from the secrecy of who was scheduled.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from murmur.privacy import events
from murmur.privacy.accounting import gaussian
from murmur.privacy.accounting.calibrate import discrete_noise_multiplier
from murmur.privacy.budget import Budget
from murmur.privacy.events import Adjacency, Event, Unit
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.search import decreasing_root
from murmur.settings import Count, Norm, NotNegative, settings

Sensitivity = Literal["paper", "worst", "erm", "dpsgd"]

BOUNDED_CHANGE = events.Assumption(
    "bounded_change",
    "one record moves a trained model by 2C/m at most, whichever batches it is in "
    "(sensitivity=paper), which holds for averages of per-sample minimisers, not for a network "
    "trained by SGD",
)
"""What the paper's sensitivity rests on."""

# Noise goes beyond 16σ with probability 1e-57. An upload's entries are 32-bit integers.
_REACH = 16.0
_STEPS = 2.0**31 - 1
# Finer grids than σ/2¹⁸ gain nothing, and the server's noise must stay below 2⁴⁰ steps.
_FINEST = 2.0**18


# The paper's closed forms -----------------------------------------------------------------------


def upload_sigma(
    epsilon: float, delta: float, exposures: int, clip: float, smallest_dataset: float
) -> float:
    """σ_U = c·L·Δ_U/ε with Δ_U = 2C/m, per coordinate (theorem 1).

    Args:
        epsilon: ε of all L uploads by the paper's count.
        delta: δ in (0, 1).
        exposures: L.
        clip: C.
        smallest_dataset: m.
    """
    return gaussian.classical_constant(delta) * exposures * 2 * clip / smallest_dataset / epsilon


def broadcast_sigma(
    epsilon: float,
    delta: float,
    rounds: int,
    exposures: int,
    clip: float,
    smallest_dataset: float,
    weights: Sequence[float],
    b: float = 1.0,
) -> float:
    """σ_D, what the server adds for outsiders who see all T broadcasts; 0 if none is needed.

    σ_D² = (2cTC·max p/(bmε))² − σ_U² Σ p_i², which for equal weights without scheduling is
    (2cC/(mNε))²·(T² − L²N).

    Args:
        epsilon: ε.
        delta: δ in (0, 1).
        rounds: T.
        exposures: L.
        clip: C.
        smallest_dataset: m.
        weights: p_i of those who answered; they sum to 1.
        b: of K-random scheduling, 1 without; an infinite one needs no noise.
    """
    unit = gaussian.classical_constant(delta) * 2 * clip / (smallest_dataset * epsilon)
    needed = (rounds / b * max(weights)) ** 2
    present = exposures**2 * sum(weight**2 for weight in weights)
    return unit * math.sqrt(max(0.0, needed - present))


def scheduling_b(epsilon: float, rounds: int, clients: int, scheduled: int) -> float:
    """The paper's b = −(T/ε) ln(1 − N/K + (N/K) e^{−ε/T}); inf where the logarithm has none.

    It follows from the lower side of subsampling, which does not bind; see
    ``scheduling_b_proven``.
    """
    inside = 1 + clients / scheduled * math.expm1(-epsilon / rounds)
    if inside > 0:
        return -rounds / epsilon * math.log(inside)
    return math.inf


def scheduling_b_proven(epsilon: float, rounds: int, clients: int, scheduled: int) -> float:
    """b⁺ = (T/ε) ln(1 + (N/K)(e^{ε/T} − 1)) ≤ b, from the side of subsampling that binds."""
    return rounds / epsilon * math.log1p(clients / scheduled * math.expm1(epsilon / rounds))


def seen_by_outsider(exposures: int, participations: int) -> tuple[int, int, int]:
    """Of one client's participations: uploads seen, broadcasts stripped of others' noise, rest.

    The three add up to ``participations``; the outsider is taken to see the L uploads of one client
    and, in as many other rounds, all uploads but that client's.
    """
    uploads = min(exposures, participations)
    stripped = min(exposures, participations - uploads)
    return uploads, stripped, participations - uploads - stripped


# The noise of one setting -----------------------------------------------------------------------


@settings
class NbaflSettings:
    """Settings that both halves must agree on, as a user writes them.

    Attributes:
        num_clients: N.
        clients_per_round: K; None: all.
        clip: C.
        exposures: L; None: all rounds.
        smallest_dataset: m; None: the smallest of the public sizes.
        lipschitz: G, of the per-sample loss; for ``erm``.
        proximal_mu: μ of the local problem.
        sensitivity: see ``NbaflNoise``. None: what the budget asks for, ``paper`` of the paper's,
            ``worst`` for a client and ``dpsgd`` for a record.
        calibration: None: the paper's own for the paper's sensitivity, the proven one for all
            others.
    """

    num_clients: Count
    clients_per_round: int | None
    clip: Norm
    exposures: int | None
    smallest_dataset: int | None
    lipschitz: float | None = None
    proximal_mu: NotNegative = 0.0
    sensitivity: Sensitivity | None = None
    calibration: Literal["paper", "proven"] | None = None

    def sensitivity_for(self, budget: Budget) -> Sensitivity:
        """The sensitivity that keeps ``budget``; ValueError where another one is asked for.

        A paper's budget rests on what the paper assumes; any sensitivity may be asked for there.
        """
        if budget.paper_semantics:
            return self.sensitivity or "paper"
        kept: Sensitivity = "worst" if budget.unit == "client" else "dpsgd"
        if self.sensitivity not in (None, kept) and budget.is_private:
            raise ValueError(
                f"sensitivity={self.sensitivity}: a {budget.unit}'s budget needs {kept}; leave it "
                "null, set privacy.unit, or set privacy=paper for what the paper assumes"
            )
        if self.calibration == "paper" and budget.is_private:
            raise ValueError(
                "calibration=paper: proves less than privacy.epsilon; leave it null, or set "
                "privacy=paper"
            )
        return kept


@settings
class NbaflNoise:
    """The noise of one setting; constructing it validates the setting.

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
        proximal_mu: μ of local training's proximal term; ``erm`` needs it above 0.

    Raises:
        ValueError: a setting is out of range or does not go with another.
    """

    epsilon: float
    delta: float
    rounds: Count
    participations: int
    exposures: int
    clients: Count
    scheduled: int
    clip: Norm
    smallest_dataset: int
    dimension: Count
    sensitivity: Sensitivity = "paper"
    calibration: Literal["paper", "proven"] = "paper"
    lipschitz: float | None = None
    proximal_mu: NotNegative = 0.0

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)  # its checks
        if self.is_private and self.delta == 0:
            raise ValueError("delta=0.0: Gaussian noise needs a delta above 0")
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
        if self.sensitivity == "dpsgd" and self.calibration == "paper":
            raise ValueError(
                "calibration='paper': the paper has no formula for sensitivity=dpsgd; set "
                "privacy.calibration=proven"
            )
        if self.sensitivity == "erm":
            self._require_strong_convexity()

    def _require_strong_convexity(self) -> None:
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
        cls, budget: Budget, sizes: Sequence[int] | None, dimension: int, asked: NbaflSettings
    ) -> "NbaflNoise":
        """The noise of what is ``asked``.

        Args:
            budget: for the whole run.
            sizes: examples of every client, by id; None: not public.
            dimension: d.
            asked: what both halves agree on.

        Raises:
            ValueError: m is not known or larger than the smallest client, the sensitivity does not
                keep the budget, or what the class refuses.
        """
        sensitivity = asked.sensitivity_for(budget)
        smallest = asked.smallest_dataset
        if sizes is not None:
            if len(sizes) != asked.num_clients:
                raise ValueError(f"num_clients={asked.num_clients}: there are {len(sizes)} clients")
            if smallest is None:
                smallest = min(sizes)
            if smallest > min(sizes):
                raise ValueError(
                    f"smallest_dataset={smallest}: the smallest client has {min(sizes)} "
                    "examples; m may not be larger, or its noise would be too small"
                )
        if smallest is None:
            raise ValueError(
                "smallest_dataset=None: clients' sizes are not public here; state the smallest"
            )
        calibration = asked.calibration
        if calibration is None:
            calibration = "proven"
            if sensitivity == "paper":
                calibration = "paper"
        return cls(
            epsilon=budget.epsilon,
            delta=budget.delta,
            rounds=budget.rounds,
            participations=budget.releases,
            exposures=budget.rounds if asked.exposures is None else asked.exposures,
            clients=asked.num_clients,
            scheduled=asked.clients_per_round or asked.num_clients,
            clip=asked.clip,
            smallest_dataset=smallest,
            dimension=dimension,
            sensitivity=sensitivity,
            calibration=calibration,
            lipschitz=asked.lipschitz,
            proximal_mu=asked.proximal_mu,
        )

    @property
    def is_private(self) -> bool:
        """True if ε is finite."""
        return math.isfinite(self.epsilon)

    @property
    def is_noisy(self) -> bool:
        """True if uploads carry noise of their own (training carries it with ``dpsgd``)."""
        return self.is_private and self.sensitivity != "dpsgd"

    @property
    def assumptions(self) -> tuple[events.Assumption, ...]:
        """Assumptions of the sensitivity, by name; none where it holds for any training."""
        if self.sensitivity == "paper":
            return (BOUNDED_CHANGE,)
        if self.sensitivity != "erm":
            return ()
        return (
            events.Assumption(
                "exact_minimiser",
                "every client solves its proximal problem exactly (sensitivity=erm)",
            ),
            events.Assumption(
                "lipschitz",
                f"losses of examples are convex, with a Lipschitz constant of "
                f"{self.lipschitz:g} (sensitivity=erm)",
            ),
        )

    @property
    def upload_sensitivity(self) -> float:
        """Δ_U, the L2 change of a clipped model by one record (``worst``: by all of them)."""
        worst = 2 * self.clip
        if self.sensitivity == "paper":
            return worst / self.smallest_dataset
        if self.sensitivity == "erm" and self.lipschitz is not None:
            # Clipping projects onto a ball, which moves no two models apart.
            return min(worst, 2 * self.lipschitz / (self.smallest_dataset * self.proximal_mu))
        return worst

    @property
    def released_sensitivity(self) -> float:
        """Δ_U with what rounding to the grid adds, √d steps."""
        return self.upload_sensitivity + math.sqrt(self.dimension) * self.grid

    @cached_property
    def upload_sigma(self) -> float:
        """σ_U per coordinate, in the units of the weights; 0 without noise."""
        if not self.is_noisy:
            return 0.0
        if self.calibration == "paper":
            return upload_sigma(*self._paper, self.smallest_dataset)
        return self._proven_sigma(self.released_sensitivity)

    @cached_property
    def grid(self) -> float:
        """The step, a power of two, of the integers that leave a client.

        So fine that rounding adds little, so coarse that an upload and 16σ of noise fit 32 bits.
        """
        if not self.is_noisy:
            return _grid(self.clip, 0.0)
        if self.calibration == "paper":
            return _grid(self.clip, self.upload_sigma)
        return _grid(self.clip, self._proven_sigma(self.upload_sensitivity))

    @cached_property
    def mechanism(self) -> DiscreteGaussian:
        """The noise of one upload; there is none where ``is_noisy`` is false."""
        return self._mechanism(self.upload_sensitivity)

    def _mechanism(self, sensitivity: float) -> DiscreteGaussian:
        return DiscreteGaussian(self.upload_sigma, sensitivity, self.grid, self.dimension)

    def release(self) -> Event:
        """Event of one upload, by the noise that it carries itself.

        2C bounds whatever training does, so that much is proven in every mode. With ``paper`` and
        ``erm`` the smaller figure, for a record, rests on ``assumptions``, by name.
        """
        if not self.is_noisy:
            return events.NonPrivateEvent()
        proven = self._mechanism(2 * self.clip).event()
        return self.resting(self.mechanism.event(), proven, events.Hiding.NOISE)

    def resting(
        self, event: Event, proven: Event, hiding: events.Hiding = events.Hiding.NOT
    ) -> events.Release:
        """``event``, made for this mode's sensitivity; ``proven``: the same noise seen at 2C."""
        worst = events.Release(proven, Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=hiding)
        if not self.assumptions:
            return worst
        return events.Release(
            event, Unit.RECORD, Adjacency.REPLACE_ONE, self.assumptions, worst, hiding
        )

    def broadcast_sigma(self, weights: Sequence[float]) -> float:
        """σ_D per coordinate; 0 where none is needed.

        With ``proven`` calibration at least what keeps each broadcast as noisy, over the weight of
        its heaviest client, as was planned for a full cohort of equal weights.

        Args:
            weights: p_i of the clients that answered.
        """
        if not self.is_noisy:
            return 0.0
        sigma = self._closed_form(weights)
        if self.calibration == "paper":
            return sigma
        uplink = self.upload_sigma**2
        planned = self._planned**2
        most = max(weights) ** 2
        stripped = most * planned
        spread = sum(weight**2 for weight in weights)
        rest = most * (uplink * self.scheduled + planned) - uplink * spread
        return max(sigma, math.sqrt(max(0.0, stripped, rest)))

    @cached_property
    def _planned(self) -> float:
        """σ_D/p of a full cohort of equal weights."""
        weights = [1 / self.scheduled] * self.scheduled
        return self._closed_form(weights) * self.scheduled

    def _closed_form(self, weights: Sequence[float]) -> float:
        epsilon, delta, exposures, clip = self._paper
        return broadcast_sigma(
            epsilon, delta, self.rounds, exposures, clip, self.smallest_dataset, weights, self.b
        )

    @property
    def _paper(self) -> tuple[float, float, int, float]:
        """ε, δ, L and the C for which 2C/m is this mode's sensitivity."""
        clip = self.upload_sensitivity * self.smallest_dataset / 2
        return self.epsilon, self.delta, self.exposures, clip

    @property
    def b(self) -> float:
        """Divisor of T in K-random scheduling: the paper's b, or b⁺ if proven; 1 for K = N."""
        if self.scheduled == self.clients:
            return 1.0
        form = scheduling_b
        if self.calibration == "proven":
            form = scheduling_b_proven
        return form(self.epsilon, self.rounds, self.clients, self.scheduled)

    def _proven_sigma(self, sensitivity: float) -> float:
        """The least σ_U with which an outsider's whole view costs at most (ε, δ)."""
        count = self.participations
        each = discrete_noise_multiplier(self.epsilon, self.delta, count)
        sigma = self._sigma_for(each / math.sqrt(count), sensitivity)
        if sigma < gaussian.MIN_CONTINUOUS_SIGMA * _grid(self.clip, sigma):
            each = discrete_noise_multiplier(self.epsilon, self.delta, count, 0)
            sigma = self._sigma_for(each / math.sqrt(count), sensitivity)
        return sigma

    def _sigma_for(self, multiplier: float, sensitivity: float) -> float:
        """σ_U with which the whole view is one Gaussian release of ``multiplier``."""
        uploads, stripped, rest = seen_by_outsider(self.exposures, self.participations)
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
