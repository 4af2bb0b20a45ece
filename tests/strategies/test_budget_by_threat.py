"""Every strategy meets its budget against the threat that it is meant for, or refuses to start.

What the statement of a finished run says when every client was asked as often as the schedule asks
it at most, and every sum was over the fewest survivors less the colluders.
"""

from collections import Counter

import pytest

from clients.base import Task, TaskError
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups
from fl_app.config.settings import PrivacySettings
from fl_app.run.hosts import build_client
from fl_app.run.server import planned_epsilon
from fl_app.run.validated import ValidatedRun
from murmur.privacy.accounting.calibrate import discrete_noise_multiplier
from murmur.privacy.events import RandomizedBitsEvent, Unit
from strategies.votes import Votes

EPSILON = 3.0
THREATS = ("local", "secure_aggregation", "central")
# Ten of 20 clients take turns: two rounds each of four; sums of at least 8, one of them colluding.
SMALL = [
    "federation.num_clients=20",
    "federation.clients_per_round=10",
    "federation.num_rounds=4",
    "federation.schedule=rotate",
    f"privacy.epsilon={EPSILON}",
    "privacy.secure_sum.minimum=0.8",
    "privacy.secure_sum.colluders=1",
]
DISTRIBUTED = ["privacy=local", "protection=distributed"]
VOTES = ["features=none", "strategy.K=3"]
GRADIENTS = ["features=none", "federation.public=0"]
CHOICES = {  # of those that can keep a budget: against whom, and the words it takes
    "class_statistics": {
        threat: ["federation.clients_per_round=20", "federation.num_rounds=1"]
        for threat in ("local", "secure_aggregation")
    },
    **{
        name: {
            "local": DISTRIBUTED,
            "secure_aggregation": DISTRIBUTED,
            "central": ["privacy=local", "protection=central"],
        }
        for name in ("fedavg", "fedprox", "fedadam", "fedper", "scaffold", "clustering")
    },
    "class_moments": {
        threat: [*GRADIENTS, "federation.clients_per_round=20", "federation.num_rounds=1"]
        for threat in ("local", "secure_aggregation")
    },
    "gradient_rounds": {
        "local": [*GRADIENTS, "model=centred"],
        "secure_aggregation": [*GRADIENTS, "model=centred"],
        "central": [*GRADIENTS, "protection=central"],
    },
    "robust": {"local": DISTRIBUTED, "central": ["privacy=local", "protection=rows"]},
    "dp_fedavg": {"central": []},
    "dp_ftrl": {"central": []},
    "dpfl_bnn": {"local": [], "secure_aggregation": []},
    "dpsgd_fedavg": {"local": ["strategy.local.lot_size=10"]},
    "kd_dpfl": {
        "local": [
            "federation.public=100",
            "federation.schedule=random",
            "strategy.grouping.top_k=5",
            "strategy.spending.mode=tight",
        ]
    },
    "nbafl": {"local": ["model=mlp"]},
    "privatekt": {"local": []},
    "votes": {"local": VOTES, "secure_aggregation": VOTES},
}


def experiment(name, threat, words):
    sums = ["privacy.secure_aggregation=simulated"] if threat == "secure_aggregation" else []
    # A strategy's own word on rounds and cohorts goes before the small run's.
    own = [word for word in words if word.startswith("federation.")]
    words = [f"strategy={name}", *words, *SMALL, *own, *sums, f"privacy.threat={threat}"]
    return ValidatedRun(compose(words))


def total(strategy, threat):
    """ε of the statement once everybody was asked as often as the schedule ever asks."""
    budget, clients = strategy.setup.budget, range(strategy.setup.num_clients)
    strategy.rounds.participations = Counter(dict.fromkeys(clients, budget.releases))
    if strategy.claims().before is not None:
        strategy.rounds.before = Counter(dict.fromkeys(clients, 1))
        strategy.rounds.participations += strategy.rounds.before
    strategy.rounds.sums.least_survivors = strategy.setup.least_survivors
    if threat == "central":
        strategy.protection.rounds_published = budget.rounds
    if strategy.algorithm == "KD-DPFL":  # large clients label, and all others train in each round
        plan = strategy.plan
        strategy.labelled, strategy.special_rounds = list(plan.label), budget.rounds
        rounds = dict.fromkeys(plan.general, budget.rounds)
        strategy.rounds.participations = Counter(rounds | dict.fromkeys(plan.label, 1))
    guarantees = strategy.rounds.statement().to_dict()["guarantees"]
    found = next(each for each in guarantees if each["threat"] == threat)
    return found["assumed_total"] or found["proven_total"]


@pytest.mark.parametrize(
    ("name", "threat"), [(name, threat) for name, choices in CHOICES.items() for threat in choices]
)
def test_the_statement_of_the_whole_schedule_meets_the_budget_to_half_a_percent(name, threat):
    strategy = experiment(name, threat, CHOICES[name][threat]).strategy
    assert 0.995 * EPSILON < total(strategy, threat) <= EPSILON
    assert planned_epsilon(strategy) == pytest.approx(total(strategy, threat), rel=5e-3)
    assert strategy.unit is Unit.CLIENT


@pytest.mark.parametrize(
    ("name", "threat"),
    [
        *((name, "local") for name in ("class_moments", "dpsgd_fedavg", "kd_dpfl", "nbafl")),
        ("class_moments", "secure_aggregation"),
    ],
)
def test_a_records_budget_is_met_as_well(name, threat):
    words = [*CHOICES[name][threat], "privacy.unit=record"]
    strategy = experiment(name, threat, words).strategy
    assert 0.99 * EPSILON < total(strategy, threat) <= EPSILON
    assert strategy.unit is Unit.RECORD


@pytest.mark.parametrize("name", ["privatekt", "votes", "class_statistics", "dp_fedavg"])
def test_a_strategy_that_protects_clients_refuses_a_records_budget(name):
    threat = next(iter(CHOICES[name]))
    with pytest.raises(ConfigError, match=r"unit=record: .* protects a client; set privacy.unit"):
        experiment(name, threat, [*CHOICES[name][threat], "privacy.unit=record"])


def test_a_clients_noise_in_dp_sgd_is_that_of_all_its_records():
    words = CHOICES["dpsgd_fedavg"]["local"]
    client = experiment("dpsgd_fedavg", "local", words).strategy
    size = client.sizes[0]
    mechanism = client.schedule.mechanism(EPSILON, 1e-5, size)
    steps = client.schedule.rounds * client.schedule.steps(size)
    alone = discrete_noise_multiplier(EPSILON, 1e-5, steps)
    assert mechanism.noise_multiplier == pytest.approx(size * alone)


@pytest.mark.parametrize("name", ["votes", "class_statistics", "gradient_rounds", "dp_fedavg"])
def test_without_a_papers_budget_there_is_none(name):
    threat = next(iter(CHOICES[name]))
    with pytest.raises(ConfigError, match=r"paper=true: .* has no paper with a budget"):
        experiment(name, threat, [*CHOICES[name][threat], "privacy=paper"])


@pytest.mark.parametrize("name", groups()["strategy"])
def test_a_threat_that_nobody_set_is_the_strategys_own(name):
    config = compose([f"strategy={name}"])
    assert config.privacy.threat in ("local", "secure_aggregation", "central")
    assert compose([f"strategy={name}", "privacy.threat=null"]) == config
    assert ValidatedRun(config).privacy.unit == "client"


@pytest.mark.parametrize(("clients", "fits"), [(10_000, True), (10_001, False)])
def test_delta_is_at_most_a_tenth_of_one_in_the_units(clients, fits):
    settings = PrivacySettings(8.0, 1e-5, "os", None)
    if fits:
        return settings.require_delta(clients)
    with pytest.raises(ValueError, match=r"delta=1e-05: must be at most 1e-05, a tenth of one in"):
        settings.require_delta(clients)


def test_a_strategy_that_spends_more_than_its_budget_does_not_start(monkeypatch):
    monkeypatch.setattr(Votes, "release_event", lambda self: RandomizedBitsEvent(0.4, 4810, 4810))
    with pytest.raises(ConfigError, match=r"privacy.epsilon=3: .* would spend .* of a client"):
        experiment("votes", "local", CHOICES["votes"]["local"])


@pytest.mark.parametrize(
    ("name", "threat"),
    [
        (name, threat)
        for name in groups()["strategy"]
        for threat in THREATS
        if threat not in CHOICES.get(name, {})
    ],
)
def test_a_budget_that_it_cannot_keep_against_a_threat_is_refused(name, threat):
    words = next(iter(CHOICES.get(name, {"": []}).values()))
    if name in ("centralised", "local_only"):
        words = ["privacy=local"]
    with pytest.raises(ConfigError, match=r"threat=|without protection no finite budget"):
        experiment(name, threat, words)


NBAFL = ("privacy.sensitivity=worst", "privacy=paper privacy.calibration=proven")


@pytest.mark.parametrize("sensitivity", NBAFL)
def test_nbafl_meets_it_with_noise_on_whole_models_too(sensitivity):
    strategy = experiment("nbafl", "local", ["model=mlp", *sensitivity.split()]).strategy
    assert 0.995 * EPSILON < total(strategy, "local") <= EPSILON
    assert strategy.warnings() == []


def test_nbafl_says_where_its_budget_is_for_an_outsider_who_sees_fewer_uploads():
    few = ["strategy.exposures=1", "federation.num_rounds=8"]
    words = ["model=mlp", "privacy=paper", "privacy.sensitivity=worst", *few]
    strategy = experiment("nbafl", "local", words).strategy
    assert total(strategy, "local") > EPSILON
    assert "exposures=1: privacy.epsilon is kept against" in strategy.warnings()[0]


@pytest.mark.parametrize("mechanism", ["rr", "pate"])
def test_kd_dpfl_meets_it_by_every_way_to_label(mechanism):
    words = [*CHOICES["kd_dpfl"]["local"], f"strategy.labelling.mechanism={mechanism}"]
    few = ["strategy.labelling.teachers=3", "strategy.labelling.allow_few=true"]
    strategy = experiment("kd_dpfl", "local", [*words, *few, "privacy.unit=record"]).strategy
    assert 0.995 * EPSILON < total(strategy, "local") <= EPSILON


def test_kd_dpfls_conservative_arithmetic_stays_below_the_budget():
    words = [*CHOICES["kd_dpfl"]["local"], "strategy.spending.mode=conservative"]
    assert total(experiment("kd_dpfl", "local", words).strategy, "local") < 0.9 * EPSILON


def test_kd_dpfl_refuses_a_schedule_that_it_does_not_follow():
    words = [*CHOICES["kd_dpfl"]["local"], "federation.schedule=rotate"]
    with pytest.raises(ConfigError, match="schedule=rotate: KD-DPFL draws"):
        experiment("kd_dpfl", "local", words)


@pytest.mark.parametrize(
    "name", ["fedavg", "gradient_rounds", "dpfl_bnn", "dpsgd_fedavg", "nbafl", "privatekt"]
)
def test_clients_refuse_rounds_for_which_their_budget_was_not_shared_out(name, tmp_path):
    it = experiment(name, "local", CHOICES[name]["local"])
    client = build_client(it.config, it.population, it.trainer, tmp_path)
    away = next(c for c in range(20) if not it.strategy.setup.cohorts.includes(c, 1))
    with pytest.raises(TaskError, match="is not in its cohort"):
        client.event(Task(1, away, it.strategy.setup.initial_parameters(), {}, {}))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dpsgd_fedavg", []),
        ("kd_dpfl", []),
        ("nbafl", []),
        ("privatekt", ["strategy.answers=paper"]),
        ("privatekt", ["strategy.answers=disjoint", "strategy.target=posterior"]),
    ],
)
def test_a_client_keeps_no_budget_against_sums_that_do_not_hide_its_release(name, more, tmp_path):
    words = CHOICES[name]["local"]
    it = experiment(name, "local", words)
    words = [f"strategy={name}", *words, *SMALL, *more, "privacy.threat=secure_aggregation"]
    with pytest.raises(ConfigError, match="threat=secure_aggregation"):
        build_client(compose(words), it.population, it.trainer, tmp_path)
