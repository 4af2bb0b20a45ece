"""The shape of the code, counted: how much a stranger reads for what.

``LIMITS`` holds for each count what it may be today and what it is to come to; a limit is only ever
lowered. `python -m tests.test_shape` prints the counts and what is behind them.

A code line holds code: no blank line, no comment, no docstring. Imports at the head of a file and
inside its functions count alike; those for type checkers alone do not.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
CORE = ("fl_app", "strategies", "clients", "murmur")
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.ENCODING),
}
# What must be read to trust an ε.
TRUSTED = (
    *("murmur/privacy", "murmur/secure_sum", "murmur/round", "murmur/compat"),
    *("strategies/base.py", "clients/base.py", "clients/local_training.py"),
)
LONGEST_FILE = 600

LIMITS = {  # what is counted: the limit of today, and the aim
    "files above 600 lines": (0, 0),
    "public methods of CohortStrategy": (25, 25),
    "attributes of CohortStrategy": (3, 3),
    "code lines of the largest algorithm's pair and its direct imports": (2_973, 1_500),
    "code lines to trust an epsilon": (13_786, 9_000),
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def files(*places: str) -> list[Path]:
    """Python files of the project in ``places``, without the tests of packages."""
    found: list[Path] = []
    for place in places:
        path = PROJECT / place
        found += [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    return [path for path in found if "tests" not in path.relative_to(PROJECT).parts]


def name_of(path: Path) -> str:
    return path.relative_to(PROJECT).as_posix()


@cache
def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def code_lines(path: Path) -> int:
    documented: set[int] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type not in LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documented)


def imports(path: Path) -> Iterator[Path]:
    """Files of the core that a file imports, here or in a function."""
    waiting: list[ast.AST] = [tree(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name for name in inside if file_of(name) is not None] or [node.module]
        for name in names:
            found = file_of(name)
            if found is not None and found != path:
                yield found


def file_of(module: str) -> Path | None:
    """The core's file of a dotted module; None where there is none."""
    if module.partition(".")[0] not in CORE:
        return None
    place = PROJECT.joinpath(*module.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


def long_files() -> tuple[int, list[str]]:
    """How many files are too long, and which."""
    found = [path for path in files(*CORE, "packages") if lines(path) > LONGEST_FILE]
    return len(found), [f"{name_of(path)}, {lines(path)}" for path in found]


def cohort_strategy() -> ast.ClassDef:
    body = tree(PROJECT / "strategies" / "base.py").body
    return next(n for n in body if isinstance(n, ast.ClassDef) and n.name == "CohortStrategy")


def public_methods() -> tuple[int, list[str]]:
    """Methods and properties of ``CohortStrategy`` whose names are public."""
    nodes = cohort_strategy().body
    names = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    found = [name for name in names if not name.startswith("_")]
    return len(found), found


def attributes() -> tuple[int, list[str]]:
    """What ``CohortStrategy`` keeps in itself: public names that its constructor sets."""
    found = []
    for node in ast.walk(cohort_strategy()):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for inner in ast.walk(node):
                is_set = isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
                if is_set and not inner.attr.startswith("_"):
                    found.append(inner.attr)
    return len(found), found


def pairs() -> tuple[int, list[str]]:
    """Code lines of each algorithm's two halves and of what these import directly; the most."""
    found = []
    for server in files("strategies"):
        client = PROJECT / "clients" / server.name
        if server.stem in ("__init__", "base") or not client.is_file():
            continue
        both = {server, client}
        read = both.union(*(set(imports(path)) for path in both))
        found.append((sum(map(code_lines, read)), server.stem, len(read)))
    found.sort(reverse=True)
    return found[0][0], [f"{name}: {count} in {number} files" for count, name, number in found]


def trusted() -> tuple[int, list[str]]:
    """Code lines of ``TRUSTED``, by place."""
    found = {place: sum(map(code_lines, files(place))) for place in TRUSTED}
    return sum(found.values()), [f"{place}, {count}" for place, count in found.items()]


COUNTS = {
    "files above 600 lines": long_files,
    "public methods of CohortStrategy": public_methods,
    "attributes of CohortStrategy": attributes,
    "code lines of the largest algorithm's pair and its direct imports": pairs,
    "code lines to trust an epsilon": trusted,
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_shape_is_kept(name):
    count, what = COUNTS[name]()
    limit, aim = LIMITS[name]
    assert count <= limit, f"{name}: {count}, at most {limit}\n" + "\n".join(what)
    assert aim <= limit


def test_counts_see_what_they_count(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        '"""Head."""\n\nimport os  # a word\n\n\ndef f():\n    """Text."""\n    # no\n    x = 1\n'
    )
    assert (lines(path), code_lines(path)) == (9, 3)
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import murmur.files\n"
    path = tmp_path / "b.py"
    path.write_text(
        f"{typed}\ndef f():\n    from murmur.round import task\n    import clients.base\n"
    )
    assert {name_of(found) for found in imports(path)} == {
        "murmur/round/task.py",
        "clients/base.py",
    }


if __name__ == "__main__":
    for name, count_of in COUNTS.items():
        count, what = count_of()
        limit, aim = LIMITS[name]
        print(f"\n{name}: {count}, at most {limit} (aim {aim})")
        print("\n".join(f"  {line}" for line in what))
