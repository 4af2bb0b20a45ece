"""``murmur experiments``: the settings that are ready to run, their figure, time and result.

What is said of each stands in its file, as a comment and as ``about`` (``figure``: what of a paper
it reproduces; ``minutes``: of one run on two cores, null where not measured; ``expected``: the
result and where it was measured).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import yaml
from rich.table import Table

import fl_app.console
from fl_app.config.conf_files import CONF


@dataclass(frozen=True)
class About:
    """One experiment, as its file describes it."""

    name: str
    what: str
    figure: str
    minutes: float | None
    expected: str


def experiments() -> list[About]:
    """All of ``conf/experiment``."""
    found = []
    for path in sorted((CONF / "experiment").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        what = text.splitlines()[1].removeprefix("# ")
        found.append(About(path.stem, what, **yaml.safe_load(text)["about"]))
    return found


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur experiments``; the exit status."""
    argparse.ArgumentParser(
        prog="murmur experiments", description="List the settings that are ready to run."
    ).parse_args(argv)
    table = Table("experiment=", "what it is", "figure", "minutes", "expected", show_lines=True)
    for about in experiments():
        minutes = "not measured" if about.minutes is None else f"{about.minutes:g}"
        table.add_row(about.name, about.what, about.figure, minutes, about.expected)
    console = fl_app.console.console()
    console.print(table)
    console.print("minutes: of one run on two cores; start one with `murmur experiment=NAME`")
    return 0
