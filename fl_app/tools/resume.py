"""``murmur resume RUN``: go on with an interrupted run from its last checkpoint.

The result is that of an uninterrupted run, and nothing is paid for twice: rounds that the clients
have answered before are answered from their ledgers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fl_app.cli import run
from fl_app.config.composition import ConfigError
from fl_app.run.results import RunFolder


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur resume``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="murmur resume", description="Go on with an interrupted run."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    path = parser.parse_args(argv).run
    try:
        if not path.is_dir():
            raise ConfigError(f"{path}: no such folder")
        folder = RunFolder(path)
        if folder.metrics() is not None:
            raise ConfigError(f"{path}: this run is finished")
        return run(folder.overrides())
    except ConfigError as error:
        print(f"murmur resume: {error}", file=sys.stderr)
        return 2
