"""What runs found, for others: ``murmur report`` and ``murmur statement``.

``murmur report RUN_OR_SWEEP`` writes one HTML page that opens without a network, and tables and
pictures for papers beside it. ``murmur statement RUN`` prints a run's privacy statement: ``text``
is for people, ``json`` for programs, ``opendp`` a record for OpenDP's registry of deployments,
``markdown`` a label for those whose data it is and the answers to NIST SP 800-226.

Both read run folders only, and may be used while a run goes on. The record is one of the OpenDP
Privacy Deployments Registry (github.com/opendp/deployments-registry-data,
schemas/deployments-schema.yaml at 057e5d8); the label is half a page, and after it comes what NIST
SP 800-226 ("Guidelines for Evaluating Differential Privacy Guarantees", 2025) asks, one by one.
Claimed, proven, assumed and measured ε stand in both. Their words are in ``fl_app/report/assets``:
``registry.yaml``, ``statement.md``, and ``sentences.j2`` for what both say.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

import fl_app
import fl_app.console
from fl_app.config.errors import ConfigError
from fl_app.report import template
from fl_app.report.reading import Run, read, read_stated
from fl_app.tools.options import parser_of
from murmur.common import counted, replace_file, three_digits
from murmur.privacy import statement_text as wording
from murmur.privacy.statement import Statement

if TYPE_CHECKING:
    from fl_app.report.figures import Figure

_LEDGER = "ledger.sqlite"
_SCHEMA = (
    "A draft by github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at "
    "057e5d8; ε is what is proven under the deployment's terms (trust_assumptions)"
)


def report(argv: list[str]) -> int:
    """Write the page that ``argv`` asks for, and tables and a picture beside it.

    Returns:
        0, or 1 where files of a run are damaged: the rest is reported all the same.

    Raises:
        ConfigError: there is no run, a swept key is not one, the extra ``report`` is missing, or a
            file cannot be written.
    """
    options = parser_of("report").parse_args(argv)
    fl_app.require("report", "altair", "jinja2", "pandas", "vl_convert")
    from fl_app.report.figures import as_svg, byte_count, rounds_figure
    from fl_app.report.page import every_figure, page
    from fl_app.report.settings import group, score_names
    from fl_app.report.tables import (
        as_csv,
        as_latex,
        as_markdown,
        epsilon_records,
        references,
        run_records,
        setting_records,
    )

    folder = Path(options.folder)
    source = read(folder)
    out = Path(options.out or folder / "report.html")
    with fl_app.console.console().status(f"drawing {counted(len(source.runs), 'run')}"):
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


def statement(argv: list[str]) -> int:
    """Print the privacy statement of the run that ``argv`` names, in the form that it asks for.

    Returns:
        0.

    Raises:
        ConfigError: there is no run or no statement, or nobody is named as the curator.
    """
    given = parser_of("statement").parse_args(argv)
    run, said = read_stated(given.run)
    if given.format == "text":
        print(wording.render(said))
        return 0
    if given.format == "json":
        print(json.dumps(said.to_dict(), indent=2))
        return 0
    fl_app.require("report", "jinja2")
    if given.format == "markdown":
        print(_filled("statement.md", run, said, given), end="")
        return 0
    if given.curator is None:
        raise ConfigError("--curator: a registry must know who publishes; give your name")
    if given.curator_type is None:
        raise ConfigError("--curator-type: say what you are: Government, Industry, Nonprofit")
    # An infinite ε is left out, since the schema has no word for it, and said in words.
    filled = yaml.safe_load(_filled("registry.yaml", run, said, given))
    record = yaml.safe_dump(filled, sort_keys=False, allow_unicode=True)
    print(f"# {_SCHEMA}\n{record}", end="")
    return 0


def mechanisms(run: Path) -> list[str]:
    """What the clients' ledger in the folder ``run`` says was charged, each kind of event once.

    Returns:
        Lines for people, sorted; [] without a ledger.
    """
    from murmur.privacy.events import describe
    from murmur.privacy.ledger import Ledger

    if not (run / _LEDGER).exists():
        return []
    with Ledger(run / _LEDGER, create=False) as ledger:
        return sorted(map(describe, ledger.kinds()))


def _filled(name: str, run: Run, statement: Statement, given: argparse.Namespace) -> str:
    """A template of ``assets/``, filled.

    What a run says of itself is quoted (YAML) or plain text.

    Args:
        name: the template's file.
        run: what it was.
        statement: the run's; its first guarantee is the main one.
        given: the run's folder, in whose ledger is what was charged; for a registry who publishes
            the model (``curator``), as what, where the data are from and for what use.
    """
    known = {
        "against": wording.against,
        "canary_finding": wording.canary_finding,
        "odds_of": wording.odds,
        "three_digits": three_digits,
        "units": wording.UNITS,
        "neighbours": wording.NEIGHBOURS,
        "infinity": math.inf,
        "distribution": fl_app.DISTRIBUTION,
    }
    text: str = template(name, known).render(
        run=run,
        s=statement,
        main=statement.guarantees[0],
        mechanisms=mechanisms(given.run),
        given=given,
    )
    return text


def _draw(figures: "Sequence[Figure]", out: Path) -> None:
    """Write each figure into the folder ``out`` as SVG, PDF and PNG.

    Raises:
        ConfigError: the folder cannot be made, or written to.
    """
    from fl_app.report.figures import as_files

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--figures={out}: cannot be made ({error.strerror}); name a folder"
        ) from error
    for figure in figures:
        for ending, content in as_files(figure).items():
            _write("--figures", out / f"{figure.id}.{ending}", content)
    print(f"figures: {out} ({counted(len(figures), 'figure')}, each as svg, pdf and png)")


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
