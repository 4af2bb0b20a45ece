"""`murmur advise settings`: candidates, leads, how many clients are needed; questions."""

import io

import pytest
from rich.console import Console

import fl_app.console
from fl_app.cli import main
from fl_app.tools import advise
from murmur.algorithms.privatekt.answers import LabelQuery, Votes
from murmur.privacy.budget import Budget

WORDS = ["strategy=class_statistics", "federation.public=720", "features.components=30"]


@pytest.mark.parametrize(
    ("clients", "labels", "epsilon", "expected"),
    [(60, 32, 8, 4.909), (500, 240, 8, 14.936), (60, 32, 4, 2.725)],
)
def test_lead_of_votes_is_that_of_the_closed_form(clients, labels, epsilon, expected):
    budget = Budget(epsilon, 1e-5, threat="secure_aggregation", honest_clients=clients)
    votes = Votes(LabelQuery(budget, labels, 10))
    assert votes.margin_in_sigmas(clients, 0.6) == pytest.approx(expected, rel=2e-3)


def test_it_compares_the_candidates_and_names_the_best_as_a_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status = main(
        [
            "advise",
            "settings",
            *WORDS,
            "--clients",
            "40",
            "--epsilon",
            "20",
            "--pilots",
            "1",
            "--at-least",
            "0",
        ]
    )
    printed = capsys.readouterr().out
    assert status == 0
    assert "In pilots of 40 clients" in printed
    assert "No client's data were used" in printed
    assert "expected accuracy 0." in printed
    assert "federation.num_clients=40 seed=1 privacy.epsilon=20" in printed
    assert "needs about" not in printed


def test_where_it_cannot_work_it_says_how_many_clients_would_do(capsys, monkeypatch):
    # Pilots stand in: twice the clients, and twice again, learn more.
    def reached(words):
        clients = next(int(w.split("=")[1]) for w in words if w.startswith("federation.num_cl"))
        return 0.9 if "privacy.epsilon=inf" in words else clients / 200

    monkeypatch.setattr(advise, "accuracy", reached)
    status = main(
        ["advise", "settings", *WORDS, "--clients", "40", "--epsilon", "0.5", "--examples", "12"]
    )
    assert status == 0
    assert "does not reach 0.810 at a total epsilon of 0.5: needs about 320 clients" in (
        capsys.readouterr().out
    )


def test_what_the_user_says_is_not_overridden():
    request = advise.Request(("strategy=privatekt", "privacy.threat=local"), 10, 5, 1.0)
    words = request.overrides(["strategy.K=2", "privacy.threat=secure_aggregation"])
    assert "privacy.threat=secure_aggregation" not in words
    assert "strategy.K=2" in words


@pytest.mark.parametrize("epsilon", [0.1234567, 8.0, float("inf")])
def test_the_command_spends_what_was_asked_for_and_no_more(epsilon):
    [word] = advise.Request((), 10, 5, epsilon).overrides([])[-1:]
    assert float(word.removeprefix("privacy.epsilon=")) == epsilon and ".0" not in word


def test_the_questions_are_listed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["advise", "--help"])
    printed = capsys.readouterr().out
    for question in ("settings", "rounds"):
        assert f"\n{question} " in printed


@pytest.mark.parametrize("word", ["strategy=votes", "setting"])
def test_what_is_no_question_is_refused_with_those_that_are(capsys, word):
    assert main(["advise", word, "--clients", "40"]) == 2
    error = capsys.readouterr().err
    assert f"{word}: is no question" in error and "settings" in error


def test_a_strategy_that_lists_nothing_is_refused(capsys):
    assert (
        main(["advise", "settings", "strategy=kd_dpfl", "--clients", "40", "--epsilon", "1"]) == 2
    )
    assert "strategy=kd_dpfl" in capsys.readouterr().err


def test_pilots_have_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr(advise, "_facts", lambda request, candidate: {})
    monkeypatch.setattr(advise.Request, "accuracies", lambda request, candidate: [0.5])
    said = io.StringIO()
    shown = Console(file=said, force_terminal=True)
    monkeypatch.setattr(fl_app.console, "console", lambda: shown)
    request = advise.Request(tuple(WORDS), 10, 5, 1.0)
    found = list(advise._watched(request))
    assert len(found) == len(advise.candidates(WORDS))
    assert "pilots of each candidate" in said.getvalue()
