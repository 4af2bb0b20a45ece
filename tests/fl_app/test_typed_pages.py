"""The commands of README.md and of pages in docs/, typed in order by a stranger, and their output.

Runs of README.md and docs/start.md are made smaller by words behind what stands on the page; those
of other pages are typed as they stand. What is printed must say whom an ε protects from whom,
wherever there is one.
"""

import re
import shlex
from pathlib import Path

import pytest

from fl_app.cli import main

PROJECT = Path(__file__).resolve().parents[2]
SMALLER = ["federation.num_clients=12", "federation.num_rounds=1"]
DEMO = ["federation.num_clients=12", "privacy.secure_aggregation=simulated"]
NUMBER = re.compile(r"ε = (?:[\d.,]+|∞)")


def commands(page):
    """The words of each command on a page, in their order."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in blocks.splitlines() if line.strip()]


def bare(said):
    """What is said of an ε without saying against whom; a card's lines are joined first.

    What a run expects of its budget, before it starts, is not what anybody was told.
    """
    whole = re.sub(r"\n {8,}", " ", said)
    found = []
    for sentence in re.split(r"[\n;]", whole):
        is_forecast = re.search(r"^(\S+=.*: )?expected: ", sentence)
        if NUMBER.search(sentence) and "against" not in sentence and not is_forecast:
            found.append(sentence)
    return found


def tables(said):
    """The tables of a sweep as they are printed: heading -> rows."""
    parts = re.split(r"^(?=\S.*, against .*, δ = |Not finished$)", said, flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.count("\n│") for part in parts[1:]}


@pytest.fixture
def stranger(tmp_path, monkeypatch, capsys):
    """Types words in a fresh folder and a fresh home; what was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words, status=0):
        monkeypatch.setattr("sys.argv", ["murmur"])
        assert main(words) == status, (words, capsys.readouterr())
        return capsys.readouterr().out

    return call


def demo():
    """The words of `make demo`, with an engine that needs no processes."""
    line = re.search(
        r"^demo:.*\n\t\$\(BIN\)/murmur (.*)$", (PROJECT / "Makefile").read_text(), re.M
    )
    assert line is not None
    words = shlex.split(line[1])
    assert words[1] == "engine=ray" and words[2].startswith("results_dir=")
    return [words[0], "engine=inline", *DEMO]


def test_the_readmes_commands_are_the_demo_and_the_tests():
    assert [words[:2] for words in commands("README.md")] == [["make", "demo"], ["make", "test"]]


@pytest.mark.long
def test_the_demo_says_whom_it_protects_from_whom(stranger):
    said = stranger(*demo())
    assert bare(said) == []
    assert "against a server that sees only sums, if at least" in said
    assert "against a server that reads every message: ε = " in " ".join(said.split())


def test_five_minutes_as_a_stranger_types_them(stranger, tmp_path):
    typed = commands("docs/start.md")
    assert [words[0] for words in typed] == ["make", ".", *["murmur"] * 4]
    for words in (words[1:] for words in typed[2:]):
        if words[0] == "ledger":
            run = next(tmp_path.glob("runs/2*"))
            words = [word.replace("runs/RUN", str(run)) for word in words]
        elif words[0] != "report":
            words = [*words, *SMALLER]
        said = stranger(*words)
        assert bare(said) == []
        if words[0] == "-m":
            found = tables(said)
            assert sum(found.values()) >= 2 and all("against" in heading for heading in found)
    page = (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    assert re.search(r"All of runs: \d+ runs, those of 1 sweep among them", page)


def type_page(page, stranger, folder, refused=()):
    """Type a page's `murmur` commands in a checkout's ``folder``; ``refused`` end with status 1.

    A run that the page calls RUN is the newest one there.
    """
    for name in ("deploy", "examples"):
        (folder / name).symlink_to(PROJECT / name)
    for program, *words in commands(page):
        if program != "murmur":
            continue
        runs = sorted(folder.glob("runs/2*"), key=lambda run: run.stat().st_mtime)
        words = [word.replace("runs/RUN", str(runs[-1])) if runs else word for word in words]
        said = stranger(*words, status=int(words[0] in refused))
        if words[0] != "statement":  # its sentences go over several lines
            assert bare(said) == []
        if words[0] == "-m":
            found = tables(said)
            assert found and all("against" in heading for heading in found)


@pytest.mark.long
def test_the_page_for_those_who_answer_for_data(stranger, tmp_path):
    type_page("docs/data-protection.md", stranger, tmp_path, refused=("doctor",))
    assert "measured" in (tmp_path / "runs" / "trial" / "privacy.txt").read_text()


@pytest.mark.long
def test_the_page_for_engineers(stranger, tmp_path):
    type_page("docs/engineers.md", stranger, tmp_path)


@pytest.mark.long
def test_the_page_for_researchers(stranger, tmp_path, data_root):
    type_page("docs/researchers.md", stranger, tmp_path)
    assert (tmp_path / "tonight.tex").read_text().count("\\begin{table}") >= 1


def test_a_bare_figure_is_noticed():
    assert bare("accuracy 0.9  ε = 3.75\n") == ["accuracy 0.9  ε = 3.75"]
    assert bare("loss   against a server: ε = 3;\n            against another: ε = ∞\n") == []
