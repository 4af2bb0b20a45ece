"""Exact composition of finite privacy-loss distributions, by FFT on a lattice.

The privacy loss of a release is L = ln P(y)/Q(y), y ~ P, for the worst pair P, Q of output
distributions. Losses of independent releases add up, and

    δ(ε) = E[(1 − e^{ε−L})₊].

Plain FFT loses everything below 1e-16. So all distributions are first tilted,
P_θ(l) = P(l) e^{θl − K(θ)} with K(θ) = ln E e^{θL}, with the θ at which the Chernoff bound
e^{K(θ) − θε} meets δ: the tail that decides becomes the centre, and the error is relative to
it, however small δ is. Sources: Koskela et al., "Computing tight differential privacy
guarantees using FFT" (2020); the tilt is the saddle-point of Alghamdi et al. (2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import log_ndtr, logsumexp

from privacy.accounting.search import decreasing_root, minimum

Floats = NDArray[np.float64]

_MAX_POINTS = 2**22
# Mass that may wrap around the FFT's window, in the tilted distribution; added to δ.
_LOG_ALIAS = -42.0
_ALIAS = math.exp(_LOG_ALIAS)
_UNIT_ROUNDOFF = 2.0**-52


@dataclass(frozen=True, eq=False)
class LatticeLoss:
    """A privacy loss with values ``step`` · (``lowest``, ``lowest`` + 1, …).

    ``probabilities``: under P, shape (values,), with sum 1. ``count``: how many independent
    copies are composed.
    """

    step: float
    lowest: int
    probabilities: Floats
    count: int = 1

    @property
    def losses(self) -> Floats:
        """The values of the loss, shape (values,)."""
        return self.step * (self.lowest + np.arange(self.probabilities.size, dtype=np.float64))

    def on_step(self, step: float) -> LatticeLoss:
        """A loss on a lattice of ``step`` that is at least as bad, and hardly worse.

        Each atom is split between its two neighbours on the lattice so that its mass under P
        and under Q are both kept: δ(ε) becomes its chord between lattice points, which is
        above it because δ is convex in e^ε ("connect the dots", Doroshenko et al. 2022).
        """
        if step == self.step:
            return self
        position = self.losses / step
        below = np.floor(position)
        share = np.expm1((below - position) * step) / math.expm1(-step)
        up = self.probabilities * np.clip(share, 0.0, 1.0)
        index = (below - below[0]).astype(np.int64)
        size = int(index[-1]) + 2
        probabilities = np.zeros(size)
        np.add.at(probabilities, index, self.probabilities - up)
        np.add.at(probabilities, index + 1, up)
        return LatticeLoss(step, int(below[0]), probabilities, self.count)


def epsilon(parts: Sequence[LatticeLoss], delta: float, gaussian_mu: float = 0.0) -> float:
    """The smallest ε with δ(ε) ≤ ``delta`` for all ``parts`` and one Gaussian together.

    ``gaussian_mu``: L2 sensitivity / σ of the Gaussian releases taken together (0: none).
    Exact up to float rounding, which is added to δ, when all parts share one lattice;
    otherwise an upper bound (``LatticeLoss.on_step``). Falls back to the Chernoff (RDP) bound
    where the count is too large for the window.
    """
    if delta <= 0:
        worst = sum(part.count * float(part.losses[part.probabilities > 0][-1]) for part in parts)
        return math.inf if gaussian_mu else max(0.0, worst)
    if delta >= 1:
        return 0.0
    parts = common_lattice(parts)
    tail = -math.log(delta)

    def chernoff(log_theta: float) -> float:
        theta = math.exp(log_theta)
        return (_log_mgf(parts, gaussian_mu, theta) + tail) / theta

    log_theta = minimum(chernoff, -30.0, _largest_log_theta(parts))
    upper = max(0.0, chernoff(log_theta))
    composed = _Tilted.of(parts, gaussian_mu, math.exp(log_theta))
    if composed is None:
        return upper
    low = min(upper, max(0.0, composed.trusted_from))
    return decreasing_root(lambda e: composed.log_delta(e) + tail, low, upper)


def delta(parts: Sequence[LatticeLoss], epsilon: float, gaussian_mu: float = 0.0) -> float:
    """δ(ε) of all ``parts`` and one Gaussian together, rounded up; in [0, 1]."""
    parts = common_lattice(parts)

    def chernoff(log_theta: float) -> float:
        theta = math.exp(log_theta)
        return _log_mgf(parts, gaussian_mu, theta) - theta * epsilon

    log_theta = minimum(chernoff, -30.0, _largest_log_theta(parts))
    upper = min(0.0, chernoff(log_theta))
    composed = _Tilted.of(parts, gaussian_mu, math.exp(log_theta))
    if composed is not None:
        upper = min(upper, composed.log_delta(epsilon))
    return math.exp(upper)


def common_lattice(parts: Sequence[LatticeLoss]) -> list[LatticeLoss]:
    """``parts`` on one lattice: an exact one where their steps are commensurate.

    Otherwise the lattice divides the step of the part with the most releases, and is so fine
    that the rounding costs about 1e-6 of ε.
    """
    if len({part.step for part in parts}) <= 1:
        return list(parts)
    main = max(parts, key=lambda part: part.count)
    step = _commensurate_step([part.step for part in parts])
    spread = math.sqrt(sum(part.count * _variance(part, 0.0) for part in parts))
    fine = 60.0 * spread / 2**19
    if step is None or step < fine / 8:
        step = main.step / math.ceil(main.step / fine) if main.step > fine / 8 else fine
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


@dataclass(frozen=True, eq=False)
class _Tilted:
    """The composed lattice part under the tilt θ, and the Gaussian beside it."""

    theta: float
    log_scale: float
    losses: Floats
    weights: Floats
    gaussian_mu: float
    relative_error: float
    trusted_from: float

    @classmethod
    def of(cls, parts: Sequence[LatticeLoss], gaussian_mu: float, theta: float) -> _Tilted | None:
        """Compose; None where the distribution does not fit the largest window."""
        log_scale = _log_mgf(parts, gaussian_mu, theta)
        if not parts:
            return cls(theta, log_scale, np.zeros(1), np.ones(1), gaussian_mu, 0.0, -math.inf)
        step = parts[0].step
        mean = sum(part.count * _mean(part, theta) for part in parts) / step
        variance = sum(part.count * _variance(part, theta) for part in parts) / step**2
        span = max(part.probabilities.size for part in parts)
        # Bernstein's inequality: beyond this the tilted distribution holds less than _ALIAS.
        bernstein = -_LOG_ALIAS * span / 3
        reach = bernstein + math.sqrt(bernstein**2 - 2 * _LOG_ALIAS * variance)
        support = sum(part.count * (part.probabilities.size - 1) for part in parts) + 1
        lowest = sum(part.count * part.lowest for part in parts)
        if 2 * reach + span >= support:
            points, first = support, lowest
        else:
            points = 2 * math.ceil(reach) + span
            first = round(mean) - points // 2
        if points > _MAX_POINTS:
            return None
        points = max(points, span)
        size = fft.next_fast_len(points, real=True)
        transform = np.ones(size // 2 + 1, dtype=np.complex128)
        shift = 0
        for part in parts:
            tilted = _tilted(part, theta)
            centre = round(_mean(part, theta) / step) - part.lowest
            padded = np.zeros(size)
            padded[: tilted.size] = tilted
            transform *= fft.rfft(np.roll(padded, -centre)) ** part.count
            shift += part.count * (part.lowest + centre)
        weights = fft.irfft(transform, size)
        weights = np.maximum(np.roll(weights, shift - first)[:points], 0.0)
        losses = step * (first + np.arange(points, dtype=np.float64))
        releases = sum(part.count for part in parts)
        error = _UNIT_ROUNDOFF * (releases + 64) * float(np.linalg.norm(weights))
        trusted = -math.inf if first == lowest else float(losses[0])
        return cls(theta, log_scale, losses, weights, gaussian_mu, error, trusted)

    def log_delta(self, epsilon: float) -> float:
        """Logarithm of δ(ε), rounding and aliasing errors added."""
        if self.gaussian_mu:
            used = slice(None)
            log_gap = log_hockey_stick(epsilon - self.losses, self.gaussian_mu)
            log_gap -= _gaussian_log_mgf(self.gaussian_mu, self.theta)
        else:
            used = slice(int(np.searchsorted(self.losses, epsilon, side="right")), None)
            log_gap = _log1mexp(epsilon - self.losses[used])
        # At most 1 everywhere, by the Chernoff bound: no overflow.
        kernel = np.exp(log_gap - self.theta * (self.losses[used] - epsilon))
        if not kernel.size:
            return -math.inf
        total = float(self.weights[used] @ kernel)
        total += self.relative_error * float(np.linalg.norm(kernel)) + _ALIAS * float(kernel.max())
        return self.log_scale - self.theta * epsilon + math.log(total) if total > 0 else -math.inf


def log_hockey_stick(epsilon: Floats | float, mu: float) -> Floats:
    """Logarithm of δ(ε) of one Gaussian, L2 sensitivity / σ = ``mu``; ε may be negative.

    Balle & Wang 2018, theorem 8: δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
    """
    high = log_ndtr(mu / 2 - np.asarray(epsilon) / mu)
    low = epsilon + log_ndtr(-mu / 2 - np.asarray(epsilon) / mu)
    with np.errstate(invalid="ignore"):
        gap = np.where(np.isneginf(high), -np.inf, high + _log1mexp(np.minimum(low - high, 0.0)))
    return np.asarray(gap, dtype=np.float64)


def log_mgf_of(losses: Floats, probabilities: Floats, theta: Floats | float) -> Floats:
    """K(θ) = ln Σ p e^{θl} for each θ, shape of ``theta``; accurate near θ = 0 as well.

    ``losses`` and ``probabilities`` may carry leading axes; the last one is summed.
    """
    exponent = np.multiply.outer(np.asarray(theta, dtype=np.float64), losses)
    near = np.log1p(np.sum(probabilities * np.expm1(np.minimum(exponent, 0.5)), axis=-1))
    far = logsumexp(exponent, b=probabilities, axis=-1)
    return np.asarray(np.where(np.max(exponent, axis=-1) < 0.5, near, far))


def _log_mgf(parts: Sequence[LatticeLoss], gaussian_mu: float, theta: float) -> float:
    total = _gaussian_log_mgf(gaussian_mu, theta)
    for part in parts:
        total += part.count * float(log_mgf_of(part.losses, part.probabilities, theta))
    return total


def _largest_log_theta(parts: Sequence[LatticeLoss]) -> float:
    """The tilt under which nearly all mass has moved to the largest loss: more says nothing."""
    if not parts:
        return 30.0
    return math.log((7.0 + math.log(sum(part.count for part in parts))) / parts[0].step)


def _gaussian_log_mgf(mu: float, theta: float) -> float:
    return theta * (theta + 1) * mu**2 / 2


def _tilted(part: LatticeLoss, theta: float) -> Floats:
    with np.errstate(divide="ignore"):
        exponent = np.log(part.probabilities) + theta * part.losses
    weights = np.exp(exponent - exponent.max())
    return np.asarray(weights / weights.sum())


def _mean(part: LatticeLoss, theta: float) -> float:
    return float(_tilted(part, theta) @ part.losses)


def _variance(part: LatticeLoss, theta: float) -> float:
    tilted = _tilted(part, theta)
    return float(tilted @ (part.losses - tilted @ part.losses) ** 2)


def _log1mexp(x: Floats) -> Floats:
    """ln(1 − e^x) for x ≤ 0."""
    with np.errstate(divide="ignore"):
        return np.where(x > -0.7, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))
