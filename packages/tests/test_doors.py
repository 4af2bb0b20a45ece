"""Each package imports from the core what its door lists, and nothing beside it.

A door is a module of the core, or a folder of them. Of a module with ``__all__`` only those names
may be taken. The two that exist for one package hold exactly what that package imports.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parents[1]
ROOMS = ("murmur", "strategies", "clients", "fl_app")
LIBRARY = r"|murmur\.(privacy|checks|files|format|random)\b"
DOORS = {
    "murmur-kernels": r"murmur\.(learning|algorithms\.dpfl_bnn)\b" + LIBRARY,
    "murmur-guard": r"fl_app\.device\.api$|murmur\.(compat|flower)\b" + LIBRARY,
    "murmur-report": r"fl_app\.(api|audit_api)$" + LIBRARY,
}
MADE_FOR = {"murmur-guard": "fl_app.device.api", "murmur-report": "fl_app.audit_api"}

Import = tuple[str, str]  # module of the core, name taken from it


def imports(tree: ast.Module) -> Iterator[Import]:
    """Returns what a file takes from the core; "" for a whole module."""
    taken: list[Import] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            taken += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            taken += [(node.module or "", alias.name) for alias in node.names]
    return (each for each in taken if each[0].partition(".")[0] in ROOMS)


def of_package(package: str) -> set[Import]:
    """Returns what all modules of ``package`` take from the core."""
    taken: set[Import] = set()
    for path in (PACKAGES / package).glob("murmur_*/**/*.py"):
        taken.update(imports(ast.parse(path.read_text(encoding="utf-8"))))
    return taken


def outside(package: str, taken: set[Import]) -> list[str]:
    """Returns imports that are not behind the package's door."""
    found = []
    for module, name in sorted(taken):
        listed = getattr(importlib.import_module(module), "__all__", None)
        is_listed = listed is None or name in listed
        if re.match(DOORS[package], module) is None or not is_listed:
            found.append(f"{module}: {name}")
    return found


def test_every_package_has_a_door():
    assert {path.parent.name for path in PACKAGES.glob("*/pyproject.toml")} == set(DOORS)


@pytest.mark.parametrize("package", DOORS)
def test_packages_stand_on_their_doors_alone(package):
    assert outside(package, of_package(package)) == []


def test_what_is_beside_a_door_is_found():
    beside = set(imports(ast.parse("from murmur.round import host")))
    assert outside("murmur-kernels", beside) == ["murmur.round: host"]
    unlisted = set(imports(ast.parse("from fl_app.api import threading")))
    assert outside("murmur-report", unlisted) == ["fl_app.api: threading"]


@pytest.mark.parametrize("package", MADE_FOR)
def test_a_door_made_for_one_package_holds_no_more(package):
    module = importlib.import_module(MADE_FOR[package])
    assert set(module.__all__) == {n for m, n in of_package(package) if m == MADE_FOR[package]}
