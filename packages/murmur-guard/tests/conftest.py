"""Fixtures of tests on devices."""

from tests.fl_app.device.conftest import opened, own_folders

__all__ = ["opened", "own_folders"]
