"""A sweep that is written once, and run folders that do not wait for the disk."""

import os

import pytest

from tests.run_folders import write_sweep


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """Nothing is killed here, and a busy disk takes a second for each row."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="package")
def sweep_folder(tmp_path_factory):
    """``write_sweep``'s folder; not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        return write_sweep(tmp_path_factory.mktemp("sweep"))
