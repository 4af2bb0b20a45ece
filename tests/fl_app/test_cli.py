"""The `murmur` command as a user meets it: results, one clear error, exit status, no leftovers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fl_app.console
from fl_app.cli import TOOLS, main
from fl_app.config.compose import compose
from fl_app.run.validated import ValidatedRun
from fl_app.tools import doctor
from fl_app.tools.doctor import FAIL, Check

MURMUR = str(Path(sys.executable).parent / "murmur")
SMALL = [
    "engine=inline",
    "strategy=privatekt",  # where a test chooses no other
    "federation.num_clients=4",
    "federation.num_rounds=2",
    "strategy.local.epochs=1",
]


def card_of(said):
    """The lines of the card that ``said`` ends with, by label."""
    lines = said[said.index("Result  ") :].splitlines()
    labels = [line[:13].strip() for line in lines]
    found = {}
    for label, line in zip(labels, lines, strict=True):
        found.setdefault(label or list(found)[-1], []).append(line[13:])
    return found


def test_a_run_ends_with_a_card_and_two_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["strategy=privatekt", "privacy.epsilon=8", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "round 2/2  accuracy" in said
    assert said.startswith("data: digits; training 1,077, pool 360, validation 0, test 360; ")
    assert said.splitlines()[1].startswith("budget: ε = 8 at δ = 1e-05 for the whole run")
    assert "so far against a server that reads every message" in said
    card = card_of(said)
    assert list(card) == ["Result", "Protected", "Promise", "Model", "Next"]
    assert re.match(r"accuracy 0\.\d+ after 2 rounds", card["Result"][0])
    assert " ".join(card["Promise"]) == (
        "ε = 8 against a server that reads every message: can turn a 50:50 guess about a client "
        "into practical certainty, but for a chance of 0.00001"
    )
    assert (tmp_path / card["Model"][0]).exists()
    typed = [line.split()[1:] for line in card["Next"]]
    assert [words[0] for words in typed] == ["report", "statement"]
    assert main(typed[1]) == 0  # what it says comes next can be typed
    assert "Privacy statement: PrivateKT" in capsys.readouterr().out


def test_a_card_has_one_promise_what_it_rests_on_and_what_is_left_without(tmp_path, capsys):
    sums = ["experiment=digits_votes", "federation.num_rounds=1", "federation.num_clients=12"]
    sums += ["privacy.secure_aggregation=simulated", f"run_dir={tmp_path / 'sums'}"]
    assert main(["engine=inline", *sums]) == 0
    said = capsys.readouterr().out
    card = {label: " ".join(lines) for label, lines in card_of(said).items()}
    assert re.match(r"ε = [\d.]+ against a server that sees only sums: can turn", card["Promise"])
    assert re.search(r"at least \d+ of the \d+ clients of every sum are honest", card["Holds if"])
    left = re.match(r"ε = ([\d.]+) against a server that reads every message", card["If it fails"])
    assert float(left[1]) > 8
    assert "Claimed" not in card and "nothing" not in card["Protected"]
    plain = ["strategy=fedavg", "federation.num_rounds=1", f"run_dir={tmp_path / 'plain'}"]
    assert main(["engine=inline", *plain]) == 0
    card = {label: " ".join(lines) for label, lines in card_of(capsys.readouterr().out).items()}
    assert card["Protected"] == "nothing"
    assert "none against a server that reads every message (ε is infinite)" in card["Promise"]
    assert "Holds if" not in card and "If it fails" not in card


@pytest.fixture
def refuse(tmp_path, monkeypatch, capsys):
    """Call `murmur` in this process; its one line of error. Nothing may be left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MURMUR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["murmur"])

    def call(*words):
        assert main(words) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        assert not (tmp_path / "runs").is_dir()
        return lines[0]

    return call


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["strategy=privatkt"], ["strategy=privatkt", "did you mean privatekt"]),
        (["privacy.epsilon=-3"], ["privacy.epsilon=-3", "above 0"]),
        (["privacy.epsilon=0"], ["privacy.epsilon=0", "above 0"]),
        (["strategy=votes", "strategy.K=400"], ["strategy.K=400", "1..360"]),
        (["federation.num_clients=5000"], ["num_clients=5000", "1077"]),
        (["federation.public=1437"], ["federation.public=1437", "1437 examples"]),
        (
            ["dataset=mnist", "dataset.root=/no/such/folder", "dataset.download=false"],
            ["/no/such/folder", "dataset.root"],
        ),
        (["strategy=fedavg", "privacy.epsilon=3"], ["epsilon=3", "privacy=none"]),
        (["privacy.epsilonn=3"], ["privacy.epsilonn=3", "privacy.epsilon"]),
        (["federation.num_rounds=ten"], ["federation.num_rounds=ten", "int"]),
        (["model.hidden=[-4]"], ["model.hidden=[-4]"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_gets_one_error_and_leaves_nothing(refuse, words, named):
    error = refuse("engine=inline", *words)
    for word in named:
        assert word in error


def test_corrupt_archive_is_named(tmp_path, refuse):
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{name}-ubyte.gz").write_bytes(b"not an archive")
    words = ["engine=inline", "dataset=mnist", "dataset.root=data", "dataset.download=false"]
    assert "ubyte.gz" in refuse(*words)


def test_unwritable_results_folder_is_named(tmp_path, refuse):
    (tmp_path / "runs").write_text("a file in the way")
    assert "results_dir" in refuse(*SMALL)


def test_error_ends_the_command_with_status_2(tmp_path):
    command = [MURMUR, "engine=inline", "privacy.epsilon=-3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "privacy.epsilon=-3" in done.stderr


def test_debug_runs_two_rounds_in_process_and_prints_clients_tracebacks(tmp_path):
    (tmp_path / "break.py").write_text(
        "import sys\nfrom clients.fedavg import FedAvgClient\nfrom fl_app.cli import main\n"
        "def train(self, task, data): raise ZeroDivisionError('broken on purpose')\n"
        "FedAvgClient.train = train\nsys.exit(main())\n"
    )
    words = ["strategy=fedavg", "privacy=none", "debug=default", "federation.num_clients=4"]
    command = [sys.executable, str(tmp_path / "break.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert 'break.py", line 4, in train' in done.stderr
    assert "broken on purpose" in done.stderr
    assert len(list((tmp_path / "runs").glob("*/rounds.jsonl"))) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reprot", "x"], "murmur: reprot: is no tool; did you mean report"),
        (["--verison"], "murmur: --verison: is no option; did you mean --version"),
        (
            ["strategy=fedavg", "privacy=none", "strategy.local.learning_rate=0"],
            "murmur: strategy.local.learning_rate=0: must be finite and above 0",
        ),
        (["strategy=fedavg", "strategy.local.epochs=-1"], "murmur: strategy.local.epochs=-1: must"),
        (["strategy=privatekt", "privacy.epsilon=0"], "murmur: privacy.epsilon=0: must be above 0"),
        (["privacy.epsilon=1,"], "murmur: privacy.epsilon=1,: cannot be read; write key=value"),
        (["-m", "seed=1,,2"], "murmur: seed=1,,2: cannot be read; write key=value"),
        (["-cn", "mine"], "murmur: -cn: Murmur has one configuration; choose among its files"),
        (["--cfg", "jobs"], "murmur: argument --cfg/-c: invalid choice: 'jobs'"),
        (["run_name=a/b"], "murmur: run_name=a/b: must be a name of letters"),
    ],
)
def test_errors_name_the_key_or_the_tool_as_a_user_types_it(words, said, capsys):
    engine = ["engine=inline"] if "=" in words[0] else []
    assert main([*words, *engine]) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy", "votes"], "strategy votes: write strategy=votes"),
        (["seed", "2"], "seed 2: write seed=2"),
        (["--strategy=votes"], "--strategy=votes: write strategy=votes, without dashes"),
        (["--strategy", "votes"], "--strategy: write strategy=votes, without dashes"),
        (["partition.alpha=0.3"], "type partition=dirichlet partition.alpha=0.3"),
        (["gama=0.2"], "did you mean strategy.gamma=0.2 of strategy=dpfl_bnn?"),
        (["epsilon=3"], "did you mean privacy.epsilon=3?"),
        (["stratgy=votes"], "did you mean strategy=votes?"),
        (
            ["strategy=dp_fedavg", "privacy.threat=local"],
            "type strategy=fedavg privacy=local protection=distributed privacy.threat=local",
        ),
    ],
)
def test_a_slip_is_answered_by_what_was_typed_and_what_was_meant(words, said, capsys):
    assert main(words) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"murmur: {words[0]}") and said in line and line.count("\n") == 1
    meant = re.search(r"(?:write|type|did you mean) ([^,?\n]+?)(?: of |, |\?|$)", line.strip())[1]
    of = re.search(r" of (strategy=\w+)\?", line)
    compose([*([of[1], "privacy=none"] if of else []), *meant.split()])  # which can be typed


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("partition", ["partition=dirichlet  ", "# partition=iid"]),
        ("partition=dirichlet", ["alpha: 0.5", "min_size"]),
        ("partition.alpha", ["partition=dirichlet: alpha: 0.5", "partition=virtual: alpha: null"]),
        ("privacy.epsilon", ["privacy=local: epsilon: ", "privacy=none: epsilon: .inf"]),
        ("seed", ["seed: 1 "]),
    ],
)
def test_help_about_a_key_shows_it_and_little_else(word, said, capsys):
    assert main(["--help", word]) == 0
    shown = capsys.readouterr().out
    assert all(each in shown for each in said)
    assert "server_may_set" not in shown and "_target_" not in shown
    assert len(shown.splitlines()) < 30


def test_help_about_no_key_says_what_is_near(capsys):
    assert main(["--help", "partion"]) == 2
    assert "did you mean partition" in capsys.readouterr().err


def test_help_is_tools_and_groups_on_two_screens(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) < 60
    assert "[votes]" in shown and "num_clients" not in shown


def test_a_hint_names_ten_keys_at_most(capsys):
    assert main(["xyzzyq=0.2"]) == 2
    hint = capsys.readouterr().err.partition("nearest are ")[2].partition(";")[0]
    assert len(hint.split(", ")) == 10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cfg", "job", "seed=7"], "seed: 7"),
        (["--cfg", "job", "-p", "federation"], "num_clients: 40"),
        (["--info", "defaults-tree"], "Defaults Tree"),
        (["--hydra-help"], "== Flags =="),
    ],
)
def test_hydras_options_show_what_they_do_in_any_application(tmp_path, words, said):
    done = subprocess.run([MURMUR, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    assert said in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["ward-3", "7", "007", "1e5", "true"])
def test_the_name_of_a_run_names_its_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, f"run_name={name}"]) == 0
    assert json.loads((tmp_path / "runs" / name / "metrics.json").read_text())["rounds"]


@pytest.mark.parametrize("name", ["0", "1_000", "null"])
def test_a_folder_with_the_name_of_a_number_holds_a_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, f"run_dir={'./' if name == 'null' else ''}{name}"]) == 0
    lines = (tmp_path / name / "rounds.jsonl").read_text().splitlines()
    assert not any(json.loads(line)["failed"] for line in lines)


def test_tables_are_not_cut_where_they_are_piped(capsys):
    assert main(["experiments"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) > 80 and not any("…" in line for line in lines[3:])
    assert fl_app.console.take_option(["a", "--wide"]) == ["a"]
    assert fl_app.console.console().width > 1000
    fl_app.console.take_option([])


def test_square_brackets_and_colons_of_a_users_values_are_shown(capsys):
    from rich.table import Table

    table = Table("[bold]head", title="[title]")
    table.add_row("[8]", "[red]mine[/]", ":smile:")
    console = fl_app.console.console()
    console.print(table)
    console.print("results: [runs]/a")
    said = capsys.readouterr().out
    for text in ("[bold]head", "[title]", "[8]", "[red]mine[/]", ":smile:", "results: [runs]/a"):
        assert text in said


def test_a_check_whose_words_have_brackets_is_shown(capsys):
    doctor.show([Check("data=[/mine]", FAIL, "[b]", "see [docs]")])
    said = capsys.readouterr().out
    assert all(text in said for text in ("data=[/mine]", FAIL, "[b]", "see [docs]"))


ASCII = [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


@pytest.mark.parametrize("terminal", ASCII)
def test_a_terminal_without_utf8_shows_what_it_can(tmp_path, terminal):
    words = ["strategy=local_only", "engine=inline", "federation.num_clients=2"]
    words += ["federation.num_rounds=1", f"run_dir={tmp_path / 'run'}"]
    plain = {name: value for name, value in os.environ.items() if name != "LC_ALL"}
    done = subprocess.run(
        [sys.executable, "-m", "fl_app", *words], env=plain | terminal, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert b"none against a server that reads every message (? is infinite)" in done.stdout
    assert not done.stderr


@pytest.mark.parametrize("strategy", ["nbafl", "fedavg"])
def test_the_default_settings_do_not_warn_about_themselves(strategy):
    assert ValidatedRun(compose([f"strategy={strategy}"])).strategy.warnings() == []


def test_help_lists_every_tool_and_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == main(["--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"murmur {fl_app.version()}\n")
    assert all(f"\nmurmur {tool:<12} {what}" in said for tool, what in TOOLS.items())


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_has_its_help(tool, capsys):
    with pytest.raises(SystemExit) as end:
        main([tool, "--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0 and said.startswith(f"usage: murmur {tool}")
    assert "``" not in said


def test_bash_completes_tools_choices_and_keys(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "murmur.sh"
    script.write_text(capsys.readouterr().out)
    ask = 'source "$1"; COMP_LINE="murmur $2"; COMP_POINT=${#COMP_LINE}; _murmur; '
    ask += 'echo "${COMPREPLY[@]}"'
    for typed, offered in (("pre", "predict"), ("strategy=dp_fe", "dp_fedavg"), ("see", "seed=")):
        said = subprocess.run(
            ["bash", "-c", ask, "bash", str(script), typed], capture_output=True, text=True
        )
        assert said.stdout.split() == [offered], said
