"""Models in a run: where they start, what of them moves, which are refused before it."""

import pytest
from safetensors.numpy import load_file

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from tests.fl_app.running import SMALL, run_inline

FEDAVG = ("strategy=fedavg", "federation.num_clients=2")


def test_a_run_starts_from_the_model_of_another(tmp_path):
    first = run_inline(tmp_path / "first", *FEDAVG)
    model = first.path / "model/model.safetensors"
    second = run_inline(tmp_path / "second", *FEDAVG, f"model.start={model}")
    assert second.rows()[0]["accuracy"] == first.rows()[-1]["accuracy"]
    assert second.rows()[-1]["accuracy"] > second.rows()[0]["accuracy"]


@pytest.mark.parametrize("words", [["model=linear"], ["model.hidden=[7]"]])
def test_a_start_of_another_model_is_refused_before_the_run(tmp_path, words):
    model = run_inline(tmp_path / "first", *FEDAVG).path / "model/model.safetensors"
    with pytest.raises(ConfigError, match=r"^model\.start=.*state_dict"):
        ValidatedRun(compose([*FEDAVG, *words, f"model.start={model}"]))
    with pytest.raises(ConfigError, match=r"^model\.start=nowhere"):
        ValidatedRun(compose([*FEDAVG, "model.start=nowhere"]))


def test_frozen_weights_are_neither_sent_nor_changed(tmp_path):
    words = (*FEDAVG, "model=torchvision", "model.size=16", "federation.public=1400")
    run = run_inline(tmp_path / "run", *words, small=[*SMALL, "federation.num_rounds=1"])
    head = 512 * 10 + 10
    row = run.rows()[-1]
    assert row["bytes_up"] < 2 * 8 * head + 2000  # eight bytes a weight; the network has 45 MB
    assert row["bytes_down"] < 2 * 4 * head + 2000
    again = ValidatedRun(compose([*SMALL, *words])).trainer.flat.state_dict()
    saved = load_file(run.path / "model/model.safetensors")
    assert set(saved) == set(again)
    moved = {name for name in saved if (saved[name] != again[name].numpy()).any()}
    assert moved <= {"head.weight", "head.bias"}
