"""The base class of an algorithm can be held in the head; the tests print what it has."""

import ast
from pathlib import Path

from strategies import base
from strategies.base import CohortStrategy

MAX_METHODS = 25  # with those of Flower's that it fills in
MAX_ATTRIBUTES = 14  # settings of a class and values of an instance
ALGORITHM = (
    *("task", "codec", "update", "release_event", "before_rounds", "learn"),
    *("weights", "quorum", "evaluate", "state", "restore", "claims"),
)


def public(names):
    return sorted(name for name in names if not name.startswith("_"))


def methods_of_base():
    """Public methods, Flower's six among them."""
    return public(name for name, value in vars(CohortStrategy).items() if callable(value))


def own_attributes():
    """Names with an annotation in the class, and those that its constructor sets."""
    tree = ast.parse(Path(base.__file__).read_text("utf-8"))
    [cls] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "CohortStrategy"]
    names = {n.target.id for n in cls.body if isinstance(n, ast.AnnAssign)}
    for node in ast.walk(cls):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    names.add(target.attr)
    return public(names)


def test_an_algorithm_fills_in_twelve_methods_of_few():
    methods = methods_of_base()
    print(f"{len(methods)} methods:", ", ".join(methods))
    assert set(ALGORITHM) <= set(methods)
    assert len(methods) <= MAX_METHODS


def test_a_strategy_has_few_attributes():
    attributes = own_attributes()
    print(f"{len(attributes)} attributes:", ", ".join(attributes))
    assert len(attributes) <= MAX_ATTRIBUTES


def test_flowers_own_methods_are_filled_in():
    rounds = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
    assert {"start", "summary", *rounds} <= vars(CohortStrategy).keys()
