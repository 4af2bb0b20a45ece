"""Elementary releases whose privacy loss has finitely many values: labels, Laplace, sums, shuffles.

**Randomised response.** A label is kept with probability e^{ε0}/(e^{ε0}+C−1), otherwise one of the
other C − 1 is reported. For two neighbours the loss of one label is +ε0, −ε0 or 0, and no pair of
inputs is worse than another; so the composition is not a bound but the value. Ours, since
dp-accounting 0.6 ignores how often randomised response is repeated (``PLDAccountant``), and rounds
ε0 up to its lattice: 0.4% more ε for 2,500 labels of 0.1 each, and 43% for 100,000 of 0.01.

**Laplace noise.** Discrete noise ∝ e^{−α|x|}, x integer, neighbours m steps apart, ε0 = αm: the
loss at x is α(m − 2x), cut at ±ε0. Continuous noise is the limit m → ∞. A lattice too long to keep
is thinned to every w-th point, m = wK, by splitting the points between (``LatticeLoss.of``); the
sums are geometric, so the thinned masses have a closed form, which also holds for w → ∞.

A vector of independent noises with L1 sensitivity Δ is no worse than one number with
sensitivity Δ. Proof for two coordinates a ≤ b (the others follow by induction): for ε ≥ 0,
δ(ε) of the pair is E[δ_b(ε − L_a)], which rises with L_a ≤ ε_a, so it is at most
δ_b(ε − ε_a); and ε − ε_a ≥ −ε_b, where δ_b(ε − ε_a) ≤ δ_{a+b}(ε) — with equality for
continuous noise, δ_c(ε) = 1 − e^{(ε−ε_c)/2}; for discrete noise both are a maximum over
thresholds, and the right side has more of them. ε < 0 follows by symmetry. So the scalar
loss covers vectors. For the same reason more steps at the same α are never better. Ours, since
dp-accounting has no vectors, and takes 15 to 60 times as long for a number.

**Shuffling.** Clones (Feldman, McMillan, Talwar 2021, theorem 3.2): each of the n − 1 other honest
reports is, with probability w, drawn from one of the two neighbours' own distributions by a fair
coin. Everything else is given to the adversary, who then sees how many of the c clones and the
report in question say "0". For k-ary randomised response w = 2/(e^{ε0}+C−1), and the report
says neither with probability (C−2)/(e^{ε0}+C−1); for any ε0-DP report w = e^{−ε0}. It needs a
shuffler that does not collude with the server, reports without identifiers, and n − 1 others who do
add their noise. The ε is against who sees the shuffled reports only. dp-accounting has no
shuffling.
"""

import math
from functools import lru_cache

import numpy as np

from murmur.privacy import events
from murmur.privacy.accounting.bits import binomial, epsilon_of_bit
from murmur.privacy.accounting.flatten import pure_epsilon
from murmur.privacy.accounting.gaussian import REACH, Floats
from murmur.privacy.accounting.privacy_loss import LatticeLoss
from murmur.privacy.events import DiscreteGaussianEvent, Event, LaplaceEvent

# Above this ε0 the clones' probability e^{−ε0} is too small to hide anything or to represent.
_UNSHUFFLED = 300.0
# More clones only help, so a larger cohort may be accounted as this one.
_MAX_CLIENTS = 4096
# Numbers of clones less likely than this are counted at the full ε.
_NEGLIGIBLE = 1e-30
_BELOW_ONE = 1 - 2.0**-53
# Points between +ε0 and −ε0 to which longer lattices of Laplace noise are thinned.
_POINTS = 256
_STEPS_PER_DEVIATION = 200


@lru_cache(maxsize=1024)
def lattice_loss(leaf: Event) -> LatticeLoss | None:
    """The worst privacy loss of one elementary release; None if it is not on a lattice.

    Cached by the release. ``leaf``: as ``flatten`` gives it. None for Gaussian noise but in coarse
    sums, for sums of bits, and for what has no pure ε in a shuffle: ``gaussian``, ``pld``, ``bits``
    and ``rdp`` count those.
    """
    if isinstance(leaf, events.RandomizedResponseEvent):
        return label_loss(leaf.epsilon, leaf.categories)
    if isinstance(leaf, events.PureEvent):
        # Binary randomised response is the worst ε-DP release (Kairouz, Oh, Viswanath 2015).
        return label_loss(leaf.epsilon, 2)
    if isinstance(leaf, events.RandomizedBitsEvent):
        return label_loss(epsilon_of_bit(leaf.gamma), 2, leaf.sensitivity_bits)
    if isinstance(leaf, LaplaceEvent):
        return laplace_loss(leaf)
    if isinstance(leaf, events.SummedEvent) and isinstance(leaf.event, DiscreteGaussianEvent):
        return summed_gaussian_loss(leaf.event, leaf.honest_clients)
    if isinstance(leaf, events.ShuffledEvent):
        pure = pure_epsilon(leaf.event)
        if pure is None:
            return None
        if pure > _UNSHUFFLED:
            return lattice_loss(leaf.event)
        return shuffled_loss(leaf.event, pure, leaf.honest_clients)
    return None


def report_probabilities(epsilon: float, categories: int) -> tuple[float, float]:
    """Probability that a randomised label is the true category, and that it is one other."""
    other = math.exp(-epsilon) / (1 + (categories - 1) * math.exp(-epsilon))
    return 1 / (1 + (categories - 1) * math.exp(-epsilon)), other


def label_loss(epsilon: float, categories: int, count: int = 1) -> LatticeLoss:
    """Privacy loss of ``count`` randomised labels at ``epsilon`` each: exact.

    ``categories``: at least 2. The loss is +ε0, 0 or −ε0 for the true category, a third one, and
    the neighbour's.
    """
    true, other = report_probabilities(epsilon, categories)
    return LatticeLoss(epsilon, -1, np.array([other, (categories - 2) * other, true]), count)


def laplace_loss(event: LaplaceEvent) -> LatticeLoss:
    """Privacy loss of one release; the ε-DP worst case, one step, if the grid is not known."""
    epsilon = 1 / event.noise_multiplier
    steps = event.sensitivity_steps
    if steps is None:
        steps = 1
    if steps == 0:
        between = math.tanh(epsilon / _POINTS / 2)
        return _laplace_lattice(epsilon / _POINTS, _POINTS, 0.5 + between / 2, between)
    alpha = epsilon / steps
    points, width = _thinning(steps)
    moved = math.tanh(alpha / 2) * _moved(alpha, width)
    end = 1 / (1 + math.exp(-alpha)) + moved
    return _laplace_lattice(alpha * width, points, end, math.tanh(alpha / 2) + 2 * moved)


def _thinning(steps: int) -> tuple[int, int]:
    """Points K and width w with wK ≥ ``steps``, as little above as can be had."""
    if steps <= 2 * _POINTS:
        return steps, 1
    narrowest = -(-steps // (2 * _POINTS))
    widths = range(narrowest, narrowest + min(narrowest, 1000) + 1)
    width = min(widths, key=lambda w: -steps % w)
    return -(-steps // width), width


def _moved(alpha: float, width: int) -> float:
    """Mass that the w − 1 points between two kept ones give to the upper one, per mass of theirs.

    Σ_{k<w} sinh(αk) / sinh(αw) = sinh(α(w−1)/2) / (2 sinh(α/2) cosh(αw/2)).
    """
    if width == 1 or alpha >= 600:
        return 0.0
    # sinh(x)/cosh(y) = e^{x−y}(1 − e^{−2x})/(1 + e^{−2y}), which does not overflow.
    lower = math.exp(-alpha / 2) * -math.expm1(-alpha * (width - 1))
    return lower / (1 + math.exp(-alpha * width)) / (2 * math.sinh(alpha / 2))


def _laplace_lattice(decay: float, points: int, end: float, between: float) -> LatticeLoss:
    """Masses ``between`` · e^{−decay·j}, j = 0 … ``points``, with ``end`` in place of the ends."""
    mass = between * np.exp(-decay * np.arange(points + 1, dtype=np.float64))
    mass[0] = end
    mass[-1] = end * math.exp(-decay * points)
    if points % 2 == 0:
        return LatticeLoss(2 * decay, -points // 2, mass[::-1])
    probabilities = np.zeros(2 * points + 1)
    probabilities[::2] = mass[::-1]
    return LatticeLoss(decay, -points, probabilities)


def shuffled_loss(event: Event, epsilon: float, honest_clients: int) -> LatticeLoss:
    """Privacy loss of one shuffled report among those of ``honest_clients``, its own included.

    By the clone bound (see the head of this file). Rounded up to a lattice; never above
    ``epsilon``. ``event``: the report; the clones of randomised response are counted by its own
    probabilities. ``epsilon``: its pure ε.
    """
    clone = math.exp(-epsilon)
    says_either = 1.0
    if isinstance(event, events.RandomizedResponseEvent):
        true, other = report_probabilities(epsilon, event.categories)
        clone = 2 * other
        says_either = min(1.0, true + other)
    others = min(honest_clients, _MAX_CLIENTS) - 1
    keep = 1 / (1 + math.exp(-epsilon))
    shrunk = math.exp(-epsilon)
    losses = [np.zeros(1)]
    masses = [np.array([1 - says_either])]
    chances = binomial(others, min(max(clone, _NEGLIGIBLE), _BELOW_ONE))
    for clones, chance in enumerate(chances):
        if chance < _NEGLIGIBLE:
            losses.append(np.array([epsilon]))
            masses.append(np.array([says_either * chance]))
            continue
        zeros = np.arange(clones + 2, dtype=np.float64)
        rest = clones + 1 - zeros
        coins = binomial(clones, 0.5)
        mass = keep * np.append(0, coins) + (1 - keep) * np.append(coins, 0)
        # (e^ε z + c+1−z) / (z + e^ε (c+1−z)), both divided by e^ε
        losses.append(np.log((zeros + shrunk * rest) / (shrunk * zeros + rest)))
        masses.append(says_either * chance * mass)
    all_losses = np.concatenate(losses)
    all_masses = np.concatenate(masses)
    deviation = math.sqrt(float(all_masses @ all_losses**2))
    cells = math.ceil(min(max(512.0, 256 * epsilon / deviation), 2.0**16))
    return LatticeLoss.of(all_losses, all_masses, epsilon / cells)


def summed_gaussian_loss(noise: DiscreteGaussianEvent, clients: int) -> LatticeLoss:
    """The privacy loss of one coordinate of a sum of coarse noise, from its exact law.

    ``noise``: of one client, a scalar whose sensitivity is a whole number of steps. ``clients``:
    honest ones in the sum; ``gaussian.in_sum`` has seen that the law is not too wide. Rounded up to
    a lattice of 200 points for each standard deviation of the loss.
    """
    shift = int(noise.sensitivity)
    deviation = noise.sigma * math.sqrt(clients)
    law = law_of_sum(noise.sigma, clients, math.ceil(REACH * deviation) + shift)
    masses = law[shift:-shift]  # P(x) for |x| ≤ the reach
    losses = np.log(masses) - np.log(law[: -2 * shift])  # over P(x − shift)
    return LatticeLoss.of(losses, masses, shift / deviation / _STEPS_PER_DEVIATION)


def law_of_sum(sigma: float, clients: int, reach: int) -> Floats:
    """P(X₁ + … + X_clients = x) for x in ±``reach``, each X_i a discrete Gaussian of ``sigma``.

    Shape (2·reach + 1,). All terms are positive, so that every entry keeps its digits; what lies
    beyond ``reach`` is left out, also on the way.
    """
    x = np.arange(-reach, reach + 1)
    power = np.exp(-((x / sigma) ** 2) / 2)
    power /= power.sum()
    result = np.zeros(len(x))
    result[reach] = 1.0
    while clients:
        if clients % 2:
            result = np.convolve(result, power)[reach:-reach]
        clients //= 2
        if clients:
            power = np.convolve(power, power)[reach:-reach]
    return result
