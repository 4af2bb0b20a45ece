"""Fixtures of tests on devices."""

import sys
from collections.abc import Iterator

import pytest


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
