"""FedPer: the last layers never leave their client, are its own, and help where clients differ."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from fl_app.config.errors import ConfigError
from tests.fl_app.running import run_inline

SKEWED = [
    *("engine=inline", "federation.num_clients=8", "federation.public=0", "privacy.noise=seeded"),
    *("partition=dirichlet", "partition.alpha=0.1", "model=mlp", "model.hidden=[16]"),
    *("strategy.local.epochs=3", "tracking=none"),
]
SHARED, HEAD = 64 * 16 + 16, 16 * 10 + 10  # parameters of the two layers


def run(folder, *words, rounds=3):
    return run_inline(folder, *words, f"federation.num_rounds={rounds}", small=SKEWED)


def test_clients_own_layers_help_where_their_data_differ(tmp_path):
    shared = run(tmp_path / "fedavg", "strategy=fedavg").rows()[-1]["accuracy"]
    last = run(tmp_path / "fedper", "strategy=fedper").rows()[-1]
    assert last["accuracy"] > shared + 0.2 and last["clients_evaluated"] == 8


def test_personal_layers_stay_with_their_client(tmp_path):
    folder = run(tmp_path, "strategy=fedper", rounds=2)
    sent = folder.rows()[1]["bytes_up"] / 8
    assert 4 * SHARED < sent < 4 * (SHARED + HEAD)
    own = [load_file(path)["personal"] for path in sorted(folder.path.rglob("2.safetensors"))]
    assert [len(each) for each in own] == [HEAD] * 8
    assert len({each.tobytes() for each in own}) == 8
    start = run(tmp_path / "none", "strategy=fedper", rounds=1)
    for name, values in load_file(folder.path / "model/model.safetensors").items():
        before = load_file(start.path / "model/model.safetensors")[name]
        if values.size in (160, 10):  # the head that newcomers begin with
            assert np.array_equal(values, before)
        else:
            assert not np.array_equal(values, before)


def test_nodes_change_nothing(tmp_path):
    one = run(tmp_path / "one", "strategy=fedper", "engine.nodes=1", rounds=2)
    three = run(tmp_path / "three", "strategy=fedper", "engine.nodes=3", rounds=2)
    assert one.rows()[-1]["accuracy"] == three.rows()[-1]["accuracy"]


@pytest.mark.parametrize("layers", [0, 2])
def test_some_layers_are_personal_and_some_are_shared(tmp_path, layers):
    with pytest.raises(ConfigError, match=rf"strategy.personal_layers={layers}: must be at least"):
        run(tmp_path, "strategy=fedper", f"strategy.personal_layers={layers}")
