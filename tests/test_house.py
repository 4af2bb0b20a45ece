"""The house: imports point down, no folders make a circle, no room below algorithms names one.

docs/architecture.md has the floors. Every rule is a function of the source files, so that each is
also tried on a file that breaks it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import test_shape

PROJECT = Path(__file__).resolve().parents[1]
FLOORS = {
    "murmur": 0,
    "murmur/learning": 1,
    "murmur/privacy": 1,
    "murmur/compat": 2,
    "murmur/algorithms": 2,
    "murmur/secure_sum": 2,
    "murmur/round": 3,
    "murmur/flower": 4,
    "strategies": 4,
    "clients": 4,
    "fl_app": 5,
}
NAMELESS = ("murmur/round", "murmur/privacy", "murmur/learning", "murmur/secure_sum")
PAPERS = re.compile(
    r"privatekt|nbafl|kd_?dpfl|dpfl_?bnn|scaffold|fedavg|fedprox|fedper|mindspore|krum",
    re.IGNORECASE,
)
# conf/model's name for a published model, in the factory's own errors.
KNOWN = {"cnn_privatekt"}

Files = Mapping[str, ast.Module]


def sources() -> dict[str, ast.Module]:
    """Every file of ours, by its path in the project."""
    found = {}
    for top in ("murmur", "strategies", "clients", "fl_app"):
        for path in (PROJECT / top).rglob("*.py"):
            name = path.relative_to(PROJECT).as_posix()
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def room(path: str) -> str:
    """The folder of FLOORS that a file or a dotted module stands in."""
    parts = path.removesuffix(".py").replace(".", "/").split("/")
    if parts[0] == "murmur" and "/".join(parts[:2]) in FLOORS:
        return "/".join(parts[:2])
    return parts[0]


def imported(tree: ast.Module, always: bool = False) -> Iterator[str]:
    """Modules of ours that a file imports; ``always``: only as soon as it is itself imported."""
    nodes: Iterator[ast.AST] = iter(tree.body) if always else ast.walk(tree)
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
        for name in names:
            if name.partition(".")[0] in ("murmur", "strategies", "clients", "fl_app"):
                yield name


def imports_up(files: Files) -> list[str]:
    """Imports that do not point down a floor."""
    found = []
    for path, tree in files.items():
        here = room(path)
        for name in imported(tree):
            there = room(name)
            if there != here and FLOORS[there] >= FLOORS[here]:
                found.append(f"{path} imports {name}")
    return found


def circles(files: Files) -> list[str]:
    """Rooms, and folders of one room, that import each other when they are imported."""
    edges: dict[str, set[str]] = {}
    for path, tree in files.items():
        here = Path(path).parent.as_posix()
        for name in imported(tree, always=True):
            there = name.replace(".", "/")
            if f"{there}.py" in files:
                there = Path(there).parent.as_posix()
            # A folder and one below it are one: its ``__init__`` gathers what is in it.
            if not f"{there}/".startswith(f"{here}/") and not f"{here}/".startswith(f"{there}/"):
                edges.setdefault(here, set()).add(there)
    found = []
    for start in edges:
        reached: set[str] = set()
        waiting = list(edges[start])
        while waiting:
            folder = waiting.pop()
            if folder not in reached:
                reached.add(folder)
                waiting += edges.get(folder, ())
        if start in reached:
            found.append(start)
    return found


def file_circles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Files that import one another in the end: each circle once, by what each file imports."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for name in edges.get(waiting.pop(), set()) - found:
                found.add(name)
                waiting.append(name)
        reached[start] = found
    circles = []
    for start, found in reached.items():
        circle = {name for name in found if start in reached.get(name, set())}
        if start in found and circle not in circles:
            circles.append(circle)
    return circles


def papers_named(files: Files) -> list[str]:
    """Names and texts of code that name a paper; docstrings cite them as sources."""
    found = []
    for path, tree in files.items():
        if not path.startswith(NAMELESS):
            continue
        cited = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            text = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = node.name
            elif isinstance(node, ast.Name):
                text = node.id
            elif isinstance(node, ast.Attribute):
                text = node.attr
            if id(node) not in cited and PAPERS.search(text) and text not in KNOWN:
                found.append(f"{path}: {text:.60}")
    return found


def makers(files: Files, name: str) -> list[str]:
    """Files in which ``name`` is called."""
    found = set()
    for path, tree in files.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).rpartition(".")[2]
                if called == name:
                    found.add(path)
    return sorted(found)


@pytest.fixture(scope="module")
def files():
    return sources()


def test_imports_point_down(files):
    assert imports_up(files) == []
    upward = {"murmur/privacy/a.py": ast.parse("from strategies.base import CohortStrategy")}
    beside = {"clients/a.py": ast.parse("def f():\n    from strategies.base import CohortStrategy")}
    assert len(imports_up(upward)) == len(imports_up(beside)) == 1


def test_the_core_names_no_package(files):
    for path, tree in files.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            assert not any(name.startswith("murmur_") for name in names), path


def test_folders_make_no_circle(files):
    assert circles(files) == []
    planted = {
        "fl_app/run/a.py": ast.parse("from fl_app.sweep.b import B"),
        "fl_app/sweep/b.py": ast.parse("from fl_app.run.a import A"),
    }
    assert sorted(circles(planted)) == ["fl_app/run", "fl_app/sweep"]


def test_files_make_no_circle():
    paths = test_shape.files(*test_shape.CORE)
    edges = {
        test_shape.name_of(path): {test_shape.name_of(other) for other in test_shape.imports(path)}
        for path in paths
    }
    assert file_circles(edges) == []
    planted = {"a": {"b", "c"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert file_circles(planted) == [{"a", "b", "c"}]


def test_no_room_below_the_algorithms_names_a_paper(files):
    assert papers_named(files) == []
    planted = {"murmur/round/a.py": ast.parse("def f(x):\n    return x == 'kd_dpfl'")}
    assert len(papers_named(planted)) == 1


WAYS = {
    "PlainSummation": "murmur/round/summation.py",
    "RowSummation": "murmur/round/summation.py",
    "SecureSummation": "murmur/round/summation.py",
    "PlainSum": "murmur/round/collectors.py",
    "PerClientRows": "murmur/round/collectors.py",
    "MaskedSum": "murmur/round/collectors.py",
}


@pytest.mark.parametrize("name", WAYS)
def test_each_way_to_sum_is_chosen_in_one_place(files, name):
    assert makers(files, name) == [WAYS[name]]
    second = {"strategies/a.py": ast.parse("sums = summation.RowSummation(codec, weights)")}
    assert makers(second, "RowSummation") == ["strategies/a.py"]
