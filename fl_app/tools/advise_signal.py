"""``murmur advise signal``: what gradient rounds and class moments keep of their score under noise.

The words after it are settings as for a run. Nothing is trained and no client's data are read but
for how many clients and, in a simulation, how many records there are: the answer follows from those
numbers, classes, features and ε. It is a share of what the algorithm reaches without noise, not a
score: without public labels nobody knows that.
"""

from __future__ import annotations

import argparse

from fl_app.config.composition import compose
from fl_app.config.errors import ConfigError
from fl_app.run.experiment import Experiment
from strategies.class_moments import ClassMoments
from strategies.gradient_rounds import GradientRounds
from strategies.parts import Foretold


def main(argv: list[str]) -> int:
    """Print the sentence; the exit status, 0.

    Raises:
        ConfigError: the settings cannot be, or are of another strategy.
    """
    parser = argparse.ArgumentParser(
        prog="murmur advise signal",
        description="What gradient rounds or class moments keep of their score under noise.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings as for a run")
    said = foretold(Experiment(compose(parser.parse_args(argv).overrides)))
    if said is None:
        print("all of it: there is no noise (privacy.epsilon=inf)")
    else:
        print(said.text())
    return 0


def foretold(experiment: Experiment) -> Foretold | None:
    """What the strategy's planner says; None without noise.

    Raises:
        ConfigError: the strategy has none.
    """
    strategy = experiment.strategy
    if not isinstance(strategy, GradientRounds | ClassMoments):
        raise ConfigError(
            f"strategy={experiment.config.strategy.name}: `murmur advise signal` is for "
            "gradient_rounds and class_moments; see `murmur advise settings`"
        )
    return strategy.foretold()
