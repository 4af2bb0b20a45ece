"""What each adversary has seen of the clients of a run, and the run's privacy statement.

A strategy has a ``PrivacyReport``. The report asks the algorithm what one participation releases
and what its paper claims, the phases over how many clients sums were, and composes the evaluation
on clients and an audit's canaries into the same statement.

Figures are about what may have been released, whether or not it arrived: a client that was asked
and whose node failed counts as one that has answered, unless the failure excludes it. ε is derived
from events whenever a statement is made.

``PrivacyReport`` is the report; the functions after it round and join what it says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from murmur.privacy.accounting import Threat
from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent, SummedEvent, repeated
from murmur.privacy.statement import Exposure, Statement, by_participations

if TYPE_CHECKING:
    from strategies.base import CohortStrategy


class PrivacyReport:
    """The report of the strategy ``of``, at any time of the run.

    It keeps nothing: each method reads what the strategy has counted so far.
    """

    def __init__(self, of: "CohortStrategy") -> None:
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
            warnings=tuple(warnings),
            void=tuple(void),
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

        The noise of the others hides a client's release in a sum: of all of the smallest sum so
        far, before the first of the smallest that the settings allow, less those who may side with
        the server. That so many are honest is an assumption, which the statement names; so is what
        keeps the server from more than sums.

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
        survivors = of.sums.least_survivors or of.sums.least_hidden
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
