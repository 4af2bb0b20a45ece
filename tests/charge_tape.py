"""What a client was about to noise, in place of the noise, and what that would have given away.

A ``Tape`` notes what goes into every mechanism and lets it out unchanged; for a neighbour it lets
out the same answers, so that every step of an adaptive mechanism is compared from the same state.
``losses`` are what the noise had to hide, ``charged`` is what was charged for it, in the same
units: ``gaussian``: (‖difference‖ / σ)²; ``pure``: ε.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest

from murmur.privacy.accounting.flatten import View, flatten, pure_epsilon
from murmur.privacy.events import DiscreteGaussianEvent, NonPrivateEvent, PoissonSampledEvent
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.mechanisms.sampled_gaussian import SampledGaussian
from murmur.privacy.mechanisms.selection import ExponentialMechanism, PermuteAndFlip
from murmur.privacy.noise import NoiseGenerator


def _gaussian(mechanism, moved):
    return "gaussian", float(np.sum((moved * (mechanism.grid / mechanism.sigma)) ** 2))


def _laplace(mechanism, moved):
    return "pure", float(np.abs(moved).sum()) * mechanism.grid / mechanism.scale


def _labels(mechanism, moved):
    return "pure", mechanism.epsilon * np.count_nonzero(moved)


def _bits(mechanism, moved):
    one = math.log1p(2 * mechanism.gamma) - math.log1p(-2 * mechanism.gamma)
    return "pure", one * np.count_nonzero(moved)


def _choice(mechanism, moved):
    return "pure", mechanism.epsilon * float(np.abs(moved).max()) / mechanism.sensitivity


# What each mechanism's output may give away of two inputs: their difference, as it is or xor.
HIDDEN = {
    (DiscreteGaussian, "privatize_integers"): _gaussian,
    (DiscreteLaplace, "privatize_integers"): _laplace,
    (RandomizedResponse, "privatize"): _labels,
    (BinaryRandomizedResponse, "privatize"): _bits,
    (ExponentialMechanism, "privatize"): _choice,
    (PermuteAndFlip, "privatize"): _choice,
}


@dataclass
class Tape:
    """``seen``: mechanism, its price and what went in; ``release``: what came out in the end."""

    answers: list[np.ndarray] = field(default_factory=list)
    seen: list[tuple] = field(default_factory=list)
    without: int | None = None  # a record that is in no sample
    places: np.ndarray | None = None  # of each record among those of the earlier tape; -1: none
    count: int = 0  # records of the earlier tape
    release: np.ndarray | None = None

    def note(self, mechanism, price, values, answer):
        self.seen.append((mechanism, price, np.array(values)))
        if len(self.answers) < len(self.seen):
            self.answers.append(np.array(answer))
        return self.answers[len(self.seen) - 1].copy()


def losses(one, other):
    """What two tapes' differences come to, mechanism by mechanism, by kind."""
    found = defaultdict(list)
    for (mechanism, price, a), (same, _, b) in zip(one.seen, other.seen, strict=True):
        assert mechanism == same
        moved = a ^ b if a.dtype == np.uint8 else a - b.astype(float)
        kind, loss = price(mechanism, moved)
        found[kind].append(loss)
    return found


def charged(event, **view):
    """What ``event`` was charged for, mechanism by mechanism, by kind; None: without protection."""
    found = defaultdict(list)
    for leaf, count in flatten(event, View(**view)).items():
        if isinstance(leaf, NonPrivateEvent):
            return None
        plain = leaf.event if isinstance(leaf, PoissonSampledEvent) else leaf
        if isinstance(plain, DiscreteGaussianEvent):
            found["gaussian"] += [(plain.sensitivity / plain.sigma) ** 2] * count
        else:
            found["pure"] += [pure_epsilon(plain)] * count
    return found


@pytest.fixture
def record(monkeypatch):
    """``record(it, task, data)``: the tape of one answer; with an earlier one, its neighbour's."""
    tape = Tape()

    def chosen(values):
        return np.asarray(values).argmax(axis=-1).astype(np.int64)

    for (kind, name), price in HIDDEN.items():

        def noised(mechanism, values, rng, *_, price=price, out=None):
            answer = chosen(values) if price is _choice else values
            return tape.note(mechanism, price, values, answer)

        monkeypatch.setattr(kind, name, noised)
    drawn = SampledGaussian.sample

    def sample(mechanism, count, rng):
        if tape.places is not None:  # the same coin for the same record
            return np.append(drawn(mechanism, tape.count, rng), False)[tape.places]
        lot = drawn(mechanism, count, rng)
        if tape.without is not None:
            lot[tape.without] = False
        return lot

    monkeypatch.setattr(SampledGaussian, "sample", sample)

    def recorded(it, task, data, earlier=None, without=None, places=None):
        nonlocal tape
        count = 0 if earlier is None else earlier.count
        tape = Tape([] if earlier is None else earlier.answers, [], without, places, count)
        tape.count = tape.count or len(data)
        tape.release = it.answer(task, data, NoiseGenerator.seeded(1))
        return tape

    return recorded
