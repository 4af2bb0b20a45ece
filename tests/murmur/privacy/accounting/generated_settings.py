"""Settings of the accountant, drawn at random, each with a δ that it truly has at least.

The truth comes from outcomes and their probabilities under two neighbours, convolved term by term:
no Fourier transform, no tilt, no lattice of the accountant. What cannot be listed is merged
into cells or left out, which only lowers δ: merging outcomes is post-processing.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import (
    Adjacency,
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    Hiding,
    LaplaceEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    ShuffledEvent,
    SummedEvent,
    Unit,
)
from tests.murmur.privacy.accounting.true_delta import log_delta

Floats = NDArray[np.float64]
EXACT = 0.01  # how far above the truth an exact ε may be, of it
_PAIRS = 1_000_000
# What the truth itself, a sum of floats, may be off by: of δ, and of a loss.
_DELTA_TOLERANCE = 1e-9
_LAST_DIGITS = 1e-13
_FAINT = 1e-30  # masses below are left out


@dataclass(frozen=True)
class Losses:
    """Values of a privacy loss, ascending, and their masses: those of P, perhaps not all of them.

    Both of shape (values,).
    """

    values: Floats
    masses: Floats

    @classmethod
    def of(cls, p: Floats, q: Floats) -> "Losses":
        """Of outcomes with masses ``p`` and ``q``, (outcomes,), all above 0."""
        values = np.log(p) - np.log(q)
        order = np.argsort(values)
        return cls(values[order], p[order])

    def beside(self, other: "Losses") -> "Losses":
        """Of both releases together."""
        values = np.add.outer(self.values, other.values).ravel()
        masses = np.multiply.outer(self.masses, other.masses).ravel()
        kept = masses > _FAINT
        return Losses(values[kept], masses[kept])


def repeated(step: float, lowest: int, masses: Floats, count: int) -> Losses:
    """``count`` times a loss with the values ``step`` · (``lowest``, …), by convolution."""
    total = np.ones(1)
    power = masses
    start = 0
    first = lowest
    left = count
    while left:
        if left % 2:
            total, start = _trimmed(np.convolve(total, power), start + first)
        left //= 2
        if left:
            power, first = _trimmed(np.convolve(power, power), 2 * first)
    return Losses(step * (start + np.arange(total.size, dtype=np.float64)), total)


def _trimmed(masses: Floats, lowest: int) -> tuple[Floats, int]:
    """Without faint ends."""
    kept = np.flatnonzero(masses > _FAINT * _FAINT)
    return masses[kept[0] : kept[-1] + 1], lowest + int(kept[0])


def together(parts: Sequence[Losses]) -> Losses:
    """Of all releases."""
    total = Losses(np.zeros(1), np.ones(1))
    for part in sorted(parts, key=lambda part: part.values.size):
        total = total.beside(part)
    return total


def delta_of(total: Losses, mu: float, level: float) -> float:
    """E(1 − e^{ε−L})₊ of ``total`` and a Gaussian of sensitivity/σ = ``mu`` (0: none) together."""
    gap = level - total.values
    if not mu:
        return float(total.masses @ np.maximum(0.0, -np.expm1(np.minimum(gap, 0.0))))
    first = log_ndtr(mu / 2 - gap / mu)
    second = gap + log_ndtr(-mu / 2 - gap / mu)
    return float(total.masses @ (np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))))


@dataclass(frozen=True)
class Kind:
    """One sort of release, some times.

    Attributes:
        event: all of them.
        losses: of neighbours, in one direction or in both.
        mu: of a Gaussian; 0: none.
        is_exact: whether docs/accounting.md calls its ε exact.
        threat: against whom the losses are.
    """

    event: Event
    losses: tuple[Losses, ...] = ()
    mu: float = 0.0
    is_exact: bool = True
    threat: Threat = Threat.LOCAL
    log_deltas: tuple[Callable[[float], float], ...] = ()


@dataclass(frozen=True)
class Setting:
    """What the accountant is asked, and what is known to be true."""

    event: Event
    delta: float
    threat: Threat
    kinds: tuple[Kind, ...] = field(repr=False)

    @cached_property
    def directions(self) -> list[Losses]:
        """The loss of all releases together, for each order of two neighbours that counts."""
        listed = [kind.losses for kind in self.kinds if kind.losses]
        ways = max(map(len, listed), default=1)
        return [together([losses[way % len(losses)] for losses in listed]) for way in range(ways)]

    def true_delta(self, level: float) -> float:
        """A δ that the event has at least, at this ε."""
        inverted = [math.exp(one(level)) for kind in self.kinds for one in kind.log_deltas]
        if inverted:
            return max(inverted)
        mu = math.sqrt(sum(kind.mu**2 for kind in self.kinds))
        return max(delta_of(losses, mu, level) for losses in self.directions)

    def faults(self) -> list[str]:
        """What is wrong with the accountant's answer; an exception of it is the caller's."""
        spend = epsilon(self.event, self.delta, self.threat)
        found = []
        if math.isnan(spend.epsilon) or spend.epsilon < 0:
            found.append(f"ε = {spend.epsilon}")
        for name, bound in spend.bounds.items():
            if self.true_delta(bound * (1 + _LAST_DIGITS)) > self.delta * (1 + _DELTA_TOLERANCE):
                found.append(f"{name}: {bound} is below the truth")
        if all(kind.is_exact for kind in self.kinds):
            least = (1 - EXACT) * spend.bounds["exact"]
            if least > 1e-9 and self.true_delta(least) <= self.delta:
                found.append(f"exact: {spend.bounds['exact']} is more than 1% above the truth")
        return found


def drawn(number: int) -> Setting:
    """Setting ``number``; the same one each time."""
    rng = random.Random(number)
    delta = 10 ** -rng.uniform(0.01, 15)
    share = rng.random()
    if share < 0.4:
        kinds = [_listed(rng, 3000)]
    elif share < 0.6:
        kinds = _mixed(rng)
    elif share < 0.7:
        kinds = [_listed(rng, 300), _gaussian(rng)]
    elif share < 0.75:
        kinds = [_gaussian(rng)]
    else:
        kinds = [rng.choice(_OTHERS)(rng)]
    event: Event = ComposedEvent(tuple(kind.event for kind in kinds))
    if len(kinds) == 1:
        event = kinds[0].event
    threat = kinds[0].threat
    if rng.random() < 0.1:
        threat = Threat.LOCAL  # who sees more than a sum
    return Setting(event, delta, threat, tuple(kinds))


def _mixed(rng: random.Random) -> list[Kind]:
    """Two or three sorts, few enough that all pairs of their losses can be listed."""
    while True:
        kinds = [_listed(rng, 40) for _ in range(rng.choice((2, 2, 3)))]
        if math.prod(kind.losses[0].values.size for kind in kinds) <= _PAIRS:
            return kinds


def _count(rng: random.Random, most: int) -> int:
    """1 to ``most``: small counts as often as large ones."""
    return int(math.exp(rng.uniform(0, math.log(most + 1))))


def _small(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _failure(rng: random.Random) -> float:
    """How likely a sum hides nothing, which only costs more."""
    return rng.choice((0.0, 0.0, 1e-9, 1e-3))


def _listed(rng: random.Random, most: int) -> Kind:
    """Labels, bits, Laplace noise, or anything of pure ε."""
    return rng.choice((_labels, _bits, _pure, _discrete_laplace, _laplace))(rng, most)


def _labels(rng: random.Random, most: int) -> Kind:
    epsilon0 = rng.choice((_small(rng, 1e-5, 8), rng.choice((0.1, 0.5, 1.0, 2.5))))
    categories = rng.choice((2, 3, 10, 100, 1000))
    count = _count(rng, most)
    growth = math.exp(epsilon0)
    masses = np.array([1.0, categories - 2, growth]) / (growth + categories - 1)
    losses = repeated(epsilon0, -1, masses, count)
    return Kind(RepeatedEvent(RandomizedResponseEvent(epsilon0, categories), count), (losses,))


def _binary(epsilon0: float, count: int) -> Losses:
    """``count`` binary answers, for any count: what a binomial says."""
    kept = 1 / (1 + math.exp(-epsilon0))
    middle = count * kept
    reach = 40 * math.sqrt(count * kept * (1 - kept)) + 40
    k = np.arange(max(0, math.floor(middle - reach)), min(count, math.ceil(middle + reach)) + 1)
    return Losses(epsilon0 * (2.0 * k - count), binom.pmf(k, count, kept))


def _bits(rng: random.Random, most: int) -> Kind:
    gamma = rng.choice((_small(rng, 1e-4, 0.49), rng.choice((0.1, 0.2, 0.4))))
    differing = _count(rng, most)
    count = _count(rng, 100 if most > 1000 else 3)
    event = RandomizedBitsEvent(gamma, 10 * differing, differing)
    losses = _binary(2 * math.atanh(2 * gamma), differing * count)
    return Kind(RepeatedEvent(event, count), (losses,))


def _pure(rng: random.Random, most: int) -> Kind:
    epsilon0 = _small(rng, 1e-5, 12)
    count = _count(rng, 10**8 if most > 1000 else most)
    return Kind(RepeatedEvent(PureEvent(epsilon0), count), (_binary(epsilon0, count),))


def _discrete_laplace(rng: random.Random, most: int) -> Kind:
    scale = _small(rng, 0.1, 100)
    steps = rng.choice((rng.randint(1, 10), _count(rng, 100)))
    count = _count(rng, min(most, (4000 if most > 100 else 800) // steps))
    alpha = 1 / (scale * steps)
    x = np.arange(steps + 1)
    inner = math.tanh(alpha / 2) * np.exp(-alpha * x)
    inner[0] = 1 / (1 + math.exp(-alpha))
    inner[-1] = math.exp(-alpha * steps) / (1 + math.exp(-alpha))
    masses = np.zeros(2 * steps + 1)
    masses[::2] = inner[::-1]  # x = 0 has the loss αm
    losses = repeated(alpha, -steps, masses, count)
    return Kind(RepeatedEvent(LaplaceEvent(scale, steps), count), (losses,))


def _laplace(rng: random.Random, most: int) -> Kind:
    """Continuous noise, whose outcomes between both ends are merged into cells."""
    scale = _small(rng, 0.1, 100)
    cells = 60
    count = _count(rng, min(most, 60))
    worst = 1 / scale
    edges = np.linspace(-worst, worst, cells + 1)
    merged = np.diff(np.exp((edges - worst) / 2)) / 2
    masses = np.zeros(2 * cells + 1)
    masses[1::2] = merged  # of a cell the loss is its middle
    masses[0] = math.exp(-worst) / 2
    masses[-1] = 0.5
    losses = repeated(worst / cells, -cells, masses, count)
    return Kind(RepeatedEvent(LaplaceEvent(scale, 0), count), (losses,))


def _gaussian(rng: random.Random) -> Kind:
    multiplier = _small(rng, 0.05, 200)
    count = _count(rng, 10_000)
    one: Event = GaussianEvent(multiplier)
    if multiplier > 1 and rng.random() < 0.3:
        # So fine that it counts as continuous, at next to no price.
        one = DiscreteGaussianEvent(multiplier * 2.0**44, 2.0**44)
    return Kind(RepeatedEvent(one, count), mu=math.sqrt(count) / multiplier)


def _sampled(rng: random.Random) -> Kind:
    """Noisy sums over samples: of many steps by Fourier inversion, of one in closed form."""
    rate = _small(rng, 1e-3, 0.5)
    multiplier = _small(rng, 0.5, 20)
    count = rng.choice((1, rng.randint(100, 5000)))
    event = RepeatedEvent(PoissonSampledEvent(rate, GaussianEvent(multiplier)), count)
    if count > 1:
        ways = (_sampled_outcomes(rate, multiplier, there) for there in (True, False))
        inverted = tuple(_inversion([(*way, count)]) for way in ways)
        return Kind(event, is_exact=False, log_deltas=inverted)

    def closed(level: float) -> float:
        odds = (math.exp(min(level, 700.0)) - 1 + rate) / rate
        x = multiplier**2 * math.log(odds) + 0.5
        there = float(ndtr((1 - x) / multiplier)), float(ndtr(-x / multiplier))
        delta = rate * there[0] + (1 - rate - math.exp(min(level, 700.0))) * there[1]
        return math.log(max(delta * (1 - 1e-9), 1e-300))

    return Kind(event, is_exact=False, log_deltas=(closed,))


def _sampled_outcomes(rate: float, multiplier: float, there: bool) -> tuple[Floats, Floats]:
    x = np.linspace(-40 * multiplier, 40 * multiplier, 1201)
    height = math.log((x[1] - x[0]) / multiplier) - math.log(2 * math.pi) / 2
    log_mass: Floats = height - (x / multiplier) ** 2 / 2
    loss = np.log1p(rate * np.expm1((2 * x - 1) / (2 * multiplier**2)))
    if there:
        return loss, log_mass + loss
    return -loss, log_mass


def _inversion(parts: list[tuple[Floats, Floats, int]]) -> Callable[[float], float]:
    def at_least(level: float) -> float:
        try:
            return log_delta(parts, level) - 1e-9
        except ValueError:  # nothing is known where the integral does not converge
            return -math.inf

    return at_least


def _discrete_gaussian(rng: random.Random) -> Kind:
    """A number, or a vector of which one coordinate differs."""
    sigma = _small(rng, 1, 50)
    sensitivity = rng.randint(1, max(1, int(3 * sigma)))
    count = _count(rng, 12)
    scalar = rng.random() < 0.5
    event = RepeatedEvent(DiscreteGaussianEvent(sigma, sensitivity, scalar), count)
    return Kind(event, (_discrete(sigma, sensitivity, count),), is_exact=False)


def _discrete(sigma: float, sensitivity: int, count: int) -> Losses:
    x = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + 1)
    masses = np.exp(-((x / sigma) ** 2) / 2)
    masses /= masses.sum()
    # The loss falls with x in steps of Δ/σ².
    step = sensitivity / sigma**2
    one = repeated(step, int(-x[-1]), masses[::-1], count)
    return Losses(one.values + count * sensitivity**2 / (2 * sigma**2), one.masses)


def _summed_noise(rng: random.Random) -> Kind:
    """Coarse noise in a sum of a few clients, one number; weights may differ."""
    sigma = _small(rng, 0.5, 3)
    sensitivity = rng.randint(1, 4)
    clients = rng.randint(1, 12)
    weight = rng.choice((1, 1, 2, 3))
    least = rng.randint(1, weight)
    release = Release(
        DiscreteGaussianEvent(sigma, sensitivity, rng.random() < 0.7),
        Unit.CLIENT,
        Adjacency.REPLACE_ONE,
        hiding=Hiding.NOISE,
    )
    event = SummedEvent(release, clients, weight, least, weight, failure=_failure(rng))
    x = np.arange(-math.ceil(14 * sigma), math.ceil(14 * sigma) + 1)
    one = np.exp(-((x / sigma) ** 2) / 2)
    one /= one.sum()

    def scaled(by: int) -> Floats:
        spaced = np.zeros(by * (x.size - 1) + 1)
        spaced[::by] = one
        return spaced

    law = scaled(weight)
    for _ in range(clients - 1):
        law = np.convolve(law, scaled(least))
    shift = weight * sensitivity
    p, q = law[shift:], law[:-shift]
    known = (p > 1e-200) & (q > 1e-200)
    losses = Losses.of(p[known], q[known])
    return Kind(event, (losses,), is_exact=False, threat=Threat.SECURE_AGGREGATION)


def _summed_bits(rng: random.Random) -> Kind:
    """Bits in a sum where ``kept`` of the others' bits are 1 with the larger probability."""
    gamma = _small(rng, 0.01, 0.45)
    clients = _count(rng, 60)
    kept = rng.choice((0, clients - 1, rng.randint(0, clients - 1)))
    p, q = 0.5 + gamma, 0.5 - gamma
    others = np.convolve(
        binom.pmf(np.arange(kept + 1), kept, p),
        binom.pmf(np.arange(clients - kept), clients - 1 - kept, q),
    )
    there = np.convolve(others, [q, p])
    gone = np.convolve(others, [p, q])
    bits = _count(rng, 2)
    event = RandomizedBitsEvent(gamma, 10, bits)
    ways = []
    for one, other in ((there, gone), (gone, there)):
        losses = Losses.of(one, other)
        ways.append(together([losses] * bits))
    release = Release(event, Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=Hiding.REPORTS)
    summed = SummedEvent(release, clients, failure=_failure(rng))
    return Kind(summed, tuple(ways), is_exact=False, threat=Threat.SECURE_AGGREGATION)


def _shuffled(rng: random.Random) -> Kind:
    """A label among those of others, of whom nobody has either of both categories in question.

    With two categories the others all have the first.
    """
    epsilon0 = _small(rng, 0.05, 6)
    categories = rng.choice((2, 3, 10))
    clients = rng.choice((rng.randint(1, 12), _count(rng, 45)))
    growth = math.exp(epsilon0)
    true, other = growth / (growth + categories - 1), 1 / (growth + categories - 1)
    # How many say the first, and how many the second.
    answers = np.array([[max(0.0, 1 - 2 * other), other], [other, 0.0]])
    mine = np.array([[max(0.0, 1 - true - other), other], [true, 0.0]])
    if categories == 2:
        answers = np.array([[0.0, other], [true, 0.0]])
        mine = answers
    counts = np.ones((1, 1))
    for _ in range(clients - 1):
        counts = _convolved(counts, answers)
    p = _convolved(counts, mine).ravel()
    q = _convolved(counts, mine.T).ravel()
    known = (p > 1e-200) & (q > 1e-200)
    ways = Losses.of(p[known], q[known]), Losses.of(q[known], p[known])
    label = RandomizedResponseEvent(epsilon0, categories)
    event: Event = ShuffledEvent(label, clients)
    if rng.random() < 0.5:
        release = Release(label, Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=Hiding.REPORTS)
        event = SummedEvent(release, clients)
    return Kind(event, ways, is_exact=False, threat=Threat.SHUFFLE)


def _convolved(one: Floats, other: Floats) -> Floats:
    """In two dimensions; ``other``: (2, 2)."""
    total = np.zeros((one.shape[0] + 1, one.shape[1] + 1))
    for row in (0, 1):
        for column in (0, 1):
            total[row : row + one.shape[0], column : column + one.shape[1]] += (
                one * other[row, column]
            )
    return total


def _sampled_labels(rng: random.Random) -> Kind:
    """An answer of pure ε about a sample."""
    epsilon0 = _small(rng, 0.05, 8)
    rate = _small(rng, 1e-3, 0.9)
    count = _count(rng, 4)
    kept = 1 / (1 + math.exp(-epsilon0))
    absent = np.array([1 - kept, kept])
    present = (1 - rate) * absent + rate * absent[::-1]
    ways = []
    for p, q in ((present, absent), (absent, present)):
        ways.append(together([Losses.of(p, q)] * count))
    event = RepeatedEvent(PoissonSampledEvent(rate, PureEvent(epsilon0)), count)
    return Kind(event, tuple(ways), is_exact=False)


_OTHERS = (
    _sampled,
    _discrete_gaussian,
    _summed_noise,
    _summed_bits,
    _shuffled,
    _sampled_labels,
)
