"""Tables of a sweep: for spreadsheets, for papers, for pandas; and runs from Python."""

import csv
import re

import pytest

from fl_app.api import results, run
from fl_app.cli import main
from fl_app.config.errors import ConfigError
from fl_app.run.load import load_runs, run_records
from murmur_report.settings import group
from murmur_report.tables import (
    as_csv,
    as_latex,
    as_markdown,
    budget_records,
    epsilon_records,
    setting_records,
)
from tests.run_folders import write_run


@pytest.fixture
def sweep(tmp_path):
    for epsilon in (1, 5):
        for seed in (1, 2, 3):
            words = [f"privacy.epsilon={epsilon}", f"seed={seed}", "strategy=fedavg"]
            write_run(tmp_path / f"e{epsilon}s{seed}", *words)
    return tmp_path


def test_settings_have_means_and_intervals_over_seeds(sweep):
    first, second = setting_records(load_runs(sweep))
    assert first["setting"].endswith("=\u00a01") and first["runs"] == second["runs"] == 3
    assert first["accuracy"] == pytest.approx(0.5 + 0.02)  # rounds 2 to 6, seeds 1 to 3
    half = 4.3027 * 0.01 / 3**0.5
    ends = (first["accuracy 95% from"], first["accuracy 95% to"])
    assert ends == pytest.approx((0.52 - half, 0.52 + half), rel=1e-5)


def test_files_for_spreadsheets_and_papers(sweep):
    files = {name: sweep / f"x.{name}" for name in ("csv", "latex", "markdown", "svg")}
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    assert main(["report", str(sweep), *options]) == 0
    rows = list(csv.DictReader(files["csv"].open()))
    assert len(rows) == 6 and {row["seed"] for row in rows} == {"1", "2", "3"}
    assert rows[0]["privacy.epsilon"] == "1"
    latex = files["latex"].read_text()
    assert latex.count("\\\\\n") == 6 and re.search(r"0\.520~\$\\pm\$~0\.025", latex)
    holds = "Everything that one client holds, exchanged for anything else"
    assert re.search(rf"\\caption\{{.* Protected: {holds}, against ", latex)
    marked = files["markdown"].read_text()
    assert (
        "0.520\u00a0±\u00a00.025" in marked
        and "Protected: Everything that one client holds" in marked
    )
    drawn = files["svg"].read_bytes()
    assert drawn.startswith(b"<svg") and b"var(" not in drawn
    assert main(["report", str(sweep), "--svg", str(files["svg"])]) == 0
    assert files["svg"].read_bytes() == drawn


def test_a_table_of_two_promises_has_two_blocks():
    one = {"setting": "a", "promise": "one record", "accuracy": 0.5, "ε": None}
    one |= {"accuracy 95% from": None, "accuracy 95% to": None}
    other = {**one, "setting": "b", "promise": "one client", "bytes up": 81_498_000.0}
    latex = as_latex([one, other])
    across = r"\multicolumn{3}{@{}p{\textwidth}@{}}{\emph{one"
    assert latex.count(across) == 2 and "compare within a block" in latex
    assert r"$8.15 \times 10^{7}$" in latex
    assert "8.15 × 10⁷" in as_markdown([one, other]).replace("\u00a0", " ")
    assert "varepsilon$ &" not in latex  # nobody has a figure in that column
    assert [part.split("\n")[0][-11:] for part in as_markdown([one, other]).split("\n\nMean")] == [
        "one record.",
        "one client.",
    ]


def test_a_frame_of_a_sweep_and_a_run_from_python(sweep, tmp_path):
    frame = results(sweep)
    assert frame.groupby("privacy.epsilon").size().to_dict() == {1: 3, 5: 3}
    words = ["strategy=fedavg", "federation.num_clients=2", "federation.num_rounds=1"]
    done = run([*words, f"run_dir={tmp_path / 'run'}"], progress=False)
    assert (
        done.rows[-1]["accuracy"] == done.metrics["accuracy"] == done.frame()["accuracy"].iloc[-1]
    )
    assert done.statement.algorithm and done.weights()
    with pytest.raises(ConfigError, match="strategy=fedavgg"):
        run(["strategy=fedavgg"])


def test_no_cell_of_a_table_is_a_formula_and_numbers_stay_numbers():
    text = as_csv([{"run": "=HYPERLINK(0)", "+key": "@SUM(A1)", "score": -0.5}])
    assert text == "run,'+key,score\n'=HYPERLINK(0),'@SUM(A1),-0.5\n"


def test_no_name_in_a_table_for_latex_is_a_command():
    latex = as_latex([{"setting": r"a^^5cinput x~\b", "promise": "", "score": 0.5}])
    assert "^^" not in latex and r"\textbackslash b" in latex
    assert r"\textasciicircum \textasciicircum 5cinput x\textasciitilde " in latex


def test_void_figures_are_marked_in_every_table(tmp_path):
    write_run(tmp_path / "a", void="noise was seeded")
    source = load_runs(tmp_path)
    assert "privacy void" in as_latex(setting_records(source))
    assert "privacy void" in as_markdown(setting_records(source))
    assert run_records(source)[0]["void"] == "noise was seeded"
    [record] = setting_records(source)
    [others] = epsilon_records(source)
    assert record["ε"] is others["ε proven"] is others["ε under assumptions"] is None


def test_a_table_says_no_less_than_what_was_spent():
    shown = as_markdown([{"setting": "a", "promise": "", "score": 0.12344, "ε proven": 3.75241}])
    assert "| 0.1234 | 3.76 |" in shown


def test_the_budget_shows_the_most_that_any_repetition_states(tmp_path):
    """Also where the first of them proves most, or has canaries that found less."""
    for seed, honest, found in ((1, 4, 0.1), (2, 3, 0.2)):
        write_run(tmp_path / str(seed), f"seed={seed}", honest=honest, found=found)
    grouping = group(load_runs(tmp_path).runs)
    [setting] = grouping.settings
    [record] = budget_records(grouping)
    assert record["guarantee"].assumed_total == setting.stated
    assert record["guarantee"].proven_total == setting.proven
    assert record["canaries"].at_least == 0.2
