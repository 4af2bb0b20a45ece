"""Fixtures and marks of the packages' tests: those of the core's."""

from tests.conftest import (
    data_root,
    no_folders_of_other_tests,
    no_ray_of_other_modules,
    pytest_collection_modifyitems,
    short_temporary,
)

__all__ = [
    "data_root",
    "no_folders_of_other_tests",
    "no_ray_of_other_modules",
    "pytest_collection_modifyitems",
    "short_temporary",
]
