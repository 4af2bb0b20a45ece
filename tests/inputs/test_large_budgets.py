"""Budgets so large that nothing is protected, for debugging: they are met, by every algorithm."""

import pytest

from fl_app.run.prepare import validated
from fl_app.run.server import planned_epsilon
from murmur.privacy import events
from murmur.privacy.accounting import epsilon
from murmur.privacy.accounting.calibrate import discrete_noise_multiplier
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from tests.fl_app.running import run_inline

LARGE = (100, 1_000, 10_000, 100_000)
FEW = ["dataset=digits", "federation.num_clients=12", "federation.num_rounds=3"]
ALGORITHMS = [
    "dp_fedavg",
    "dp_fedavg protection.clipping.adaptive=true",
    "dp_fedavg federation.schedule=poisson federation.clients_per_round=4",
    "dp_ftrl",
    "dpsgd_fedavg",
    "dpsgd_fedavg privacy.unit=record",
    "fedavg protection=distributed",
    "fedavg protection=distributed privacy.threat=local",
    "gradient_rounds",
    "nbafl",
    "privatekt",
    "votes",
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_large_budget_is_kept_by_all_algorithms(algorithm):
    for budget in LARGE:
        words = f"strategy={algorithm} privacy.epsilon={budget}".split()
        strategy = validated([*words, *FEW]).strategy
        assert 0.5 * budget < planned_epsilon(strategy) <= budget * (1 + 1e-6)


@pytest.mark.parametrize("budget", LARGE)
@pytest.mark.parametrize("count", [1, 7, 200])
@pytest.mark.parametrize("steps", [1 << 10, CLIP_STEPS])
def test_what_is_calibrated_costs_no_more_whatever_the_grid(budget, count, steps):
    multiplier = discrete_noise_multiplier(budget, 1e-5, count, steps)
    release = events.DiscreteGaussianEvent(multiplier * steps, steps)
    spent = epsilon(events.RepeatedEvent(release, count), 1e-5).epsilon
    assert 0.9 * budget < spent <= budget * (1 + 1e-9)


@pytest.mark.parametrize("budget", [1_000, 100_000])
def test_a_run_with_a_large_budget_learns(tmp_path, budget):
    words = ["strategy=dp_fedavg", "federation.num_rounds=6", f"privacy.epsilon={budget}"]
    run = run_inline(tmp_path, *words)
    assert run.rows()[-1]["accuracy"] > run.rows()[0]["accuracy"] + 0.1
