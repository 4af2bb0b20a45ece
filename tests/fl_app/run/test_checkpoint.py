"""Which settings may differ where a run goes on from its checkpoint."""

import numpy as np
import pytest

from fl_app.config.errors import ConfigError
from fl_app.config.overrides import run_folder_path
from fl_app.run.results import Checkpoint, RowLines
from murmur.round.run_state import RunState


def after_two_rounds(**settings):
    settings = {"federation": {"num_rounds": 4, **settings}}
    return Checkpoint(RunState(2, np.zeros(1)), "known", settings, [], RowLines())


def test_what_the_deploy_engine_tells_devices_may_be_missing_but_not_differ():
    run = after_two_rounds(devices={"classes": 10, "shape": [1, 8, 8]})
    assert (
        run.require_settings({"federation": {"num_rounds": 4, "devices": {"classes": None}}}) == 4
    )
    with pytest.raises(ConfigError, match=r"federation\.devices\.classes=9"):
        run.require_settings({"federation": {"num_rounds": 4, "devices": {"classes": 9}}})


def test_a_run_that_named_no_folder_goes_on_under_its_own_name_only():
    """Of one that `flwr run` began, whose folder was moved, clients would answer a round again."""
    run = after_two_rounds()
    run.require_name("known")
    with pytest.raises(ConfigError, match="run_name=moved: clients know this run as known; add"):
        run.require_name("moved")


@pytest.mark.parametrize("nameless", [".", "/", ""])
def test_a_folder_without_a_name_is_refused_where_devices_know_a_run_by_it(nameless):
    """They would take Flower's number of the run, which a resumed run has not."""
    with pytest.raises(ConfigError, match="must end in the folder"):
        run_folder_path(nameless, None, 7)


def test_a_run_of_before_there_were_tasks_goes_on_with_classes_alone():
    run = after_two_rounds()
    assert run.require_settings({"task": "classification", "federation": {"num_rounds": 4}}) == 4
    with pytest.raises(ConfigError, match="task=regression"):
        run.require_settings({"task": "regression", "federation": {"num_rounds": 4}})
