"""Names that Flower, Ray and Hydra have not promised stand in murmur/compat, and nowhere else."""

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
PRIVATE = re.compile(
    r"flwr\.(supercore|proto|supernode|superlink|cli|server)\b|flwr\.common\.(serde|config)\b"
    r"|flwr\.app\.message\b|ray\._|hydra\._internal\b|hydra_plugins\b"
)
UPSTREAM = ("flwr", "ray", "hydra")


def sources():
    """Every file of ours that is installed, but for murmur/compat and tests."""
    for top in ("murmur", "strategies", "clients", "fl_app", "packages"):
        for path in (PROJECT / top).rglob("*.py"):
            name = path.relative_to(PROJECT).as_posix()
            if not name.startswith("murmur/compat/") and "/tests/" not in name:
                yield name, ast.parse(path.read_text(encoding="utf-8"))


def modules_in(tree):
    """Dotted names that a file imports, or names in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\b(?:flwr|ray|hydra\w*)\.[\w.]+", node.value)


def upstream_in(tree):
    """Names by which a file calls a module, or what it has imported from one, of the three."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            for alias in node.names:
                if (module or alias.name).partition(".")[0] in UPSTREAM:
                    names.add(alias.asname or alias.name.partition(".")[0])
    return names


def private_names(tree):
    """What a file uses of the three that is private, and what it replaces in them."""
    found = [name for name in modules_in(tree) if PRIVATE.match(name)]
    upstream = upstream_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            is_private = str(node.slice.value).startswith("_")
            if is_private and ast.unparse(node.value).endswith(".__dict__"):
                found.append(ast.unparse(node))
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            holder = ast.unparse(target).partition(".")[0]
            if isinstance(target, ast.Attribute) and holder in upstream:
                found.append(f"{ast.unparse(target)} = ...")
    return found


def test_private_names_stand_in_one_folder():
    found = [f"{name}: {private}" for name, tree in sources() for private in private_names(tree)]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    [
        "from flwr.supercore import log",
        "import flwr.proto.message_pb2",
        "def f():\n    from ray._private import node",
        "module = importlib.import_module('ray._raylet')",
        "message.metadata.__dict__['_message_id'] = 'm'",
        "import ray\nray.init = None",
        "from flwr.serverapp import Grid\nGrid.push_messages = None",
        "from flwr.common.config import parse_config_args",
    ],
)
def test_each_kind_of_private_name_is_noticed(planted):
    assert len(private_names(ast.parse(planted))) == 1
