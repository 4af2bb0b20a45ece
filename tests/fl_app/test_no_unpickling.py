"""Nothing unpickles, or runs, data that came from another party."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import flwr
import torch

from tests.fl_app.device.test_hostile_server import CASES, honest
from tests.fl_app.device_under_test import MINE, Device, report

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("fl_app", "strategies", "clients", "murmur")
MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# CIFAR-10's own files are pickles. They lie on the researcher's disk, and are read by a reader that
# makes numbers, text and arrays of them and never calls what they name.
READS_PICKLES = {"murmur/learning/data/archives.py": "_ArraysOnly"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        files = sorted((PROJECT / package).rglob("*.py"))
        assert files, f"{package} is no package of ours any more"
        for path in files:
            yield path.relative_to(PROJECT).as_posix(), ast.parse(path.read_text("utf-8"))


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def test_no_module_imports_what_unpickles():
    for name, tree in sources():
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found = MODULES & {imported.partition(".")[0] for imported in names}
            assert not found or name in READS_PICKLES, (name, found)


def test_the_reader_of_cifar_makes_nothing_but_arrays():
    for name, reader in READS_PICKLES.items():
        tree = ast.parse((PROJECT / name).read_text("utf-8"))
        uses = [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("pickle.")
        ]
        assert set(uses) <= {"pickle.Unpickler", "pickle.UnpicklingError"}
        made = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert any(called(node) == reader for node in made)
        assert not any(called(node) == "pickle.Unpickler" for node in made)


def test_no_call_loads_objects():
    for name, tree in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            words = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            place = f"{name}:{node.lineno}: {ast.unparse(node)[:80]}"
            assert called(node) not in ("eval", "exec", "torch.load", "torch.jit.load"), place
            assert words.get("allow_pickle", "False") == "False", place
            if called(node) in ("yaml.load", "yaml.load_all"):
                assert ast.unparse(node.args[1]) in ("_StrictLoader", "SafeLoader"), place
            assert not called(node).startswith(("yaml.unsafe", "yaml.full", "sklearn.externals"))


def test_flowers_transport_unpickles_nothing_outside_simulations():
    """SuperLink and SuperNode exchange protobuf over HTTPS; only Ray pickles, on one machine."""
    root = Path(flwr.__file__).parent
    pickling = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if {n.partition(".")[0] for n in names} & (MODULES | {"ray"}):
                pickling.append(path.relative_to(root).as_posix())
    inside = ("simulation/", "server/superlink/fleet/vce/")
    assert pickling and all(name.startswith(inside) for name in pickling), pickling


def test_a_device_answers_where_unpickling_is_impossible(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("something was unpickled")

    device = Device(tmp_path)
    words = device.words(*CASES["privatekt"].words)
    content = honest(CASES["privatekt"], words)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert report(device.ask(words, content))["clients"] == list(MINE)
