"""``murmur audit``: attack the releases of a configuration or a run, and say what ε that measured.

Every adversary of the privacy statement is given what it sees: a client's message (labels and
evaluations as well), a secure sum, or the next model (``views``, ``sums``), for two neighbours of
the claim's own unit and adjacency (``neighbours``). Each is attacked twice: one release, and all of
a client's over the run, of models the last one. The result is a lower bound on ε with 99.9%
confidence: above the proven figure it shows a broken mechanism or proof, far below it an attack
that is not the worst one; above what a paper claims it refutes the paper.

The words after it are a run's folder, into whose statement the measured ε of one release is
written, or settings as for a run.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from omegaconf import DictConfig
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from fl_app.audit_api import (
    PROTECTED,
    CohortStrategy,
    ConfigError,
    RunFolder,
    SimulatedHost,
    SimulatedSite,
    Task,
    ValidatedRun,
    changed,
    compose,
    console,
    format_epsilon,
    load,
    load_stated,
    parser_of,
    with_evaluation,
)
from murmur.format import format_number, pluralize
from murmur.privacy.accounting import Threat
from murmur.privacy.audit import CONFIDENCE, refuted_at
from murmur.privacy.events import Adjacency, RepeatedEvent, SummedEvent, Unit, releases
from murmur.privacy.guarantee import Exposure, Guarantee
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.statement import MORE_FOUND, Statement
from murmur_report.attack import TRIED, AttackResult, attack
from murmur_report.neighbours import NeighbourPair, neighbours
from murmur_report.sums import Asked, EvaluationSums, SecureSum, SumRefusedError
from murmur_report.views import Messages, Source, View, added, view_of

OPTIONS = Path(__file__).with_name("options.yaml")
# Releases of each neighbour, and those that choose how to tell them apart: where training draws no
# noise it is done once, else for each release.
RUNS = 20_000
RUNS_TRAINED = 1_000
MIN_RUNS = 200
SCOUTS = 200
SCOUTS_TRAINED = 50
MIN_RUNS_HURRIED = 20  # of either, where time is short
_EPSILON_TOLERANCE = 1e-6  # of an ε that is computed in two ways


@dataclass
class Effort:
    """How often attacks look at releases, and how far they are.

    Attributes:
        runs: how often each neighbour is seen; None: by how long one release takes.
        scouts: how many of each find out how to tell them apart; None: as for ``runs``.
        share: of that, and of the looks before it, so that all is done in time.
        planned: seconds that each attack would take with a share of 1; None: attack, do not plan.
        advance: called with the part of an attack that is done, at every look.
    """

    runs: int | None = None
    scouts: int | None = None
    share: float = 1.0
    planned: list[float] | None = None
    advance: Callable[[float], None] = lambda part: None

    def looks(self, messages: Messages, count: int) -> tuple[int, int]:
        """How often each neighbour is seen in an attack, and how often to find out how.

        Args:
            messages: tell whether each release needs a training of its own.
            count: releases that are seen together.
        """
        often = RUNS_TRAINED
        scouts = SCOUTS_TRAINED
        if messages.trains_alone:
            often = RUNS
            scouts = SCOUTS
        if self.scouts is not None:
            scouts = self.scouts
        if self.runs is not None:
            return self.runs, scouts
        seen = max(MIN_RUNS, often // count)
        return max(MIN_RUNS_HURRIED, int(self.share * seen)), max(
            MIN_RUNS_HURRIED, int(self.share * scouts)
        )

    def plan(self, view: View, pairs: Sequence[NeighbourPair], seen: int, scouts: int) -> None:
        """Note how long an attack would take, by one look."""
        assert self.planned is not None
        view(pairs[0].one, NoiseGenerator.from_os())  # whatever is done once
        start = time.monotonic()
        view(pairs[0].one, NoiseGenerator.from_os())
        each = time.monotonic() - start
        self.planned.append(2 * each * (seen + len(pairs) * (scouts + TRIED)))

    def watched(self, view: View, looks: int) -> View:
        """``view``, of which every look moves the bar by its part of one attack."""

        def look(source: Source, noise: NoiseGenerator) -> NDArray[Any]:
            self.advance(1 / looks)
            return view(source, noise)

        return look


@dataclass(frozen=True)
class Bound:
    """Bound on ε, proven or assumed, of releases that are attacked together.

    Attributes:
        releases: how many of one client; of models, the rounds of the run.
        delta: the statement's δ.
        epsilon: they have this ε at most, at δ; ``math.inf``: unprotected.
        is_assumed: that rests on the statement's assumptions.
        claimed: ε that the paper states for them; None: it states nothing.
        unit, adjacency: between which neighbours all that holds.
        at: ε by δ; at other δ than the statement's, too, a release is proven to be private.
    """

    releases: int
    delta: float
    epsilon: float
    is_assumed: bool
    claimed: float | None
    unit: Unit
    adjacency: Adjacency
    at: Callable[[float], float]

    @classmethod
    def of(cls, exposure: Exposure, statement: Statement, releases: int) -> "Bound":
        """Returns the statement's bound of ``releases`` in the adversary's view.

        Args:
            exposure: the adversary, and what one release costs against it.
            statement: the run's, for unit, adjacency and δ.
            releases: how many are composed.
        """
        claimed = exposure.claimed_total
        if releases == 1:
            claimed = exposure.claimed_per_round
        clients = {"the client": RepeatedEvent(exposure.per_round, releases)}
        exposure = replace(exposure, clients=clients, sizes={})
        return cls._said(exposure, statement, releases, claimed)

    @classmethod
    def of_last_model(cls, strategy: CohortStrategy, rounds: int) -> "Bound":
        """Returns the statement's bound of all models after ``rounds`` rounds of ``strategy``."""
        [models] = [e for e in strategy.claims().exposures() if e.threat is Threat.CENTRAL]
        return cls._said(models, strategy.rounds.statement(), rounds, models.claimed_total)

    @classmethod
    def _said(
        cls, exposure: Exposure, statement: Statement, releases: int, claimed: float | None
    ) -> "Bound":
        """The assumed ε of ``exposure`` where it rests on assumptions, else the proven one.

        ``claimed``: what the paper states for as many ``releases``.
        """
        delta = statement.delta
        unit = statement.unit
        adjacency = statement.adjacency
        said = Guarantee.of(exposure, delta, unit, adjacency)
        is_assumed = said.assumed_total is not None

        def at(other: float) -> float:
            return Guarantee.of(exposure, other, unit, adjacency).stated

        return cls(releases, delta, said.stated, is_assumed, claimed, unit, adjacency, at)

    def beaten_at(self, found: AttackResult) -> float | None:
        """A δ at which more was counted than is proven there; None: at none that was looked at."""
        return refuted_at(found.profile, self.at)


def main(argv: list[str]) -> int:
    """Attack what ``argv`` names, print what was found, and write it into a run's statement.

    Returns:
        0, or 1 where an attack has counted more than its bound: mechanism or proof is broken, or an
        assumption is false.

    Raises:
        ConfigError: settings that cannot be, or a run whose statement cannot be read.
    """
    options = parser_of("audit", OPTIONS).parse_args(argv)
    if options.runs is not None and options.runs < 8:
        raise ConfigError(f"--runs={options.runs}: must be at least 8")
    folder = None
    statement = None
    if options.words and Path(options.words[0]).is_dir():
        folder = Path(options.words[0])
        config = load(folder / "config.yaml")
        _, statement = load_stated(folder)
        # The largest of many looks would hold with less confidence than each of them. But a figure
        # that was refuted stays so, whatever a later look finds.
        kept = (g if g.attack_beats else replace(g, measured=None) for g in statement.guarantees)
        statement = replace(statement, guarantees=tuple(kept))
    else:
        config = compose(options.words)
    effort, attacks = _planned(config, options)
    strategy = ValidatedRun(config).strategy
    broken = False
    terminal = console()
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=terminal, disable=not terminal.is_terminal, transient=True)
    with tempfile.TemporaryDirectory() as scratch, bar:
        task = bar.add_task("", total=attacks)
        effort.advance = lambda part: bar.advance(task, part)
        node = SimulatedHost(config, SimulatedSite.of(Path(scratch)))
        for exposure, bound, found in findings(strategy, node, effort):
            _show(exposure, bound, found)
            if found is None:
                continue
            beaten = bound.beaten_at(found) is not None
            broken = broken or beaten
            if statement is not None:
                statement = _measured(statement, exposure, bound, found)
                if beaten:
                    statement = _refuted(statement, exposure)
    if all(exposure.threat is not Threat.CENTRAL for exposure in strategy.claims().exposures()):
        print("the last model: follows from what is attacked above, and has no claim of its own")
    if folder is not None and statement is not None:
        RunFolder(folder).save_statement(statement)
    if broken:
        print(
            "The attack beats the bound: mechanism or proof is broken, or an assumption is false.",
            file=sys.stderr,
        )
    return int(broken)


def _planned(config: DictConfig, options: argparse.Namespace) -> tuple[Effort, int]:
    """How often to look so that all attacks are done in time; it is printed.

    Every attack is set up once, and looks twice.

    Args:
        config: of the run.
        options: ``--runs``, which is kept whatever it takes, and ``--minutes``.

    Returns:
        The effort, and how many attacks there will be.
    """
    effort = Effort(options.runs, planned=[])
    with tempfile.TemporaryDirectory() as scratch:
        node = SimulatedHost(config, SimulatedSite.of(Path(scratch)))
        for _ in findings(ValidatedRun(config).strategy, node, effort):
            pass
    assert effort.planned is not None
    minutes = sum(effort.planned) / 60
    if options.runs is None and minutes > options.minutes:
        effort.share = options.minutes / minutes
        minutes = options.minutes
    attacks = len(effort.planned)
    text = f"{pluralize(attacks, 'attack')}, about {minutes:.1f} minutes"
    if effort.share < 1:
        text += f" (with {100 * effort.share:.2g} % of the usual looks; more with --minutes)"
    print(text, flush=True)
    effort.planned = None
    return effort, attacks


def findings(
    strategy: CohortStrategy, node: SimulatedHost, effort: Effort, only: Threat | None = None
) -> Iterator[tuple[Exposure, Bound, AttackResult | None]]:
    """Attack every adversary of the run, sums and evaluations as well.

    Args:
        strategy: of the run; its participations are those of the whole run afterwards.
        node: hosts the clients that are attacked.
        effort: how often attacks look.
        only: one kind of adversary; None: all.

    Yields:
        The adversary, the bound on what it sees, and what it found; None where it was not attacked:
        it is unprotected, or no view of it is written.
    """
    strategy.rounds.canaries = None  # those of the run have done their part
    task = first_task(strategy)
    release = node.client.event(task)  # a task that it would refuse is not attacked either
    assert release is not None
    messages = Messages(node.client, task)
    for number in range(1, strategy.setup.budget.rounds + 1):
        # What a paper claims may depend on how often each client takes part.
        strategy.rounds.participations.update(map(int, strategy.rounds.cohort(number)))
    statement = strategy.rounds.statement()
    fresh = strategy.state()
    exposures = strategy.claims().exposures()
    assumed = ("the other clients of every sum are honest",)
    of_sums = Exposure(
        Threat.SECURE_AGGREGATION, "a server that sees only sums", release, {}, assumptions=assumed
    )
    if strategy.setup.secure_sums.is_on and of_sums.threat not in {e.threat for e in exposures}:
        exposures.append(of_sums)  # which a ledger charges, whatever the statement is about
    for exposure in exposures:
        if only not in (None, exposure.threat):
            continue
        if exposure.threat is Threat.SECURE_AGGREGATION:
            yield from _sums(SecureSum, node, exposure, statement, effort)
            continue
        if exposure.threat is Threat.LOCAL:  # others' answers may cost more than this client's
            exposure = replace(exposure, per_round=release)
        threat = exposure.threat
        for count in _releases(strategy, task, threat):
            strategy.restore(fresh)
            view = view_of(threat, strategy, messages, count)
            bound = Bound.of(exposure, statement, count)
            if view is not None and threat is Threat.CENTRAL and count > 1:
                view(None, NoiseGenerator.from_os())  # a run, which the strategy remembers
                bound = Bound.of_last_model(strategy, count)
            yield exposure, bound, _attack(node, exposure, bound, messages, view, effort)
    strategy.restore(fresh)
    for exposure, asked in _further(strategy, node):
        if only not in (None, exposure.threat):
            continue
        release = next(releases(exposure.per_round))
        own = replace(statement, unit=release.unit, adjacency=release.adjacency)
        view = view_of(exposure.threat, strategy, asked, 1)
        bound = Bound.of(exposure, own, 1)
        yield exposure, bound, _attack(node, exposure, bound, asked, view, effort)
    evaluation = strategy.rounds.evaluation
    if evaluation is None or only not in (None, Threat.SECURE_AGGREGATION):
        return
    event = evaluation.seen(Threat.SECURE_AGGREGATION)
    if isinstance(event, SummedEvent):
        adversary = "a server that sees sums of protected evaluations only"
        seen = Exposure(Threat.SECURE_AGGREGATION, adversary, event, {})
        seen = with_evaluation(seen, event, {0: 1})
        yield from _sums(EvaluationSums, node, seen, statement, effort)


def _sums(
    kind: type[SecureSum],
    node: SimulatedHost,
    exposure: Exposure,
    statement: Statement,
    effort: Effort,
) -> Iterator[tuple[Exposure, Bound, AttackResult | None]]:
    """Attack sums in which the heaviest and the lightest client take part, beside what they charge.

    Each once with all clients asked alike, and once with all others asked for no noise, as a server
    would that wants to see one client's part.

    ``kind``: the rounds' sums, or the evaluations'. ``node``: of the run; sums have nodes of their
    own, with ledgers in a temporary folder. ``exposure``: the adversary, as the statement names it.
    ``effort``: how often attacks look.

    Yields:
        As ``findings``; None for a sum that does not come about, with the reason in the adversary's
        name.
    """
    config = changed(node.config, "privacy.secure_aggregation", "on")
    with tempfile.TemporaryDirectory() as folder:
        try:
            strategy = ValidatedRun(config).strategy
        except (ConfigError, ValueError):  # sums of this run are simulated, and cannot be more
            yield exposure, Bound.of(exposure, statement, 1), None
            return
        strategy.rounds.canaries = None
        weights = kind.weights(strategy, node)
        ordered = sorted(weights, key=weights.__getitem__)
        chosen = ordered[:1]
        if len(set(weights.values())) > 1:
            chosen = [ordered[-1], ordered[0]]
        asked_for = {
            "": config,
            ", all others being asked for no noise": changed(config, "privacy.epsilon", math.inf),
        }
        for victim, lie in product(chosen, asked_for):
            who = f"{exposure.adversary}: client {victim}, of weight {weights[victim]}{lie}"
            seen = replace(exposure, adversary=who)
            place = Path(folder) / f"{victim}{bool(lie)}"
            own = Asked(config, SimulatedSite.of(place / "own"))
            others = own
            if lie:
                others = Asked(asked_for[lie], SimulatedSite.of(place / "others"))
            try:
                summed = kind(strategy, own, others, victim)
            except SumRefusedError as refused:
                seen = replace(seen, adversary=f"{who}; no sum comes about ({refused})")
                yield seen, Bound.of(seen, statement, 1), None
                continue
            yield from _summed(strategy, summed, seen, statement, effort)


def _summed(
    strategy: CohortStrategy,
    summed: SecureSum,
    exposure: Exposure,
    statement: Statement,
    effort: Effort,
) -> Iterator[tuple[Exposure, Bound, AttackResult | None]]:
    """Attack one release in ``summed``, and all of the run, beside what the ledger charges.

    What is charged for one such sum takes the place of the exposure's own cost; for the rest
    ``_sums``.
    """
    exposure = replace(exposure, per_round=summed.charged)
    part = summed.parts[summed.victim]
    for count in _releases(strategy, part.task, exposure.threat):
        bound = Bound.of(exposure, statement, count)
        view = added(summed, count)
        yield exposure, bound, _attack(summed.node, exposure, bound, part, view, effort)


def _further(strategy: CohortStrategy, node: SimulatedHost) -> Iterator[tuple[Exposure, Messages]]:
    """Yields releases beside the rounds' answers: before the rounds, and evaluations.

    Yields:
        Who reads it, with what it costs, and how it is made.
    """
    model = strategy.setup.initial_parameters()
    if (first := strategy.before_rounds()) is not None:
        task = first.task(min(first.cohort))
        what = f"what a client is asked before the rounds ({first.purpose})"
        yield _read(what, Messages(node.client, task))
    if (evaluation := strategy.rounds.evaluation) is not None and evaluation.is_on:
        assert node.evaluator is not None
        task = Task(evaluation.every, 0, model, {}, {}, PROTECTED)
        messages = Messages(node.evaluator, task)
        yield _read("a client's protected evaluation", messages)


def _read(what: str, messages: Messages) -> tuple[Exposure, Messages]:
    """A server that reads one message of a client.

    Args:
        what: the message, in words.
        messages: how it is made; its event is what the message costs.

    Returns:
        The adversary, and ``messages``.
    """
    cost = messages.client.event(messages.task)
    assert cost is not None
    return Exposure(Threat.LOCAL, f"a curious server, which reads {what}", cost, {}), messages


def _attack(
    node: SimulatedHost,
    exposure: Exposure,
    bound: Bound,
    messages: Messages,
    view: View | None,
    effort: Effort,
) -> AttackResult | None:
    """Attack the releases of ``bound`` together, with the pair that is told apart best.

    Args:
        node: holds the data of which neighbours are made.
        exposure: the adversary, and what one release costs.
        bound: how many releases, and between which neighbours they are proven.
        messages: the client, and what it is asked.
        view: as ``fl_app.attack``.
        effort: how often to look.

    Returns:
        None where this is planned only, where nothing is seen and where nothing protects.
    """
    if view is None or math.isinf(bound.epsilon):
        return None
    data = node.data.of(messages.task.client)
    pairs = neighbours(messages, data, exposure, bound.unit, bound.adjacency)
    seen, scouts = effort.looks(messages, bound.releases)
    if effort.planned is not None:
        effort.plan(view, pairs, seen, scouts)
        return None
    watched = effort.watched(view, 2 * (seen + len(pairs) * (scouts + TRIED)))
    return attack(watched, pairs, bound.delta, seen, scouts, exposure.per_round)


def _releases(strategy: CohortStrategy, task: Task, threat: Threat) -> list[int]:
    """How many releases are attacked together: one, and all of the run's rounds.

    Args:
        strategy: whose cohorts say in how many rounds a client is asked.
        task: names the client and what it is asked; an evaluation is attacked alone.
        threat: of a model every round counts, whether the client was asked or not.

    Returns:
        Ascending; one number where the run has no more.
    """
    if task.purpose == PROTECTED:
        return [1]
    rounds = range(1, strategy.setup.budget.rounds + 1)
    if threat is Threat.CENTRAL:
        return sorted({1, len(rounds)})
    asked = sum(task.client in strategy.rounds.cohort(number) for number in rounds)
    return sorted({1, max(asked, 1)})


def first_task(strategy: CohortStrategy) -> Task:
    """Returns the task of the cohort's first client in round 1, with the initial model."""
    model = strategy.setup.initial_parameters()
    client = int(strategy.rounds.cohort(1)[0])
    arrays, settings = strategy.task(1, model)
    return Task(1, client, model, arrays, settings)


def _show(exposure: Exposure, bound: Bound, found: AttackResult | None) -> None:
    """Print one adversary's claimed, proven or assumed, and measured ε.

    ``found``: None where it was not attacked.
    """
    print(f"against {exposure.adversary}")
    what = f"a client's {bound.releases} releases"
    if bound.releases == 1:
        what = "one release"
    elif exposure.threat is Threat.CENTRAL:
        what = f"the model after {bound.releases} rounds"
    if bound.claimed is not None:
        print(f"  claimed ε   {format_epsilon(bound.claimed)} for {what}")
    kind = "proven "
    if bound.is_assumed:
        kind = "assumed"
    print(f"  {kind} ε   {format_epsilon(bound.epsilon)} for {what}")
    if math.isinf(bound.epsilon):
        print("  measured ε  not attacked: unprotected")
        return
    if found is None:
        print("  measured ε  not attacked")
        return
    least = format_number(found.counted, up=False)
    print(f"  measured ε  at least {least} ({CONFIDENCE:.1%} confidence)")
    normal = "if what is seen is normal"
    if found.estimate is not None:
        why = "if its trade-off is Gaussian"
        if found.is_normal:
            why = normal
        low, about, high = found.estimate
        between = f"{format_number(low, up=False)} to {format_number(high)}"
        print(f"              about {format_number(about)} ({between}) {why}")
    at = bound.beaten_at(found)
    if at is not None:
        counted_there = format_number(found.profile[at], up=False)
        proven_there = format_number(bound.at(at))
        print(
            f"  BEATEN      at δ = {at:g}: at least {counted_there} where {proven_there} is stated"
        )
    elif found.likely > bound.epsilon:
        print(f"  More than is stated {normal}; only what is counted shows it: raise --runs.")
    if bound.claimed is not None and found.counted > bound.claimed:
        print("  The claim is refuted: the attack tells the neighbours apart too well for it.")
    elif bound.claimed is not None and found.likely > bound.claimed:
        print(f"  The claim is refuted {normal}.")
    print(f"  neighbours  {found.neighbours}; seen {found.runs:,} times each", flush=True)


def _measured(
    statement: Statement, exposure: Exposure, bound: Bound, found: AttackResult
) -> Statement:
    """Writes the counted ε of one release into the statement: of several attacks the largest.

    A sum that costs more than the statement says of a round is smaller than any that the run
    revealed, and is left out. Of whatever else costs more the statement says too little.
    """
    if bound.releases > 1:
        return statement
    guarantees = []
    for guarantee in statement.guarantees:
        most = guarantee.stated_per_round * (1 + _EPSILON_TOLERANCE)
        if exposure.threat is not Threat.SECURE_AGGREGATION:
            most = math.inf
        if bound.epsilon <= most and exposure.adversary.startswith(guarantee.adversary):
            largest = max(found.counted, guarantee.measured or 0.0)
            guarantee = replace(guarantee, measured=largest)
        guarantees.append(guarantee)
    return replace(statement, guarantees=tuple(guarantees))


def _refuted(statement: Statement, exposure: Exposure) -> Statement:
    """Say of the whole statement that an attack beats it, wherever it was counted."""
    reason = MORE_FOUND.format(exposure.adversary)
    if reason in statement.doubts:
        return statement
    return replace(statement, void=(*statement.void, reason))
