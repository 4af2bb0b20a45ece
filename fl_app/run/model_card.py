"""The model card: what a model was trained on, how well it does, and whose data are protected how.

Markdown with metadata, in the form of Hugging Face's (https://huggingface.co/docs/hub/model-cards).
Behind each fact stands whose it is: covered by the run's ε, public, or read from data that no ε
covers.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from murmur.privacy.statement import Statement

COVERED = "trained on private data; covered by the statement below"
PUBLIC = "public"
UNCOVERED = "read from data; no ε covers it"

_NO_SETTINGS = ("_target_", "_partial_", "server_may_set")
_TASKS = {
    "pictures": "image-classification",
    "table": "tabular-classification",
    "texts": "text-classification",
    "numbers": "other",
}


def model_card(
    name: str,
    about: Mapping[str, Any],
    config: Mapping[str, Any],
    scores: Mapping[str, float],
    named: bool,
) -> str:
    """The card of a run's model.

    Args:
        name: of the data set.
        about: the model's metadata (``fl_app.run.model_folder.describe``).
        config: the run's configuration.
        scores: on held-out examples, by name.
        named: whether somebody has named the classes; if not, they were read from the data.
    """
    statement = about["privacy"]
    input_of_model = about["input"]
    lines = [
        "---",
        *_metadata(name, about, scores),
        "---",
        "",
        f"# {statement['algorithm']} on {name}",
        "",
        "Trained by Murmur: federated learning under differential privacy.",
        "",
        "| fact | | whose it is |",
        "|---|---|---|",
        _row("weights", "model.safetensors", COVERED),
        _row("algorithm", statement["algorithm"], PUBLIC),
        _row("clients", config["federation"]["num_clients"], PUBLIC),
        _row("rounds", config["federation"]["num_rounds"], PUBLIC),
        _row("model", _short(about["model"]), PUBLIC),
        _row("features", _features(about), PUBLIC),
        _row("input", _input(input_of_model), UNCOVERED if _was_read(input_of_model) else PUBLIC),
        _predicted(about, named),
    ]
    for key, value in scores.items():
        lines.append(_row(key.replace("_", " "), f"{value:.4f}", f"held-out examples {UNCOVERED}"))
    lines += [
        "",
        "## Whose data are protected, and how",
        "",
        "```",
        about["privacy_text"],
        "```",
        "",
        "## What it must not be used for",
        "",
        *_limits(statement, about),
        "",
        "## How to use it",
        "",
        "```bash",
        f"murmur predict FOLDER FILE          # {_printed(about)}",
        "murmur onnx FOLDER model.onnx       # for other programs, features included",
        "```",
        "",
        "`fl_app.api.load_model(FOLDER)` is a PyTorch module. Its input: "
        f"{_input(input_of_model)}.",
        "",
    ]
    return "\n".join(lines)


def _metadata(name: str, about: Mapping[str, Any], scores: Mapping[str, float]) -> list[str]:
    """Lines of YAML; JSON texts are YAML's, too."""
    task = _pipeline(about)
    lines = [
        "library_name: murmur",
        f"pipeline_tag: {task}",
        "tags: [federated-learning, differential-privacy]",
        "model-index:",
        f"- name: {json.dumps(about['privacy']['algorithm'])}",
        "  results:",
        f"  - task: {{type: {task}}}",
        f"    dataset: {{name: {json.dumps(name)}, type: {json.dumps(name)}}}",
        "    metrics:",
    ]
    for key, value in scores.items():
        lines.append(f"    - {{type: {key}, value: {value:.4f}}}")
    if not scores:
        lines[-1] = "    metrics: []"
    return lines


def _row(fact: str, value: object, whose: str) -> str:
    return f"| {fact} | {value} | {whose} |"


def _short(settings: Mapping[str, Any]) -> str:
    """A group's settings in one line, its class first."""
    target = str(settings.get("_target_", "")).rpartition(".")[2]
    rest = [f"{key}={value}" for key, value in settings.items() if key not in _NO_SETTINGS]
    return " ".join([target, *rest])


def _features(about: Mapping[str, Any]) -> str:
    if about["features_digest"] is None:
        return "none"
    return f"{_short(about['features'])}, digest {about['features_digest'][:16]}"


def _input(told: Mapping[str, Any]) -> str:
    """One sentence on the form of an input."""
    shape = "×".join(str(size) for size in told["shape"])
    if told["kind"] == "pictures":
        return f"pictures of {shape} (channels, height, width), float32 in [0, 1]"
    if told["kind"] == "table":
        return f"rows of a table with the columns {', '.join(told['columns'])}"
    if told["kind"] == "texts":
        return f"texts, of which {told['length']} tokens count"
    return f"float32 numbers of shape {shape}"


def _was_read(told: Mapping[str, Any]) -> bool:
    """Returns whether columns were read from a client's table, not from a public schema."""
    return told["kind"] == "table" and told.get("schema") is None


def _predicted(about: Mapping[str, Any], named: bool) -> str:
    """The row on what the model predicts: a number, several labels, or a class."""
    task = about.get("task", {})
    if task.get("kind") == "regression":
        return _row("prediction", f"a number in {task['low']:g} to {task['high']:g}", PUBLIC)
    if task.get("kind") == "multilabel":
        return _row("labels, each by itself", ", ".join(_classes(about)), PUBLIC)
    return _row("classes", ", ".join(_classes(about)), PUBLIC if named else UNCOVERED)


def _printed(about: Mapping[str, Any]) -> str:
    """What ``murmur predict`` prints."""
    printed = {"regression": "a number a row", "multilabel": "each label's probability"}
    return printed.get(about.get("task", {}).get("kind"), "classes and probabilities")


def _pipeline(about: Mapping[str, Any]) -> str:
    """Hugging Face's name of the task."""
    kind = about["input"]["kind"]
    if about.get("task", {}).get("kind") == "regression":
        return "tabular-regression" if kind == "table" else "other"
    return _TASKS[kind]


def _classes(about: Mapping[str, Any]) -> Sequence[str]:
    return about["classes"] or [str(number) for number in range(about["num_classes"])]


def _limits(statement: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    """Lists the limits that follow from statement and description; a person adds the rest."""
    lines = [
        "* Decisions on a person without a human being who can answer for them.",
        "* Data that come from elsewhere than the clients' and the test set: nothing was measured "
        "there.",
        "* Conclusions on who took part: the statement bounds them, it does not exclude them.",
    ]
    if not Statement.from_dict(statement).protects_model:
        lines.insert(0, "* **Publication**: no finite ε protects the data behind these weights.")
    if about["personal"]:
        lines.append("* Predictions by itself: each client keeps layers of its own.")
    return lines
