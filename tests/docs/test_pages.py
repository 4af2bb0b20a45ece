"""The pages are short, plain and of one kind each, and say what the project's files say."""

import json
import re
import tomllib

import pytest
import yaml

from docs import reference, style
from fl_app.config.groups import groups
from murmur.privacy import policy_file
from murmur.privacy.ledger import chain
from murmur.privacy.policy_terms import MECHANISMS

PAGES = style.pages()
DOCS = style.ROOT / "docs"
READERS = ("compare", "build", "bring", "answer", "write")


def page(name):
    """The text of a page of docs/."""
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_pages_are_few_and_short():
    assert len(PAGES) <= style.MAX_PAGES
    assert sum(page.words for page in PAGES) <= style.MAX_WORDS
    every = [sentence for page in PAGES for sentence in page.sentences]
    words = sum(len(sentence.split()) for sentence in every)
    assert words / len(every) <= style.MAX_MEAN_SENTENCE_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_of_a_page_is_long(page):
    assert page.long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_its_kind(page):
    assert page.kind is not None or page.name == "README.md" or page.name.startswith("deploy/")


def test_what_owners_and_their_machines_need_is_short():
    names = ("deploy/README.md", "deploy/policies/README.md", "docs/dpia.md", "docs/for-owners.md")
    assert sum(page.words for page in PAGES if page.name in names) <= 5_000


def test_long_sentences_are_found_in_paragraphs_and_lists():
    long = " ".join(["word"] * 41)
    short = "A sentence ends here. `code` begins the next one."
    found = style.sentences(f"{short}\n\n* {long}.\n")
    assert [len(sentence.split()) for sentence in found] == [4, 5, 41]
    assert style.sentences(f"| {long} |\n\n```\n{long}\n```\n\n    {long}\n") == []


def test_each_reader_has_a_path_of_at_most_three_pages():
    readme = (style.ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) [^|]*\|(.*)\|$", readme, re.MULTILINE)
    paths = {word: re.findall(r"\]\(([^)]+)\)", cell) for word, cell in rows}
    for reader in READERS:
        assert 1 <= len(paths[reader]) <= 3, reader
        assert all((style.ROOT / path).exists() for path in paths[reader])


def test_the_glossary_has_forty_entries_and_pages_link_to_it():
    entries = re.findall(r"^### (.+)$", page("glossary.md"), re.MULTILINE)
    assert len(entries) == 40 and entries == sorted(entries, key=str.lower)
    linked = set()
    for path in DOCS.glob("*.md"):
        linked |= set(re.findall(r"glossary\.md#([\w-]+)", path.read_text(encoding="utf-8")))
    assert linked <= {entry.lower().replace(" ", "-") for entry in entries}
    assert len(linked) >= 20


def test_the_generated_pages_have_every_choice_key_and_format():
    pages = reference.generated()
    for group, choices in groups().items():
        for choice in choices:
            assert f"### {group.split('/')[0]}={choice}\n" in pages["settings.md"], choice
    keys = {*policy_file._CONVERSIONS, *policy_file._GUARD, *MECHANISMS}
    assert all(re.search(rf"\b{key}\b", pages["policy-keys.md"]) for key in keys)
    example = yaml.safe_load((style.ROOT / "deploy" / "policy.example.yaml").read_text("utf-8"))
    assert set(example) == set(policy_file._CONVERSIONS) - {"guard"}
    assert f"| ledger | {chain.FORMAT} |" in pages["formats.md"]


def test_the_page_of_releases_has_every_format_and_its_number():
    frozen = json.loads((style.ROOT / "tests/formats/formats.json").read_text(encoding="utf-8"))
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|", page("releases.md"), re.MULTILINE))
    assert {name: int(number) for name, number in rows.items()} == frozen["numbers"]
    for name in ("wire", "statement", "policy", "run folder"):
        assert f"\n| {name} | " in page("releases.md")


def test_pages_name_targets_of_make_that_exist():
    makefile = (style.ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.MULTILINE))
    pages = [*style.names(), *style.ROOT.glob("*.md"), *style.ROOT.glob("*/**/README.md")]
    pages += style.ROOT.glob("benchmarks/*.md")
    for path in (path for path in pages if ".venv" not in path.parts):
        text = path.read_text(encoding="utf-8")
        for words in re.findall(r"(?:`|^ *)make((?: [a-z][a-z-]*\b(?!=))+)", text, re.MULTILINE):
            assert set(words.split()) <= targets, (path.name, words)


def test_the_site_lists_every_page():
    listed = re.findall(r"([\w-]+\.md)$", (style.ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    made = {"index.md", *reference.generated()}
    assert sorted(listed) == sorted({path.name for path in DOCS.glob("*.md")} | made)


def test_speeds_that_a_page_compares_are_those_that_were_measured():
    rows = (style.ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    text = " ".join(page("compared.md").split())
    found = {}
    for side in ("murmur", "pfl", "flower"):
        [row] = re.findall(rf"^\| cnn {side} \| a later round, s \| ([\d.]+)", rows, re.MULTILINE)
        found[side] = float(row)
        assert f"{float(row):.1f} s" in text, side
    assert f"{found['pfl'] / found['murmur']:.1f} times as fast as pfl" in text


def test_the_history_of_security_is_short_and_names_tests_that_exist():
    text = page("security-history.md")
    assert len(text.splitlines()) <= 80
    for path in re.findall(r"(?:packages/[\w-]+/)?tests/[\w./]+", text):
        assert (style.ROOT / path.rstrip(".")).exists(), path


def test_the_changelog_is_short_and_names_every_release():
    text = (style.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 55
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == "Unreleased"


def test_a_hosted_check_names_targets_of_make_that_exist():
    makefile = (style.ROOT / "Makefile").read_text(encoding="utf-8")
    project = tomllib.loads((style.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [path] = (style.ROOT / ".github" / "workflows").glob("*.yml")
    [job] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    versions = job["strategy"]["matrix"]
    assert versions == {"python": ["3.11", "3.12", "3.13"], "flower": ["1.41", "1.42"]}
    assert project["requires-python"] == ">=3.11,<3.14"
    assert "flwr>=1.41,<1.43" in project["dependencies"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    targets = re.findall(r"(?<=[ \n])[a-z-]+(?![\w=.-])", " ".join(commands).replace("make", ""))
    assert {"check", "test", "test-flower"} <= set(targets)
    assert all(f"\n{target}:" in makefile for target in targets)
