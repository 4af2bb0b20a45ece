"""Whatever a server asks of the clients of a sum, it learns no more of one than that one charges.

Each strategy whose answers are summed is asked with what conf/ lets a server set, on the victim and
on the others, with cohorts and weights of all kinds. What the sum tells is worked out from what
every client really adds to it: the cells that its noise reaches, and when it is added (found by
moving the noise by a step), its scale, its weight; then the law of the sum (``law_of_sums``).
``make test-long`` tries thousands.
"""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fl_app.config.errors import ConfigError
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import Adjacency, SummedEvent
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.secure_sum.terms import release_digest
from tests import charge_tape
from tests.asked_of_device import CASES, MATTERS, RESULTS, Asked
from tests.charge_tape import Tape
from tests.law_of_sums import (
    Labelled,
    Noised,
    bits_sum,
    epsilon_of,
    labelled_sum,
    noised_sum,
    normal_sum,
)

record = charge_tape.record
ALGORITHM = "any"  # the same for all, or nobody joins
DELTA, SUMS = 1e-5, Threat.SECURE_AGGREGATION
SIZES = ((5, 5, 5), (12, 2, 2), (2, 12, 7, 3, 2), (1, 40, 40, 40), (40, 1, 1, 1, 1, 1))
SUMMED = [name for name in CASES if not name.startswith("evaluation")]
FINE = 24.0  # steps of σ, from which on noise is as good as normal


class Part:
    """What one client adds to a sum, before noise and with it."""

    def __init__(self, asked, client, record):
        self.role, self.task = asked.role, replace(asked.task, client=client)
        self.codec, self.weight = self.role.codec(self.task), self.role.weight(client)
        self.event, self.data = self.role.event(self.task), asked.data
        self.record = record
        self.tape = record(self.role, self.task, self.data)
        self.mechanisms = [mechanism for mechanism, _, _ in self.tape.seen]

    def integers(self, tape):
        return self.codec.expand(self.codec.pack(tape.release), self.weight).ravel()

    def moved_by(self, change):
        """How its integers differ where every noise is another one, mechanism by mechanism."""
        other = Tape([change(answer) for answer in self.tape.answers])
        return self.integers(self.record(self.role, self.task, self.data, other)) - self.integers(
            self.tape
        )

    def kind(self):
        """The one kind of mechanism that its answer went through, if nothing came after it."""
        kinds = {type(mechanism) for mechanism in self.mechanisms}
        if len(kinds) != 1 or self.role.noise_in_training:
            return None
        return kinds.pop()

    def cells(self):
        """The cells that its noise reaches; of noise that is added: each by as much as that."""
        if self.kind() is RandomizedResponse:
            classes = self.mechanisms[0].categories
            shifts = [lambda x, by=by: (x + by) % classes for by in range(1, classes)]
            return np.any([self.moved_by(shift) != 0 for shift in shifts], axis=0)
        if self.kind() is BinaryRandomizedResponse:
            return self.moved_by(lambda x: x ^ np.uint8(1)) != 0
        return self.moved_by(lambda x: x + 1) == self.weight

    def steps(self):
        """σ of each mechanism, in what its integers count."""
        return [m.sigma / m.grid for m in self.mechanisms]


def hidden_by(victim, others):
    """Those of ``others`` whose noise or reports lie wherever the victim's do."""
    if victim.kind() is None:
        return []
    own = victim.cells()
    if victim.kind() is DiscreteGaussian:
        size = sum(values.size for _, _, values in victim.tape.seen)
        if np.count_nonzero(own) != size:  # something came after the noise
            return []
    beside = []
    for other in others:
        alike = other.kind() is victim.kind() and other.codec.shape == victim.codec.shape
        if alike and not np.any(own & ~other.cells()):
            beside.append(other)
    return beside


def told(victim, others, tape):
    """What the sum tells of the difference between the victim's two data sets, or None."""
    beside, gaps = hidden_by(victim, others), []
    for (mechanism, _, one), (_, _, other) in zip(victim.tape.seen, tape.seen, strict=True):
        gaps.append((mechanism, one, other))
    if victim.kind() is RandomizedResponse:
        changed = sum(np.count_nonzero(one != other) for _, one, other in gaps)
        laws = [Labelled(p.mechanisms[0].epsilon, p.mechanisms[0].categories)
                for p in (victim, *beside)]  # fmt: skip
        return [(labelled_sum(laws[0], laws[1:]), changed)] if changed else []
    if victim.kind() is BinaryRandomizedResponse:
        changed = sum(np.count_nonzero(one ^ other) for _, one, other in gaps)
        law = bits_sum(victim.mechanisms[0].gamma, [p.mechanisms[0].gamma for p in beside])
        return [(law, changed)] if changed else []
    if victim.kind() is not DiscreteGaussian:
        return None
    distance, seen = 0.0, []
    for place, (_, one, other) in enumerate(gaps):
        moved = np.abs(one.astype(float) - other)
        parts = [Noised(p.steps()[place], p.weight) for p in (victim, *beside)]
        fine = all(p.sigma * victim.weight > FINE * q.weight for p in parts for q in parts)
        if fine:
            spread = math.sqrt(sum((p.weight * p.sigma) ** 2 for p in parts))
            distance += float(np.sum((victim.weight * moved / spread) ** 2))
            continue
        for step, count in Counter(moved[moved > 0].tolist()).items():
            seen.append((noised_sum(parts[0], parts[1:], step), count))
    return seen + ([(normal_sum(math.sqrt(distance)), 1)] if distance else [])


def joins(victim, other, weights):
    """Whether ``other`` takes part in a sum under the terms that the victim takes part under."""
    asked = (
        release_digest(ALGORITHM, part.task.purpose, part.codec, part.event, *weights)
        for part in (victim, other)
    )
    return len(set(asked)) == 1


def compared(case, mine, theirs, sizes, tmp_path, monkeypatch, record):
    """What a sum tells of the victim, and what that charges; None: refused, or open."""
    parts = []
    for number, settings in enumerate((mine, theirs)):
        said = [f"{key}={json.dumps(v).replace('Infinity', 'inf')}" for key, v in settings.items()]
        words = [f"federation.num_clients={len(sizes)}", *case.words]
        try:
            asked = Asked([*words, "privacy.secure_aggregation=on", *said], tmp_path, sizes)
            clients = [asked.task.client] if number == 0 else range(len(sizes))
            parts.append((asked, [Part(asked, client, record) for client in clients]))
        except (ConfigError, ValueError):
            if number == 0:
                return None
            parts.append((None, []))
    (asked, [victim]), (_, everybody) = parts
    # Weights are declared for the whole cohort, whoever of it answers.
    declared = [asked.role.weight(client) for client in range(len(sizes))]
    weights = min(declared), max(declared)
    others = [part for part in everybody if part.task.client != victim.task.client]
    others = [part for part in others if joins(victim, part, weights)]
    event = SummedEvent(victim.event, 1 + len(others), victim.weight, *weights)
    paid = epsilon(event, DELTA, SUMS).epsilon
    if not math.isfinite(paid):
        return None
    if asked.release.adjacency is Adjacency.REPLACE_SPECIAL:  # noise within a training
        return epsilon(victim.event, DELTA).epsilon, paid, event
    most = 0.0
    for far in RESULTS:
        with monkeypatch.context() as patch:
            asked.train_badly(patch, far)
            for one, other in asked.pairs(record):
                victim.tape = one
                seen = told(victim, others, other)
                most = max(most, epsilon_of(seen, DELTA) if seen else 0.0)
    return most, paid, event


def together(case, rng):
    """What a server sets, and what it sets where it asks the others."""
    keys = [key for key in case.values if key.startswith((*MATTERS, "federation.num_rounds"))]

    def drawn(key):
        return case.values[key][rng.integers(len(case.values[key]))]

    mine = {str(key): drawn(key) for key in rng.choice(keys, int(rng.integers(3)), replace=False)}
    mine["privacy.threat"] = ["local", "secure_aggregation"][rng.integers(2)]
    mine["privacy.epsilon"] = float(np.exp(rng.uniform(np.log(0.05), np.log(20))))
    if "strategy.gamma" in case.values and mine.setdefault("strategy.gamma") is not None:
        mine["privacy.epsilon"] = math.inf  # it says how much noise there is
    theirs = dict(mine)
    if rng.random() < 0.5:
        key = keys[rng.integers(len(keys))]
        theirs[key] = drawn(key)
    return mine, theirs


def tried(name, count, seed, tmp_path, monkeypatch, record):
    """Shares of the charge that are told, of ``count`` questions that are answered."""
    rng, shares = np.random.default_rng([seed, len(name)]), []
    for _ in range(20 * count):
        if len(shares) == count:
            break
        mine, theirs = together(CASES[name], rng)
        sizes = SIZES[rng.integers(len(SIZES))]
        found = compared(CASES[name], mine, theirs, sizes, tmp_path, monkeypatch, record)
        if found is None:
            continue
        true, paid, event = found
        assert true <= paid * (1 + 1e-6) + 1e-9, (mine, theirs, sizes, event)
        if paid:  # else so much noise that δ alone covers it, and nothing is told
            shares.append(true / paid)
    return shares


@pytest.mark.parametrize("name", SUMMED)
def test_no_sum_of_any_strategy_tells_more_than_its_victim_charges(
    tmp_path, monkeypatch, record, name
):
    count = 1 if name == "dpfl_bnn" else 8  # its budgets take long to share out
    shares = tried(name, count, 0, tmp_path, monkeypatch, record)
    assert len(shares) == count
    assert max(shares) > 0.3  # data sets that are told apart were found


@pytest.mark.long
@pytest.mark.parametrize("name", SUMMED)
def test_nor_do_hundreds_of_questions(tmp_path, monkeypatch, record, name):
    tried(name, 40 if name == "dpfl_bnn" else 400, 1, tmp_path, monkeypatch, record)
