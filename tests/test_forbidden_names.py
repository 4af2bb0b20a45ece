"""Names that the project has given up stay gone: forbidden_names.txt has what stands for each."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
LIMIT = re.compile(r"_?(MOST|LEAST|LARGEST|ROOM)(_|$)")
SOURCES = ("murmur", "strategies", "clients", "fl_app", "packages")

Rule = tuple[str, str, str]  # name, path prefix, replacement


def rules() -> list[Rule]:
    """Returns the rows of forbidden_names.txt."""
    found = []
    lines = Path(__file__).with_name("forbidden_names.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if not line.startswith("#"):
            name, prefix, replacement = line.split("\t")
            found.append((name, prefix, replacement))
    return found


def assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Yields the names that the statements of a module or a class assign."""
    for statement in body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for target in targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def public_names(path: str, tree: ast.Module) -> set[str]:
    """Returns the names of a file's module, classes, functions and attributes."""
    found = {*Path(path).with_suffix("").parts[1:], *assigned(tree.body)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found.update([node.name, *assigned(node.body)])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def broken(path: str, source: str) -> list[str]:
    """Returns a message for each name in ``source`` that may not stand at ``path``."""
    tree = ast.parse(source)
    names = public_names(path, tree)
    messages = []
    for name, prefix, replacement in rules():
        if path.startswith(prefix + "/") and name in names:
            messages.append(f"{path}: {name} is now {replacement}")
    for name in assigned(tree.body):
        if LIMIT.match(name):
            messages.append(f"{path}: {name}: begin with MIN_ or MAX_, then quantity and unit")
    return messages


def test_no_name_that_is_gone_comes_back():
    """Every source of the core and the packages keeps the rules."""
    messages = []
    for top in SOURCES:
        for path in sorted((PROJECT / top).rglob("*.py")):
            name = path.relative_to(PROJECT).as_posix()
            if "/tests/" not in name:
                messages += broken(name, path.read_text(encoding="utf-8"))
    assert not messages, "\n".join(messages)


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("clients/a.py", "class A:\n    opposite: int", "opposite is now negated"),
        ("clients/a.py", "def f(a):\n    a.memory = 1", "memory is now state_dir"),
        ("fl_app/device/resident.py", "", "resident is now service"),
        ("fl_app/device/a.py", "class Resident: ...", "Resident is now DeviceService"),
        ("murmur/round/a.py", "def digest(): ...", "digest is now request_digest"),
        ("murmur/a.py", "_LARGEST = 1", "_LARGEST: begin with MIN_ or MAX_"),
        ("packages/a/b.py", "MOST_LINES: int = 1", "MOST_LINES: begin with MIN_ or MAX_"),
    ],
)
def test_a_source_that_breaks_a_rule_is_named(path, source, message):
    """The message gives the file, the name and what stands for it."""
    (said,) = broken(path, source)
    assert said.startswith(f"{path}: {message}")


def test_the_same_word_elsewhere_is_free():
    """A rule holds below its path prefix only."""
    assert broken("murmur/learning/a.py", "def digest(): ...\nMOSTLY = 1") == []
