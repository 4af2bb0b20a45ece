"""Hydra's command: its words, and composing while it runs.

Hydra 1.3 promises ``hydra.main``, which ends the process with a usage of its own where a word is
wrong, and ``hydra.compose``, which refuses to work beside it. It reads files through OmegaConf,
whose loader is made from PyYAML's in Python, ten times as slow as that of libyaml.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import yaml
from hydra.core.global_hydra import GlobalHydra


def hydra_parser() -> argparse.ArgumentParser:
    """Returns a new parser of Hydra's options and overrides."""
    from hydra._internal.utils import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    return parser


def option_names(parser: argparse.ArgumentParser) -> set[str]:
    """Returns every option of ``parser``, such as ``-m`` and ``--multirun``."""
    return {name for action in parser._actions for name in action.option_strings}


@contextmanager
def apart_from_hydras_main() -> Iterator[None]:
    """Lets a block initialize Hydra anew while ``hydra.main`` is under way.

    Hydra 1.3 composes through one object of the process, which ``murmur -m`` is in the middle of
    using; to initialize it twice is an error.
    """
    shared = GlobalHydra.instance()
    outer = shared.hydra
    shared.clear()
    try:
        yield
    finally:
        shared.hydra = outer


@contextmanager
def reading_by_libyaml() -> Iterator[None]:
    """Lets OmegaConf read YAML by libyaml in a block, where PyYAML was built with it.

    OmegaConf derives its loader from ``yaml.SafeLoader`` anew for each file.
    """
    usual = yaml.SafeLoader
    yaml.SafeLoader = getattr(yaml, "CSafeLoader", usual)
    try:
        yield
    finally:
        yaml.SafeLoader = usual
