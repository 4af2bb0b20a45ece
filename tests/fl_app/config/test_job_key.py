"""The same work has the same key; other work has another."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fl_app.config.compose import compose
from fl_app.config.groups import CONF
from fl_app.config.job_key import job_key

HERE = Path("/here")


def key(*words, base=HERE):
    return job_key(compose(words), base)


@pytest.mark.parametrize(
    "words",
    [
        ["engine=inline"],
        ["engine=inline", "engine.workers=2"],
        ["run_dir=/elsewhere", "results_dir=/there"],
        ["keep_checkpoints=false"],
        ["sweep=mine"],
        ["privacy.epsilon=4"],
        ["privacy.epsilon=4.0", "seed=1"],
    ],
    ids=" ".join,
)
def test_where_and_how_a_run_goes_does_not_change_its_key(words):
    assert key(*words) == key()


@pytest.mark.parametrize(
    "word", ["seed=2", "privacy.epsilon=inf", "strategy.K=2", "strategy=nbafl", "partition=shards"]
)
def test_other_work_has_another_key(word):
    assert key(word) != key()


def typed(settings: dict, prefix: str = ""):
    """An overlay's settings as a user types them."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from typed(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={value}"


def test_an_experiment_and_its_settings_typed_out_are_the_same_work():
    groups = ["strategy=dp_fedavg", "dataset=digits", "partition=iid", "privacy=local", "model=mlp"]
    overlay = OmegaConf.load(CONF / "experiment" / "digits_dp_fedavg.yaml")
    del overlay["defaults"], overlay["about"]
    settings = list(typed(OmegaConf.to_container(overlay)))
    assert "privacy.epsilon=16.0" in settings
    assert key("experiment=digits_dp_fedavg") == key(*groups, *settings)
    assert key("experiment=digits_dp_fedavg") != key(*groups, *settings[1:])


def test_where_the_data_lie_does_not_matter_but_which_file_does():
    mnist = ["dataset=mnist", "dataset.root"]
    assert key(mnist[0], f"{mnist[1]}=/a") == key(mnist[0], f"{mnist[1]}=/b")
    csv = ["dataset=csv", "dataset.path=a.csv"]
    assert key(*csv) == key(csv[0], "dataset.path=/here/a.csv")
    assert key(*csv) != key(*csv, base=Path("/there"))
    assert key(*csv) != key(csv[0], "dataset.path=b.csv")
