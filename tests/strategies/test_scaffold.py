"""SCAFFOLD: control variates add up, correct drift, and work in stacks and under protection."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from fl_app.config.errors import ConfigError
from tests.fl_app.running import run_inline

SKEWED = [
    *("engine=inline", "federation.num_clients=8", "federation.public=0", "privacy.noise=seeded"),
    *("partition=dirichlet", "partition.alpha=0.1", "model=mlp", "model.hidden=[]"),
    *("strategy.local.epochs=10", "tracking=none"),
]


def run(folder, *words, rounds=5):
    return run_inline(folder, *words, f"federation.num_rounds={rounds}", small=SKEWED)


def test_it_corrects_the_drift_of_skewed_clients(tmp_path):
    plain = run(tmp_path / "plain", "strategy=fedavg").rows()[-1]["loss"]
    corrected = run(tmp_path / "corrected", "strategy=scaffold").rows()[-1]["loss"]
    assert corrected < 0.95 * plain


def test_the_first_round_is_plain_averaging_of_clients_that_count_alike(tmp_path):
    """All control variates are 0 then; c becomes the mean of the drifts."""
    folder = run(
        tmp_path / "one",
        "strategy=scaffold",
        "strategy.local.epochs=null",
        "strategy.local.steps=3",
        rounds=1,
    )
    state = folder.load_checkpoint()
    control = next(v for k, v in state.run.algorithm.items() if k.endswith("control"))
    own = [load_file(p)["control"] for p in sorted(folder.path.rglob("1.safetensors"))]
    assert len(own) == 8
    np.testing.assert_allclose(control, np.mean(own, axis=0), atol=1e-6)


@pytest.mark.parametrize("words", [["compute.stack=4"], ["engine.nodes=3"]])
def test_stacks_and_nodes_change_nothing_but_rounding(tmp_path, words):
    alone = run(tmp_path / "alone", "strategy=scaffold", rounds=2)
    other = run(tmp_path / "other", "strategy=scaffold", *words, rounds=2)
    a, b = (load_file(r.path / "model/model.safetensors") for r in (alone, other))
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=1e-5)


def test_both_arrays_share_one_protection(tmp_path):
    result = run(
        tmp_path,
        *("strategy=scaffold", "protection=distributed", "server_step=adam"),
        *("privacy.threat=secure_aggregation", "privacy.epsilon=20"),
        rounds=2,
    )
    sums = result.statement()["guarantees"][0]
    assert sums["threat"] == "secure_aggregation"
    assert 10 < sums["assumed_total"] <= 20


def test_a_scale_of_nothing_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"control_scale=-0.0: must be finite and above 0"):
        run(tmp_path / "run", "strategy=scaffold", "strategy.control_scale=-0.0")
