"""``python -m research.kd_dpfl.budget``: the plan, its table, refusals, without touching data."""

import math
import re

import pytest

from research.kd_dpfl.budget import main, plan_lines, proven_total, scheme_of

NEEDS = [
    "privacy.epsilon=8",
    "federation.num_rounds=30",
    "federation.public=5000",
    "strategy.spending.general_epsilon=3",
    "--sizes",
    "5x6000,40x500",
    "--classes",
    "10",
]


def planned(*words):
    return scheme_of([*NEEDS, *words])


def test_the_specification_s_example():
    scheme = planned()
    lines = plan_lines(scheme)
    shown = [(line.who, line.clients, line.epsilon) for line in lines]
    assert shown == [("large", 5, "3.5"), ("large", 5, "4.5"), ("general", 40, "3")]
    words = [line.mechanism for line in lines]
    for word, golden in zip(words, ("1.362, 480", "1.428, 600", "2.585, 300"), strict=True):
        assert f"noise multiplier {golden} steps" in word
    assert list(scheme.plan.large) == [0, 1, 2, 3, 4]
    assert 4.5 < proven_total(scheme) < 8


def test_tight_mode_gives_all_to_the_labels_and_says_why():
    scheme = planned("strategy.spending.mode=tight", "strategy.spending.general_epsilon=null")
    lines = plan_lines(scheme)
    assert [line.epsilon for line in lines] == ["8", "0", "8"]
    assert "post-processing" in lines[1].why
    assert proven_total(scheme) == pytest.approx(8, rel=1e-4)


def test_joining_clients_have_a_line_of_their_own():
    scheme = planned("strategy.spending.joining=true", "strategy.spending.general_epsilon=2")
    assert [(line.who, line.through) for line in plan_lines(scheme)][2:] == [
        ("large", "own uploads"),
        ("general", "own uploads"),
    ]


def test_clients_of_other_sizes_or_budgets_have_other_lines():
    needs = ["privacy.epsilon=8", "federation.public=100", "--classes", "3"]
    needs += ["strategy.spending.general_epsilon=[1,1,2]", "--sizes", "600,50,50,60"]
    lines = plan_lines(scheme_of(needs))
    assert [(line.clients, line.epsilon) for line in lines] == [
        (1, "5"),
        (1, "3"),
        (2, "1"),
        (1, "2"),
    ]


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [("pate", "PATE, gaussian noise of"), ("rr", "randomised response at")],
)
def test_other_mechanisms_say_their_noise(mechanism, words):
    scheme = planned(f"strategy.labelling.mechanism={mechanism}", "strategy.labelling.queries=100")
    assert plan_lines(scheme)[0].mechanism.startswith(words)


def test_without_protection_nothing_has_a_price():
    scheme = planned(
        "privacy.epsilon=inf",
        "strategy.labelling.mechanism=none",
        "strategy.spending.general_epsilon=null",
    )
    assert proven_total(scheme) == math.inf
    assert {line.epsilon for line in plan_lines(scheme)} == {"∞"}


def test_the_table_is_for_people(capsys):
    main(NEEDS)
    output = capsys.readouterr().out
    for word in (
        "whose records",
        "pseudo-labels",
        "max(large 8, general 3)",
        "proven for the most",
    ):
        assert word in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["strategy.spending.general_epsilon=6"], "leaves -1 for the labels after the special"),
        (["strategy.spending.general_epsilon=9"], "must lie above 0 and at most the total 8"),
        (["strategy.grouping.factor=100"], "no client is large"),
        (["strategy.spending.joining=true"], "leaves 0.5"),
        (["--sizes", "5y6000"], "write COUNTxSIZE"),
        (["--sizes", "0"], "at least 1"),
        (["strategy.spending.mod=tight"], "strategy.spending.mode"),
    ],
)
def test_what_cannot_be_met_is_refused_with_the_term_that_binds(words, message):
    if message == "leaves 0.5":
        words = [*words, "strategy.spending.general_epsilon=3"]
        main([*NEEDS, *words])  # 8 − 4.5 − 3 is just enough
        words = [*words, "privacy.epsilon=7.5"]
        message = "leaves 0 for the labels after the special client's 4.5 and 3 for joining"
    with pytest.raises(SystemExit, match=re.escape(message)):
        main([*NEEDS, *words])


def test_other_strategies_have_no_budget_to_plan():
    with pytest.raises(SystemExit, match="strategy=privatekt: only kd_dpfl"):
        main(["strategy=privatekt", "--sizes", "5x6000"])
