"""Whatever conf/ can be set to: releases are for the unit and the neighbours of the statement.

Strategies are built only: every strategy with every protection, for every unit and threat, and the
evaluations on clients beside it.
"""

import itertools

import pytest

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.groups import groups
from fl_app.run.validated import ValidatedRun
from murmur.privacy.budget import THREATS, UNITS
from murmur.privacy.events import ComposedEvent, Neighbours, releases
from murmur.privacy.guarantee import departures
from tests.strategies.test_budget_by_threat import CHOICES, SMALL

EVALUATIONS = {
    "none": [],
    **{
        f"counts of a {unit}": ["evaluation=protected_counts", f"evaluation.counts.unit={unit}"]
        for unit in UNITS
    },
    **{
        f"clusters of a {unit}": [
            "evaluation=protected_clustering",
            f"evaluation.result.unit={unit}",
            "evaluation.result.records=5",
        ]
        for unit in UNITS
    },
}
AVERAGED = ("protection=", "privacy=local")


def words_of(name, protection, unit, threat):
    """A small run, with what this strategy needs beside strategy, protection, unit and threat."""
    some = next(iter(CHOICES.get(name, {}).values()), [])
    own = CHOICES.get(name, {}).get(threat, some)
    own = [word for word in own if not word.startswith(AVERAGED)]
    chosen = [] if protection is None else ["privacy=local", f"protection={protection}"]
    federation = [word for word in own if word.startswith("federation.")]
    simulated = ["privacy.secure_aggregation=simulated"] * (threat == "secure_aggregation")
    about = [f"privacy.unit={unit}", f"privacy.threat={threat}"]
    return [f"strategy={name}", *chosen, *own, *SMALL, *federation, *simulated, *about]


def built(words):
    """The run, or why there is none."""
    try:
        return ValidatedRun(compose(words))
    except ConfigError as error:
        return str(error)


def protections(name):
    """Those that go with the strategy; None is its own noise, or none."""
    if "protection" in compose([f"strategy={name}"]).strategy.server:
        return [None, *groups()["protection"]]
    return [None]


def released(strategy):
    """All kinds of releases that the strategy and its evaluation can make."""
    found = [strategy.claims().planned()]
    question = strategy.before_rounds()
    if question is not None and question.event is not None:
        found.append(question.event())
    if strategy.rounds.evaluation is not None:
        found.append(strategy.rounds.evaluation.event())
    return ComposedEvent(tuple(found))


@pytest.mark.parametrize("name", groups()["strategy"])
def test_every_release_covers_what_the_statement_says(name):
    seen = set()
    for protection, unit, threat in itertools.product(protections(name), UNITS, THREATS):
        words = words_of(name, protection, unit, threat)
        run = built(words)
        if isinstance(run, str):
            assert "what is released with" not in run
            continue
        seen.add((threat, unit))
        own = run.strategy
        assert own.unit == unit  # a budget means this unit, and so does the statement
        for evaluation, more in EVALUATIONS.items():
            both = built([*words, *more])
            if isinstance(both, str):
                continue
            strategy = both.strategy
            event = released(strategy)
            assert departures(event, strategy.unit, strategy.adjacency) == [], evaluation
            wanted = Neighbours(strategy.unit, strategy.adjacency)
            assert {each.neighbours.steps(wanted) for each in releases(event)} == {1}
    assert {threat for threat, unit in seen if unit == "client"} >= set(CHOICES.get(name, ()))
