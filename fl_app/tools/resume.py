"""``murmur resume RUN``: go on with an interrupted run from its last checkpoint.

The result is that of an uninterrupted run, and nothing is paid for twice: rounds that the clients
have answered before are answered from their ledgers. The run goes on in the folder that is given,
which may be a copy. ``murmur resume RUN federation.num_rounds=20`` extends it, finished or not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fl_app.cli import run
from fl_app.config.composition import compose
from fl_app.config.errors import ConfigError
from fl_app.config.overrides import quoted
from fl_app.run.results import RunFolder


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur resume``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="murmur resume", description="Go on with an interrupted run."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="federation.num_rounds=N extends the run; how it runs (engine=...) may change as well",
    )
    given = parser.parse_args(argv)
    folder = RunFolder.existing(given.run)
    words = [word for word in folder.overrides() if not word.startswith("run_dir=")]
    words += [*given.overrides, f"run_dir={quoted(given.run.absolute())}"]
    done = folder.metrics()
    if done is not None and compose(words).federation.num_rounds <= done["rounds"]:
        raise ConfigError(
            f"{given.run}: this run is finished; federation.num_rounds=N with more than "
            f"{done['rounds']} extends it"
        )
    return run(words)
