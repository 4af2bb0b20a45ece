"""Parts that strategies have beside what ``strategies.base`` gives to all of them.

* ``PrivacyReport``: what each adversary has seen of the clients of a run, and its statement.
* ``RecordPaths``: what clients have released whose records each have a budget of their own.
* ``OwnModels``: where every client has a model of its own, what a simulation's researcher sees.
* ``Foretold``: what a planner says of a run's score from public numbers alone.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from murmur.learning.codec import WeightCodec
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.accounting.gaussian import epsilon_of_mu
from murmur.privacy.budget import Budget
from murmur.privacy.events import (
    ComposedEvent,
    Event,
    RepeatedEvent,
    SummedEvent,
    UnknownEvent,
    repeated,
)
from murmur.privacy.guarantee import Exposure, by_participations, released
from murmur.privacy.statement import Statement
from murmur.round import aggregator, cohorts, phase
from murmur.round.question import Question
from murmur.round.setup import ServerSetup

if TYPE_CHECKING:
    from strategies.base import CohortStrategy

# MNIST and Fashion-MNIST, with the same public numbers, keep 0.93 and 0.79 (research/owners).
_SPREAD = (
    "how much is kept depends on how the classes lie in the features, which nothing public says"
)


class PrivacyReport:
    """The report of the strategy ``of``, at any time of the run.

    It asks the algorithm what one participation releases and what its paper claims, the phases over
    how many clients sums were, and composes the evaluation on clients and an audit's canaries into
    the same statement. It keeps nothing: each method reads what the strategy has counted so far.

    Figures are about what may have been released, whether or not it arrived: a client that was
    asked and whose node failed counts as one that has answered, unless the failure excludes it. ε
    is derived from events whenever a statement is made.
    """

    def __init__(self, of: "CohortStrategy") -> None:
        self.of = of

    def statement(self, void: Iterable[str] = ()) -> Statement:
        """Claimed and proven privacy of everything released so far.

        Made after each round and at the end, at the budget's δ. ``void``: reasons for which it
        counts not, such as noise that follows from a seed.
        """
        return self._stated(Statement.of, self._all_exposures(), self._warnings(), void)

    def released(self) -> list[dict[str, Any]]:
        """What clients have released to each adversary so far, as ``statement.released`` has it."""
        return [each for exposure in self._all_exposures() for each in released(exposure)]

    def without_epsilon(self, error: Exception, void: Iterable[str] = ()) -> Statement:
        """What was charged, after ``statement`` has raised ``error``: no ε is derived.

        Where not even that can be told apart by adversary, how often each client has released.
        """
        exposures = [self._bare_exposure()]
        warnings: list[str] = []
        with suppress(Exception):
            exposures = self._all_exposures()
        with suppress(Exception):
            warnings = self._warnings()
        return self._stated(partial(Statement.without_epsilon, error), exposures, warnings, void)

    def _stated(
        self,
        statement: Callable[..., Statement],
        exposures: list[Exposure],
        warnings: list[str],
        void: Iterable[str],
    ) -> Statement:
        """``statement`` of what is this strategy's."""
        of = self.of
        return statement(
            algorithm=of.algorithm,
            unit=of.unit,
            adjacency=of.adjacency,
            delta=of.setup.budget.delta,
            # The one that the budget is meant for comes first.
            exposures=sorted(exposures, key=lambda e: e.threat != of.setup.budget.threat),
            claim=of.claim,
            difference=of.difference,
            warnings=tuple(warnings),
            void=tuple(void),
            split=of.setup.split,
        )

    def _warnings(self) -> list[str]:
        """The settings', the strategy's and the evaluation's."""
        warnings = [*self.of.setup.warnings, *self.of.warnings()]
        if self.of.evaluation is not None:
            warnings += self.of.evaluation.warnings()
        return warnings

    def _all_exposures(self) -> list[Exposure]:
        """The strategy's, with those of an evaluation and of an audit's canaries."""
        of = self.of
        exposures = of.exposures()
        if of.evaluation is not None:
            exposures = of.evaluation.compose(exposures)
        if of.canaries is not None:
            exposures = of.canaries.compose(exposures)
        return exposures

    def _bare_exposure(self) -> Exposure:
        """Who has released how often; what it was is for the clients' ledgers to say."""
        counts = {str(client): n for client, n in sorted(self.of.participations.items())}
        release = UnknownEvent('{"kind": "the clients\' ledgers say it"}')
        return Exposure(
            threat=Threat.LOCAL,
            adversary="a server that reads every message",
            per_round=release,
            clients=by_participations(release, counts or {"nobody": 0}),
        )

    def spent_in_all(self, roughly: bool = False) -> Event:
        """What the most exposed client has released, its evaluations included.

        As the budget's adversary sees it. Two clients' worst parts may be taken together, which is
        above what any one of them has released.

        Parameters
        ----------
        roughly : bool
            Round up the number of releases (``rounded_up``), at most to as many as are planned: in
            a long run most rounds then share an ε that was computed before.
        """
        if self.of.evaluation is None:
            evaluation = []
        else:
            evaluation = self.of.evaluation.spent()
        spent = ComposedEvent((self.of.spent(), *evaluation))
        if roughly:
            return rounded_up(spent, self.of.setup.budget.releases)
        return spent

    def exposures(self) -> list[Exposure]:
        """The usual adversaries: a server that reads messages, and one that sees only sums.

        The second is there where there are sums, and they are secure, or simulated as such. Answers
        before the rounds are added to the rounds' for each client.
        """
        of = self.of
        found = self._exposures(of.release_event(), of.participations - of.before)
        event = of.event_before()
        if event is None:
            return found
        earlier = self._exposures(event, of.before)
        return [_together(*pair) for pair in zip(earlier, found, strict=True)]

    def _exposures(self, release: Event, participations: Mapping[int, int]) -> list[Exposure]:
        """The same of releases of one kind."""
        of = self.of
        released = {str(client): count for client, count in sorted(participations.items())}
        per_round, total = of.claimed_epsilon()
        exposures = [
            Exposure(
                threat=Threat.LOCAL,
                adversary="a server that reads every message",
                per_round=release,
                clients=by_participations(release, released or {"nobody": 0}),
                claimed_per_round=per_round,
                claimed_total=total,
            )
        ]
        if of.summed and of.setup.secure_sums.mode != "off":
            exposures.append(self.secure_exposure(release, participations))
        return exposures

    def spent(self) -> Event:
        """The usual spending: the releases of the most exposed client, one for each round.

        As the budget's adversary sees it; nothing before anything was released.
        """
        in_rounds = self.of.participations - self.of.before
        most = max(in_rounds.values(), default=0)
        rounds = repeated(self._seen(self.of.release_event()), most)
        event = self.of.event_before()
        if event is None or not self.of.before:
            return rounds
        earlier = repeated(self._seen(event), max(self.of.before.values()))
        return ComposedEvent((earlier, rounds))

    def planned(self) -> Event:
        """The usual plan: a release in each round in which a client is asked, and one before them.

        As the budget's adversary sees it.
        """
        rounds = RepeatedEvent(self._seen(self.of.release_event()), self.of.setup.budget.releases)
        event = self.of.event_before()
        if event is None:
            return rounds
        return ComposedEvent((self._seen(event), rounds))

    def _seen(self, release: Event) -> Event:
        """``release`` as the budget's adversary sees it."""
        if self.of.setup.budget.threat == Threat.SECURE_AGGREGATION:
            return self.secure_exposure(release, {}).per_round
        return release

    def secure_exposure(self, release: Event, participations: Mapping[int, int]) -> Exposure:
        """What a server that sees sums only has learned of every client.

        The noise of the others hides a client's release in a sum: of the smallest that the settings
        allow, as the client's own ledger is charged, less those who may side with the server. That
        a sum was larger is known afterwards only, and is not counted. That so many are honest is an
        assumption, which the statement names; so is what keeps the server from more than sums.

        Parameters
        ----------
        release : Event
            What one participation releases by itself.
        participations : mapping
            How often each client released that.

        Returns
        -------
        Exposure
            Its ``per_round`` is that of the client of most weight, which is hidden least.
        """
        of = self.of
        settings = of.setup.secure_sums
        cohort = of.setup.cohort_size
        weights = of.weights()
        survivors = of.sums.least_counted
        honest = max(1, survivors - settings.colluders)
        failure = settings.failure_probability(cohort)

        def summed(weight: int) -> Event:
            return SummedEvent(
                release, honest, weight, weights.least, weights.greatest, failure=failure
            )

        by_weight: dict[int, dict[str, int]] = {}
        for client, count in sorted(participations.items()):
            by_weight.setdefault(weights.of(client), {})[str(client)] = count
        clients: dict[str, Event] = {}
        for weight, counts in by_weight.items():
            clients |= by_participations(summed(weight), counts)
        return Exposure(
            threat=Threat.SECURE_AGGREGATION,
            adversary="a server that sees only sums",
            per_round=summed(weights.greatest),
            clients=clients or by_participations(release, {"nobody": 0}),
            assumptions=(
                f"at least {honest} of the {survivors} clients of every sum are honest",
                *settings.conditions(cohort),
            ),
        )


def rounded_up(event: Event, most: int) -> Event:
    """``event`` or a little more: beyond 127, numbers of repetitions have six binary digits.

    That is at most 3.2% more releases. Those up to ``most`` stay within it.
    """
    if isinstance(event, ComposedEvent):
        return ComposedEvent(tuple(rounded_up(part, most) for part in event.events))
    if not isinstance(event, RepeatedEvent):
        return event
    unit = 1
    if event.count > 127:
        unit = 1 << (event.count.bit_length() - 6)
    count = -(-event.count // unit) * unit
    return replace(event, count=max(event.count, min(count, most)))


def _together(earlier: Exposure, later: Exposure) -> Exposure:
    """``later`` with what each client has released in ``earlier``, to the same adversary."""
    clients: dict[str, Event] = {}
    for name in sorted({*earlier.clients, *later.clients}):
        parts = [each.clients[name] for each in (earlier, later) if name in each.clients]
        clients[name] = ComposedEvent(tuple(parts))
    if len(clients) > 1:
        clients.pop("nobody", None)
    return replace(later, clients=clients)


class RecordPaths:
    """What each client's records were exposed to, and whose were exposed most.

    Clients are disjoint, so that of all that leaves a client only its own path counts, and the run
    costs what the costliest path does. Uploads are read one by one; nothing is hidden in a sum.

    A strategy whose clients differ in noise (by size, by an ε of their own) answers
    ``release_event``, ``spent`` and ``exposures`` with one of these, instead of the usual report,
    which takes all clients for alike.

    Parameters
    ----------
    strategy : CohortStrategy
        Whose clients these are.
    path : callable
        Gives all that a client (its id) has released so far, as one event. It is asked anew each
        time, since it grows with the rounds.
    """

    def __init__(self, strategy: "CohortStrategy", path: Callable[[int], Event]) -> None:
        self.strategy = strategy
        self.path = path
        self.delta = strategy.setup.budget.delta

    def worst(self, events: Iterable[Event]) -> Event:
        """The event with the largest ε at δ, of at least one; equal events are converted once."""
        distinct = list(dict.fromkeys(events))
        if len(distinct) == 1:
            return distinct[0]
        unit, adjacency = self.strategy.unit, self.strategy.adjacency

        def cost(event: Event) -> float:
            return epsilon(event, self.delta, adjacency=adjacency, unit=unit).epsilon

        return max(distinct, key=cost)

    def spent(self) -> Event:
        """All that the most exposed of those who took part has released so far; nothing for nobody.

        How often each did is not read here, but by ``path``.
        """
        if not self.strategy.participations:
            return ComposedEvent(())
        return self.worst(map(self.path, self.strategy.participations))

    def exposures(self, adversary: str) -> list[Exposure]:
        """The statement's part for ``adversary``, who sees the clients' messages.

        Returns
        -------
        list of Exposure
            One, to the local threat: nothing counts on a sum or on a trusted server. Where nobody
            took part, "nobody" has released nothing.
        """
        claimed_per_round, claimed_total = self.strategy.claimed_epsilon()
        events = {str(c): self.path(c) for c in sorted(self.strategy.participations)}
        seen = Exposure(
            threat=Threat.LOCAL,
            adversary=adversary,
            per_round=self.strategy.release_event(),
            clients=events or {"nobody": ComposedEvent(())},
            claimed_per_round=claimed_per_round,
            claimed_total=claimed_total,
            notes=("clients' sizes are public",),
        )
        return [seen]


EVALUATE = "evaluate"  # the purpose of such a question


class OwnModels:
    """Asks all clients for the accuracy of their own models, and keeps the means until read.

    The server of such an algorithm has nothing to test. These reports are no part of the protocol:
    they cost nothing, and a device refuses them.

    A strategy that has them sets ``own_models``; ``strategies.base`` does the rest. Nothing of it
    is in a checkpoint: a figure that was not read before a kill is lost, and nothing else depends
    on it.

    Parameters
    ----------
    setup : ServerSetup
        Of the run.
    sums : Aggregator
        The strategy's; reports are summed in the clear even where trainings are summed securely.
    names : sequence of str
        Of the figures in [0, 1] that a client reports, in order.
    every : int
        Rounds between two questions, and one after the last; 0: after the last only.
    """

    def __init__(
        self, setup: ServerSetup, sums: aggregator.Aggregator, names: Sequence[str], every: int = 1
    ) -> None:
        self.setup = setup
        self.sums = sums
        self.names = names
        self.every = every
        self.codec = WeightCodec(len(names), bound=1.0)
        self._phase: phase.Phase | None = None
        self._found: dict[str, float] = {}

    def ask(
        self, number: int, arrays: ArrayRecord, grid: Grid, weights: cohorts.Weights
    ) -> Iterable[Message]:
        """One message for each node about the ``model`` in ``arrays``, if round ``number`` is due.

        ``weights``: how much each client's figures count in the means. All clients are asked,
        whether they have ever taken part or not; any number of answers is enough, and nobody is
        charged.
        """
        last = number == self.setup.budget.rounds
        if not last and (self.every == 0 or number % self.every):
            return []
        question = Question(
            purpose=EVALUATE,
            number=number,
            cohort=range(self.setup.num_clients),
            model=arrays["model"].numpy(),
            codec=self.codec,
            weights=weights,
            event=None,
            kind="evaluate",
        )
        self._phase = phase.Phase(question, self.sums, self.setup)
        return self._phase.ask(grid)

    def take(self, replies: Iterable[Message]) -> None:
        """The means over all clients that have reported, by weight; nothing where nobody has."""
        if self._phase is None:
            return
        outcome = self._phase.take(replies)
        self._phase = None
        if not outcome.weight:
            return
        means = self.codec.mean(outcome.total, outcome.weight)
        for name, mean in zip(self.names, means, strict=True):
            self._found[name] = float(mean)
        self._found["clients_evaluated"] = float(len(outcome.answered))

    def read(self) -> dict[str, float]:
        """The figures by name, once; nothing where nobody was asked.

        Beside them ``clients_evaluated``, over how many clients they are means.
        """
        found = self._found
        self._found = {}
        return found


@dataclass(frozen=True)
class Foretold:
    """The share of the same algorithm's score without noise, or what would help, foretold.

    Attributes:
        ratio: signal to noise, above 0; it grows with units and with μ(ε), and falls with classes.
        share: what is kept; None: no rule tells it from public numbers.
        budget: private.
        units: of what the sum is over.
        unit: what these are, "owners" or "records".
        classes: C; the ratio falls as the root of C.
        least: the ratio below which noise drowns what the units say.
        wanted: the ratio at which 0.9 is kept; None: no rule tells.
    """

    ratio: float
    share: float | None
    budget: Budget
    units: int
    unit: str
    classes: int
    least: float
    wanted: float | None = None

    def text(self) -> str:
        """One sentence, and where more would help a second one: how much of what."""
        return "; ".join([f"signal-to-noise ratio {self.ratio:.2g}", self.kept(), *self.helps()])

    def kept(self) -> str:
        """What is left of the score without noise, in words."""
        if self.is_drowned:
            return (
                f"not at this budget: at ε = {self.budget.epsilon:g} the noise drowns what "
                f"{self.units} {self.unit} say together"
            )
        if self.share is None:
            return f"no share is foretold: {_SPREAD}"
        return (
            f"about {self.share:.2f} of the score without noise, if length and shrinkage suit the "
            "budget"
        )

    def helps(self) -> list[str]:
        """How much of what would help; nothing where none is needed."""
        if self.ratio >= self._aim:
            return []
        found = [f"{self.more_units()} {self.unit}", f"ε = {self.larger_epsilon():.2g}"]
        if self.fewer_classes() >= 2:
            found.append(f"{self.fewer_classes()} classes")
        aim = "to stand above the noise" if self.wanted is None else "for 0.9 of it"
        return [f"{aim}: {', or '.join(found)}"]

    @property
    def is_drowned(self) -> bool:
        """Whether the noise drowns what the units say."""
        return self.ratio < self.least

    @property
    def _aim(self) -> float:
        """The ratio that what would help is reckoned for."""
        return self.least if self.wanted is None else self.wanted

    def more_units(self) -> int:
        """How many units would do, all else as it is."""
        return math.ceil(self.units * self._aim / self.ratio)

    def larger_epsilon(self) -> float:
        """The ε that would."""
        mu = self._aim / self.ratio / self.budget.noise_multiplier(1.0)
        return epsilon_of_mu(mu, self.budget.delta_of_noise)

    def fewer_classes(self) -> int:
        """How many classes would; below 2: no number of them."""
        return math.floor(self.classes * (self.ratio / self._aim) ** 2)
