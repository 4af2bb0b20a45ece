"""Which guarantee follows from which, shown on all data sets of a small world."""

import itertools
import math

import numpy as np
import pytest

from murmur.privacy.accounting import Adjacency, Threat, Unit, View, epsilon
from murmur.privacy.accounting.elementary_losses import report_probabilities
from murmur.privacy.accounting.flatten import flatten
from murmur.privacy.events import (
    Assumption,
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    Hiding,
    LaplaceEvent,
    NonPrivateEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    SummedEvent,
    event_from_dict,
)
from murmur.privacy.guarantee import Exposure
from murmur.privacy.neighbours import STEPS, Neighbours, common, departure
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import render

CLIENT, RECORD = Unit.CLIENT, Unit.RECORD
ONE, NULL, NONE = Adjacency.REPLACE_ONE, Adjacency.REPLACE_SPECIAL, Adjacency.ADD_REMOVE
DELTA = 1e-5


# The world: up to two clients of up to three records, which are null (0), 1 or 2 ---------------

RECORDS = range(3)
CLIENTS = [
    records
    for size in range(4)
    for records in itertools.combinations_with_replacement(RECORDS, size)
]
WORLD = [
    tuple(sorted(clients))
    for count in range(3)
    for clients in itertools.combinations_with_replacement(CLIENTS, count)
]


def exchanged(values, place, value):
    """``values`` with another one at ``place``; without it where ``value`` is None."""
    new = () if value is None else (value,)
    return tuple(sorted((*values[:place], *new, *values[place + 1 :])))


def parts(client):
    """``client`` with some of its records null."""
    for chosen in itertools.product([False, True], repeat=len(client)):
        nulled = (0 if null else v for v, null in zip(client, chosen, strict=True))
        yield tuple(sorted(nulled))


def other_clients(client, neighbours):
    """What ``client`` may become; sizes are public where it stays."""
    same_size = [other for other in CLIENTS if len(other) == len(client)]
    if neighbours == Neighbours(CLIENT, ONE):
        return same_size
    if neighbours == Neighbours(CLIENT, NULL):
        return [(0,) * len(client)]
    if neighbours == Neighbours(CLIENT, NULL, in_part=True):
        return list(parts(client))
    if neighbours == Neighbours(CLIENT, NONE):
        return [None]
    values = {ONE: RECORDS, NULL: [0], NONE: [None]}[neighbours.adjacency]
    return [exchanged(client, place, v) for place in range(len(client)) for v in values]


def distances(neighbours):
    """Steps between all data sets, (n, n); infinite where no chain leads."""
    index = {clients: number for number, clients in enumerate(WORLD)}
    near = np.full((len(WORLD), len(WORLD)), np.inf)
    np.fill_diagonal(near, 0)
    for clients in WORLD:
        for place, client in enumerate(clients):
            for other in other_clients(client, neighbours):
                pair = index[clients], index[exchanged(clients, place, other)]
                if pair[0] != pair[1]:
                    near[pair] = near[pair[::-1]] = 1
    for middle in range(len(WORLD)):
        near = np.minimum(near, near[:, middle, None] + near[None, middle])
    return near


FAR = {neighbours: distances(neighbours) for neighbours in STEPS}


@pytest.mark.parametrize("stated", STEPS, ids=str)
@pytest.mark.parametrize("wanted", STEPS, ids=str)
def test_the_table_says_how_far_apart_neighbours_are(stated, wanted):
    most = FAR[stated][FAR[wanted] == 1].max()
    steps = stated.steps(wanted)
    if steps is not None:
        assert most == steps
    elif wanted.unit is CLIENT and stated.unit is RECORD:
        assert most >= 3  # and so many as there are records
    else:
        assert most == math.inf


@pytest.mark.parametrize("stated", STEPS, ids=str)
def test_what_follows_holds_for_any_mechanism(stated):
    """(2ε, (1 + e^ε)δ) two steps away, (ε, δ) one step away, of mechanisms with four outputs."""
    rng = np.random.default_rng(1)
    for spread, budget in itertools.product((0.3, 1.0, 3.0), (0.0, 0.4, 1.5)):
        law = np.exp(spread * rng.standard_normal((len(WORLD), 4)))
        law /= law.sum(axis=1, keepdims=True)

        def delta(pairs, epsilon, law=law):
            gaps = law[:, None] - math.exp(epsilon) * law[None]
            return np.maximum(gaps, 0).sum(axis=2)[pairs == 1].max()

        own = delta(FAR[stated], budget)
        for wanted, steps in STEPS[stated].items():
            if steps == 1:
                assert delta(FAR[wanted], budget) <= own + 1e-12
            else:
                most = (1 + math.exp(budget)) * own
                assert delta(FAR[wanted], 2 * budget) <= most + 1e-12


@pytest.mark.parametrize(("a", "b", "c"), itertools.product(STEPS, repeat=3))
def test_no_detour_is_shorter(a, b, c):
    first, second = a.steps(b), b.steps(c)
    if first and second and first * second <= 2:
        assert a.steps(c) <= first * second


# What two steps cost, beside the truth ---------------------------------------------------------


def true_epsilon(one, other, delta):
    """The least ε with which two laws on the same outputs are (ε, ``delta``)-close."""

    def gap(epsilon):
        forth = np.maximum(one - math.exp(epsilon) * other, 0).sum()
        return max(forth, np.maximum(other - math.exp(epsilon) * one, 0).sum())

    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if gap(middle) <= delta else (middle, high)
    return high


def gaussian(sigma, mean):
    x = np.arange(-400, 401)
    law = np.exp(-(((x - mean) / sigma) ** 2) / 2)
    return law / law.sum()


def laplace(scale, mean):
    x = np.arange(-2000, 2001)
    law = np.exp(-abs(x - mean) / scale)
    return law / law.sum()


def bits(gamma, ones, count):
    """How many of ``count`` bits say 1 in the two places that matter, each by itself."""
    law = np.ones(1)
    for place in range(count):
        keep = 0.5 + gamma if place < ones else 0.5 - gamma
        law = np.outer(law, [1 - keep, keep]).ravel()
    return law


def labels(epsilon, categories, label):
    true, other = report_probabilities(epsilon, categories)
    return np.array([true if each == label else other for each in range(categories)])


def sampled(rate, law, sigma, mean):
    return (1 - rate) * law(sigma, 0) + rate * law(sigma, mean)


# An event for a unit that is nulled, and the laws of two units on both sides of the null one.
NOISED = {
    "discrete Gaussian": (
        DiscreteGaussianEvent(20.0, 8.0, scalar=True),
        (gaussian(20.0, 8), gaussian(20.0, -8)),
    ),
    "discrete Laplace": (LaplaceEvent(5.0, 4), (laplace(20.0, 4), laplace(20.0, -4))),
    "bits": (RandomizedBitsEvent(0.2, 8, 3), (bits(0.2, 3, 6), bits(0.2, 3, 6)[::-1])),
    "any ε": (PureEvent(1.0), (labels(2.0, 2, 0), labels(2.0, 2, 1))),
    "sampled": (
        PoissonSampledEvent(0.5, DiscreteGaussianEvent(20.0, 8.0)),
        (sampled(0.5, gaussian, 20.0, 8), sampled(0.5, gaussian, 20.0, -8)),
    ),
}


@pytest.mark.parametrize("what", NOISED)
def test_a_unit_that_is_nulled_costs_no_less_than_the_truth_where_it_is_exchanged(what):
    """The row of issue 53: a null unit's charge of 2 was stated for one that is exchanged."""
    event, laws = NOISED[what]
    release = Release(event, RECORD, NULL)
    truth = true_epsilon(*laws, DELTA)
    assert epsilon(release, DELTA, unit=RECORD).epsilon < truth
    assert epsilon(release, DELTA, adjacency=NULL, unit=RECORD).epsilon < truth
    assert epsilon(release, DELTA, adjacency=ONE, unit=RECORD).epsilon >= truth * (1 - 1e-9)


@pytest.mark.parametrize("multiplier", [1.0, 3.0, 20.0])
def test_of_gaussian_noise_the_sensitivity_doubles_exactly(multiplier):
    release = Release(GaussianEvent(multiplier), CLIENT, NULL)
    found = epsilon(release, DELTA, adjacency=ONE, unit=CLIENT)
    assert found == epsilon(GaussianEvent(multiplier / 2), DELTA)
    classical = 2 * epsilon(release, DELTA / (1 + math.exp(found.epsilon / 2))).epsilon
    assert found.epsilon <= classical


def test_a_charge_of_2_for_a_null_client_is_more_than_4_for_an_exchanged_one():
    """As it was found: own class, ``replace_special`` under a statement of ``replace_one``."""
    sigma = 1.98 * 2**20
    release = Release(DiscreteGaussianEvent(sigma, 2.0**20), CLIENT, NULL)
    seen = Exposure(Threat.LOCAL, "a server", release, {"0": release})
    honest, wrong = (Statement.of("own", CLIENT, each, DELTA, [seen]) for each in (NULL, ONE))
    assert 1.9 < honest.guarantees[0].proven_total < 2.1
    assert honest.guarantees[0].notes == ()
    assert wrong.guarantees[0].proven_total > 3.45
    said = "unit=client, adjacency=replace_special counts twice with unit=client, adjacency=replace"
    assert said in render(wrong).replace("\n    ", " ")


def test_what_is_released_for_records_is_no_protection_of_a_client_and_the_statement_says_so():
    release = Release(GaussianEvent(9.0), RECORD, ONE)
    seen = Exposure(Threat.LOCAL, "a server", release, {"0": release})
    guarantee = Statement.of("own", CLIENT, ONE, DELTA, [seen]).guarantees[0]
    assert guarantee.proven_total == math.inf
    assert guarantee.notes == (departure(Neighbours(RECORD, ONE), Neighbours(CLIENT, ONE)),)
    assert "protects nothing with unit=client" in guarantee.notes[0]


# Composition ------------------------------------------------------------------------------------

NULLED = Release(GaussianEvent(9.0), RECORD, NULL)
EXCHANGED = Release(LaplaceEvent(5.0), RECORD, ONE)
REMOVED = Release(PureEvent(0.5), RECORD, NONE)
A_NULL_CLIENT = Release(GaussianEvent(9.0), CLIENT, NULL)
ITS_RECORDS_NULL = Release(GaussianEvent(9.0), CLIENT, NULL, in_part=True)


@pytest.mark.parametrize(
    ("parts", "neighbours", "leaves"),
    [
        ([EXCHANGED], (RECORD, ONE), {LaplaceEvent(5.0): 1}),
        ([NULLED, EXCHANGED], (RECORD, NULL), {GaussianEvent(9.0): 1, LaplaceEvent(5.0): 1}),
        ([REMOVED], (RECORD, NONE), {PureEvent(0.5): 1}),
        ([REMOVED, EXCHANGED], (RECORD, ONE), {PureEvent(1.0): 1, LaplaceEvent(5.0): 1}),
        ([REMOVED, NULLED], (RECORD, NULL), {PureEvent(1.0): 1, GaussianEvent(9.0): 1}),
        ([A_NULL_CLIENT], (CLIENT, NULL), {GaussianEvent(9.0): 1}),
        ([A_NULL_CLIENT, NULLED], (RECORD, NULL), {GaussianEvent(4.5): 1, GaussianEvent(9.0): 1}),
        ([ITS_RECORDS_NULL, NULLED], (RECORD, NULL), {GaussianEvent(9.0): 2}),
        ([], (CLIENT, ONE), {}),
    ],
)
def test_releases_add_up_for_the_neighbours_that_all_of_them_cover(parts, neighbours, leaves):
    stated = [part.neighbours for part in parts]
    assert common(stated) == Neighbours(*neighbours)
    event = ComposedEvent(tuple(parts))
    unit, adjacency = neighbours
    assert flatten(event, View()) == leaves
    assert flatten(event, View(unit=unit)) == leaves
    assert flatten(event, View(adjacency=adjacency, unit=unit)) == leaves


def test_sampling_gains_nothing_two_steps_away():
    step = PoissonSampledEvent(0.01, DiscreteGaussianEvent(4.0, 1.0))
    release = Release(RepeatedEvent(step, 7), RECORD, NULL)
    asked = View(adjacency=ONE, unit=RECORD)
    assert flatten(release, asked) == {DiscreteGaussianEvent(4.0, 2.0): 7}


COIN = Assumption("coin", "the coin is fair")


def test_what_is_proven_otherwise_counts_for_its_own_neighbours():
    bare = Release(PureEvent(1.0), RECORD, NULL, (COIN,), PureEvent(2.0))
    own = Release(PureEvent(2.0), RECORD, ONE)
    for_records = Release(PureEvent(1.0), CLIENT, ONE, (COIN,), own)
    assert flatten(bare, View(adjacency=ONE, unit=RECORD)) == {PureEvent(4.0): 1}
    assert flatten(for_records, View(adjacency=ONE, unit=RECORD)) == {PureEvent(2.0): 1}
    assert flatten(for_records, View(adjacency=ONE, unit=CLIENT)) == {NonPrivateEvent(): 1}


def test_a_release_states_its_neighbours_once():
    for wrap in (
        lambda release: Release(RepeatedEvent(release, 2), RECORD, NULL),
        lambda release: PoissonSampledEvent(0.5, release),
        lambda release: Release(PureEvent(1.0), RECORD, NULL, (COIN,), ComposedEvent((release,))),
    ):
        with pytest.raises(ValueError, match=r"unit=record, adjacency=replace_one.*around the"):
            wrap(EXCHANGED)
    for unit, adjacency in ((CLIENT, ONE), (RECORD, NULL)):
        with pytest.raises(ValueError, match="in_part=true"):
            Release(PureEvent(1.0), unit, adjacency, in_part=True)


def test_ledgers_of_before_are_read_and_written_as_they_were():
    plain = A_NULL_CLIENT.to_dict()
    assert "in_part" not in plain
    assert event_from_dict(plain) == A_NULL_CLIENT
    assert ITS_RECORDS_NULL.to_dict() == {**plain, "in_part": True}
    assert event_from_dict(ITS_RECORDS_NULL.to_dict()) == ITS_RECORDS_NULL


@pytest.mark.parametrize(("unit", "adjacency"), [(RECORD, ONE), (CLIENT, NULL)])
def test_a_sum_hides_a_report_only_where_it_could_be_any_clients(unit, adjacency):
    """A clone is a report of other data; of the ε between null neighbours nothing follows there."""
    seen = View(Threat.SECURE_AGGREGATION)
    for event, hides in ((RandomizedResponseEvent(1.0, 10), True), (PureEvent(1.0), False)):
        release = Release(event, unit, adjacency, hiding=Hiding.REPORTS)
        assert (flatten(SummedEvent(release, 50), seen) != {event: 1}) is hides
    anybody = Release(PureEvent(1.0), CLIENT, ONE, hiding=Hiding.REPORTS)
    assert flatten(SummedEvent(anybody, 50), seen) != {PureEvent(1.0): 1}
