"""``murmur statement RUN``: what a run's privacy statement says, in the form that a reader wants.

``text`` is for people, ``json`` for programs, ``opendp`` a record for OpenDP's registry of
deployments, ``markdown`` a label for those whose data it is and the answers to NIST SP 800-226.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import yaml

from fl_app.config.errors import ConfigError
from fl_app.report.disclosure import CURATORS, Curator, document, registry_entry
from fl_app.report.reading import is_run, read_run
from fl_app.tools.ledger import describe
from murmur.privacy.ledger import Ledger
from murmur.privacy.statement_text import render

_LEDGER = "ledger.sqlite"


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur statement``; the exit status."""
    given = _parser().parse_args(argv)
    if not is_run(given.run):
        raise ConfigError(f"{given.run}: is no run; name a folder that `murmur` has written")
    run = read_run(given.run)
    if run.statement is None:
        why = "; ".join(run.problems) or "it has no privacy.json yet"
        raise ConfigError(f"{given.run}: holds no privacy statement ({why})")
    if given.format == "text":
        print(render(run.statement))
    elif given.format == "json":
        print(json.dumps(run.statement.to_dict(), indent=2))
    elif given.format == "markdown":
        print(document(run, run.statement, mechanisms(given.run)), end="")
    else:
        if given.curator is None:
            raise ConfigError("--curator: a registry must know who publishes; give your name")
        curator = Curator(given.curator, given.curator_type, given.region, given.use)
        entry = registry_entry(run, run.statement, mechanisms(given.run), curator)
        print(yaml.safe_dump(entry, sort_keys=False, allow_unicode=True), end="")
    return 0


def mechanisms(run: Path) -> list[str]:
    """What the clients' ledger says was charged, each kind of event once; [] without a ledger."""
    if not (run / _LEDGER).exists():
        return []
    with Ledger(run / _LEDGER, create=False) as ledger:
        events = {event for client in ledger.clients() for event in ledger.events(client)}
    return sorted(map(describe, events))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="murmur statement", description="Print a run's privacy statement for others."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument("--format", choices=("text", "json", "opendp", "markdown"), default="text")
    about = parser.add_argument_group("for --format opendp, which no run knows of itself")
    about.add_argument("--curator", metavar="NAME", help="who publishes the model")
    about.add_argument("--curator-type", choices=CURATORS, default="Nonprofit")
    about.add_argument("--region", default="not stated", help="where the data are from")
    about.add_argument("--use", default="research", help="what the model is for")
    return parser
