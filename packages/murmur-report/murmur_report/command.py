"""``murmur report RUN_OR_SWEEP``: one HTML page, and tables and pictures for papers beside it.

It reads run folders only, and may be used while a run goes on.
"""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from fl_app.api import ConfigError, console, load_runs, parser_of, run_records
from murmur.files import replace_file
from murmur.format import pluralize
from murmur_report.charts import Figure, byte_count
from murmur_report.export import as_files, as_svg
from murmur_report.figures import rounds_figure
from murmur_report.page import every_figure, page
from murmur_report.settings import group, score_names
from murmur_report.tables import (
    as_csv,
    as_latex,
    as_markdown,
    epsilon_records,
    references,
    setting_records,
)

OPTIONS = Path(__file__).with_name("options.yaml")


def report(argv: list[str]) -> int:
    """Write the page that ``argv`` asks for, and tables and a picture beside it.

    Returns:
        0, or 1 where files of a run are damaged: the rest is reported all the same.

    Raises:
        ConfigError: there is no run, a swept key is not one, or a file cannot be written.
    """
    options = parser_of("report", OPTIONS).parse_args(argv)
    folder = Path(options.folder)
    source = load_runs(folder)
    out = Path(options.out or folder / "report.html")
    with console().status(f"drawing {pluralize(len(source.runs), 'run')}"):
        now = datetime.now()
        content = page(source, now, options.over, options.by, options.publish).encode()
    _write("--out", out.expanduser(), content)
    print(f"report: {out} ({byte_count(len(content))})")
    if options.csv:
        _write("--csv", options.csv, as_csv(run_records(source)).encode())
    if options.latex:
        text = as_latex(setting_records(source), source.name)
        if others := epsilon_records(source):
            text += "\n" + as_latex(others, f"{source.name}-epsilon")
        _write("--latex", options.latex, text.encode())
    if options.markdown:
        text = as_markdown(setting_records(source))
        if others := epsilon_records(source):
            text += "\n" + as_markdown(others)
        _write("--markdown", options.markdown, text.encode())
    if options.svg:
        scores = score_names(source.runs) or ["accuracy"]
        grouping = group(source.runs)
        drawn = rounds_figure(grouping, scores[0], references(grouping))
        if drawn is None:
            raise ConfigError(f"--svg={options.svg}: no round has been finished yet")
        _write("--svg", options.svg, as_svg(drawn).encode())
    if options.figures:
        _draw(every_figure(source, options.over, options.by), options.figures)
    damaged = [f"{run.name}/{problem}" for run in source.runs for problem in run.problems]
    if damaged:
        print(f"murmur report: damaged and left out: {'; '.join(damaged)}", file=sys.stderr)
    return int(bool(damaged))


def _draw(figures: Sequence[Figure], out: Path) -> None:
    """Write each figure into the folder ``out`` as SVG, PDF and PNG.

    Raises:
        ConfigError: the folder cannot be made, or written to.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--figures={out}: cannot be made ({error.strerror}); name a folder"
        ) from error
    for figure in figures:
        for ending, content in as_files(figure).items():
            _write("--figures", out / f"{figure.id}.{ending}", content)
    print(f"figures: {out} ({pluralize(len(figures), 'figure')}, each as svg, pdf and png)")


def _write(option: str, out: Path, content: bytes) -> None:
    """Replace ``out`` as a whole, so that nobody reads half a page.

    ``option``: by which the user named it.

    Raises:
        ConfigError: its folder is missing, or it cannot be written.
    """
    out = out.absolute()
    try:
        replace_file(out, content)
    except OSError as error:
        raise ConfigError(
            f"{option}={out}: cannot be written ({error.strerror}); name a file in a folder that "
            "exists"
        ) from error
