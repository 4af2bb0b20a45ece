"""Strategies outside of Flower's processes: every test has the identity that messages need."""

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def identity():
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
