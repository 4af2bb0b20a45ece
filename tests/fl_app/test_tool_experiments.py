"""`murmur experiments` describes every experiment that there is."""

from fl_app.cli import main
from fl_app.config import CONF, compose
from fl_app.tools.experiments import experiments

PROJECT = CONF.parent


def test_every_experiment_says_figure_time_and_result():
    names = {path.stem for path in (CONF / "experiment").glob("*.yaml")}
    found = experiments()
    assert {about.name for about in found} == names
    for about in found:
        assert len(about.what) > 20
        assert about.figure
        assert about.minutes is None or about.minutes > 0
        assert about.expected


def test_results_that_a_page_holds_name_a_page_that_exists():
    for about in experiments():
        for word in about.expected.replace("(", " ").replace(")", " ").split():
            if word.startswith("docs/"):
                assert (PROJECT / word).exists(), about.name


def test_the_list_names_them_all(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["experiments"]) == 0
    printed = capsys.readouterr().out
    for about in experiments():
        assert about.name in printed


def test_what_is_said_of_an_experiment_is_its_own():
    assert compose(["experiment=nbafl_rounds"]).about.expected.startswith("best near 20")
