"""Trials and statements of each test in its own folder; deadlines that nobody waits for."""

import pytest

from murmur.flower import private_grid


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch, short_temporary):
    monkeypatch.setenv("MURMUR_RESULTS", str(tmp_path / "murmur-results"))
    monkeypatch.delenv("MURMUR_DEVICE", raising=False)
    monkeypatch.setattr(private_grid, "PHASE_SECONDS", 0.5)
