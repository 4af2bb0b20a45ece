"""Every strategy meets its budget against the threat that it is meant for, or refuses to start.

What the statement of a finished run says when every client was asked as often as the schedule asks
it at most, and every sum was over the fewest survivors less the colluders.
"""

from collections import Counter

import pytest

from fl_app.config.composition import compose, groups
from fl_app.config.errors import ConfigError
from fl_app.run.experiment import Experiment

EPSILON = 3.0
THREATS = ("local", "secure_aggregation", "central")
# Ten of 20 clients take turns: two rounds each of four; sums of at least 8, one of them colluding.
SMALL = [
    "federation.num_clients=20",
    "federation.clients_per_round=10",
    "federation.num_rounds=4",
    "federation.schedule=rotate",
    "privacy.per=run",
    f"privacy.epsilon={EPSILON}",
    "privacy.secure_sum.minimum=0.8",
    "privacy.secure_sum.colluders=1",
]
DISTRIBUTED = ["privacy=local", "protection=distributed"]
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
        for name in ("fedavg", "fedprox", "fedadam", "scaffold", "clustering")
    },
    "dp_fedavg": {"central": []},
    "dp_ftrl": {"central": []},
    "dpfl_bnn": {
        "local": ["privacy=local", "strategy.gamma=null"],
        "secure_aggregation": ["privacy=local", "strategy.gamma=null"],
    },
    "dpsgd_fedavg": {"local": ["model=mlp", "strategy.local.lot_size=10"]},
    "privatekt": {"local": [], "secure_aggregation": ["strategy.answers=votes"]},
}
# Their papers fix how a budget is shared over rounds and clients; tests of their own say how.
OWN_RULES = ("kd_dpfl", "nbafl")


def experiment(name, threat, words):
    sums = ["privacy.secure_aggregation=simulated"] if threat == "secure_aggregation" else []
    # A strategy's own word on rounds and cohorts goes before the small run's.
    own = [word for word in words if word.startswith("federation.")]
    words = [f"strategy={name}", *words, *SMALL, *own, *sums, f"privacy.threat={threat}"]
    return Experiment(compose(words))


@pytest.mark.parametrize(
    ("name", "threat"), [(name, threat) for name, choices in CHOICES.items() for threat in choices]
)
def test_the_statement_of_the_whole_schedule_meets_the_budget_to_half_a_percent(name, threat):
    strategy = experiment(name, threat, CHOICES[name][threat]).strategy
    budget = strategy.setup.budget
    clients = range(strategy.setup.num_clients)
    strategy.participations = Counter(dict.fromkeys(clients, budget.releases))
    strategy.least_survivors = strategy.setup.least_survivors
    if threat == "central":
        strategy.protection.rounds_published = budget.rounds
    guarantees = strategy.statement().to_dict()["guarantees"]
    found = next(each for each in guarantees if each["threat"] == threat)
    total = found["assumed_total"] or found["proven_total"]
    assert 0.995 * EPSILON < total <= EPSILON


@pytest.mark.parametrize(
    ("name", "threat"),
    [
        (name, threat)
        for name in groups()["strategy"]
        for threat in THREATS
        if name not in OWN_RULES and threat not in CHOICES.get(name, {})
    ],
)
def test_a_budget_that_it_cannot_keep_against_a_threat_is_refused(name, threat):
    words = next(iter(CHOICES.get(name, {"": []}).values()))
    if name in ("centralised", "local_only"):
        words = ["privacy=local"]
    with pytest.raises(ConfigError, match=r"threat=|without protection no finite budget"):
        experiment(name, threat, words)
