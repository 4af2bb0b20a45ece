"""Which settings may differ where a run goes on from its checkpoint."""

import numpy as np
import pytest

from fl_app.config.errors import ConfigError
from fl_app.run.results import Checkpoint, RowLines


def after_two_rounds(**settings):
    settings = {"federation": {"num_rounds": 4, **settings}}
    return Checkpoint(2, np.zeros(1), {}, {}, settings, [], RowLines())


def test_what_the_deploy_engine_tells_devices_may_be_missing_but_not_differ():
    run = after_two_rounds(devices={"classes": 10, "shape": [1, 8, 8]})
    assert (
        run.require_settings({"federation": {"num_rounds": 4, "devices": {"classes": None}}}) == 4
    )
    with pytest.raises(ConfigError, match=r"federation\.devices\.classes=9"):
        run.require_settings({"federation": {"num_rounds": 4, "devices": {"classes": 9}}})
