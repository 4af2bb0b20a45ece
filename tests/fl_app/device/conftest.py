"""Fixtures of tests on devices."""

import sys
from collections.abc import Iterator

import pytest

from murmur.flower import private_grid


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Paths that were opened; Python's own audit hooks cannot be taken away again."""
    found: list[str] = []
    watching = [True]
    sys.addaudithook(
        lambda event, arguments: (
            found.append(str(arguments[0])) if watching[0] and event == "open" else None
        )
    )
    yield found
    watching[0] = False


@pytest.fixture
def own_folders(tmp_path, monkeypatch, short_temporary):
    """Trials and statements of each test in its own folder; phases that may take a while."""
    monkeypatch.setenv("MURMUR_RESULTS", str(tmp_path / "murmur-results"))
    monkeypatch.setattr(private_grid, "PHASE_SECONDS", 60.0)
