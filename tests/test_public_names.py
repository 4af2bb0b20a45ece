"""Modules offer what their page lists; packages load it when it is used."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import murmur.round
from murmur import learning, privacy

PROJECT = Path(__file__).resolve().parents[1]
STABLE = ("strategies.base", "clients.base", "murmur.round", "fl_app.testing")


@pytest.mark.parametrize("package", [learning, privacy])
def test_the_example_of_the_page_runs(package):
    assert doctest.testmod(package, raise_on_error=True).attempted > 5


@pytest.mark.parametrize("package", [learning, privacy, murmur.round])
def test_every_name_of_the_page_is_there_and_another_is_refused_by_name(package):
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_importing_the_packages_loads_neither_pytorch_nor_scipy():
    modules = "sys, murmur.learning, murmur.privacy, murmur.round"
    code = f"import {modules}; print(*sorted({{'torch', 'scipy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_sweep_that_is_finished_loads_neither_pytorch_nor_flower_nor_ray():
    code = (
        "import sys, fl_app.cli, fl_app.sweep.on_ray, fl_app.sweep.search, fl_app.sweep.show; "
        "print(*sorted({'torch', 'flwr', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", STABLE)
def test_the_page_lists_what_a_module_offers(name):
    module = importlib.import_module(name)
    page = (PROJECT / "docs" / "api.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{re.escape(name)}` \| (.*) \|$", page, re.MULTILINE)
    assert row is not None
    assert re.findall(r"`(\w+)`", row[1]) == sorted(module.__all__)
    assert all(getattr(module, each) is not None for each in module.__all__)


@pytest.mark.parametrize("name", ["strategies.base", "clients.base"])
def test_an_algorithm_imports_from_its_base_what_that_offers(name):
    offered = set(importlib.import_module(name).__all__)
    for folder in ("strategies", "clients"):
        for path in (PROJECT / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module == name:
                    assert {alias.name for alias in node.names} <= offered, path
