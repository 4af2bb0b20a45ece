"""``murmur advise``: how many rounds and clients per round NbAFL's convergence bound asks for.

With another ``strategy=``, what to choose by pilots on public data (``fl_app.tools.planner``). The
words after it are settings as for a run (``experiment=nbafl_rounds privacy.epsilon=50``). It
prints the bound over T and over K, marks the optima, and draws them. The bound's constants are
assumed, or, with ``--estimate ROUNDS``, estimated from a short run without noise on the configured
data; where the bound does not hold then, the curves that it measured take its place.
Exit status: 0, or 2 for settings that cannot be.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl_app.config.composition import compose
from fl_app.config.errors import ConfigError
from murmur.papers.nbafl.noise import NbaflNoise

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from murmur.papers.nbafl.convergence import Constants, Curve, EstimatedConstants

# A smooth loss of condition number 2; with μ = 3 a round leaves P = 5/6 of what is to be learned.
ASSUMED = {"smoothness": 1.0, "lipschitz": 1.0, "pl": 0.5, "dissimilarity": 1.0}
LETTERS = {
    "smoothness": "ρ, smoothness of the loss",
    "lipschitz": "β, Lipschitz constant of the loss",
    "pl": "l, Polyak-Łojasiewicz constant",
    "dissimilarity": "B, dissimilarity of the clients",
    "gap": "Θ, loss before the first round",
    "proximal_mu": "μ, proximal term",
}


@dataclass(frozen=True)
class Setting:
    """The user's setting: ``noise`` as configured, the clients' ``sizes``.

    ``all_exposed``: every round is an exposure (strategy.exposures=null), however many there are.
    """

    noise: NbaflNoise
    sizes: tuple[int, ...]
    all_exposed: bool

    def sigma(self, rounds: int | None = None, scheduled: int | None = None) -> float:
        """s, the noise per coordinate in a broadcast model, with another T or K."""
        noise, rounds = self.noise, rounds or self.noise.rounds
        exposures = rounds if self.all_exposed else min(noise.exposures, rounds)
        scheduled = scheduled or noise.scheduled
        # As often as now, in proportion.
        often = noise.participations * rounds * scheduled / (noise.rounds * noise.scheduled)
        noise = replace(
            noise,
            rounds=rounds,
            participations=min(rounds, math.ceil(often)),
            exposures=exposures,
            scheduled=scheduled,
        )
        weights = [1 / scheduled] * scheduled
        if scheduled == len(self.sizes):
            weights = [size / sum(self.sizes) for size in self.sizes]
        return math.hypot(noise.upload_sigma * math.hypot(*weights), noise.broadcast_sigma(weights))


@dataclass(frozen=True)
class Advice:
    """What the tool found: the curves by name, the first one decides.

    ``constants`` with the ``source`` of each; ``failure``: why the bound does not hold with the
    user's own μ, or None.
    """

    setting: Setting
    constants: Constants
    source: dict[str, str]
    failure: str | None
    curves: dict[str, Curve]
    max_rounds: int

    @property
    def best_rounds(self) -> int:
        """The T at which the deciding curve is lowest."""
        return self.rounds_by_curve()[0]

    @property
    def best_scheduled(self) -> int:
        """The K at which the deciding curve is lowest, for the configured T."""
        return self.scheduled_by_curve()[0]

    def rounds_by_curve(self) -> list[int]:
        """The T at which each curve is lowest."""
        return self._lowest(range(1, self.max_rounds + 1), self.over_rounds)

    def scheduled_by_curve(self) -> list[int]:
        """The K at which each curve is lowest, for the configured T."""
        return self._lowest(range(1, self.setting.noise.clients + 1), self.over_scheduled)

    def over_rounds(self, rounds: int) -> list[float]:
        """Every curve at T = ``rounds``."""
        sigma = self.setting.sigma(rounds=rounds)
        return [curve.value(rounds, sigma) for curve in self.curves.values()]

    def over_scheduled(self, scheduled: int) -> list[float]:
        """Every curve at K = ``scheduled``."""
        sigma = self.setting.sigma(scheduled=scheduled)
        rounds = self.setting.noise.rounds
        return [curve.value(rounds, sigma) for curve in self.curves.values()]

    def _lowest(self, choices: range, curves: Callable[[int], list[float]]) -> list[int]:
        values = [curves(choice) for choice in choices]
        return [
            choices[column.index(min(column))] for column in map(list, zip(*values, strict=True))
        ]


def advise(
    overrides: Sequence[str],
    estimate_rounds: int = 0,
    max_rounds: int | None = None,
    given: dict[str, float] | None = None,
) -> Advice:
    """Advice for a configuration; ``given``: constants that the user states.

    Raises ConfigError or ValueError for settings that cannot be.
    """
    if max_rounds is not None and max_rounds < 1:
        raise ValueError(f"max_rounds={max_rounds}: must be at least 1")
    config = compose(["strategy=nbafl", "++privacy.sensitivity=paper", *overrides])
    setting, classes, estimate = _setting(config, estimate_rounds)
    stated, source = dict(given or {}), {}
    # A model that knows nothing has the loss of a uniform guess.
    values: dict[str, float] = {**ASSUMED, "gap": math.log(classes)}
    if estimate is not None:
        values = {name: getattr(estimate, name) for name in values}
    for name in values:
        source[name] = "assumed" if estimate is None else f"estimated in {estimate_rounds} rounds"
    values |= stated
    source |= dict.fromkeys(stated, "given")
    return _advice(setting, estimate, values, source, max_rounds)


def _advice(
    setting: Setting,
    estimate: EstimatedConstants | None,
    values: dict[str, float],
    source: dict[str, str],
    max_rounds: int | None,
) -> Advice:
    from murmur.papers.nbafl.convergence import Constants, Curve

    noise = setting.noise
    mu = values.pop("proximal_mu", noise.proximal_mu)
    source.setdefault("proximal_mu", "strategy.proximal_mu")
    constants = Constants(**values, proximal_mu=mu)
    failure, curves = constants.failure(), {}
    if estimate is not None:
        curves["measured"] = estimate.curve(noise.dimension)
    if failure is None or estimate is None:
        if failure is not None:
            constants = replace(constants, proximal_mu=2 * constants.least_mu)
            source["proximal_mu"] = "assumed: twice what the bound needs"
            still = constants.failure()
            if still is not None:
                raise ValueError(f"pl={constants.pl}: {still}")
        bounds = {
            "bound (paper)": Curve.of(constants),
            "bound (noise as a vector)": Curve.of(constants, noise.dimension),
        }
        curves = {**bounds, **curves}
    limit = max_rounds or max(100, 4 * noise.rounds)
    return Advice(setting, constants, source, failure, curves, limit)


def _setting(config: DictConfig, rounds: int) -> tuple[Setting, int, EstimatedConstants | None]:
    """The setting, the number of classes, and the estimate if ``rounds`` is not 0."""
    from fl_app.run.clients import build_client, build_trainer
    from fl_app.run.population import population

    if config.strategy.name != "nbafl":
        raise ConfigError(f"strategy={config.strategy.name}: the bound is NbAFL's")
    people = population(config)
    trainer = build_trainer(config, people.dataset)
    client = build_client(config, people, trainer, Path())
    noise: NbaflNoise = client.noise  # type: ignore[attr-defined]
    if not noise.is_noisy:
        raise ConfigError(
            f"privacy.epsilon={noise.epsilon}, privacy.sensitivity={noise.sensitivity}: uploads "
            "carry no noise, so there is nothing to trade off"
        )
    setting = Setting(noise, people.client_sizes(), config.strategy.exposures is None)
    if rounds == 0:
        return setting, trainer.num_classes, None
    from clients.base import LocalData, Task
    from murmur.common import experiment_rng
    from murmur.papers.nbafl.convergence import EstimatedConstants, Shards

    train = people.dataset.train

    def local(number, who, weights):  # type: ignore[no-untyped-def]
        data = LocalData(train.images, train.labels, people.shards[who])
        return client.train(Task(number, who, weights, {}, {}), data)

    start = trainer.initial(experiment_rng(config.seed, "initial model"))
    data = Shards(train.images, train.labels, list(people.shards.values()))
    rng = experiment_rng(config.seed, "pilot noise")
    estimate = EstimatedConstants.run(trainer, data, start, local, rounds, rng)
    return setting, trainer.num_classes, estimate


def main(argv: Sequence[str]) -> int:
    """Run the tool with the words after ``murmur advise``; the exit status."""
    from fl_app.tools import planner
    from fl_app.tools.advice_report import draw, show

    strategies = [word for word in argv if word.startswith("strategy=")]
    if strategies and strategies[-1] != "strategy=nbafl":
        return planner.main(argv)
    options = _parser().parse_intermixed_args(list(argv))
    given = {name: getattr(options, name) for name in LETTERS}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        advice = advise(options.overrides, options.estimate, options.max_rounds, given)
    except (ConfigError, ValueError) as error:
        print(f"murmur advise: {error}", file=sys.stderr)
        return 2
    show(advice)
    draw(advice, options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="murmur advise",
        description="The best T and K for NbAFL, by its convergence bound.",
        epilog="For another algorithm: murmur advise strategy=NAME --clients N --epsilon E; its "
        "options: murmur advise strategy=NAME --help.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings as for a run")
    parser.add_argument(
        "--estimate", type=int, default=0, metavar="ROUNDS", help="estimate the constants (try 10)"
    )
    parser.add_argument("--max-rounds", type=int, help="largest T; default 4 × num_rounds, 100")
    parser.add_argument(
        "--out", type=Path, default=Path("advice.png"), help="the picture (default advice.png)"
    )
    for name, words in LETTERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X", help=words)
    return parser
