"""Jobs that differ in their seed only are one setting; labels name what tells settings apart."""

import pytest

from fl_app.config.overrides import flat_texts
from fl_app.run.load import Run, load_runs, varied_values
from murmur_report.settings import group
from tests.run_folders import write_run


def run(*words, **config):
    return Run(name="-".join(words), overrides=words, config=config)


def test_seeds_are_repetitions_and_budgets_are_settings_in_their_order(sweep_folder):
    grouping = group(load_runs(sweep_folder).runs)
    assert [s.label.replace("\u00a0", " ") for s in grouping.settings] == [
        "PrivateKT, ε = 1",
        "PrivateKT, ε = 5",
        "PrivateKT, ε = ∞",
        "NbAFL, ε = 1",
        "NbAFL, ε = 5",
        "NbAFL, ε = ∞",
    ]
    assert [len(s.runs) for s in grouping.settings] == [2] * 6
    assert [(s.family_index, s.variant_index) for s in grouping.settings[2:4]] == [(0, 2), (1, 0)]


def test_a_default_counts_as_the_value_that_another_job_has_typed():
    typed = run("strategy.K=4", "seed=1", strategy={"name": "a", "K": 4}, seed=1)
    default = run("seed=2", strategy={"name": "a", "K": 4}, seed=2)
    other = run("strategy.K=8", "seed=1", strategy={"name": "a", "K": 8}, seed=1)
    grouping = group([typed, default, other])
    assert [len(s.runs) for s in grouping.settings] == [2, 1]
    assert [s.variant for s in grouping.settings] == ["K\u00a0=\u00a04", "K\u00a0=\u00a08"]


def test_an_experiment_that_only_mirrors_the_algorithm_is_not_repeated():
    runs = [
        run(f"experiment=digits_{name}", f"privacy.epsilon={e}", strategy={"name": name})
        for name in ("a", "b")
        for e in (1, 8)
    ]
    labels = [s.label.replace("\u00a0", " ") for s in group(runs).settings]
    assert labels == ["a, ε = 1", "a, ε = 8", "b, ε = 1", "b, ε = 8"]


def test_where_a_run_goes_and_what_executes_it_are_no_settings():
    runs = [
        run("run_dir=/a", "run_name=a", "engine=inline", "about.data=x", strategy={"name": "a"}),
        run("run_dir=/b", "run_name=b", "engine=ray", "tracking=wandb", strategy={"name": "a"}),
        run("dataset.root=/c", "hydra/launcher=joblib", "engine.workers=2", strategy={"name": "a"}),
    ]
    assert len(group(runs).settings) == 1


def test_groups_are_named_by_their_choice_where_nobody_typed_it():
    runs = [
        run("partition=shards", partition={"_target_": "murmur.learning.data.partitions.Shards"}),
        run(partition={"_target_": "murmur.learning.data.partitions.IID"}),
    ]
    assert {v["partition"] for v in varied_values(runs)} == {"shards", "IID"}


def test_flat_keeps_empty_groups_and_nulls():
    assert flat_texts({"a": {"b": None, "c": {}}, "d": [1]}) == {
        "a.b": "null",
        "a.c": "{}",
        "d": "[1]",
    }


def test_a_run_that_was_done_twice_is_no_second_seed(tmp_path):
    """Its band would be narrow, or none, though nothing is known of other seeds."""
    for name, seed in (("a", 1), ("again", 1), ("b", 2)):
        write_run(tmp_path / name, f"seed={seed}")
    grouping = group(load_runs(tmp_path).runs)
    [setting] = grouping.settings
    assert setting.final_scores("accuracy") == pytest.approx([0.51, 0.52])
    last = grouping.curves("accuracy").iloc[-1]
    assert last["runs"] == 2 and last["mean"] == pytest.approx(0.715)
    assert last["high"] - last["mean"] == pytest.approx(12.7062 * 0.005, rel=1e-4)
