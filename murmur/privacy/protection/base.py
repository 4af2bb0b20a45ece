"""What every protection of averaged updates can do, on the client and on the server.

``Protection`` is the interface, ``Unprotected`` the one that does nothing, and ``Clipped`` what all
others share: the clipping norm, which may adapt, and the grid.

McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR
2018 (fixed clipping). Andrew, Thakkar, McMahan, Ramaswamy, "Differentially private learning with
adaptive clipping", NeurIPS 2021:

    Δ_i ← Δ_i · min(1, C/‖Δ_i‖),  b_i = 1[‖Δ_i‖ ≤ C]
    b̃ = ½ + (Σ (b_i − ½) + N(0, σ_b²)) / K;  C ← C · exp(−η_C (b̃ − γ))

What leaves is Δ_i in steps of C/2²⁰, rounded towards zero, so that its norm is at most 2²⁰ steps
exactly (``mechanisms.clipping``), and ±2²⁰ for b_i ∓ ½. The vector and the bit are one Gaussian
release: 1/z² = 1/z_Δ² + 1/(2σ_b)², so the quantile's cost is in z, the noise multiplier of a round.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from murmur.checks import blocks, is_finite
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.events import Adjacency, Event, NonPrivateEvent
from murmur.privacy.guarantee import Exposure
from murmur.privacy.mechanisms.clipping import CLIP_STEPS, clip_to_steps
from murmur.privacy.noise import NoiseGenerator
from murmur.settings import Fraction, Norm, Positive, settings

Integers = NDArray[np.int64]


class Protection(ABC):
    """Bounds and noises vectors (d,) that many clients contribute to a mean.

    Both halves of an algorithm make one from the same settings, for the same budget and cohorts.

    Attributes:
        name: in words, for the statement.
        threats: against whom it can keep a budget (``Budget.threat``).
        weighted: whether clients count by their number of examples, rather than alike.
        adjacency: between which data sets it hides the difference.
        num_extra_entries: entries of a release beyond the vector's own.
        precision: of the vectors' numbers, on which what leaves depends.
        clip: the largest norm of a vector in this round.
        bound: the largest absolute entry of a release, in integers; None for real numbers.
        shared: whether the noise relies on other clients' in the same sum.
        extendable: whether rounds can be added to a run that has begun.
        claim: what the published models are said to guarantee, for the statement.
        difference: by what that may differ from what is proven.
    """

    name: ClassVar[str]
    threats: ClassVar[tuple[str, ...]] = ()
    weighted: ClassVar[bool] = False
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    claim: ClassVar[str] = ""
    difference: ClassVar[str] = ""
    extendable: ClassVar[bool] = True
    precision: ClassVar[type[np.floating[Any]]] = np.float64
    num_extra_entries: int = 0
    clip: float = math.inf
    bound: int | None = None
    shared: bool = False

    def __init__(self, budget: Budget, cohorts: Cohorts) -> None:
        budget.require_threat(self.name, self.threats)
        self.budget = budget
        self.cohorts = cohorts

    def supported_threats(self, *, summed: bool) -> tuple[str, ...]:
        """``threats``; without that of who sees sums only where releases are not ``summed``."""
        return tuple(t for t in self.threats if summed or t != "secure_aggregation")

    @property
    def always_published(self) -> bool:
        """True if every round must be published, however few have answered.

        So it is where a round that is left out would say something of those who were asked.
        """
        return False

    # Client ---------------------------------------------------------------------------------

    @abstractmethod
    def release_event(self) -> Event:
        """Event of one message for its client, as its reader sees it."""

    @abstractmethod
    def release(
        self, vector: NDArray[Any], clip: float | None, noise: NoiseGenerator
    ) -> NDArray[Any]:
        """The release (d + e,) of a client's ``vector`` (d,), with e extra entries.

        ``clip``: the norm that the server states (``arrays``). ValueError if not finite.
        ``vector`` may hold anything: what clips it takes NaN for 0. It may be overwritten, and the
        result may lie in its memory: a model may have 10⁷ entries.
        """

    # Server ---------------------------------------------------------------------------------

    def noise_on_a_sum(self) -> float:
        """Standard deviation on an entry of a round's sum, in clipping norms; 0 without noise."""
        return 0.0

    def arrays(self) -> dict[str, NDArray]:
        """Arrays that clients need in this round, by name; they travel with the model."""
        return {}

    @abstractmethod
    def mean(
        self, number: int, total: Integers, weight: int, noise: NoiseGenerator
    ) -> NDArray[np.float64]:
        """The mean (d,) that round ``number`` makes public, from the sum (d + e,).

        ``total`` may be overwritten: the result may lie in its memory. Without a ``bound``, in the
        units of ``total``'s integers.
        """

    def published(self, participations: Mapping[int, int]) -> list[Exposure]:
        """View of those who see the server's models only, where the server is trusted.

        ``participations``: how often each client has taken part, by id. Empty where clients add the
        noise: what their messages say is the statement's own business.
        """
        return []

    def spent(self, participations: Mapping[int, int]) -> Event | None:
        """Cost of ``published`` to the most exposed client; None where it is empty."""
        return None

    def planned(self) -> Event | None:
        """Planned cost of a run to the client that it asks most often; None as for ``spent``."""
        return None

    def state(self) -> dict[str, NDArray]:
        """State for a checkpoint, by name.

        Raw sums in it are for the run's user only; ``forget`` drops them.
        """
        return {}

    def restore(self, state: Mapping[str, NDArray]) -> None:  # noqa: B027
        """Take up what ``state`` returned."""

    def forget(self) -> None:  # noqa: B027
        """The last round is over: drop raw sums, if any are kept."""


class Unprotected(Protection):
    """For baselines: vectors leave as they are, weighted by public numbers of examples.

    The statement of such a run says that nothing is protected.
    """

    name = "no protection"
    weighted = True
    precision = np.float32  # as they travel

    def __init__(self, budget: Budget, cohorts: Cohorts) -> None:
        if budget.is_private:
            raise ValueError(
                f"epsilon={budget.epsilon}: without protection no finite budget can be kept; set "
                "privacy=none, or choose protection=central, distributed or matrix"
            )
        super().__init__(budget, cohorts)

    def release_event(self) -> Event:
        """Nothing protects it."""
        return NonPrivateEvent()

    def release(
        self, vector: NDArray[Any], clip: float | None, noise: NoiseGenerator
    ) -> NDArray[Any]:
        """The vector itself."""
        return vector

    def mean(
        self, number: int, total: Integers, weight: int, noise: NoiseGenerator
    ) -> NDArray[np.float64]:
        """The weighted mean (d,), in the units of ``total``."""
        return _in_its_memory(total, lambda block: block / weight)


@settings
class Clipping:
    """How updates are clipped (conf/protection).

    Attributes:
        norm: C of round 1, in [1e-300, 1e100], in the units of an update.
        adaptive: whether C follows the updates' norms.
        quantile: γ, the share of updates that should be short enough, in (0, 1).
        learning_rate: η_C, above 0.
        bit_noise: σ_b; None for a twentieth of the cohort, as Andrew et al. recommend.

    Raises:
        ValueError: a value is outside its range.
    """

    norm: Norm
    adaptive: bool = False
    quantile: Fraction = 0.5
    learning_rate: Positive = 0.2
    bit_noise: Positive | None = None

    def next_norm(self, norm: float, share: float) -> float:
        """Returns C · exp(−η_C (b̃ − γ)), where ``share`` b̃ of updates was no longer than C."""
        return norm * math.exp(-self.learning_rate * (share - self.quantile))


class Clipped(Protection):
    """Clips on the client; a subclass says how much noise there is, and who adds it.

    ``clipping``: the fields of ``Clipping``. ``noise_multiplier``: z, None to calibrate it to the
    budget. Raises ValueError for settings out of range, and where the noise that the budget allows
    leaves none for the update beside the adaptive norm's bit.

    Attributes:
        noise_multiplier: z of a round; 0 without a budget, when nothing is added.
        clip: C of this round.
        sensitivity_factor: L2 sensitivity in units of the clipping norm; the noise is z times that.
    """

    bound: int = CLIP_STEPS
    sensitivity_factor: ClassVar[int] = 1

    def __init__(
        self,
        budget: Budget,
        cohorts: Cohorts,
        *,
        clipping: Mapping[str, Any],
        noise_multiplier: float | None = None,
    ) -> None:
        super().__init__(budget, cohorts)
        try:
            self.clipping = Clipping(**clipping)
        except ValueError as error:
            raise ValueError(f"clipping.{error}") from error
        self.clip = float(self.clipping.norm)
        self.num_extra_entries = int(self.clipping.adaptive)
        self.bit_noise = self.clipping.bit_noise or cohorts.size / 20
        most = 2**40 / CLIP_STEPS / self.sensitivity_factor  # of steps that are drawn
        if noise_multiplier is not None and not 0 < noise_multiplier <= most:
            raise ValueError(
                f"noise_multiplier={noise_multiplier}: must lie in (0, {most:,.0f}], or be null"
            )
        wanted = noise_multiplier or (self.calibrate() if budget.is_private else 0.0)
        # In whole steps, so that what is charged is exactly what is drawn.
        self.noise_multiplier = math.ceil(wanted * CLIP_STEPS) / CLIP_STEPS
        self.update_multiplier = self._update_multiplier()

    @abstractmethod
    def calibrate(self) -> float:
        """The smallest z that keeps the budget.

        σ of a round's noise over how far one client can move the round's sum.
        """

    @property
    def bit_multiplier(self) -> float:
        """σ_b over one client's effect on Σ (b_i − ½), half of ``sensitivity_factor``."""
        return 2 * self.bit_noise / self.sensitivity_factor

    def _update_multiplier(self) -> float:
        """z_Δ: what is left for the update once the bit has had its share.

        1/z_Δ² = 1/z² − 1/z_b². ValueError where the bit's noise is so small that nothing is left.
        """
        if not self.clipping.adaptive or not self.noise_multiplier:
            return self.noise_multiplier
        left = 1 / self.noise_multiplier**2 - 1 / self.bit_multiplier**2
        if left <= 0:
            least = self.noise_multiplier * self.sensitivity_factor / 2
            raise ValueError(
                f"clipping.bit_noise={self.bit_noise:g}: must be above {least:g} at this noise; a "
                "larger cohort "
                "needs less noise on the update"
            )
        return 1 / math.sqrt(left)

    # Client ---------------------------------------------------------------------------------

    def release(
        self, vector: NDArray[np.float64], clip: float | None, noise: NoiseGenerator
    ) -> Integers:
        """The clipped vector in grid steps, and ±1 norm for the bit, without noise.

        ``clip``: the round's norm by the server's word; None for this object's own.
        """
        norm = self.clip if clip is None else clip
        own = vector
        if not vector.flags.writeable or not is_finite(vector):
            own = np.nan_to_num(vector)
        place = own.view(np.int64) if own.itemsize == 8 else None
        steps, is_short = clip_to_steps(own, norm, out=place)
        if not self.clipping.adaptive:
            return steps
        return np.append(steps, CLIP_STEPS if is_short else -CLIP_STEPS)

    # Server ---------------------------------------------------------------------------------

    def noise_on_a_sum(self) -> float:
        """z_Δ times how many norms one client moves the sum."""
        return self.update_multiplier * self.sensitivity_factor

    def arrays(self) -> dict[str, NDArray]:
        """The clipping norm of this round."""
        return {"clip": np.array([self.clip])}

    def mean(
        self, number: int, total: Integers, weight: int, noise: NoiseGenerator
    ) -> NDArray[np.float64]:
        """Σ/K with the noise in it; the clipping norm of the next round follows."""
        size = len(total) - self.num_extra_entries
        expected = self.divisor(weight)
        step = self.clip / CLIP_STEPS
        noised = self.noised(number, total[:size], self.update_multiplier, noise)
        mean = _in_its_memory(noised, lambda block: block * (step / expected))
        if self.clipping.adaptive:
            bits = self.noised(number, total[size:], self.bit_multiplier, noise)
            share = 0.5 + float(bits[0]) / (2 * CLIP_STEPS * expected)
            self.clip = self.clipping.next_norm(self.clip, share)
        return mean

    def divisor(self, weight: int) -> int:
        """K: what a sum over ``weight`` clients is divided by."""
        return weight

    def noised(
        self, number: int, total: Integers, multiplier: float, noise: NoiseGenerator
    ) -> NDArray[Any]:
        """``total`` as round ``number`` may publish it: (n,), in the units of ``total``.

        ``multiplier``: σ in clipping norms. As it is, where clients added the noise. ``total`` may
        be overwritten.
        """
        return total

    def state(self) -> dict[str, NDArray]:
        """The clipping norm."""
        return {"clip": np.array([self.clip])}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The clipping norm."""
        self.clip = float(state["clip"][0])


def _in_its_memory(
    values: NDArray[Any], change: Callable[[NDArray[Any]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """``change`` of each entry of ``values`` (n,), of 64 bits, in the memory of ``values``."""
    changed = values.view(np.float64)
    for block in blocks(len(values)):
        changed[block] = change(values[block])
    return changed
