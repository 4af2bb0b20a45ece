"""The commands of every page, typed in order by a stranger, and their output.

``TYPED`` says for each page what is typed as it stands there, what is made smaller by words behind
it, and what is not run, and why. What is printed must say whom an ε protects from whom, wherever
there is one. What is not run, and commands in sentences, are read by their programs at least.
"""

import math
import re
import shlex
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fl_app.cli import main
from fl_app.config.compose import compose
from fl_app.config.overrides import expand_sweep
from fl_app.config.plugins import VARIABLE
from fl_app.run.load import load_runs
from murmur.learning.data.datasets import digits
from murmur.learning.metrics import chance
from murmur_report.settings import group
from tests.fl_app.pages import (
    PAGES,
    PROJECT,
    in_blocks,
    in_sentences,
    read,
    settings_in_sentences,
)

SMALLER = ["federation.num_clients=12", "federation.num_rounds=1"]
DEMO = ["federation.num_clients=12", "privacy.secure_aggregation=simulated"]
NUMBER = re.compile(r"ε = (?:[\d.,]+|∞)")


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
        monkeypatch.delenv(VARIABLE, raising=False)  # what --config-dir leaves to its processes
        assert main(words) == status, (words, capsys.readouterr())
        return capsys.readouterr().out

    return call


def demo():
    """The words of `make demo`, with an engine that needs no processes."""
    line = re.search(
        r"^demo:.*\n\t@\$\(BIN\)/murmur (.*)$", (PROJECT / "Makefile").read_text(), re.M
    )
    assert line is not None
    words = shlex.split(line[1])
    assert words[1] == "engine=ray" and words[2].startswith("results_dir=")
    return [words[0], "engine=inline", *DEMO]


def test_the_readmes_commands_are_the_demo_and_the_tests():
    assert [words[:2] for words in in_blocks("README.md")] == [["make", "demo"], ["make", "test"]]


@pytest.mark.long
def test_the_demo_says_whom_it_protects_from_whom(stranger):
    said = stranger(*demo())
    assert bare(said) == []
    whole = " ".join(said.split())
    assert re.search(r"Promise ε = [\d.]+ against a server that sees only sums: can turn", whole)
    assert re.search(r"If it fails ε = [\d.]+ against a server that reads every message", whole)


def test_five_minutes_as_a_stranger_types_them(stranger, tmp_path):
    typed = in_blocks("docs/start.md")
    assert [words[0] for words in typed] == ["make", ".", *["murmur"] * 2, "pip", *["murmur"] * 2]
    for words in (words[1:] for words in typed[2:] if words[0] == "murmur"):
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


@dataclass(frozen=True)
class Typed:
    """How the commands of a page's blocks are typed: as they stand, but for these.

    Attributes:
        smaller: how a command begins -> words that are put behind it, since it takes minutes.
        read: how a command begins -> why it is read by its program (``pages.read``) and not run.
        own: what stands for a reader's own -> what stands there here; RUN is the newest run.
        refused: how commands begin that end with status 1, as the page says.
        first: a command that the reader has typed before, on another page.
        leaves: files that the page promises, and a word in each.
    """

    smaller: dict[str, str] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    first: str = ""
    leaves: dict[str, str] = field(default_factory=dict)


ROUND = "engine=inline federation.num_rounds=1"
FEW = f"{ROUND} federation.num_clients=10"
A_RUN = f"murmur strategy=votes {FEW}"
MEASURES = "measures, for minutes to hours"
INSTALLS = "installs, or runs all tests"
DEVICES = "needs devices: tests/deploy/test_from_nothing.py starts them"
GUARDED = "needs devices: packages/murmur-guard/tests/test_guarded_apps.py has them"
RAY = "needs a cluster: tests/fl_app/engines/test_ray_cluster.py has one"
# Every page with commands in blocks: how they are typed here, or the test that types them. Commands
# in sentences are read, all of them.
TYPED: dict[str, Typed | str] = {
    "CONTRIBUTING.md": Typed(
        own={"strategy=x": "strategy=fedavg"},
        smaller={"murmur strategy=x engine": FEW},
        read={"make": INSTALLS, ".venv/bin": INSTALLS},
    ),
    "README.md": "packages/tests/test_typed_pages.py",
    "deploy/README.md": "tests/deploy/test_from_nothing.py",
    "docs/any-flower-app.md": Typed(
        read={
            "export": "typed by tests/murmur/flower/test_plain_app.py",
            "python -m plain_app": "typed by tests/murmur/flower/test_plain_app.py",
            "cp": "typed by tests/murmur/flower/test_plain_app.py",
            "git": "typed by tests/murmur/flower/test_plain_app.py",
            "flwr": "typed by tests/murmur/flower/test_plain_app.py",
            "murmur guard": GUARDED,
            "python -m pytest": INSTALLS,
        }
    ),
    "docs/audit.md": Typed(
        first=A_RUN,
        smaller={
            "murmur audit strategy=privatekt": "--runs 300",
            "murmur audit runs/FOLDER": "--minutes 0.2",
            "murmur strategy=dp_fedavg": "engine=inline federation.num_rounds=2",
        },
        own={"runs/FOLDER": "runs/RUN"},
    ),
    "docs/bring-your-own.md": Typed(
        smaller={
            "murmur dataset=table dataset.path=mails.csv": FEW,
            "murmur dataset=table dataset.path=visits.parquet": ROUND,
            "murmur task=regression dataset=table": ROUND,
            "murmur task=multilabel dataset=table": FEW,
        },
    ),
    "docs/data-protection.md": Typed(
        refused=("murmur doctor",), leaves={"runs/trial/privacy.txt": "measured"}
    ),
    "benchmarks/devices.md": Typed(read={"MURMUR_DATA=FOLDER python": MEASURES}),
    "research/dpfl_bnn/README.md": Typed(
        smaller={
            "murmur experiment": FEW,
            "murmur -m": f"{FEW} seed=1",
        },
        read={"python": MEASURES},
    ),
    "docs/dpia.md": Typed(first=A_RUN),
    "docs/engineers.md": Typed(
        read={"python -m examples": "typed by tests/examples/test_examples.py"}
    ),
    "docs/for-owners.md": Typed(
        first=A_RUN,
        own={
            "state/ledger.sqlite": "runs/RUN/ledger.sqlite",
            "policy.yaml": "deploy/policies/votes.yaml",
        },
    ),
    "research/frontier/README.md": Typed(
        smaller={"murmur strategy=dpsgd_fedavg": "strategy.local.epochs=1 features.components=20"},
        read={"python": MEASURES},
    ),
    "research/kd_dpfl/README.md": Typed(
        smaller={
            "murmur experiment": f"{ROUND} strategy.labelling.epochs=1",
            "murmur strategy": FEW,
        },
        read={"murmur experiment=kd_dpfl_svhn": "needs SVHN's files", "python": MEASURES},
    ),
    "research/ldp_evaluation/README.md": Typed(
        smaller={
            "murmur experiment=ldp_evaluation_supervised": ROUND,
            "murmur experiment=ldp_evaluation": f"{FEW} federation.clients_per_round=null",
            "murmur strategy": FEW,
        },
        read={"python": MEASURES},
    ),
    "docs/ledger.md": Typed(
        first=A_RUN,
        own={"PATH": "runs/RUN/ledger.sqlite", "FILE": "deploy/policies/votes.yaml"},
        read={"python verify_ledger.py": "typed by tests/murmur/privacy/ledger/test_export.py"},
        leaves={"FILE.csv": "charge"},
    ),
    "docs/receipts.md": Typed(
        read={
            "murmur verify": "typed by tests/fl_app/tools/test_verify_mine.py",
            "python verify_statement.py": "typed by tests/deploy/test_verify_statement.py",
        },
    ),
    "research/nbafl/README.md": Typed(
        smaller={"murmur strategy": FEW, "murmur experiment": ROUND},
        read={"python": MEASURES},
    ),
    "docs/models.md": Typed(
        smaller={
            "murmur --config-dir mine": FEW,
            "murmur experiment=digits_pretrained": f"{FEW} model.weights=null",
            "murmur experiment=digits_lora": f"{FEW} model.base.weights=null",
            "murmur 'evaluation": FEW,
            "murmur --config-dir examples": FEW,
        },
    ),
    "docs/new-algorithm.md": "tests/fl_app/test_wheel.py",
    "benchmarks/performance.md": Typed(
        smaller={"murmur -m": f"{ROUND} compute.precision=fp32"},  # bf16 not on every processor
        read={
            "make": MEASURES,
            "pip": INSTALLS,
            "murmur compute=cuda": "needs a GPU",
            "RAY_ADDRESS": RAY,
        },
    ),
    "research/privatekt/README.md": Typed(
        smaller={"murmur experiment=privatekt": ROUND, "murmur": "engine=inline"},
        read={"python": MEASURES},
    ),
    "docs/protection.md": Typed(smaller={"murmur strategy": ROUND}),
    "docs/report.md": Typed(
        first=A_RUN,
        own={"RUN_OR_SWEEP": "runs/RUN", "FILE": "page.html"},
        leaves={"page.html": "<html"},
    ),
    "docs/researchers.md": Typed(
        leaves={
            "tonight.csv": "epsilon",
            "tonight.tex": "\\begin{table}",
            "tonight/swept.svg": "<svg",
        }
    ),
    "docs/running.md": Typed(
        smaller={"murmur": f"{ROUND} federation.public=5000"},
        read={"flwr": "needs Flower's processes: tests/fl_app/engines/test_flower_run.py has them"},
    ),
    "benchmarks/scaling.md": Typed(
        read={"python": MEASURES, "make": MEASURES, "MURMUR_DATA=FOLDER python": MEASURES}
    ),
    "docs/secure-aggregation.md": Typed(
        smaller={"murmur strategy=dpfl_bnn": ROUND, "murmur": FEW},
    ),
    "docs/start.md": "packages/tests/test_typed_pages.py",
    "docs/sweeps.md": Typed(
        smaller={
            "murmur -m hydra/sweeper": f"{FEW} hydra.sweeper.n_trials=2",
            "murmur -m": FEW,
        },
        read={"RAY_ADDRESS": RAY},
    ),
    "research/attacks/README.md": Typed(read={"python": MEASURES}),
    "research/five_algorithms.md": Typed(smaller={"murmur -m sweep": ROUND}),
    "research/planner/README.md": Typed(read={"python": MEASURES}),
}


# Commands that sentences name, by how they begin (the longest start counts): the test that runs
# such a one, or why none does. All of them are read by their own programs beside that.
IN_SENTENCES = {
    "flwr": "tests/fl_app/engines/test_flower_run.py",
    "flwr supernode unregister": DEVICES,
    "make": INSTALLS,
    "make bench": MEASURES,
    "make demo": "tests/fl_app/test_readme.py",
    "pip": INSTALLS,
    "pip wheel": "tests/fl_app/test_wheel.py",
    "python -P": DEVICES,
    "python -m benchmarks": MEASURES,
    "python -m docs": "tests/docs/test_pages.py",
    "python -m examples": "tests/examples/test_examples.py",
    "python -m research": MEASURES,
    "python -m tests": INSTALLS,
    "murmur": "tests/fl_app/test_cli.py",
    "murmur -m": "tests/fl_app/sweep/test_sweep.py",
    "murmur -m engine=inline experiment=": "tests/fl_app/test_experiments.py",
    "murmur advise": "tests/fl_app/tools/test_planner.py",
    "murmur advise rounds": "tests/fl_app/tools/test_advise_rounds.py",
    "murmur audit": "packages/murmur-report/tests/test_audit.py",
    "murmur completion": "tests/fl_app/test_cli.py",
    "murmur device": DEVICES,
    "murmur doctor": "tests/fl_app/tools/test_doctor.py",
    "murmur doctor guard": "packages/murmur-guard/tests/test_doctor.py",
    "murmur engine=deploy": DEVICES,
    "murmur engine=inline experiment=": "tests/fl_app/test_experiments.py",
    "murmur enrol": "tests/fl_app/tools/test_enrol.py",
    "murmur experiment=": "tests/fl_app/test_experiments.py",
    "murmur experiments": "tests/fl_app/tools/test_experiments.py",
    "murmur export": "tests/deploy/test_from_nothing.py",
    "murmur guard": "packages/murmur-guard/tests/test_guarded_apps.py",
    "murmur ledger": "tests/fl_app/tools/test_ledger.py",
    "murmur onnx": "tests/fl_app/tools/test_model_tools.py",
    "murmur predict": "tests/fl_app/tools/test_model_tools.py",
    "murmur report": "packages/murmur-report/tests/test_report.py",
    "murmur rerun": "tests/fl_app/tools/test_model_tools.py",
    "murmur resume": "tests/fl_app/tools/test_resume.py",
    "murmur statement": "tests/fl_app/tools/test_statement.py",
    "murmur supernode": "tests/fl_app/tools/test_supernode.py",
    "murmur verify": "tests/fl_app/tools/test_verify_receipts.py",
}


def where(page):
    """Each command of ``page`` and where it is run, or why nowhere; ValueError where nobody says.

    Commands in blocks first, then those in sentences.
    """
    how, found = TYPED.get(page), []
    for words in in_blocks(page):
        text = shlex.join(words)
        place = how
        if isinstance(how, Typed):
            reasons = [why for start, why in how.read.items() if text.startswith(start)]
            place = reasons[0] if reasons else "packages/tests/test_typed_pages.py"
        found.append((text, place))
    for words in in_sentences(page):
        while re.match(r"[A-Z_]+=", words[0]):  # the environment
            words = words[1:]
        text = shlex.join(words)
        starts = [start for start in IN_SENTENCES if f"{text} ".startswith(start)]
        if not starts:
            raise ValueError(f"{page}: {text}: who runs it?")
        found.append((text, IN_SENTENCES[max(starts, key=len)]))
    return found


def way(page, words):
    """Whether a command is only read, and the words behind it otherwise."""
    how, text = TYPED[page], shlex.join(words)
    if any(text.startswith(start) for start in how.read):
        return None
    return next((more for start, more in how.smaller.items() if text.startswith(start)), "")


@pytest.fixture
def place(tmp_path):
    """A folder as a reader of pages would have it: parts of the checkout, and files of his own."""
    for name in ("deploy", "examples"):
        (tmp_path / name).symlink_to(PROJECT / name)
    (tmp_path / "mine").symlink_to(PROJECT / "examples" / "own_classes")
    rng = np.random.default_rng(0)
    kinds = rng.integers(2, size=2000)
    words = np.array([["minutes", "agenda", "room"], ["prize", "offer", "click"]])[kinds]
    mails = pd.DataFrame(
        {"message": [" ".join(rng.choice(row, 5)) for row in words], "kind": kinds}
    )
    mails.to_csv(tmp_path / "mails.csv", index=False)
    columns = {f"x{number}": rng.normal(size=3000) for number in range(8)}
    visits = pd.DataFrame({**columns, "patient": np.arange(3000) % 150})
    visits["ill"] = (visits["x0"] > 0).astype(int)
    for number, label in enumerate(("pain", "fever", "cough")):
        visits[label] = (visits[f"x{number}"] > 0).astype(int)
    visits["days"] = (30 + 10 * visits["x0"]).clip(0, 60)
    visits.to_parquet(tmp_path / "visits.parquet")
    return tmp_path


def newest(folder, word):
    """``word`` with the newest run's name in the place of RUN."""
    runs = sorted(folder.glob("runs/2*"), key=lambda run: run.stat().st_mtime)
    return word.replace("runs/RUN", str(runs[-1])) if runs else word


# Commands beside which a page prints an accuracy: page -> how such a command begins.
PRINTED = {
    "docs/researchers.md": "murmur -m engine=inline sweep=tonight",
    "docs/start.md": "murmur experiment=digits_votes",  # of `make demo`
}


def printed(page):
    """The command of ``page`` that ``PRINTED`` names."""
    every = [*in_blocks(page), *in_sentences(page), ["murmur", *shlex.split(" ".join(demo()))]]
    [found] = [words for words in every if shlex.join(words).startswith(PRINTED[page])]
    return found[1:]


def test_what_is_compared_on_a_page_has_one_promise():
    jobs = expand_sweep(printed("docs/researchers.md")[1:])
    promises = {
        (config.privacy.threat, config.privacy.unit, config.privacy.delta)
        for config in map(compose, jobs)
    }
    assert len(jobs) == 12 and len(promises) == 1


@pytest.mark.long
@pytest.mark.parametrize("page", PRINTED)
def test_a_command_with_a_printed_accuracy_learns_as_the_page_says(page, stranger, tmp_path):
    words = [word for word in printed(page) if word not in DEMO]
    said = stranger(*words, *(["engine=inline"] if "engine=inline" not in words else []))
    settings = group(load_runs(next((tmp_path / "runs").iterdir())).runs).settings
    assert len({setting.promise for setting in settings}) == 1
    labels = digits().test.labels
    guessed = chance(labels)
    text = (PROJECT / page).read_text(encoding="utf-8")
    for setting in settings:
        scores = setting.final_scores("accuracy")
        spread = math.sqrt(guessed * (1 - guessed) / len(labels))
        if len(scores) > 1:
            spread = max(spread, statistics.stdev(scores))
        assert statistics.mean(scores) - guessed > 3 * spread, setting.label
        if page == "docs/researchers.md":
            name = setting.runs[0].config["strategy"]["name"]
            row = rf"{name} .* {setting.values['privacy.epsilon']} "
            [there] = re.findall(rf"│ {row}.* seeds │ ([\d.]+) [±\[]", text)
            assert float(there) == pytest.approx(statistics.mean(scores), abs=0.1)
    if page == "docs/researchers.md":
        assert len(tables(said)) == 1


@pytest.mark.parametrize("page", [page for page, how in TYPED.items() if isinstance(how, Typed)])
def test_a_page_typed_by_a_stranger(page, stranger, place, data_root):
    how = TYPED[page]
    typed = [*([shlex.split(how.first)] if how.first else []), *in_blocks(page)]
    for words in typed:
        more = way(page, words)
        if more is None:
            continue
        own = [newest(place, how.own.get(word, word)) for word in (*words, *shlex.split(more))]
        is_refused = shlex.join(words).startswith(how.refused) if how.refused else False
        said = stranger(*own[1:], status=int(is_refused))
        if words[1] != "statement":  # its sentences go over several lines
            assert bare(said) == [], words
        if words[1] == "-m":
            found = tables(said)
            assert found and all("against" in heading for heading in found), words
    for name, word in how.leaves.items():
        assert word in (place / name).read_text(encoding="utf-8"), name


def test_every_page_with_commands_is_typed_or_says_why_not():
    assert sorted(TYPED) == [page for page in PAGES if in_blocks(page)]
    for page, how in TYPED.items():
        if isinstance(how, str):
            assert Path(page).name in (PROJECT / how).read_text(encoding="utf-8")
            continue
        commands = [shlex.join(words) for words in in_blocks(page)]
        for start in (*how.smaller, *how.read, *how.refused):
            assert any(command.startswith(start) for command in commands), (page, start)
        for reason in how.read.values():
            for test in re.findall(r"(?:[\w-]+/)*tests/\S+\.py", reason):
                assert (PROJECT / test).exists(), test


@pytest.mark.parametrize("page", PAGES)
def test_each_command_of_a_page_is_run_or_it_is_said_why_not(page):
    for command, place in where(page):
        assert place, command
        for test in re.findall(r"(?:[\w-]+/)*tests/\S+\.py", place):
            assert (PROJECT / test).exists(), (command, test)
    named = [shlex.join(words) for other in PAGES for words in in_sentences(other)]
    for start in IN_SENTENCES:
        assert any(start in command for command in named), start


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_can_be_read(page, place, monkeypatch):
    monkeypatch.chdir(place)
    for words in in_blocks(page) if isinstance(TYPED.get(page), Typed) else []:
        read(words)
    for words in in_sentences(page):
        read(words, whole=words[0] != "murmur")
    for words in settings_in_sentences(page):
        if not any("glob(" in word or "|" in word for word in words):  # of sweeps
            read(["murmur", *words])


def test_a_bare_figure_is_noticed():
    assert bare("accuracy 0.9  ε = 3.75\n") == ["accuracy 0.9  ε = 3.75"]
    assert bare("loss   against a server: ε = 3;\n            against another: ε = ∞\n") == []
