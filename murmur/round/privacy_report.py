"""A strategy's privacy report: what each adversary has seen, and the run's statement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent, SummedEvent
from murmur.privacy.statement import Exposure, Statement, by_participations
from murmur.round.setup import ServerSetup
from murmur.round.weights import Weights
from murmur.secure_sum import SecureSumSettings

if TYPE_CHECKING:
    from murmur.round.canaries import Canaries
    from murmur.round.client_evaluation import ClientEvaluation


class PrivacyReport(ABC):
    """The privacy side of every strategy.

    ``algorithm``, ``claim`` and ``difference`` are words for the statement: the name, what the
    paper's theorem says, and why the proven figure differs. ``unit`` and ``adjacency``: whose data
    is protected, and which two data sets are neighbours. ``threats``: against whom it can keep a
    budget (``Budget.threat``). ``participations``: how often each client
    may have released something. ``least_survivors``: of any secure sum that was taken; 0: none was.
    """

    algorithm: str
    threats: tuple[str, ...] = ("local",)
    unit: Unit = Unit.CLIENT
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    claim: str = ""
    difference: str = ""

    setup: ServerSetup
    participations: Counter[int]
    least_survivors: int
    evaluation: ClientEvaluation | None
    canaries: Canaries | None

    @abstractmethod
    def release_event(self) -> Event:
        """What one participation releases about one client."""

    @abstractmethod
    def weights(self) -> Weights:
        """How much each client counts in a sum."""

    def claimed_epsilon(self) -> tuple[float | None, float | None]:
        """What the paper's theorem states: ε of one round and of the whole run."""
        return None, None

    def exposures(self) -> list[Exposure]:
        """What each adversary has seen of every client so far."""
        released = {str(client): count for client, count in sorted(self.participations.items())}
        per_round, total = self.claimed_epsilon()
        exposures = [
            Exposure(
                threat=Threat.LOCAL,
                adversary="a server that reads every message",
                per_round=self.release_event(),
                clients=by_participations(self.release_event(), released or {"nobody": 0}),
                claimed_per_round=per_round,
                claimed_total=total,
            )
        ]
        if self.setup.secure_sums.mode != "off":
            exposures.append(self.secure_exposure(self.release_event()))
        return exposures

    def secure_exposure(self, release: Event) -> Exposure:
        """What a server that sees sums only has learned, where each answer is ``release``."""
        setup = self.setup
        survivors = self.least_survivors or setup.secure_sums.least_survivors(setup.cohort_size)
        known = setup.secure_sums, setup.cohort_size, release, self.participations
        return secure_exposure(*known, survivors, self.weights())

    def statement(self, void: Iterable[str] = ()) -> Statement:
        """Claimed and proven privacy of everything released so far."""
        exposures, warnings = self.exposures(), self.warnings()
        if self.evaluation is not None:
            exposures = self.evaluation.compose(exposures)
            warnings = [*warnings, *self.evaluation.warnings()]
        if self.canaries is not None:
            exposures = self.canaries.compose(exposures)
        return Statement.of(
            algorithm=self.algorithm,
            unit=self.unit,
            adjacency=self.adjacency,
            delta=self.setup.budget.delta,
            # The one that the budget is meant for comes first.
            exposures=sorted(exposures, key=lambda e: e.threat != self.setup.budget.threat),
            claim=self.claim,
            difference=self.difference,
            warnings=warnings,
            void=void,
            split=self.setup.split,
        )

    def spent(self) -> Event:
        """What the most exposed client has released so far, as the budget's adversary sees it."""
        release = self.release_event()
        if self.setup.budget.threat == Threat.SECURE_AGGREGATION:
            release = self.secure_exposure(release).per_round
        return RepeatedEvent(release, max(self.participations.values(), default=1))

    def spent_in_all(self) -> Event:
        """``spent``, and what the most exposed client's evaluations released."""
        evaluation = [] if self.evaluation is None else self.evaluation.spent()
        return ComposedEvent((self.spent(), *evaluation))

    def warnings(self) -> list[str]:
        """What a user should know before the run starts: settings that work against each other."""
        return []


def secure_exposure(
    settings: SecureSumSettings,
    cohort: int,
    release: Event,
    participations: Mapping[int, int],
    survivors: int,
    weights: Weights,
) -> Exposure:
    """What a server that sees sums only has learned of every client.

    ``cohort``: how many clients a round asks. ``release``: what one participation releases.
    ``survivors``: the fewest clients that any revealed sum was over.
    """
    honest = max(1, survivors - settings.colluders)
    failure = settings.failure_probability(cohort)

    def summed(weight: int) -> Event:
        known = weight, weights.least, weights.greatest
        return SummedEvent(release, honest, *known, failure=failure)

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
