"""The words of Hydra's command, read as Hydra reads them.

Hydra 1.3 promises ``hydra.main``, which ends the process with a usage of its own where a word is
wrong; its parser is private.
"""

import argparse


def hydra_parser() -> argparse.ArgumentParser:
    """Returns a new parser of Hydra's options and overrides."""
    from hydra._internal.utils import get_args_parser

    parser: argparse.ArgumentParser = get_args_parser()
    return parser


def option_names(parser: argparse.ArgumentParser) -> set[str]:
    """Returns every option of ``parser``, such as ``-m`` and ``--multirun``."""
    return {name for action in parser._actions for name in action.option_strings}
