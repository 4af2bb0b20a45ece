"""Server steps against Flower's formulas, and that a restored one goes on with the same bits."""

import numpy as np
import pytest

from murmur.round.server_step import Adam, Momentum, Sgd, Yogi

ADAPTIVE = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 0.001}
STEPS = {
    "sgd": lambda: Sgd(learning_rate=0.5),
    "momentum": lambda: Momentum(learning_rate=0.5, momentum=0.9),
    "adam": lambda: Adam(**ADAPTIVE),
    "yogi": lambda: Yogi(**ADAPTIVE),
}


def updates():
    return np.random.default_rng(1).normal(size=(6, 4))


def run(step, model, rows):
    for row in rows:
        model = step.step(model, row)
    return model


def test_flowers_formulas_written_out():
    """flwr.serverapp.strategy: FedAvgM, FedAdam (bias corrected by t + 1), FedYogi."""
    w, m, v = (np.zeros(4) for _ in range(3))
    u, y, a, b = np.zeros(4), np.zeros(4), np.zeros(4), np.zeros(4)
    for t, delta in enumerate(updates(), 1):
        u = 0.9 * u + delta
        a = a + 0.5 * u
        m = 0.9 * m + 0.1 * delta
        v = 0.99 * v + 0.01 * delta**2
        rate = 0.1 * np.sqrt(1 - 0.99 ** (t + 1)) / (1 - 0.9 ** (t + 1))
        w = w + rate * m / (np.sqrt(v) + 0.001)
        y = y - 0.01 * delta**2 * np.sign(y - delta**2)
        b = b + 0.1 * m / (np.sqrt(y) + 0.001)
    start = np.zeros(4, np.float32)
    for name, expected in (("momentum", a), ("adam", w), ("yogi", b)):
        np.testing.assert_allclose(run(STEPS[name](), start, updates()), expected, rtol=1e-5)
    np.testing.assert_allclose(run(STEPS["sgd"](), start, updates()), updates().sum(0) / 2, 1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_a_restored_step_goes_on_with_the_same_bits(name):
    start = np.ones(4, np.float32)
    whole = run(STEPS[name](), start, updates())
    first, second = STEPS[name](), STEPS[name]()
    middle = run(first, start, updates()[:3])
    second.restore(first.state())
    np.testing.assert_array_equal(run(second, middle, updates()[3:]), whole)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"beta_2": 1.0}, "beta_2"),
        ({"tau": 0.0}, "tau"),
    ],
)
def test_bad_settings_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Adam(**{**ADAPTIVE, **change})
