"""Every experiment file is a whole, valid run: its data load, its parts fit, its clients accept."""

from pathlib import Path

import pytest

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.groups import CONF, groups
from fl_app.run.validated import ValidatedRun

EXPERIMENTS = groups()["experiment"]
# Its noise is found for all clients' sums, which for 1,000 clients takes half a minute.
FEWER = {"dpfl_bnn_budgeted": ["federation.num_clients=100"]}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_is_ready_to_start(name, data_root, monkeypatch):
    monkeypatch.setenv("MURMUR_DATA", str(data_root))
    words = [f"experiment={name}", *FEWER.get(name, [])]
    if "download" in compose(words).dataset:
        words.append("dataset.download=false")
    config = compose(words)
    path = config.dataset.get("path")
    if path is not None and not Path(path).is_file():
        pytest.skip(f"MURMUR_DATA holds no {path}")
    if config.features.get("encoder") is not None:
        pytest.importorskip(config.features.encoder)
    try:
        ValidatedRun(config)
    except ConfigError as error:
        if not str(error).startswith(f"dataset: {config.dataset.name} is not in"):
            raise
        pytest.skip(f"MURMUR_DATA holds no {config.dataset.name}")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_says_what_it_reproduces(name):
    first, second = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()[:2]
    assert first == "# @package _global_"
    assert second.startswith("# ")
    assert len(second) > 40
