"""A run killed at any instant, and resumed, ends as one that was never interrupted: bit for bit.

Kills of the processes of other engines: ``tests/fl_app/engines``, ``tests.federation.kills``.
"""

import pytest

from fl_app.config.groups import groups
from tests.federation.killed_calls import kills
from tests.federation.killed_runs import RUNS

KILLS = 1  # for each; `make test-long` kills each 20 times


def test_every_algorithm_is_killed():
    assert sorted(RUNS) == sorted(groups()["strategy"])


@pytest.mark.parametrize("strategy", RUNS)
@pytest.mark.parametrize("count", [KILLS, pytest.param(20, marks=pytest.mark.long)])
def test_killed_and_resumed_equals_uninterrupted(tmp_path, strategy, count):
    found = list(kills(strategy, count, tmp_path))
    assert [(each.status, each.same) for each in found] == [(-9, True)] * count
