"""A run's privacy statement in the forms that others read.

``registry_entry``: a record of the OpenDP Privacy Deployments Registry
(github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at 057e5d8).
``document``: half a page for the people whose data it is, then what NIST SP 800-226 ("Guidelines
for Evaluating Differential Privacy Guarantees", 2025) asks, one by one. Claimed, proven, assumed
and measured ε stand in both. The words are in ``assets``: ``registry.yaml``, ``statement.md``, and
``sentences.j2`` for what both say;
here are the values that they are filled with.
"""

import math
from dataclasses import dataclass
from typing import Any

import yaml

from fl_app import DISTRIBUTION
from fl_app.report import template
from fl_app.report.reading import Run
from murmur.common import three_digits
from murmur.privacy import statement as wording
from murmur.privacy.statement import Statement

_SCHEMA = (
    "A draft by github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at "
    "057e5d8; ε is what is proven under the deployment's terms (trust_assumptions)"
)


@dataclass(frozen=True)
class Curator:
    """Who publishes the model: what no run knows of itself.

    Attributes:
        kind: Government, Industry or Nonprofit, as the registry's schema allows.
        region: where the data are from.
        use: what the model is for.
    """

    name: str
    kind: str
    region: str
    use: str


def registry_entry(run: Run, statement: Statement, mechanisms: list[str], curator: Curator) -> str:
    """The run as a record of the OpenDP registry, a draft of tier 3, in YAML.

    An infinite ε is left out, since the schema has no word for it, and said in words.

    Args:
        run: what it was, in its own configuration.
        statement: the run's.
        mechanisms: what the clients' ledger says was charged.
        curator: who publishes the model.
    """
    filled = _filled("registry.yaml", run, statement, mechanisms, curator=curator)
    record = yaml.safe_dump(yaml.safe_load(filled), sort_keys=False, allow_unicode=True)
    return f"# {_SCHEMA}\n{record}"


def document(run: Run, statement: Statement, mechanisms: list[str]) -> str:
    """The label for those whose data it is, and NIST's questions, in Markdown.

    Args:
        run: what it was, in its own configuration.
        statement: the run's.
        mechanisms: what the clients' ledger says was charged.
    """
    return _filled("statement.md", run, statement, mechanisms)


def _filled(name: str, run: Run, statement: Statement, mechanisms: list[str], **more: Any) -> str:
    """A template of ``assets/``, filled.

    What a run says of itself is quoted (YAML) or plain text.

    Args:
        name: the template's file.
        run: what it was.
        statement: the run's; its first guarantee is the main one.
        mechanisms: what was charged.
        more: further values that the template names.
    """
    known = {
        "against": wording.against,
        "canary_finding": wording.canary_finding,
        "odds_of": wording.odds,
        "three_digits": three_digits,
        "units": wording.UNITS,
        "neighbours": wording.NEIGHBOURS,
        "infinity": math.inf,
        "distribution": DISTRIBUTION,
    }
    text: str = template(name, known).render(
        run=run, s=statement, main=statement.guarantees[0], mechanisms=mechanisms, **more
    )
    return text
