"""What noise leaves of a score without a pool: ``python -m research.owners.signal``.

For gradient rounds and class moments; the words are settings as for a run. Nothing is trained and
no client's data are read but for how many clients and, in a simulation, how many records there
are: the answer follows from those numbers, classes, features and ε. It is a share of what the
algorithm reaches without noise, not a score: without public labels nobody knows that.
"""

import argparse
import sys
from collections.abc import Sequence

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from strategies.class_moments import ClassMoments
from strategies.gradient_rounds import GradientRounds


def main(argv: Sequence[str] | None = None) -> None:
    """Print the strategy's forecast, or why it cannot be asked."""
    parser = argparse.ArgumentParser(prog="python -m research.owners.signal", description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="SETTING", help="settings, as for a run")
    words = parser.parse_args(argv).overrides
    try:
        config = compose(words)
        strategy = ValidatedRun(config).strategy
    except (ConfigError, ValueError) as error:
        sys.exit(str(error))
    if not isinstance(strategy, GradientRounds | ClassMoments):
        sys.exit(
            f"strategy={config.strategy.name}: this is for gradient_rounds and class_moments; see "
            "`murmur advise settings`"
        )
    forecast = strategy.forecast()
    if forecast is None:
        print("all of it: there is no noise (privacy.epsilon=inf)")
    else:
        print(forecast.text())


if __name__ == "__main__":
    main()
