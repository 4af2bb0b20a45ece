"""``murmur report``: a run or a sweep as one HTML page that opens without a network."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from fl_app.config.errors import ConfigError
from fl_app.report.page import page
from fl_app.report.reading import read
from fl_app.report.scales import byte_count
from fl_app.report.tables import as_csv, as_latex, draw, run_records, setting_records
from murmur.learning.array_file import replace_file


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur report``; 1 where files of a run are damaged."""
    options = _parser().parse_args(argv)
    folder = Path(options.folder)
    source = read(folder)
    out = Path(options.out) if options.out else folder / "report.html"
    content = page(source, datetime.now()).encode()
    _write("--out", out.expanduser().absolute(), content)
    print(f"report: {out} ({byte_count(len(content))})")
    if options.csv:
        _write("--csv", Path(options.csv).absolute(), as_csv(run_records(source)).encode())
    if options.latex:
        _write(
            "--latex", Path(options.latex).absolute(), as_latex(setting_records(source)).encode()
        )
    if options.svg:
        try:
            draw(source, Path(options.svg).absolute())
        except (OSError, ValueError) as error:
            raise ConfigError(f"--svg={options.svg}: cannot be written ({error})") from error
    damaged = [f"{run.name}/{problem}" for run in source.runs for problem in run.problems]
    if damaged:
        print(f"murmur report: damaged and left out: {'; '.join(damaged)}", file=sys.stderr)
    return int(bool(damaged))


def _write(option: str, out: Path, content: bytes) -> None:
    """Replace ``out`` as a whole, so that nobody reads half a page."""
    try:
        replace_file(out, content)
    except OSError as error:
        raise ConfigError(
            f"{option}={out}: cannot be written ({error.strerror}); name a file in a folder that "
            "exists"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="murmur report", description="Show a run or a sweep as one self-contained HTML page."
    )
    parser.add_argument("folder", metavar="RUN_OR_SWEEP", help="a folder that murmur has written")
    parser.add_argument("--out", metavar="FILE", help="default: report.html in that folder")
    parser.add_argument("--csv", metavar="FILE", help="a record for each run as well")
    parser.add_argument(
        "--latex", metavar="FILE", help="a table of settings: means and 95 %% intervals over seeds"
    )
    parser.add_argument("--svg", metavar="FILE", help="the first score over rounds, for print")
    return parser
