"""Flower's own runtime: `flwr run` reaches the same code and gives the inline engine's bits."""

import pytest
from safetensors.numpy import load_file

from fl_app.run.results import RunFolder
from tests.federation.loopback import PROJECT, SimulatedRuns
from tests.fl_app.running import SMALL, run_inline


@pytest.fixture(scope="module")
def flwr(tmp_path_factory):
    runs = SimulatedRuns(tmp_path_factory.mktemp("flower"))
    yield lambda folder, config, nodes: runs.run(PROJECT, nodes, config, folder)
    runs.close()


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model/model.safetensors").items()}


def test_everyday_keys_and_overrides_reach_the_same_code(tmp_path, flwr):
    words = [word for word in SMALL if not word.startswith(("engine", "federation"))]
    overrides = f'overrides="{" ".join(words)} run_dir={tmp_path}/flower"'
    printed = flwr(tmp_path, f'num-clients="6" num-rounds="2" {overrides}', nodes=3)
    assert (tmp_path / "flower" / "metrics.json").exists(), printed
    before, _, after = printed.partition("[ROUND 1/2]")
    assert "budget: ε = 4 at δ = 1e-05 for the whole run" in before and "expected: " in before
    assert "VOID, rely on no figure of this run: the noise was seeded" in " ".join(after.split())
    assert f"{tmp_path}/flower/model" in after
    inline = run_inline(tmp_path / "inline", "privacy.epsilon=4")
    assert weights(tmp_path / "flower") == weights(inline.path)


@pytest.mark.federation
@pytest.mark.parametrize("strategy", ["scaffold", "fedadam", "dp_ftrl"])
def test_baselines_with_state_on_the_server_equal_the_inline_engine(tmp_path, flwr, strategy):
    words = [word for word in SMALL if not word.startswith("engine")]
    words += [f"strategy={strategy}", f"run_dir={tmp_path}/flower"]
    printed = flwr(tmp_path, f'overrides="{" ".join(words)}"', nodes=2)
    assert (tmp_path / "flower" / "metrics.json").exists(), printed
    inline = run_inline(tmp_path / "inline", f"strategy={strategy}")
    assert weights(tmp_path / "flower") == weights(inline.path)


def test_error_inside_the_runtime_reaches_the_user(tmp_path, flwr):
    printed = flwr(tmp_path, f'overrides="strategy=privatkt run_dir={tmp_path}/bad"', nodes=1)
    assert "murmur: strategy=privatkt: unknown; did you mean privatekt" in printed
    assert not RunFolder(tmp_path / "bad").metrics()
