"""`make test-floor` tests the lowest versions that pyproject.toml names, and no others."""

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = Path(__file__).resolve().parents[2]
EXTRAS = ("device", "simulation", "fast", "lora", "data", "metrics", "onnx", "report", "dev")


def test_the_lowest_versions_are_those_that_are_tested():
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    kept = re.search(r"^KEPT := (.*)$", makefile, re.MULTILINE)[1].split()
    if Path(sys.prefix).name != "floor":
        pytest.skip("runs in the environment of `make test-floor`")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project["dependencies"]
    named += [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    for needed in map(Requirement, named):
        if needed.name in kept or needed.name == project["name"]:
            continue
        [floor] = [bound.version for bound in needed.specifier if bound.operator == ">="]
        assert Version(version(needed.name)) == Version(floor), needed
