"""What is said of a run before it starts and when it is over."""

import re
import subprocess
import sys

import numpy as np
import pytest

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups
from fl_app.engines.inline import InlineEngine
from fl_app.run import prepare
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.learning.metrics import chance
from murmur.privacy.budget import THREATS, Budget
from research.every_strategy.candidates import typed
from strategies.forecast import GAIN


def experiment(*words):
    return ValidatedRun(compose(list(words)))


def expected(*words):
    """What a run's line says of its score; None: there is no such line."""
    lines = prepare.opening_lines(experiment(*words))
    return next((line for line in lines if line.startswith("expected: ")), None)


def test_the_first_line_says_the_budget_its_unit_and_its_threat():
    first = prepare.opening_lines(experiment("strategy=votes", "privacy.epsilon=4"))[0]
    assert first == (
        "budget: ε = 4 at δ = 1e-05 for the whole run and everything that one client holds, "
        "against a server that sees only sums (secure_aggregation)"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy=fedavg"], "budget: none (privacy.epsilon=inf)"),
        (["strategy=privatekt", "privacy=paper"], "budget: ε = 8 as the paper counts it"),
        (["strategy=nbafl", "privacy.unit=record"], "and one record of one client"),
    ],
)
def test_other_budgets_are_not_mistaken_for_it(words, said):
    assert said in prepare.opening_lines(experiment(*words))[0]


def test_where_noise_drowns_what_clients_say_the_run_says_so_and_what_would_help():
    line = expected("strategy=nbafl")
    assert re.match(r"expected: signal-to-noise ratio 0\.\d+; expect no better than chance", line)
    assert "clients instead of 40, fewer rounds than 60" in line
    assert "strategy=class_statistics" in line and "murmur advise settings strategy=nbafl" in line


def test_votes_about_a_class_add_up_however_many_images_they_are_spread_over():
    few, many = (
        experiment("strategy=votes", "federation.num_clients=20", f"strategy.K={count}").strategy
        for count in (40, 160)
    )
    assert many.forecast().ratio == pytest.approx(few.forecast().ratio, rel=1e-3)
    one_by_one = experiment(
        *("strategy=votes", "federation.num_clients=20", "strategy.K=160"),
        *("strategy.learner=sgd", "strategy.spreading=null"),
    ).strategy
    assert one_by_one.forecast().ratio == pytest.approx(many.forecast().ratio / 4)


def expected_accuracy(line):
    """The accuracy that a line expects."""
    return float(re.search(r"expect about ([\d.]+) \(without noise", line)[1])


@pytest.mark.parametrize(("clients", "suffice"), [(20, True), (8, False)])
def test_votes_of_twenty_clients_suffice_and_of_eight_do_not(clients, suffice):
    words = ["strategy=votes", "privacy.epsilon=8", f"federation.num_clients={clients}"]
    line = expected(*words)
    assert (expected_accuracy(line) > 0.85) == suffice and ("what would help" in line) != suffice


@pytest.mark.parametrize(
    ("clients", "epsilon", "least", "most"), [(40, 8, 0.85, 0.95), (40, 2, 0.4, 0.7)]
)
def test_class_statistics_are_foretold_as_they_come_out(clients, epsilon, least, most):
    words = [f"federation.num_clients={clients}", f"privacy.epsilon={epsilon}"]
    line = expected("strategy=class_statistics", *words)
    assert least < expected_accuracy(line) < most


@pytest.mark.parametrize("strategy", ["fedavg", "robust"])
def test_where_every_update_has_the_whole_noise_the_signal_grows_as_a_root(strategy):
    words = [f"strategy={strategy}", "privacy=local", "protection=distributed"]
    words += ["privacy.threat=local", "federation.num_rounds=1"]
    few, many = (
        experiment(*words, f"federation.num_clients={n}").strategy.forecast().ratio
        for n in (10, 40)
    )
    assert many == pytest.approx(2 * few)


def offered():
    """Each strategy against each threat, as one types them."""
    for name in groups()["strategy"]:
        for threat in THREATS:
            yield pytest.param(name, threat, id=f"{name}-{threat}")


@pytest.mark.parametrize(("name", "threat"), offered())
def test_every_strategy_against_every_threat_says_what_to_expect_or_is_refused(name, threat):
    try:
        line = expected(*typed(name, threat))
    except ConfigError as error:
        assert "supports" in str(error) or "type " in str(error) or "set " in str(error)
        return
    assert line is not None
    if "no better than chance" in line:
        assert re.search(r"what would help: |to stand above the noise: |for 0\.9 of it: ", line)
    else:
        assert "expect about" in line or "its own data" in line


def test_personal_models_that_follow_a_noisy_mean_are_not_foretold_what_they_would_learn_alone():
    line = expected("strategy=dpfl_bnn")
    assert "expect no better than chance (0.12); what would help: about" in line
    words = ["strategy=dpfl_bnn", "privacy.epsilon=inf", "strategy.gamma=0.24"]
    assert experiment(*words).strategy.forecast().share > 0.9
    line = expected(*typed("fedper", "secure_aggregation"))
    assert "which is not noised" in line


def test_too_small_a_budget_is_foretold_to_come_to_chance():
    line = expected("strategy=class_statistics", "privacy.epsilon=1")
    assert "expect no better than chance (0.12)" in line


def test_a_forecast_has_ratio_score_score_without_noise_and_chance():
    line = expected("experiment=digits_votes")
    number = r"\d(\.\d+)?"
    assert re.fullmatch(
        rf"expected: signal-to-noise ratio {number}; "
        rf"expect about {number} \(without noise {number}; chance {number}\)",
        line,
    )


def test_what_the_default_run_is_expected_to_reach_it_reaches(tmp_path):
    words = ["privacy.secure_aggregation=simulated"]
    folder = RunFolder(tmp_path / "run")
    InlineEngine().run(ValidatedRun.of([*words, f"run_dir={folder.path}"]))
    assert folder.metrics()["epsilon_assumed"] <= 4
    again = RunFolder(tmp_path / "seeded")  # whose noise falls out the same in every test
    InlineEngine().run(ValidatedRun.of([*words, "privacy.noise=seeded", f"run_dir={again.path}"]))
    labels = experiment().strategy.setup.test.labels
    reached = again.metrics()["accuracy"]
    error = np.sqrt(chance(labels) * (1 - chance(labels)) / len(labels))
    assert reached > chance(labels) + 3 * error
    assert expected_accuracy(expected()) == pytest.approx(reached, abs=0.1)


@pytest.mark.parametrize("threat", THREATS)
def test_every_threat_of_a_budget_has_words(threat):
    line = prepare.budget_line(Budget(4.0, 1e-5, threat=threat))
    assert re.search(rf"against \w.* \({threat}\)$", line)


def test_labels_of_own_images_add_up_over_a_class():
    own = ["strategy.answers=disjoint", "strategy.target=posterior", "federation.num_rounds=1"]
    few, many = (
        experiment("strategy=privatekt", *own, f"federation.num_clients={n}").strategy
        for n in (20, 80)
    )
    assert many.forecast().ratio == pytest.approx(2 * few.forecast().ratio)


def test_what_helps_privatekt_is_named_and_helps():
    line = expected("strategy=privatekt")
    assert "expect no better than chance" in line and "experiment=digits_disjoint" in line
    assert experiment("experiment=digits_disjoint").strategy.forecast().ratio > 1.5


def test_where_it_does_not_nothing_is_asked_for():
    line = expected("strategy=class_statistics", "privacy.epsilon=8")
    assert "expect about 0.9" in line and "what would help" not in line


def test_the_number_of_clients_that_would_do_does():
    words = ["strategy=dp_fedavg", "federation.num_rounds=30"]
    line = expected(*words)
    needed = int(re.search(r"about ([\d,]+) clients", line)[1].replace(",", ""))
    assert needed > 40
    more = experiment(*words, f"federation.num_clients={needed}")
    assert more.strategy.forecast().ratio >= GAIN.aim


def test_a_planner_of_the_strategys_own_goes_before_and_is_said_once():
    lines = prepare.opening_lines(experiment("strategy=class_moments"))
    assert lines[1].startswith("expected: signal-to-noise ratio 0.")
    assert "expect no better than chance" in lines[1] and " owners, or ε = " in lines[1]
    assert not any("owners" in line for line in lines[2:])


@pytest.mark.parametrize("words", [["strategy=fedavg"], ["strategy=robust"]])
def test_without_noise_nothing_is_foretold(words):
    assert expected(*words) is None


REFUSED = """
import sys
from fl_app.cli import main
print(main(sys.argv[1:]), [name for name in {heavy} if name in sys.modules])
"""


def test_data_that_do_not_fit_are_refused_before_anything_slow_is_loaded_or_started(tmp_path):
    images, labels = np.zeros((20, 1, 2, 2), np.float32), np.arange(20) % 2
    np.savez(tmp_path / "few.npz", images=images, labels=labels)
    heavy = ["torch", "flwr", "ray", "scipy.special", "scipy.fft", "Crypto"]
    words = ["dataset=npz", f"dataset.path={tmp_path / 'few.npz'}", "engine=ray"]
    words += [f"run_dir={tmp_path / 'run'}", "federation.public=0", "federation.num_clients=99"]
    done = subprocess.run(
        [sys.executable, "-c", REFUSED.format(heavy=heavy), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "federation.num_clients=99: more clients than" in done.stderr
    assert done.stdout == "2 []\n" and not (tmp_path / "run").exists()
