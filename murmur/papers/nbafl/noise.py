"""NbAFL's noise for one setting: sensitivity, both calibrations, and what each adversary sees.

Wei et al., IEEE TIFS 15 (2020), arXiv 1911.00222. Symbols as in
``murmur.papers.nbafl.closed_forms``.

``paper`` calibration takes the paper's closed forms as they are. ``proven`` keeps σ_D (with b⁺) and
takes the least σ_U with which all that an outsider sees costs at most (ε, δ), by exact composition
of Gaussians, where squares of change over noise add up. Of one client, of weight p, it sees, where
the schedule asks that client in P of the T rounds at most,

* L uploads: (Δ_U/σ_U)² each;
* L broadcasts of which it saw all the other uploads: p²Δ_U² / (p²σ_U² + σ_D²) each (by convexity
  the worst case is to see them all in the same L rounds);
* the other P − 2L broadcasts of those rounds: p²Δ_U² / (σ_U² Σp² + σ_D²) each.

Planned for a full cohort of equal weights, p = 1/K; in rounds with others the server adds what
keeps the last two at what was planned. The bound on the sum is that of the analytic Gaussian
mechanism (Balle & Wang 2018). Nothing is gained from the secrecy of who was scheduled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from murmur.papers.nbafl import closed_forms
from murmur.papers.nbafl.setting import NbaflSetting
from murmur.privacy.accounting import gaussian
from murmur.privacy.accounting.calibrate import discrete_noise_multiplier
from murmur.privacy.events import Adjacency, Event, Hiding, NonPrivateEvent, Release, Unit
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.search import decreasing_root

# Noise goes beyond 16σ with probability 1e-57. An upload's entries are 32-bit integers.
_REACH = 16.0
_STEPS = 2.0**31 - 1
# Finer grids than σ/2¹⁸ gain nothing, and the server's noise must stay below 2⁴⁰ steps.
_FINEST = 2.0**18


class NbaflNoise(NbaflSetting):
    """The noise of one setting, with the setting's own attributes and checks."""

    @cached_property
    def upload_sigma(self) -> float:
        """σ_U per coordinate, in the units of the weights; 0 without noise."""
        if not self.is_noisy:
            return 0.0
        if self.calibration == "paper":
            return closed_forms.upload_sigma(*self._paper, self.smallest_dataset)
        return self._proven_sigma(self.released_sensitivity)

    @cached_property
    def grid(self) -> float:
        """The step, a power of two, of the integers that leave a client."""
        if not self.is_noisy:
            return _grid(self.clip, 0.0)
        if self.calibration == "paper":
            return _grid(self.clip, self.upload_sigma)
        return _grid(self.clip, self._proven_sigma(self.upload_sensitivity))

    @cached_property
    def mechanism(self) -> DiscreteGaussian:
        """The noise of one upload; there is none where ``is_noisy`` is false."""
        return self._mechanism(self.upload_sensitivity)

    def release(self) -> Event:
        """What one upload costs, by the noise that it carries itself.

        2C bounds whatever training does, so that much is proven in every mode.
        """
        if not self.is_noisy:
            return NonPrivateEvent()
        proven = self._mechanism(2 * self.clip).event()
        return self.resting(self.mechanism.event(), proven, Hiding.NOISE)

    def resting(self, event: Event, proven: Event, hiding: Hiding = Hiding.NOT) -> Release:
        """``event``, made for this mode's sensitivity; ``proven``: the same noise seen at 2C."""
        worst = Release(proven, Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=hiding)
        if not self.assumptions:
            return worst
        return Release(event, Unit.RECORD, Adjacency.REPLACE_ONE, self.assumptions, worst, hiding)

    def _mechanism(self, sensitivity: float) -> DiscreteGaussian:
        return DiscreteGaussian(self.upload_sigma, sensitivity, self.grid, self.dimension)

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
        return closed_forms.broadcast_sigma(
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
            return closed_forms.scheduling_b_proven(*setting)
        return closed_forms.scheduling_b(*setting)

    @property
    def _paper(self) -> tuple[float, float, int, float]:
        """ε, δ, L and the C for which 2C/m is this mode's sensitivity."""
        clip = self.upload_sensitivity * self.smallest_dataset / 2
        return self.epsilon, self.delta, self.exposures, clip

    def _proven_sigma(self, sensitivity: float) -> float:
        """The least σ_U with which an outsider's whole view costs at most (ε, δ)."""
        settings, count = (self.epsilon, self.delta, self.participations), self.participations
        each = discrete_noise_multiplier(*settings)
        sigma = self._sigma_for(each / math.sqrt(count), sensitivity)
        if sigma < gaussian.FINEST * _grid(self.clip, sigma):
            each = discrete_noise_multiplier(*settings, fine=False)
            sigma = self._sigma_for(each / math.sqrt(count), sensitivity)
        return sigma

    def _sigma_for(self, multiplier: float, sensitivity: float) -> float:
        """σ_U with which the whole view is one Gaussian release of ``multiplier``."""
        seen = closed_forms.seen_by_outsider(self.exposures, self.participations)
        uploads, stripped, rest = seen
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
