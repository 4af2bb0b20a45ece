"""The same work has the same key; other work has another."""

from pathlib import Path

import pytest

from fl_app.config import compose
from fl_app.job_key import job_key

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
        ["privacy.epsilon=8"],
        ["privacy.epsilon=8.0", "seed=1"],
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


def test_an_experiment_and_its_settings_typed_out_are_the_same_work():
    typed = ["strategy=dp_fedavg", "dataset=digits", "partition=iid", "privacy=local"]
    assert key("experiment=digits_dp_fedavg") == key(
        *typed,
        "model=mlp",
        "model.hidden=[]",
        "privacy.epsilon=16",
        "privacy.per=run",
        "federation.num_clients=60",
        "federation.num_rounds=8",
        "federation.public=360",
    )


def test_where_the_data_lie_does_not_matter_but_which_file_does():
    mnist = ["dataset=mnist", "dataset.root"]
    assert key(mnist[0], f"{mnist[1]}=/a") == key(mnist[0], f"{mnist[1]}=/b")
    csv = ["dataset=csv", "dataset.path=a.csv"]
    assert key(*csv) == key(csv[0], "dataset.path=/here/a.csv")
    assert key(*csv) != key(*csv, base=Path("/there"))
    assert key(*csv) != key(csv[0], "dataset.path=b.csv")
