"""Fixtures for all tests: real data where it is, private folders, no leftovers of other runs."""

import os
from pathlib import Path

import pytest

from fl_app.config.plugins import VARIABLE


@pytest.fixture
def data_root() -> Path:
    """The folder with MNIST, Fashion-MNIST and PneumoniaMNIST; skips where there is none."""
    root = os.environ.get("MURMUR_DATA")
    if not root:
        pytest.skip("MURMUR_DATA names no folder with the real data sets")
    return Path(root)


@pytest.fixture(autouse=True)
def no_plugins_of_other_tests(monkeypatch):
    """``--config-dir`` is put into the environment, for the processes that a command starts."""
    monkeypatch.setenv(VARIABLE, os.environ.get(VARIABLE, ""))
