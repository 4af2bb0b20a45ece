"""No audit accuses a correct run: of every strategy one for each unit that it protects."""

import pytest

from research.attacks.false_alarms import (
    EVALUATIONS,
    SMALL,
    TWO_ROUNDS,
    audited,
    configurations,
    strategies,
)

# References for simulations, which no noise protects; and one that has an evaluation for it.
UNPROTECTED = {"local_only"}


SLOW = ("kd_dpfl", "dpsgd_fedavg", "nbafl")  # one to two minutes each


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=pytest.mark.long if name in SLOW else []) for name in strategies()],
)
def test_no_attack_on_a_correct_run_raises_an_alarm(strategy):
    first = {}
    for words, unit in configurations(strategy):
        first.setdefault(unit, words)
    assert bool(first) is (strategy not in UNPROTECTED)
    for words in first.values():
        accused = list(audited(words, 60))
        assert accused and not any(accused), words


@pytest.mark.parametrize("words", EVALUATIONS, ids=" ".join)
def test_no_attack_on_a_correct_evaluation_raises_an_alarm(words):
    accused = list(audited([*words, *SMALL, *TWO_ROUNDS], 60))
    assert accused and not any(accused)
