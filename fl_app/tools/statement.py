"""``murmur statement RUN``: a run's privacy statement for others.

``text`` is for people, ``json`` for programs, ``opendp`` a record for OpenDP's registry of
deployments, ``markdown`` a label for those whose data it is and the answers to NIST SP 800-226,
``dpia`` the form of a data protection impact assessment (docs/dpia.md), as far as a run knows it.

The record is one of the OpenDP Privacy Deployments Registry
(github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at 057e5d8); the label
is half a page, and after it comes what NIST SP 800-226 ("Guidelines for Evaluating Differential
Privacy Guarantees", 2025) asks, one by one. Claimed, proven, assumed and measured ε stand in both.
Their words are in ``templates``: ``registry.yaml``, ``statement.md``, ``dpia.md``, and
``sentences.j2`` for what several say.
"""

import argparse
import json
import math
from pathlib import Path

import yaml

import fl_app
from fl_app.config.errors import ConfigError
from fl_app.run.load import Run, load_stated
from fl_app.tools.options import parser_of
from murmur.format import format_number
from murmur.privacy import statement_text as wording
from murmur.privacy.statement import Statement

_TEMPLATES = Path(__file__).with_name("templates")
_PAGES = {"markdown": "statement.md", "dpia": "dpia.md"}
_LEDGER = "ledger.sqlite"
_SCHEMA = (
    "A draft by github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at "
    "057e5d8; ε is what is proven under the deployment's terms (trust_assumptions)"
)


def main(argv: list[str]) -> int:
    """Print the privacy statement of the run that ``argv`` names, in the form that it asks for.

    Returns:
        0.

    Raises:
        ConfigError: there is no run or no statement, or nobody is named as the curator.
    """
    given = parser_of("statement").parse_args(argv)
    run, said = load_stated(given.run)
    if given.format == "text":
        print(wording.render(said))
        return 0
    if given.format == "json":
        print(json.dumps(said.to_dict(), indent=2))
        return 0
    fl_app.require("report", "jinja2")
    if given.format in _PAGES:
        print(_filled(_PAGES[given.format], run, said, given), end="")
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
    """Describes the events charged in the ledger of the folder ``run``, each kind once.

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
    """Fills a template of ``templates``.

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
        "format_number": format_number,
        "units": wording.UNITS,
        "neighbours": wording.NEIGHBOURS,
        "infinity": math.inf,
        "distribution": fl_app.DISTRIBUTION,
    }
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= known
    environment.filters |= known
    text: str = environment.get_template(name).render(
        run=run,
        s=statement,
        main=statement.guarantees[0],
        mechanisms=mechanisms(given.run),
        given=given,
    )
    return text
