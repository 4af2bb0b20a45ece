"""`murmur statement`: for people, programs, a registry, auditors and patients."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

import fl_app
from fl_app.cli import main
from fl_app.config.compose import compose
from fl_app.config.instantiate import build
from murmur.privacy.statement import Statement
from tests.fl_app.running import command, run_inline

SCHEMA = yaml.safe_load((Path(__file__).parent / "registry_schema.yaml").read_text())
SUMS = "privacy.threat=secure_aggregation"
PROJECT = Path(__file__).resolve().parents[3]
RUNS = {
    "local": ["strategy=privatekt", "federation.public=60"],
    "sums": ["strategy=fedavg", "protection=distributed", "privacy=local", SUMS],
    "none": ["strategy=fedavg"],
}


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    return run_inline(
        tmp_path_factory.mktemp(request.param) / "run", *RUNS[request.param], "privacy.noise=os"
    ).path


def test_text_and_json_are_those_of_the_run(run, capsys):
    assert main(["statement", str(run)]) == 0
    assert capsys.readouterr().out == (run / "privacy.txt").read_text().rstrip() + "\n"
    assert main(["statement", str(run), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((run / "privacy.json").read_text())


def test_the_record_is_one_that_the_registry_takes(run, capsys):
    words = ["--curator", "A Hospital", "--curator-type", "Nonprofit"]
    assert main(["statement", str(run), "--format", "opendp", *words]) == 0
    record = yaml.safe_load(capsys.readouterr().out)
    checked = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
    assert [error.message for error in checked.iter_errors(record)] == []
    assert f"Murmur {fl_app.version()}" in record["deployment"]["implementation"]["mechanisms"]
    statement = Statement.from_dict(json.loads((run / "privacy.json").read_text()))
    said = record["deployment"]["privacy_loss"]["privacy_parameters"]
    if statement.is_private or statement.guarantees[0].assumed_total:
        assert said["epsilon"] == statement.guarantees[0].stated
    else:
        assert "epsilon" not in said
        assert "no finite ε" in record["deployment"]["dp_variant"]["unprotected_quantities"]


def test_the_label_and_the_questions_hold_claimed_proven_assumed_and_measured(run, capsys):
    file = json.loads((run / "privacy.json").read_text())
    file["guarantees"][0] |= {"claimed_total": 1.25, "measured": 0.75}
    (run / "privacy.json").write_text(json.dumps(file))
    assert main(["statement", str(run), "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    label, _, questions = text.partition("## The questions of NIST SP 800-226")
    assert len(label.splitlines()) <= 20 and questions.count("### ") == 10
    first = file["guarantees"][0]
    stated = first["assumed_total"] or first["proven_total"]
    shown = "infinite: no protection" if stated == "infinity" else f"{stated:.3g}"
    assert f": ε {shown}; the paper claims 1.25; measured:" in questions
    assert "measured: at least 0.75 per round" in questions and "at least 0.75" in label
    for assumption in file["guarantees"][0]["assumptions"]:
        assert assumption in label and assumption in questions


DPIA = (PROJECT / "docs" / "dpia.md").read_text(encoding="utf-8")
(_, TABLE) = DPIA.split("| sentence | source |\n|---|---|\n")
SOURCES = dict(re.findall(r"^\| (.+) \| (.+) \|$", TABLE.split("\n\n")[0], re.M))


def test_each_sentence_of_the_form_stands_on_the_page_with_its_source(run, capsys):
    assert main(["statement", str(run), "--format", "dpia"]) == 0
    text = capsys.readouterr().out
    sentences = [line[2:] for line in text.splitlines() if line.startswith("- ")]
    assert len(sentences) > 12 and all(SOURCES.values())
    known = [
        "".join(".*" if part.startswith("{") else re.escape(part) for part in _parts(sentence))
        for sentence in SOURCES
    ]
    for sentence in sentences:
        assert any(re.fullmatch(pattern, sentence) for pattern in known), sentence
    statement = Statement.from_dict(json.loads((run / "privacy.json").read_text()))
    for guarantee in statement.guarantees:
        assert f"{guarantee.adversary}" in text
        assert all(f"condition: {each}." in text for each in guarantee.assumptions) or (
            guarantee.stated == float("inf")
        )


def _parts(sentence):
    """The text of a row of the page and what stands in braces, in turn."""
    return [part for part in re.split(r"(\{[^}]*\})", sentence) if part]


def test_no_sentence_of_the_page_is_missing_in_the_form():
    form = PROJECT / "fl_app" / "tools" / "templates" / "dpia.md"
    text = form.read_text(encoding="utf-8")
    for sentence in SOURCES:
        assert f"- {sentence.partition('{')[0].rstrip('.')}" in text, sentence


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "opendp"], "--curator: a registry must know who publishes"),
        (["--format", "opendp", "--curator", "A"], "--curator-type: say what you are: Government"),
        (["--format", "html"], "invalid choice: 'html'"),
    ],
)
def test_what_is_missing_is_said(run, words, said):
    status, error = command("statement", run, *words)
    assert status == 2 and said in error


def test_a_folder_without_a_statement_is_refused(tmp_path):
    assert "is no run" in command("statement", tmp_path)[1]
    (tmp_path / "overrides.json").write_text("[]")
    assert "no privacy.json yet" in command("statement", tmp_path)[1]
    (tmp_path / "privacy.json").write_text("[1]")
    assert "privacy.json:" in command("statement", tmp_path)[1]


def test_card_statement_label_ledger_and_pages_have_one_count_and_one_figure_of_the_demo(
    tmp_path, capsys
):
    words = ["experiment=digits_votes", "engine=inline"]
    config = compose(words)
    sums = build(config.privacy, "privacy").secure_sums()
    honest = sums.least_survivors(config.federation.num_clients) - sums.colluders
    run = str(tmp_path / "run")
    assert main([*words, f"run_dir={run}"]) == 0
    for more in ([], ["--format", "markdown"]):
        assert main(["statement", run, *more]) == 0
    demo = " ".join(capsys.readouterr().out.split())
    figures = {f"{config.privacy.epsilon:g}"}
    statement = Statement.from_dict(json.loads((tmp_path / "run" / "privacy.json").read_text()))
    figures.add(f"{statement.guarantees[1].stated:.3g}")
    assert set(re.findall(r"in a sum over (\d+) honest", demo)) == {str(honest)}
    pages = [f"docs/{name}.md" for name in ("start", "threat-model", "dpia")]
    for told in (demo, *((PROJECT / page).read_text(encoding="utf-8") for page in pages)):
        told = " ".join(told.split())
        assert set(re.findall(r"(\d+) of the \d+ clients of every sum", told)) == {str(honest)}
        assert set(re.findall(r"ε (?:= )?(\d+\.\d+|\d+)(?= |;|:|,|\.|$)", told)) >= figures
    for name in ("threat-model", "data-protection"):
        page = " ".join((PROJECT / f"docs/{name}.md").read_text(encoding="utf-8").split())
        assert len(re.findall(r"[Ss]ign the f", page)) == 1
        assert all(figure in page for figure in figures)
    told = set(re.findall(r"ε = (\d+\.\d+|\d+)", demo)) - {"0"}  # 0: before anything is sent
    assert told == figures
