"""``murmur advise rounds``: how many rounds and clients per round NbAFL's bound asks for.

The words after it are settings as for a run (``experiment=nbafl_rounds privacy.epsilon=50``). It
prints the convergence bound over T and over K, marks the optima, and with ``--out`` draws them. The
bound's constants are assumed, or, with ``--estimate ROUNDS``, estimated from a short run without
noise on the configured data; where the bound does not hold then, the curves that it measured take
its place. The estimate looks at the data without protection (research/nbafl/README.md).

Bound and curves are those of ``murmur.algorithms.nbafl.convergence``, noise that of the algorithm
itself; symbols are the paper's: T rounds, K clients in each, N clients, m examples of the smallest,
s the noise on a coordinate of a broadcast model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig
from rich.table import Table

import fl_app
import fl_app.console
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.tools.options import parser_of
from murmur.algorithms.nbafl.convergence import Constants, Curve, EstimatedConstants
from murmur.algorithms.nbafl.noise import NbaflNoise

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
PICTURES = (".png", ".svg")
MORE_CLIENTS = (
    "More clients help at a fixed m only: with the same data split over more of them (m = n/N) the "
    "mean has as much noise or more, and the bound gains nothing."
)
_ROWS = 12  # of a table, about


@dataclass(frozen=True)
class Setting:
    """The user's setting.

    Attributes:
        noise: NbAFL's noise as configured, with its N, K, T and L.
        sizes: examples of each client.
        all_exposed: every round is an exposure (strategy.exposures=null), however many there are.
    """

    noise: NbaflNoise
    sizes: tuple[int, ...]
    all_exposed: bool

    def sigma(self, rounds: int | None = None, scheduled: int | None = None) -> float:
        """s, the standard deviation of the noise on each coordinate of a broadcast model.

        Args:
            rounds: another T; None: the configured one.
            scheduled: another K; a client then takes part as often as now, in proportion.
        """
        noise = self.noise
        rounds = rounds or noise.rounds
        scheduled = scheduled or noise.scheduled
        exposures = rounds
        if not self.all_exposed:
            exposures = min(noise.exposures, rounds)
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
class Along:
    """The curves along T or along K, all else as configured.

    Attributes:
        label: what is chosen.
        own: the user's choice.
        choices: all that are looked at -> the T and the K that each means.
        setting: the user's.
        curves: name -> excess loss as a function of T and s; the first one decides.
    """

    label: str
    own: int
    choices: Mapping[int, tuple[int, int]]
    setting: Setting
    curves: dict[str, Curve]

    def at(self, choice: int) -> list[float]:
        """Every curve at ``choice``: loss above the optimum, in the order of ``curves``."""
        rounds, scheduled = self.choices[choice]
        sigma = self.setting.sigma(rounds, scheduled)
        return [curve.value(rounds, sigma) for curve in self.curves.values()]

    @property
    def lowest(self) -> list[int]:
        """For each curve, the choice at which it is lowest; the first of several."""
        columns = zip(*map(self.at, self.choices), strict=True)
        return [min(zip(column, self.choices, strict=True))[1] for column in columns]

    @property
    def best(self) -> int:
        """The choice at which the deciding curve is lowest."""
        return self.lowest[0]

    def table(self) -> Table:
        """The curves at about a dozen choices, with the best one and the user's own."""
        table = Table(self.label, "noise s", *self.curves, "", title=f"Over {self.label}")
        best = self.best
        for choice in self._spread(best):
            marks = " · ".join(["best"] * (choice == best) + ["yours"] * (choice == self.own))
            sigma = self.setting.sigma(*self.choices[choice])
            cells = [f"{value:.4g}" for value in self.at(choice)]
            table.add_row(str(choice), f"{sigma:.3g}", *cells, marks)
        return table

    def _spread(self, best: int) -> list[int]:
        """About a dozen choices from 1 on, evenly on a logarithmic scale.

        The best one and the user's own are among them.
        """
        largest = max(self.choices)
        even = {round(largest ** (i / (_ROWS - 1))) for i in range(_ROWS)}
        return sorted({*even, best, self.own} & self.choices.keys())

    def drawn(self, title: str) -> Any:
        """The curves on a logarithmic axis, called ``title``, and a dashed line at the best one."""
        import altair as alt

        names = list(self.curves)
        best = self.best
        numbers = [
            {"choice": choice, "loss": loss, "curve": name}
            for choice in self.choices
            for name, loss in zip(names, self.at(choice), strict=True)
        ]
        scale = alt.Scale(type="log", nice=False)
        lines = alt.Chart(alt.Data(values=numbers)).mark_line()
        lines = lines.encode(
            x=alt.X("choice:Q", title=title),
            y=alt.Y("loss:Q", title="loss above the optimum", scale=scale),
            color=alt.Color("curve:N", title=None, sort=names, legend=alt.Legend(orient="bottom")),
        )
        mark = alt.Chart(alt.Data(values=[{"choice": best}]))
        mark = mark.mark_rule(strokeDash=[4, 4], color="gray").encode(x="choice:Q")
        return alt.layer(lines, mark).properties(title=f"best: {best}", width=360, height=260)


@dataclass(frozen=True)
class Advice:
    """Result of the tool: constants of the bound, and curves of excess loss.

    Attributes:
        setting: the user's.
        constants: of the bound.
        source: constant -> where its value is from.
        failure: why the bound does not hold with the user's own μ; None: it does.
        curves: name -> excess loss as a function of T and s; the first one decides.
        max_rounds: the largest T that is looked at.
    """

    setting: Setting
    constants: Constants
    source: dict[str, str]
    failure: str | None
    curves: dict[str, Curve]
    max_rounds: int

    @property
    def rounds(self) -> Along:
        """The curves along T."""
        noise = self.setting.noise
        choices = {rounds: (rounds, noise.scheduled) for rounds in range(1, self.max_rounds + 1)}
        return Along("rounds T", noise.rounds, choices, self.setting, self.curves)

    @property
    def clients(self) -> Along:
        """The curves along K, for the configured T."""
        noise = self.setting.noise
        choices = {clients: (noise.rounds, clients) for clients in range(1, noise.clients + 1)}
        return Along("clients per round K", noise.scheduled, choices, self.setting, self.curves)


def main(argv: Sequence[str]) -> int:
    """Print the advice for the words in ``argv``, and draw it where asked.

    Returns:
        0.

    Raises:
        ConfigError, ValueError: settings that cannot be, or a picture without the extra ``report``.
    """
    parser = parser_of("advise rounds")
    for name, words in LETTERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X", help=words)
    options = parser.parse_intermixed_args(list(argv))
    if options.out is not None:
        fl_app.require("report", "altair", "vl_convert")
        if options.out.suffix not in PICTURES:
            raise ConfigError(f"--out={options.out}: must end in {' or '.join(PICTURES)}")
    given = {name: getattr(options, name) for name in LETTERS}
    stated = {name: value for name, value in given.items() if value is not None}
    advice = advise(options.overrides, options.estimate, options.max_rounds, stated)
    show(advice)
    if options.out is not None:
        draw(advice, options.out)
    return 0


def advise(
    overrides: Sequence[str],
    estimate_rounds: int = 0,
    max_rounds: int | None = None,
    given: Mapping[str, float] = MappingProxyType({}),
) -> Advice:
    """Advice for a configuration: the curves that its constants allow.

    Where the bound fails and nothing was estimated, it is drawn with twice the μ that it needs.

    Args:
        overrides: settings as for a run.
        estimate_rounds: of the run without noise that estimates the constants; 0: they are assumed.
        max_rounds: the largest T to look at; None: four times the configured one, at least 100.
        given: constants that the user states, by their names in ``LETTERS``.

    Raises:
        ConfigError, ValueError: settings that cannot be, or a bound that fails for every μ.
    """
    if max_rounds is not None and max_rounds < 1:
        raise ValueError(f"max_rounds={max_rounds}: must be at least 1")
    config = compose(["strategy=nbafl", "++privacy.paper=true", *overrides])
    setting, classes, estimate = _setting(config, estimate_rounds)
    # A model that knows nothing has the loss of a uniform guess.
    values: dict[str, float] = {**ASSUMED, "gap": math.log(classes)}
    where = "assumed"
    if estimate is not None:
        values = {name: getattr(estimate, name) for name in values}
        where = f"estimated in {estimate_rounds} rounds"
    source = dict.fromkeys(values, where) | dict.fromkeys(given, "given")
    values |= given
    noise = setting.noise
    mu = values.pop("proximal_mu", noise.proximal_mu)
    source.setdefault("proximal_mu", "strategy.proximal_mu")
    constants = Constants(**values, proximal_mu=mu)
    failure = constants.failure()
    curves = {}
    if failure is None or estimate is None:
        if failure is not None:
            constants = replace(constants, proximal_mu=2 * constants.least_mu)
            source["proximal_mu"] = "assumed: twice what the bound needs"
            still = constants.failure()
            if still is not None:
                raise ValueError(f"pl={constants.pl}: {still}")
        curves["bound (paper)"] = Curve.of(constants)
        curves["bound (noise as a vector)"] = Curve.of(constants, noise.dimension)
    if estimate is not None:
        curves["measured"] = estimate.curve(noise.dimension)
    limit = max_rounds or max(100, 4 * noise.rounds)
    return Advice(setting, constants, source, failure, curves, limit)


def show(advice: Advice) -> None:
    """Print setting, constants, both tables and the optima.

    A failure of the paper's assumption is printed with its numbers, and with what stands in.
    """
    console = fl_app.console.console(highlight=False)
    noise = advice.setting.noise
    console.print(
        f"NbAFL: ε={noise.epsilon:g}, δ={noise.delta:g}, N={noise.clients}, K={noise.scheduled}, "
        f"T={noise.rounds}, L={noise.exposures}, m={noise.smallest_dataset}, C={noise.clip:g}, "
        f"{noise.sensitivity} sensitivity, {noise.calibration} calibration",
        soft_wrap=True,
    )
    console.print(_constants(advice))
    if advice.failure is not None:
        instead = "The curves below assume a μ that is large enough."
        if "measured" in advice.curves:
            instead = "The measured curve stands in: what the estimating run saw, not a bound."
        console.print(f"The paper's assumption fails: {advice.failure}. {instead}", soft_wrap=True)
    console.print(advice.rounds.table(), advice.clients.table())
    edge = ""
    if advice.rounds.best == advice.max_rounds:
        edge = " or more"
    console.print(
        f"Best T: {advice.rounds.best}{edge} (federation.num_rounds). Best K at T={noise.rounds}: "
        f"{advice.clients.best} (federation.clients_per_round).",
        soft_wrap=True,
    )
    others = zip(advice.curves, advice.rounds.lowest, advice.clients.lowest, strict=True)
    for name, rounds, scheduled in list(others)[1:]:
        console.print(f"By the {name}: T={rounds}, K={scheduled}.", soft_wrap=True)
    console.print(MORE_CLIENTS, soft_wrap=True)


def draw(advice: Advice, path: Path) -> None:
    """Write a picture of both curves with their optima.

    ``path``: its suffix says how: PNG or SVG; its folder is made.
    """
    import altair as alt

    left = advice.rounds.drawn("rounds T")
    right = advice.clients.drawn(f"clients per round K, T={advice.setting.noise.rounds}")
    path.parent.mkdir(parents=True, exist_ok=True)
    alt.hconcat(left, right).configure(background="white").save(str(path))
    print(f"picture: {path}")


def _setting(config: DictConfig, rounds: int) -> tuple[Setting, int, EstimatedConstants | None]:
    """The user's setting, the number of classes, and the estimate of the constants.

    ``rounds``: of the estimating run; 0: none, and the estimate is None.

    Raises:
        ConfigError: another strategy than NbAFL, or one whose uploads carry no noise.
    """
    from fl_app.run.hosts import build_client, build_trainer
    from fl_app.run.population import population
    from fl_app.run.tasks import require_task

    if config.strategy.name != "nbafl":
        raise ConfigError(f"strategy={config.strategy.name}: the bound is NbAFL's")
    require_task(config)
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
    from murmur.random import experiment_rng

    train = people.dataset.train

    data = [LocalData(train.images, train.labels, rows) for rows in people.shards]

    def local(number, who, weights):  # type: ignore[no-untyped-def]
        return client.train(Task(number, who, weights, {}, {}), data[who])

    start = trainer.initial(experiment_rng(config.seed, "initial model"))
    rng = experiment_rng(config.seed, "pilot noise")
    estimate = EstimatedConstants.run(trainer, data, start, local, rounds, rng)
    return setting, trainer.num_classes, estimate


def _constants(advice: Advice) -> Table:
    """Each constant of the bound with its source, and what an estimate measured."""
    table = Table("constant", "value", "source", title="Constants of the bound")
    for name, words in LETTERS.items():
        value = getattr(advice.constants, name)
        table.add_row(words, f"{value:.4g}", advice.source[name])
    if advice.constants.failure() is None:
        table.add_row("P, contraction of a round", f"{advice.constants.contraction:.4g}", "bound")
    measured = advice.curves.get("measured")
    if measured is not None:
        found = {
            "P, as measured": measured.contraction,
            "curvature against noise, as measured": 2 * measured.quadratic,
            "what a round leaves of noise's cost": measured.retention,
        }
        for words, value in found.items():
            table.add_row(words, f"{value:.4g}", advice.source["gap"])
    return table
