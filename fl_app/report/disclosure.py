"""A run's privacy statement in the forms that others read.

``registry_entry``: a record of the OpenDP Privacy Deployments Registry
(github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at 057e5d8).
``document``: half a page for the people whose data it is, then what NIST SP 800-226 ("Guidelines
for Evaluating Differential Privacy Guarantees", 2025) asks, one by one. Claimed, proven, assumed
and measured ε stand in both. The words are in ``assets/registry.yaml`` and ``assets/statement.md``;
here are the values that they are filled with.
"""

import math
from dataclasses import dataclass
from typing import Any

import yaml

from fl_app import DISTRIBUTION
from fl_app.report import template
from fl_app.report.reading import Run
from murmur.privacy import statement as wording
from murmur.privacy.accounting import Adjacency, Threat
from murmur.privacy.statement import Guarantee, Statement

_MODELS = {
    Threat.LOCAL: "Local",
    Threat.SECURE_AGGREGATION: "Federated",
    Threat.CENTRAL: "Central",
    Threat.SHUFFLE: "Shuffle",
    Threat.OUTSIDER: "Central",  # of what a trusted server publishes
}
# Kinds of releases, as the ledger calls them, in the words of those whose data they are from.
_PLAIN = {
    "RandomizedResponse": "answers, some of them random",
    "RandomizedBits": "bits, some of them flipped at random",
    "Gaussian": "numbers with random noise added",
    "Laplace": "numbers with random noise added",
    "NonPrivate": "results without protection",
    "in a sum over": "readable only as a sum over many participants",
}
_SCHEMA = (
    "A draft by github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at "
    "057e5d8; ε is what is proven under the deployment's terms (trust_assumptions)"
)
_OS_NOISE = (
    "Noise is drawn over integers, from a cryptographic generator keyed by the operating system, "
    "so that floating point gives nothing away."
)
_SEEDED_NOISE = "Noise follows from the run's seed and can be removed: it protects nobody."


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
    main = statement.guarantees[0]
    known = {"figures": _figures, "measured": _measured, "number": _number, "odds": _odds}
    known |= {"against": wording.against, "trust": _trust}
    rounds = f"{run.last_round} round" + "s" * (run.last_round != 1)
    versions = run.provenance.get("versions", {})
    commit = run.provenance.get("commit") or ""
    charged = " ".join(mechanisms)
    plainly = dict.fromkeys(words for kind, words in _PLAIN.items() if kind in charged)
    noise = _OS_NOISE
    if run.config.get("privacy", {}).get("noise") == "seeded":
        noise = _SEEDED_NOISE
    utility = "Not measured."
    if (accuracy := (run.metrics or {}).get("accuracy")) is not None:
        utility = f"Accuracy {accuracy:.3f} on the test set."
    text: str = template(name, known).render(
        infinity=math.inf,
        run=run,
        s=statement,
        main=main,
        mechanisms=mechanisms,
        protected=wording.UNITS[statement.unit],
        unit=f"{wording.UNITS[statement.unit]}, {wording.NEIGHBOURS[statement.adjacency]}",
        variant=_variant(statement, main),
        model=_MODELS[main.threat],
        what=_what(run, statement),
        rounds=rounds,
        plainly=", ".join(plainly) or "nothing that was charged",
        utility=utility,
        side_channels=f"{noise} Whether a client answers, how long its answer is and every refusal "
        "do not depend on its data. How long a client takes is not hidden.",
        version=f"{versions.get(DISTRIBUTION, 'of unknown version')}, {commit}",
        **more,
    )
    return text


def _figures(g: Guarantee) -> str:
    """One adversary's claimed, stated and measured ε in a sentence."""
    claimed = ""
    if g.claimed_total is not None:
        claimed = f"; the paper claims {_number(g.claimed_total)}"
    adversary = wording.against(g.adversary, g.assumptions)
    return f"Against {adversary}: ε {_number(g.stated)}{claimed}; measured: {_measured(g)}."


def _trust(g: Guarantee) -> str:
    """Whom and what a guarantee rests on, in words."""
    if not g.assumptions:
        return "nobody."
    return f"that {', and that '.join(g.assumptions)}."


def _measured(g: Guarantee) -> str:
    """What attacks and canaries found of a guarantee, in words."""
    found = []
    if g.measured is not None:
        found.append(f"at least {_number(g.measured)} per round")
    if g.canaries is not None:
        found.append(wording.canary_finding(g.canaries))
    return "; ".join(found) or "not attacked"


def _odds(epsilon: float) -> str:
    """What ε means for one person, in odds; not at all where it is infinite."""
    if math.isinf(epsilon):
        return "not at all"
    return f"ε {_number(epsilon)}: {wording.odds(epsilon)}"


def _number(value: float | None) -> str:
    """ε to three digits, or in words where there is none."""
    if value is None:
        return "nothing"
    if math.isinf(value):
        return "infinite: no protection"
    return f"{value:.3g}"


def _variant(statement: Statement, main: Guarantee) -> str:
    """The registry's word for the kind of differential privacy."""
    if not math.isfinite(main.stated):
        return "Custom"
    if statement.delta == 0 and statement.adjacency is not Adjacency.REPLACE_SPECIAL:
        return "Pure DP"
    return "Approximate DP"


def _what(run: Run, statement: Statement) -> str:
    """By what, where and from which data the model was trained, in a sentence."""
    data = str(run.config.get("dataset", {}).get("_target_", "")).rpartition(".")[2]
    engine = str(run.config.get("engine", {}).get("_target_", ""))
    where = "in a simulation of devices"
    half = ""
    if engine.endswith("DeployEngine"):
        where = "on devices"
    elif run.config.get("compute", {}).get("precision") == "bf16":
        half = ", compute.precision=bf16"
    data = data or "not named"
    return f"A model trained by {statement.algorithm} {where}, data set {data}{half}."
