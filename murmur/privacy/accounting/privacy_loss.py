"""Exact composition of finite privacy-loss distributions, by FFT on a lattice.

The privacy loss of a release is L = ln P(y)/Q(y), y ~ P, for the worst pair P, Q of output
distributions. Losses of independent releases add up, and

    δ(ε) = E[(1 − e^{ε−L})₊].

Plain FFT loses everything below 1e-16. So all distributions are first tilted,
P_θ(l) = P(l) e^{θl − K(θ)} with K(θ) = ln E e^{θL}, so that the losses which decide δ at the wanted
ε become the centre, and the error is relative to them, however small δ is. With

    (1 − e^{−x})₊ ≤ c(θ) e^{θx},   c(θ) = θ^θ / (1 + θ)^{1+θ},

δ(ε) ≤ c(θ) e^{K(θ) − θε}, and the θ that makes this least puts the centre at ε + ln(1 + 1/θ), where
most of δ comes from. ε is not known before it is computed: the first θ is that for the ε of this
bound, and where that shows less than all digits, the next one is for the ε that it shows. Sources:
Koskela et al., "Computing tight differential privacy guarantees using FFT" (2020); the bound is
proposition 12 of Canonne, Kamath, Steinke (2020), the tilt the saddle-point of Alghamdi et al.
(2022).

A Gaussian beside the lattice needs no lattice: δ(ε) = E[δ_Gauss(ε − L)].

Ours. dp-accounting 0.6 composes by plain FFT without adding its error to δ, so that from about
δ = 1e-10 on its ε is below the truth (24.21 is true and 23.08 stated for 10,000 steps of DP-SGD at
δ = 1e-14) or infinite. It also rounds every loss to its own lattice, while labels and bits have one
on which the sum is exact, and takes 15 to 1,000 times as long for them: docs/accounting.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from murmur.privacy.accounting import gaussian
from murmur.privacy.accounting.gaussian import Floats
from murmur.privacy.search import decreasing_root, minimum

# Points that a lattice of our own choice spends on 60 standard deviations of the sum, and on
# all parts together: a ledger with a thousand different releases gets a coarser lattice.
_POINTS = 2**19
_POINTS_IN_ALL = 2**24
# The largest window of one FFT.
_MAX_POINTS = 2**22
# Mass that may wrap around the FFT's window, in the tilted distribution; added to δ.
_LOG_ALIAS = -42.0
_ENDS = 1e-13
_UNIT_ROUNDOFF = 2.0**-52
# Errors below this share of δ (and of 1 − δ) do not show in ε, nor does an ε that is less by this.
_SHARP = 1e-6
_GAINED = 1e-9
# Beyond this many e-folds above ε a loss counts as its whole (tilted) mass times e^−90.
_FADED = 90.0
_UNDERFLOW = 1e-300
# Releases beyond these (ε of 10⁶, or of μ²/2 = 10⁸, or next to 0) count as basic composition
# says.
_MAX_LOSS = 1e6
_MAX_MU = 1.5e4
_MIN_STEP = 1e-100


@dataclass(frozen=True, eq=False)
class LatticeLoss:
    """A privacy loss with values ``step`` · (``lowest``, ``lowest`` + 1, …).

    Attributes:
        step: distance of two values, above 0.
        lowest: the smallest value, in steps.
        probabilities: under P, shape (values,), with sum 1; the last one is above 0.
        count: how many independent copies are composed; the methods below are about one.
    """

    step: float
    lowest: int
    probabilities: Floats
    count: int = 1

    @classmethod
    def of(cls, losses: Floats, masses: Floats, step: float, count: int = 1) -> "LatticeLoss":
        """A loss on a lattice of ``step`` that is at least as bad as the atoms, and hardly worse.

        Each atom is split between its two neighbours on the lattice so that its mass under P
        and under Q are both kept: δ(ε) becomes its chord between lattice points, which is
        above it because δ is convex in e^ε ("connect the dots", Doroshenko et al. 2022).
        ``losses`` and ``masses`` (under P): shape (atoms,).
        """
        position = losses / step
        below = np.floor(position)
        share = np.expm1((below - position) * step) / math.expm1(-step)
        up = masses * np.clip(share, 0.0, 1.0)
        lowest = int(below.min())
        index = (below - lowest).astype(np.int64)
        probabilities = np.zeros(int(index.max()) + 2)
        np.add.at(probabilities, index, masses - up)
        np.add.at(probabilities, index + 1, up)
        return cls(step, lowest, np.trim_zeros(probabilities, "b"), count)

    def on_step(self, step: float) -> "LatticeLoss":
        """The loss on another lattice, rounded up (``of``); itself on its own step."""
        if step == self.step:
            return self
        return LatticeLoss.of(self.losses, self.probabilities, step, self.count)

    @cached_property
    def losses(self) -> Floats:
        """The values of the loss, shape (values,)."""
        return self.step * (self.lowest + np.arange(self.probabilities.size, dtype=np.float64))

    @property
    def worst(self) -> float:
        """The largest loss."""
        return self.step * (self.lowest + self.probabilities.size - 1)

    def log_mgf(self, theta: float) -> float:
        """K(θ) = ln E e^{θL}; keeps its digits near θ = 0."""
        exponent = theta * self.losses
        top = float(exponent[-1])
        if top < 0.5:
            return math.log1p(float(self.probabilities @ np.expm1(exponent)))
        return math.log(float(self.probabilities @ np.exp(exponent - top))) + top

    def tilted(self, theta: float) -> Floats:
        """P_θ(l) = P(l) e^{θl − K(θ)}, shape (values,)."""
        with np.errstate(divide="ignore"):
            exponent = np.log(self.probabilities) + theta * self.losses
        weights = np.exp(exponent - exponent.max())
        return np.asarray(weights / weights.sum())

    def moments(self, theta: float = 0.0) -> tuple[float, float]:
        """Mean and variance under the tilt ``theta``."""
        weights = self.tilted(theta)
        losses = self.losses
        mean = float(weights @ losses)
        return mean, float(weights @ (losses - mean) ** 2)


def epsilon(parts: Sequence[LatticeLoss], delta: float, gaussian_mu: float = 0.0) -> float:
    """The smallest ε with δ(ε) ≤ ``delta`` for all ``parts`` and one Gaussian together.

    Exact up to float rounding, which is added to δ, when all parts share one lattice; otherwise an
    upper bound (``LatticeLoss.of``). Falls back to the best Rényi bound where the count is too
    large for the window.

    Args:
        parts: lattice losses, each as often as its ``count``; may be none.
        delta: where it is 0 or below, ε is the sum of the worst losses, infinite beside a Gaussian;
            where it is 1 or above, ε is 0.
        gaussian_mu: L2 sensitivity / σ of the Gaussian releases taken together (0: none).
    """
    if delta >= 1:
        return 0.0
    worst = sum(part.count * part.worst for part in parts)
    if gaussian_mu:
        worst = math.inf
    if delta <= 0 or _is_extreme(parts, gaussian_mu):
        return max(0.0, worst)
    parts = common_lattice(parts)
    tail = -math.log(delta)

    def bound(theta: float) -> float:
        return (_log_mgf(parts, gaussian_mu, theta) + _log_kernel(theta) + tail) / theta

    theta = _best_tilt(bound, parts, gaussian_mu)
    least = max(0.0, min(bound(theta), worst))
    while least > 0:
        composed = _Tilted.of(parts, gaussian_mu, theta)
        if composed is None:
            break
        before = least
        least = composed.epsilon(tail, before)
        if composed.is_sharp(least, delta) or least > before * (1 - _GAINED):
            break
        theta = _tilt_for(least, parts, gaussian_mu)
    return least


def common_lattice(parts: Sequence[LatticeLoss]) -> list[LatticeLoss]:
    """``parts`` on one lattice: an exact one where their steps are commensurate.

    Otherwise the lattice divides the step of the part with the most releases, and is so fine
    that the rounding costs about 1e-6 of ε for a thousand releases of each part, 2e-3 for a
    million (more from some dozens of different parts on).
    """
    if len({part.step for part in parts}) <= 1:
        return list(parts)
    spread = math.sqrt(sum(part.count * part.moments()[1] for part in parts))
    fine = 60.0 * spread / min(_POINTS, _POINTS_IN_ALL // len(parts))
    step = _commensurate_step([part.step for part in parts])
    if step is None or step < fine / 8:
        main = max(parts, key=lambda part: part.count)
        step = fine
        if main.step > fine / 8:
            step = main.step / math.ceil(main.step / fine)
    return [part.on_step(step) for part in parts]


def _commensurate_step(steps: Sequence[float]) -> float | None:
    """The largest step that divides all ``steps`` up to rounding, if a simple one exists."""
    smallest = min(steps)
    for divisor in range(1, 65):
        step = smallest / divisor
        ratios = [other / step for other in steps]
        if all(abs(ratio - round(ratio)) < 1e-12 * ratio for ratio in ratios):
            return step
    return None


def _is_extreme(parts: Sequence[LatticeLoss], gaussian_mu: float) -> bool:
    """True if ε is so large or so small that the distribution cannot be held in floats."""
    return gaussian_mu > _MAX_MU or any(
        part.worst > _MAX_LOSS or part.step < _MIN_STEP for part in parts
    )


def _best_tilt(
    bound: Callable[[float], float], parts: Sequence[LatticeLoss], gaussian_mu: float
) -> float:
    """The θ that makes a bound smallest, up to where all mass is at the worst loss."""
    highest = 30.0
    if parts and not gaussian_mu:
        releases = sum(part.count for part in parts)
        highest = math.log((7.0 + math.log(releases)) / parts[0].step)
    return math.exp(minimum(lambda log_theta: bound(math.exp(log_theta)), -30.0, highest))


def _tilt_for(epsilon: float, parts: Sequence[LatticeLoss], gaussian_mu: float) -> float:
    """The θ that makes the bound on δ(``epsilon``) smallest."""

    def log_bound(theta: float) -> float:
        return _log_mgf(parts, gaussian_mu, theta) + _log_kernel(theta) - theta * epsilon

    return _best_tilt(log_bound, parts, gaussian_mu)


def _log_kernel(theta: float) -> float:
    """The logarithm of c(θ): (1 − e^{−x})₊ is nowhere above c(θ) e^{θx}."""
    return theta * math.log(theta) - (1 + theta) * math.log1p(theta)


def _gaussian_log_mgf(theta: float, mu: float) -> float:
    """K(θ) of the Gaussian's privacy loss L ~ N(μ²/2, μ²)."""
    return theta * (theta + 1) * (mu * mu) / 2


def _log_mgf(parts: Sequence[LatticeLoss], gaussian_mu: float, theta: float) -> float:
    total = _gaussian_log_mgf(theta, gaussian_mu)
    for part in parts:
        total += part.count * part.log_mgf(theta)
    return total


@dataclass(frozen=True, eq=False)
class _Tilted:
    """The composed lattice part under the tilt θ, and the Gaussian beside it.

    Attributes:
        theta: θ, above 0.
        log_scale: K(θ) of all parts together, the Gaussian's too.
        gaussian_mu: of the Gaussian beside; 0: none.
        losses, weights: values of the loss and their tilted probabilities, shape (points,).
        error, alias: bound what rounding and wrapping around may have taken from the weights.
        trusted_from: below this loss there is more than that outside the window.
    """

    theta: float
    log_scale: float
    gaussian_mu: float
    losses: Floats
    weights: Floats
    error: float = 0.0
    alias: float = 0.0
    trusted_from: float = -math.inf

    @classmethod
    def of(cls, parts: Sequence[LatticeLoss], gaussian_mu: float, theta: float) -> "_Tilted | None":
        """Compose; None where the distribution does not fit the largest window."""
        log_scale = _log_mgf(parts, gaussian_mu, theta)
        if not parts:
            return cls(theta, log_scale, gaussian_mu, np.zeros(1), np.ones(1))
        step = parts[0].step
        tilts = [part.tilted(theta) for part in parts]
        first, points, whole = _window(parts, tilts)
        if points > _MAX_POINTS:
            return None
        size = fft.next_fast_len(points, real=True)
        transform = np.ones(size // 2 + 1, dtype=np.complex128)
        shift = 0
        for part, tilt in zip(parts, tilts, strict=True):
            centre = round(float(tilt @ np.arange(tilt.size)))
            padded = np.zeros(size)
            padded[: tilt.size] = tilt
            transform *= _power(fft.rfft(np.roll(padded, -centre)), part.count)
            shift += part.count * (part.lowest + centre)
        weights = np.roll(fft.irfft(transform, size), shift - first)[:points]
        weights = np.maximum(weights, 0.0)
        losses = step * (first + np.arange(points, dtype=np.float64))
        alias = 0.0
        trusted_from = -math.inf
        if not whole:
            alias = math.exp(_LOG_ALIAS)
            trusted_from = step * first
        if gaussian_mu:
            # The Gaussian beside it is slow to evaluate: without the empty ends.
            used = _without_ends(weights)
            losses = losses[used]
            weights = weights[used]
            alias += 2 * _ENDS
        releases = sum(part.count for part in parts)
        error = _UNIT_ROUNDOFF * (4 * releases + 64) * float(np.linalg.norm(weights))
        return cls(theta, log_scale, gaussian_mu, losses, weights, error, alias, trusted_from)

    def epsilon(self, tail: float, upper: float) -> float:
        """The smallest ε that is shown to have −ln δ(ε) ≥ ``tail``; at most ``upper``."""
        low = min(upper, max(0.0, self.trusted_from))
        return decreasing_root(lambda e: self.log_delta(e) + tail, low, upper)

    def log_delta(self, epsilon: float) -> float:
        """Logarithm of δ(ε), rounding and aliasing errors added."""
        total = sum(self._seen(epsilon))
        if total <= 0:
            return -math.inf
        return self.log_scale - self.theta * epsilon + math.log(total)

    def is_sharp(self, epsilon: float, delta: float) -> bool:
        """True if errors hardly count at this ε, where δ(ε) is about ``delta``."""
        seen, lost = self._seen(epsilon)
        return epsilon > self.trusted_from and lost <= _SHARP * (1 - delta) * seen

    def _seen(self, epsilon: float) -> tuple[float, float]:
        """δ(ε), and what errors may have taken from it, both over e^{K(θ) − θε}."""
        losses = self.losses
        weights = self.weights
        if self.gaussian_mu:
            log_gap = gaussian.log_delta(epsilon - losses, self.gaussian_mu)
            log_gap -= _gaussian_log_mgf(self.theta, self.gaussian_mu)
            # At most 1 everywhere, by the Chernoff bound: no overflow.
            kernel = np.exp(log_gap - self.theta * (losses - epsilon))
            # Far below the tilt's centre all of the kernel underflows, where δ is next to 1.
            faded = _UNDERFLOW
        else:
            above = np.searchsorted(losses, [epsilon, epsilon + _FADED / self.theta], side="right")
            faded = 0.0
            if above[1] < losses.size:
                faded = math.exp(-_FADED)
            used = slice(int(above[0]), int(above[1]))
            losses = losses[used]
            weights = weights[used]
            below = epsilon - losses
            kernel = -np.expm1(below) * np.exp(self.theta * below)
        lost = faded + self.alias + self.error * float(np.linalg.norm(kernel))
        return float(weights @ kernel), lost


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """``base`` to an integer of 1 at least, elementwise, by squaring: NumPy's own takes logarithms.

    Its rounding is at most that of as many products one after the other.
    """
    if exponent == 1:
        return base
    root = _power(base, exponent // 2)
    power = root * root
    if exponent % 2:
        power *= base
    return power


def _without_ends(weights: Floats) -> slice:
    """All but the ends that hold less than ``_ENDS`` each."""
    first = int(np.searchsorted(np.cumsum(weights), _ENDS))
    last = weights.size - int(np.searchsorted(np.cumsum(weights[::-1]), _ENDS))
    return slice(first, last)


def _window(parts: Sequence[LatticeLoss], tilts: Sequence[Floats]) -> tuple[int, int, bool]:
    """First lattice point and length of a window for the sum, and whether that is all of it.

    The tilted distribution holds less than e^``_LOG_ALIAS`` outside, by a Chernoff bound on each
    side of the mean. ``tilts``: each part's tilted probabilities.
    """
    mean = 0.0
    variance = 0.0
    centred = []
    for part, tilt in zip(parts, tilts, strict=True):
        values = np.arange(tilt.size, dtype=np.float64)
        centre = float(tilt @ values)
        values -= centre
        mean += part.count * (part.lowest + centre)
        variance += part.count * float(tilt @ values**2)
        with np.errstate(divide="ignore"):
            centred.append((part.count, np.log(tilt), values))
    support = sum(part.count * (part.probabilities.size - 1) for part in parts) + 1
    first = math.floor(mean) - _reach(centred, variance, -1)
    last = math.ceil(mean) + _reach(centred, variance, 1)
    points = max(last - first + 1, *(tilt.size for tilt in tilts))
    if points >= support:
        return sum(part.count * part.lowest for part in parts), support, True
    return first, points, False


def _reach(
    centred: Sequence[tuple[int, Floats, Floats]], variance: float, side: Literal[-1, 1]
) -> int:
    """How far from its mean the sum lies on one side, but for half of e^``_LOG_ALIAS``.

    Args:
        centred: of each part its count, logarithms of its probabilities, values less their mean.
        variance: of the sum.
        side: 1 above the mean, -1 below.
    """
    tail = math.log(2) - _LOG_ALIAS
    if variance <= math.exp(-tail):
        return 1  # by Chebyshev's inequality
    gaussian = math.sqrt(2 * tail / variance)  # the best exponent if the sum were normal
    found = math.inf
    for exponent in (gaussian / 4, gaussian / 2, gaussian):
        log_mgf = 0.0
        for count, log_weights, values in centred:
            scaled = log_weights + side * exponent * values
            top = float(scaled.max())
            log_mgf += count * (math.log(float(np.exp(scaled - top).sum())) + top)
        found = min(found, (log_mgf + tail) / exponent)
    return math.ceil(found)
