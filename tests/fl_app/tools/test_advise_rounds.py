"""`murmur advise rounds`: tables, optima, constants and their sources, picture, bad settings."""

import pytest

from fl_app.cli import main
from fl_app.tools.advise_rounds import advise

SMALL = [
    "federation.num_clients=10",
    "federation.public=0",
    "federation.num_rounds=20",
    "privacy.epsilon=50",
    "privacy.delta=0.01",
    "strategy.exposures=1",
]


def run(capsys, tmp_path, *words):
    status = main(["advise", "rounds", *SMALL, *words, "--out", str(tmp_path / "advice.png")])
    return status, capsys.readouterr()


def test_it_prints_both_tables_and_the_optima_and_draws_them(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, printed = run(capsys, tmp_path)
    assert status == 0
    advice = advise(SMALL)
    assert f"Best T: {advice.rounds.best} " in printed.out
    assert f"Best K at T=20: {advice.clients.best} " in printed.out
    for words in ("Over rounds T", "Over clients per round K", "best", "yours", "m=143"):
        assert words in printed.out
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")


def test_it_says_where_the_papers_assumption_fails_and_what_it_assumes_instead(capsys, tmp_path):
    _, printed = run(capsys, tmp_path)
    text = " ".join(printed.out.split())
    assert "The paper's assumption fails: λ₂=inf is not below 0" in text
    assert "μ > ρB + ρB²/2 = 1.5" in text
    assert "twice what the bound" in text
    _, printed = run(capsys, tmp_path, "strategy.proximal_mu=4")
    assert "assumption fails" not in printed.out


def test_it_says_that_more_clients_on_the_same_data_do_not_help(capsys, tmp_path):
    _, printed = run(capsys, tmp_path)
    assert "the bound gains nothing" in " ".join(printed.out.split())


def test_optima_are_those_of_the_deciding_curve():
    advice = advise(SMALL)
    over_rounds = [advice.rounds.at(rounds)[0] for rounds in range(1, advice.max_rounds + 1)]
    assert over_rounds.index(min(over_rounds)) + 1 == advice.rounds.best
    over_clients = [advice.clients.at(scheduled)[0] for scheduled in range(1, 11)]
    assert over_clients.index(min(over_clients)) + 1 == advice.clients.best
    assert 1 < advice.rounds.best < advice.max_rounds
    assert 1 < advice.clients.best < 10


def test_noise_is_that_of_the_run_itself():
    setting = advise(SMALL).setting
    noise = setting.noise
    weights = [size / sum(setting.sizes) for size in setting.sizes]
    expected = (
        noise.upload_sigma**2 * sum(w**2 for w in weights) + noise.broadcast_sigma(weights) ** 2
    ) ** 0.5
    assert setting.sigma() == pytest.approx(expected)
    assert setting.sigma(rounds=40) > setting.sigma(rounds=20) > setting.sigma(rounds=3)


def test_every_round_is_exposed_where_the_setting_says_so():
    words = [word for word in SMALL if "exposures" not in word]
    assert advise(words).setting.sigma(rounds=40) > 1.9 * advise(words).setting.sigma(rounds=20)


def test_pilot_estimates_the_constants_and_decides_where_the_bound_fails(capsys, tmp_path):
    status, printed = run(capsys, tmp_path, "--estimate", "3", "--lipschitz", "0.7")
    assert status == 0
    text = " ".join(printed.out.split())
    assert "estimated in 3 rounds" in text
    assert "0.7 │ given" in text
    assert "not a bound" in text
    advice = advise(SMALL, estimate_rounds=3)
    assert list(advice.curves) == ["measured"]
    assert advice.constants.smoothness != 1.0


def test_pilot_constants_go_into_the_bound_where_it_holds():
    advice = advise(SMALL, estimate_rounds=3, given={"proximal_mu": 1000.0})
    assert advice.failure is None
    assert list(advice.curves) == ["bound (paper)", "bound (noise as a vector)", "measured"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["privacy.epsilon=inf"], ["privacy.epsilon=inf", "no noise"]),
        (["strategy.exposures=21"], ["strategy.exposures=21", "1..20"]),
        (["federation.clients_per_round=11"], ["clients_per_round=11", "1..10"]),
        (["--smoothness", "-1"], ["smoothness=-1.0"]),
        (["strategy.nosuch=1"], ["strategy.nosuch=1"]),
        (["--estimate", "-1"], ["estimate=-1", "at least 1"]),
        (["--max-rounds", "0"], ["max_rounds=0", "at least 1"]),
    ],
)
def test_bad_settings_get_one_line_and_status_2(capsys, tmp_path, words, named):
    status, printed = run(capsys, tmp_path, *words)
    assert status == 2
    assert printed.err.startswith("murmur advise: ")
    assert printed.err.count("\n") == 1
    for word in named:
        assert word in printed.err
    assert not (tmp_path / "advice.png").exists()


@pytest.mark.parametrize("strategy", ["local_only", "centralised", "dp_ftrl", "kd_dpfl"])
def test_a_strategy_that_lists_nothing_to_compare_is_refused_by_its_name(capsys, strategy):
    assert main(["advise", "settings", f"strategy={strategy}"]) == 2
    error = capsys.readouterr().err
    assert f"strategy={strategy}: its yaml lists nothing to compare" in error
