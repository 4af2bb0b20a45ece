"""NbAFL's bound: its constants, where it fails, and the paper's three properties."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from murmur.algorithms.nbafl.convergence import Constants, Curve
from murmur.algorithms.nbafl.noise import broadcast_sigma, upload_sigma

DELTA, CLIP, M = 0.01, 1.0, 100


def constants(**changed):
    values = {
        "smoothness": 1.0, "lipschitz": 1.0, "pl": 0.3, "dissimilarity": 1.0, "gap": 2.3,
        "proximal_mu": 3.0,
    }  # fmt: skip
    return Constants(**{**values, **changed})


def noise(epsilon, clients, rounds, m=M):
    """s of the aggregate, equal weights, one exposure."""
    uplink = upload_sigma(epsilon, DELTA, 1, CLIP, m) / math.sqrt(clients)
    weights = [1 / clients] * clients
    return math.hypot(uplink, broadcast_sigma(epsilon, DELTA, rounds, 1, CLIP, m, weights))


def test_constants_of_the_bound_by_hand():
    it = constants(smoothness=2.0, dissimilarity=1.5, proximal_mu=10.0)
    assert it.lambda0 == 1.0
    assert it.lambda1 == pytest.approx(1 + 2 * 1.5 / 10)
    assert it.lambda2 == pytest.approx(-0.1 + 3 / 100 + 2 * 2.25 / 200)
    assert it.contraction == pytest.approx(1 + 0.6 * it.lambda2)
    assert it.least_mu == pytest.approx(3 + 2.25)


def test_bound_by_hand():
    it = constants()
    p = 1 + 2 * 0.3 * (-1 / 3 + 1 / 9 + 1 / 18)
    tail = (1 - p**7) / (1 - p)
    s = 0.05
    paper = p**7 * 2.3 + tail * (4 / 3 * s * math.sqrt(2 / math.pi) + 0.5 * s**2)
    vector = p**7 * 2.3 + tail * (4 / 3 * s * 10 + 0.5 * 100 * s**2)
    assert Curve.of(it).value(7, s) == pytest.approx(paper)
    assert Curve.of(it, dimension=100).value(7, s) == pytest.approx(vector)


def test_assumption_fails_exactly_up_to_the_least_mu():
    edge = constants().least_mu
    assert constants(proximal_mu=1.001 * edge).failure() is None
    for mu in (0.0, 0.5 * edge, edge):
        words = constants(proximal_mu=mu).failure()
        assert "μ > ρB + ρB²/2 = 1.5" in words
        with pytest.raises(ValueError, match=f"proximal_mu={mu}: λ₂="):
            Curve.of(constants(proximal_mu=mu))


def test_a_contraction_below_zero_is_no_contraction():
    assert "P=" in constants(pl=4.0).failure()


@pytest.mark.parametrize(
    ("name", "value"),
    [("smoothness", 0.0), ("pl", -1.0), ("gap", math.inf), ("lipschitz", math.nan),
     ("proximal_mu", -1.0)],
)  # fmt: skip
def test_bad_constants_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        constants(**{name: value})


problems = st.builds(
    constants,
    smoothness=st.floats(0.1, 5),
    lipschitz=st.floats(0.1, 5),
    dissimilarity=st.floats(1, 2),
    proximal_mu=st.floats(20, 60),
    pl=st.floats(0.01, 5),
)
dimensions = st.sampled_from([None, 1000])


def curve_of(problem, dimension):
    assume(problem.failure() is None)
    assume(problem.contraction < 1 - 1e-6)
    return Curve.of(problem, dimension)


@settings(max_examples=100)
@given(problems, dimensions, st.floats(1, 200), st.floats(1.05, 5), st.integers(1, 500))
def test_property_1_the_bound_falls_with_epsilon(problem, dimension, epsilon, factor, rounds):
    curve = curve_of(problem, dimension)
    less, more = (curve.value(rounds, noise(e, 50, rounds)) for e in (epsilon, factor * epsilon))
    assert more < less


@settings(max_examples=100)
@given(problems, dimensions, st.floats(1, 200), st.integers(1, 200), st.integers(1, 200),
       st.integers(1, 500))  # fmt: skip
def test_property_2_the_bound_falls_with_clients_at_fixed_m(
    problem, dimension, epsilon, clients, more, rounds
):
    curve = curve_of(problem, dimension)
    few = curve.value(rounds, noise(epsilon, clients, rounds))
    many = curve.value(rounds, noise(epsilon, clients + more, rounds))
    assert many < few


@settings(max_examples=100)
@given(problems, st.floats(20, 200), st.integers(10, 100))
def test_property_3_the_bound_has_an_interior_minimum_in_rounds(problem, epsilon, clients):
    curve = curve_of(problem, None)

    def cost(rounds):
        return curve.value(rounds, noise(epsilon, clients, rounds, m=1000))

    assume(cost(2) < cost(1))  # else noise outweighs even the second round
    choices = sorted({round(1.1**i) for i in range(150)})
    chosen = min(choices, key=cost)
    assert choices[0] < chosen < choices[-1]
    # One valley: it falls up to the minimum, and rises from there on.
    costs = [cost(rounds) for rounds in choices]
    place = choices.index(chosen)
    slack = 1e-9 * costs[0]
    assert all(b <= a + slack for a, b in pairwise(costs[: place + 1]))
    assert all(b >= a - slack for a, b in pairwise(costs[place:]))


@settings(max_examples=50)
@given(st.floats(1, 200), st.integers(1, 100), st.integers(2, 10), st.integers(1, 500))
def test_more_clients_on_the_same_data_do_not_help(epsilon, clients, factor, rounds):
    total = 100_000
    few = noise(epsilon, clients, rounds, m=total / clients)
    many = noise(epsilon, clients * factor, rounds, m=total / (clients * factor))
    assert many >= few * (1 - 1e-12)


def test_retention_of_noise_may_differ_from_the_contraction():
    kept = Curve(0.9, 2.0, 0.0, 1.0, retention=1.0)
    assert kept.value(10, 0.1) == pytest.approx(0.9**10 * 2 + 10 * 0.01)
    assert Curve(0.9, 2.0, 0.0, 1.0).value(10, 0.1) < kept.value(10, 0.1)
