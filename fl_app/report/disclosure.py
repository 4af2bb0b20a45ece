"""A run's privacy statement in the forms that others read.

``registry_entry``: a record of the OpenDP Privacy Deployments Registry
(github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml at 057e5d8).
``document``: half a page for the people whose data it is, then what NIST SP 800-226 ("Guidelines
for Evaluating Differential Privacy Guarantees", 2025) asks, one by one. Claimed, proven, assumed
and measured ε stand in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fl_app import DISTRIBUTION
from fl_app.report.reading import Run
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.statement import Guarantee, Statement
from murmur.privacy.statement_text import NEIGHBOURS, UNITS, against, canary_finding, odds

CURATORS = ("Government", "Industry", "Nonprofit")

_MODELS = {
    Threat.LOCAL: "Local",
    Threat.SECURE_AGGREGATION: "Federated",
    Threat.CENTRAL: "Central",
    Threat.SHUFFLE: "Shuffle",
    Threat.OUTSIDER: "Central",  # of what a trusted server publishes
}
_UNIT = {Unit.CLIENT: "client: a person, or a group of records", Unit.RECORD: "record of a client"}
_SECURITY = (
    "Clients' data stay on their devices, which answer with the code that is installed there, obey "
    "their owner's policy, and keep a signed ledger of every release. Messages travel over TLS, "
    "between authenticated nodes. A simulation holds all clients on one machine: none of this "
    "applies there."
)
# Kinds of releases, as the ledger calls them, in the words of those whose data they are from.
_PLAIN = {
    "RandomizedResponse": "answers, some of them random",
    "RandomizedBits": "bits, some of them flipped at random",
    "Gaussian": "numbers with random noise added",
    "Laplace": "numbers with random noise added",
    "NonPrivate": "results without protection",
    "in a sum over": "readable only as a sum over many participants",
}


@dataclass(frozen=True)
class Curator:
    """Who publishes the model: what no run knows of itself."""

    name: str
    kind: str
    region: str
    use: str


def registry_entry(
    run: Run, statement: Statement, mechanisms: list[str], curator: Curator
) -> dict[str, Any]:
    """The run as a record of the OpenDP registry, a draft of tier 3."""
    main = statement.guarantees[0]
    parameters = {"epsilon": main.stated} if math.isfinite(main.stated) else {}
    unprotected = statement.split.capitalize()
    if not statement.is_private:
        unprotected = "Everything: no finite ε is proven."
    return {
        "url_slug": run.name,
        "deployment": {
            "basic": {
                "name": f"A model trained by {statement.algorithm}",
                "data_curators": [
                    {"data_curator_name": curator.name, "data_curator_type": curator.kind}
                ],
                "description": _what(run, statement),
                "intended_use": curator.use,
                "data_product_type": "Machine learning model",
                "data_product_region": curator.region,
                "publication_date": str(run.provenance.get("finished", ""))[:10] or "1900-01-01",
            },
            "dp_variant": {
                "variant_name": _variant(statement, main),
                "data_domain": "The clients' examples, as the run's configuration describes them.",
                "unprotected_quantities": unprotected
                or "How many clients took part, when, and whatever the configuration makes public.",
            },
            "privacy_loss": {
                "privacy_unit": _UNIT[statement.unit],
                "privacy_unit_details": f"{UNITS[statement.unit]}, "
                f"{NEIGHBOURS[statement.adjacency]}".capitalize()
                + ".",
                "number_of_privacy_units": main.number_of_clients,
                "privacy_parameters": {**parameters, "delta": statement.delta},
                "privacy_parameters_details": "\n".join(map(_figures, statement.guarantees)),
            },
            "deployment_model": {
                "model_name": _MODELS[main.threat],
                "trust_assumptions": _assumptions(main),
                "actors": "; ".join(guarantee.adversary for guarantee in statement.guarantees),
                "release_type": "One release" if run.last_round <= 1 else "Many releases",
                "release_type_details": f"{_rounds(run)}; every device counts what its "
                "clients release over its lifetime and refuses what its policy does not allow.",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "Not known to the run: if settings were "
                "chosen on clients' data, that was not accounted for.",
                "mechanisms": f"{'; '.join(mechanisms) or 'none'}. {_side_channels(run)} "
                f"Murmur {_version(run)}.",
                "composition": f"{main.method}, over all rounds and phases of a client.",
                "post_processing": "The server's aggregation and training.",
                "justification": statement.difference,
                "utility": _utility(run),
            },
            "administrative": {"status": "Draft", "registry_authors": [curator.name], "tier": 3},
        },
    }


def document(run: Run, statement: Statement, mechanisms: list[str]) -> str:
    """The label for those whose data it is, and NIST's questions, in Markdown."""
    questions = {
        "Privacy parameter: what is ε, and what is δ?": "\n".join(
            f"- {_figures(guarantee)}" for guarantee in statement.guarantees
        )
        + f"\n- δ is {statement.delta:g}.",
        "Unit of privacy: what do neighbouring data sets differ in?": (
            f"{UNITS[statement.unit]}, {NEIGHBOURS[statement.adjacency]}."
        ).capitalize()
        + (f" Not protected: {statement.split}." if statement.split else ""),
        "Algorithms: which mechanisms, and are they right?": (
            f"{statement.algorithm}. Charged, in the ledger's words: "
            f"{'; '.join(mechanisms) or 'nothing'}."
        ),
        "Composition: what is counted together?": (
            f"All that a client released over {_rounds(run)}, by {statement.guarantees[0].method}. "
            "Clients hold disjoint data: the most exposed counts."
        ),
        "Query and release model: what comes out?": (
            f"{_what(run, statement)} It is published after each of {_rounds(run)}; nobody may ask "
            "for more."
        ),
        "Trust model: who must be trusted, with what?": "\n".join(
            f"- Against {g.adversary}: {_assumptions(g)}" for g in statement.guarantees
        ),
        "Utility: how good is it?": _utility(run),
        "Side channels and implementation: what else could tell?": _side_channels(run),
        "Security and access control: who can reach the data?": _SECURITY,
        "Data collection exposure: what is gathered at all?": (
            "Nothing but the releases above leaves a client; no raw data are collected."
        ),
    }
    parts = [f"# Privacy of {run.name}", "", *_label(statement, mechanisms)]
    parts += ["", "## The questions of NIST SP 800-226"]
    for question, answer in questions.items():
        parts += ["", f"### {question}", "", answer]
    return "\n".join(parts) + "\n"


def _label(statement: Statement, mechanisms: list[str]) -> list[str]:
    main = statement.guarantees[0]
    rows = {
        "What is protected": f"{UNITS[statement.unit]}",
        "Against whom": against(main.adversary, main.assumptions),
        "What left the device": _plainly(mechanisms),
        "How well": _odds(main.stated),
        "How well otherwise": _odds(main.proven_total),
        "What the method's paper claims": _number(main.claimed_total),
        "What an attack found": _measured(main),
        "What it does not protect": "what can be learnt about you from other people's data; "
        "that you took part",
    }
    if main.assumed_total is None:
        del rows["How well otherwise"]
    if statement.split:
        rows["What it does not protect"] += f"; {statement.split}"
    lines = ["## For you, whose data it is", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows.items()]
    return lines + [f"\n**Rely on none of this: {reason}**" for reason in statement.void]


def _plainly(mechanisms: list[str]) -> str:
    text = " ".join(mechanisms)
    found = dict.fromkeys(words for kind, words in _PLAIN.items() if kind in text)
    return ", ".join(found) or "nothing that was charged"


def _figures(g: Guarantee) -> str:
    claimed = "" if g.claimed_total is None else f"; the paper claims {_number(g.claimed_total)}"
    return (
        f"Against {against(g.adversary, g.assumptions)}: ε {_number(g.stated)}{claimed}; measured: "
        f"{_measured(g)}."
    )


def _assumptions(g: Guarantee) -> str:
    return f"that {', and that '.join(g.assumptions)}." if g.assumptions else "nobody."


def _measured(g: Guarantee) -> str:
    found = [] if g.measured is None else [f"at least {_number(g.measured)} per round"]
    if g.canaries is not None:
        found.append(canary_finding(g.canaries))
    return "; ".join(found) or "not attacked"


def _odds(epsilon: float) -> str:
    return f"ε {_number(epsilon)}: {odds(epsilon)}" if math.isfinite(epsilon) else "not at all"


def _number(value: float | None) -> str:
    if value is None:
        return "nothing"
    return f"{value:.3g}" if math.isfinite(value) else "infinite: no protection"


def _variant(statement: Statement, main: Guarantee) -> str:
    if not math.isfinite(main.stated):
        return "Custom"
    pure = statement.delta == 0 and statement.adjacency is not Adjacency.REPLACE_SPECIAL
    return "Pure DP" if pure else "Approximate DP"


def _what(run: Run, statement: Statement) -> str:
    data = str(run.config.get("dataset", {}).get("_target_", "")).rpartition(".")[2]
    deployed = str(run.config.get("engine", {}).get("_target_", "")).endswith("DeployEngine")
    where = "on devices" if deployed else "in a simulation of devices"
    half = not deployed and run.config.get("compute", {}).get("precision") == "bf16"
    return (
        f"A model trained by {statement.algorithm} {where}, data set {data or 'not named'}"
        f"{', compute.precision=bf16' if half else ''}."
    )


def _rounds(run: Run) -> str:
    return f"{run.last_round} round{'' if run.last_round == 1 else 's'}"


def _side_channels(run: Run) -> str:
    if run.config.get("privacy", {}).get("noise") == "seeded":
        noise = "Noise follows from the run's seed and can be removed: it protects nobody."
    else:
        noise = (
            "Noise is drawn over integers, from a cryptographic generator keyed by the operating "
            "system, so that floating point gives nothing away."
        )
    return (
        f"{noise} Whether a client answers, how long its answer is and every refusal do not depend "
        "on its data. How long a client takes is not hidden."
    )


def _utility(run: Run) -> str:
    accuracy = (run.metrics or {}).get("accuracy")
    return "Not measured." if accuracy is None else f"Accuracy {accuracy:.3f} on the test set."


def _version(run: Run) -> str:
    versions = run.provenance.get("versions", {})
    return (
        f"{versions.get(DISTRIBUTION, 'of unknown version')}, {run.provenance.get('commit') or ''}"
    )
