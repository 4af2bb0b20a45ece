"""What each adversary has seen of the clients of a run, and the run's privacy statement.

A strategy has a ``PrivacyReport``. The report asks the algorithm what one participation releases
and what its paper claims, the phases over how many clients sums were, and composes the evaluation
on clients and an audit's canaries into the same statement.

Figures are about what may have been released, whether or not it arrived: a client that was asked
and whose node failed counts as one that has answered, unless the failure excludes it. ε is derived
from events whenever a statement is made.

``Releasing`` is what a strategy must say, ``PrivacyReport`` the report; the functions after it make
exposures, and an evaluation uses them too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent, SummedEvent, repeated
from murmur.privacy.statement import Exposure, Statement, by_participations
from murmur.round.cohorts import Weights
from murmur.round.secure_summation import Sums
from murmur.round.setup import ServerSetup
from murmur.secure_sum import SecureSumSettings

if TYPE_CHECKING:
    from murmur.round.client_evaluation import ClientEvaluation
    from murmur.round.phase import Guests

_NOTE = "what is proven includes the protected evaluation, what is claimed does not"


class Releasing(Protocol):
    """What a report needs to know of a strategy.

    Attributes
    ----------
    algorithm, claim, difference : str
        Words for the statement: the name, what the paper's theorem says, and why the proven figure
        differs.
    unit, adjacency : Unit, Adjacency
        Whose data is protected, and which two data sets are neighbours.
    summed : bool
        Whether answers are summed, rather than read one by one.
    setup : ServerSetup
        For the budget, and for how sums are taken.
    participations : Counter
        How often each client may have released something.
    before : Counter
        Of these, how often before the rounds.
    sums : Sums
        Of the trainings; knows the fewest clients that any sum was over.
    evaluation : ClientEvaluation or None
        Releases of its own, after rounds.
    canaries : Guests or None
        An audit in the run.
    """

    algorithm: str
    claim: str
    difference: str
    unit: Unit
    adjacency: Adjacency
    summed: bool
    setup: ServerSetup
    participations: Counter[int]
    before: Counter[int]
    sums: Sums
    evaluation: "ClientEvaluation | None"
    canaries: "Guests | None"

    def release_event(self) -> Event:
        """What one participation releases about one client, by itself: no sum is in it."""

    def event_before(self) -> Event | None:
        """What an answer before the rounds releases; None: it is no matter of the usual report."""

    def claimed_epsilon(self) -> tuple[float | None, float | None]:
        """What the paper's theorem states: ε of one round and of the whole run; None: nothing."""

    def weights(self) -> Weights:
        """How much each client counts in a sum."""

    def exposures(self) -> list[Exposure]:
        """What each adversary has seen of every client so far."""

    def spent(self) -> Event:
        """What the most exposed client has released, as the budget's adversary sees it."""

    def warnings(self) -> list[str]:
        """What a user should know before the run starts."""


class PrivacyReport:
    """The report of the strategy ``of``, at any time of the run.

    It keeps nothing: each method reads what the strategy has counted so far.
    """

    def __init__(self, of: Releasing) -> None:
        self.of = of

    def statement(self, void: Iterable[str] = ()) -> Statement:
        """Claimed and proven privacy of everything released so far.

        Made after each round and at the end, at the budget's δ. ``void``: reasons for which it
        counts not, such as noise that follows from a seed.
        """
        of = self.of
        budget = of.setup.budget
        exposures = of.exposures()
        warnings = [*of.setup.warnings, *of.warnings()]
        if of.evaluation is not None:
            exposures = of.evaluation.compose(exposures)
            warnings = [*warnings, *of.evaluation.warnings()]
        if of.canaries is not None:
            exposures = of.canaries.compose(exposures)
        return Statement.of(
            algorithm=of.algorithm,
            unit=of.unit,
            adjacency=of.adjacency,
            delta=budget.delta,
            # The one that the budget is meant for comes first.
            exposures=sorted(exposures, key=lambda e: e.threat != budget.threat),
            claim=of.claim,
            difference=of.difference,
            warnings=warnings,
            void=void,
            split=of.setup.split,
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
        found = self._exposures(self.of.release_event(), self._in_rounds())
        event = self.of.event_before()
        if event is None:
            return found
        earlier = self._exposures(event, self.of.before)
        return [_together(*pair) for pair in zip(earlier, found, strict=True)]

    def _in_rounds(self) -> Counter[int]:
        """How often each client may have released something in the rounds."""
        if self.of.event_before() is None:
            return self.of.participations
        return self.of.participations - self.of.before

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
        most = max(self._in_rounds().values(), default=0)
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
            return self.secure_exposure(release).per_round
        return release

    def secure_exposure(
        self, release: Event, participations: Mapping[int, int] | None = None
    ) -> Exposure:
        """What a server that sees sums only has learned, where each answer is ``release``.

        ``participations``: how many answers of each client there were; None: all. The noise is that
        of the smallest sum so far; before the first, of the smallest that the settings allow.
        """
        of = self.of
        return secure_exposure(
            of.setup.secure_sums,
            of.setup.cohort_size,
            release,
            of.participations if participations is None else participations,
            of.sums.least_survivors or of.sums.least_hidden,
            of.weights(),
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


def secure_exposure(
    settings: SecureSumSettings,
    cohort: int,
    release: Event,
    participations: Mapping[int, int],
    survivors: int,
    weights: Weights,
) -> Exposure:
    """What a server that sees sums only has learned of every client.

    The noise of the others hides a client's release in a sum: of ``survivors`` less those who may
    side with the server. That so many are honest is an assumption, which the statement names; so is
    what keeps the server from more than sums.

    Parameters
    ----------
    settings : SecureSumSettings
        How sums are taken, and how many clients may side with the server.
    cohort : int
        How many clients a round asks.
    release : Event
        What one participation releases by itself.
    participations : mapping
        How often each client took part.
    survivors : int
        The fewest clients that any revealed sum was over.
    weights : Weights
        How much each client counts: the noise of others counts by theirs.

    Returns
    -------
    Exposure
        Its ``per_round`` is that of the client of most weight, which is hidden least.
    """
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
    assumptions = (
        f"at least {honest} of the {survivors} clients of every sum are honest",
        *settings.conditions(cohort),
    )
    return Exposure(
        threat=Threat.SECURE_AGGREGATION,
        adversary="a server that sees only sums",
        per_round=summed(weights.greatest),
        clients=clients or by_participations(release, {"nobody": 0}),
        assumptions=assumptions,
    )


def with_evaluation(exposure: Exposure, event: Event, counts: Mapping[int, int]) -> Exposure:
    """``exposure`` and the evaluations on clients: ``event`` so often for each client.

    Where ``exposure`` does not name its clients one by one, each gets the most exposed client's.

    Parameters
    ----------
    exposure : Exposure
        What one adversary has seen of the training.
    event : Event
        One evaluation as that adversary sees it.
    counts : mapping
        How often each client may have answered; not empty.
    """
    assumed = exposure.assumptions
    if isinstance(event, SummedEvent):
        assumed += (
            f"every sum of an evaluation holds {event.honest_clients} honest clients' noise",
        )
    seen = {name: [before] for name, before in exposure.clients.items()}
    if all(name.isdigit() for name in seen):
        for name, count in sorted((str(client), count) for client, count in counts.items()):
            seen.setdefault(name, []).append(RepeatedEvent(event, count))
    else:
        for events in seen.values():
            events.append(RepeatedEvent(event, max(counts.values())))
    return replace(
        exposure,
        clients={name: ComposedEvent(tuple(events)) for name, events in seen.items()},
        notes=(*exposure.notes, _NOTE),
        assumptions=assumed,
    )
