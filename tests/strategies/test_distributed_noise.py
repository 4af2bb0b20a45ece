"""Every strategy that averages can share its noise under real secure sums."""

import pytest

from tests.fl_app.running import run_inline

WORDS = [
    "privacy=local",
    "protection=distributed",
    "privacy.threat=secure_aggregation",
    "privacy.secure_sum.minimum=0.8",
    "privacy.secure_sum.colluders=1",
    "privacy.epsilon=4",
]
CHOICES = {
    "fedavg": ["protection.clipping.adaptive=true", "protection.clipping.bit_noise=3"],
    "fedprox": ["strategy.proximal_mu=0.1"],
    "fedadam": [],
    "scaffold": [],
    "clustering": ["federation.public=100"],
}


@pytest.mark.parametrize("name", CHOICES)
def test_masked_updates_with_shared_noise_keep_the_budget(tmp_path, name):
    run = run_inline(tmp_path / name, f"strategy={name}", *WORDS, *CHOICES[name])
    first, *rows = run.rows()
    assert [row["counted"] for row in rows] == [True, True]
    assert rows[-1]["loss"] != first["loss"]
    summed = run.statement()["guarantees"][0]
    assert summed["threat"] == "secure_aggregation"
    # All six answered; the noise is calibrated to four honest ones, and no more are counted on.
    assert 3.9 < summed["assumed_total"] <= 4
    assert summed["assumptions"][0] == "at least 4 of the 5 clients of every sum are honest"
