"""The rounds of a run: what a strategy does in each of them, whatever its algorithm is.

``Rounds`` asks cohorts, counts who may have released what, lets an evaluation and an audit's
canaries take part, ends a run that nobody answers, and is resumed from a ``RunState``. The
algorithm, a Flower strategy whose own four methods call it, says what is asked and what becomes of
the sum (``Algorithm``).

What an algorithm asks clients *before* the rounds is a phase as well: ``before_rounds`` gives the
question, ``learn`` takes the outcome, and so on until there is no further question, so that the
second may depend on what the first has shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from murmur.format import pluralize
from murmur.learning.array_bytes import array_from_bytes
from murmur.learning.codec import Integers
from murmur.privacy import exposure as exposed
from murmur.privacy.accounting import Adjacency, Unit
from murmur.privacy.events import ComposedEvent, Event
from murmur.privacy.exposure import Claimed, Claims
from murmur.privacy.guarantee import Exposure, departures, released
from murmur.privacy.run_header import PlannedPhase
from murmur.privacy.statement import Statement
from murmur.random import experiment_rng
from murmur.round.aggregator import Aggregator
from murmur.round.client_evaluation import PROTECTED, ClientEvaluation
from murmur.round.cohorts import Weights
from murmur.round.own_models import OwnModels
from murmur.round.phase import AuditCanaries, Phase
from murmur.round.placement import SimulatedPlacement
from murmur.round.question import Outcome, Question
from murmur.round.run_state import RunState
from murmur.round.setup import ServerSetup
from murmur.round.signed import QuestionSigner
from murmur.round.task import RunError

MAX_REASONS = 3  # that the end of such a run names
PATIENCE = 3  # rounds without a single answer after which a run ends

Parameters = NDArray[np.float32]


class Algorithm(Protocol):
    """The methods that ``Rounds`` calls; ``strategies.base.CohortStrategy`` documents each."""

    algorithm: str
    unit: Unit
    adjacency: Adjacency
    claim: str
    difference: str
    summed: bool

    def training(self, number: int, model: Parameters) -> Question:
        """Returns the question of round ``number``."""

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The next model."""

    def missed(self, number: int) -> Parameters | None:
        """The model after a round that does not count."""

    def release_event(self) -> Event:
        """Returns the privacy event of one participation."""

    def before_rounds(self) -> Question | None:
        """Returns the next question before the rounds; None: there is none."""

    def learn(self, question: Question, outcome: Outcome) -> None:
        """Take the answers to it."""

    def weights(self) -> Weights:
        """How much each client counts."""

    def quorum(self) -> float:
        """The share of a cohort that must answer."""

    def claims(self) -> Claims:
        """Returns the privacy claims for the statement."""

    def warnings(self) -> list[str]:
        """Returns warnings for the user."""

    def state(self) -> dict[str, NDArray]:
        """Returns the arrays that a checkpoint must hold beside the model."""

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up what ``state`` returned."""


class Rounds:
    """The rounds of ``algorithm``.

    Whatever a server draws is drawn once. ``keep`` gets a round's new model as soon as there is
    one, and must have it on disk with a ``state`` when it returns: nothing that follows from the
    model leaves before. A server that is resumed there has ``outcome`` as it was then, asks nobody
    to train, and draws nothing. Secret cohorts are drawn with the state before their round.

    Args:
        algorithm: What is asked, and what becomes of the answers.
        setup: Budget, cohorts, placement, seed.

    Attributes:
        sums: How trainings are summed, in the clear or securely, and who has lied in a secure sum.
        members: Clients that may be asked in rounds, ascending; None: all, by the setup's schedule.
        participations: How often each client may have released something, failed nodes' clients
            included.
        before: Participations before the rounds alone; kept where ``Claims.before`` says what that
            costs.
        first_round: Rounds already done by an interrupted run; Flower counts from 1 again after a
            resume.
        outcome: The last round's training, and what its evaluation and stages add to the round's
            row.
        phase: The training that is under way; None between two.
        model: (d,) float32. The global model that the present round began with, read-only.
        keep: Called with each new model before it leaves; does nothing unless the run keeps
            checkpoints.
        drawn: The number of the round whose cohort was drawn last, and that cohort.
        silent_rounds: Rounds in a row without an answer or an accusation; the run ends at
            ``PATIENCE`` of them.
        evaluation: The evaluation on clients that ``switch_on`` has added; None: clients are not
            evaluated.
        own_models: Where what is scored are models that clients keep: what a simulation's
            researcher sees of them. It takes the place of an evaluation on clients.
        canaries: An audit's canaries, which join every training that counts; None: there is no
            such audit.
    """

    def __init__(self, algorithm: Algorithm, setup: ServerSetup) -> None:
        self.algorithm = algorithm
        self.setup = setup
        rows = not algorithm.summed
        self.sums = Aggregator(setup, setup.cohort_size, "secure groups", rows=rows)
        self.members: NDArray[np.int64] | None = None
        self.participations: Counter[int] = Counter()
        self.before: Counter[int] = Counter()
        self.first_round = 0
        self.outcome = Outcome(0)
        self.phase: Phase | None = None
        self.model: Parameters = np.zeros(0, np.float32)
        self.keep: Callable[[Parameters], None] = _forget  # a run that is not resumed draws once
        self.drawn: tuple[int, NDArray[np.int64]] = (0, np.zeros(0, np.int64))
        self.silent_rounds = 0
        self.evaluation: ClientEvaluation | None = None
        self.own_models: OwnModels | None = None
        self.canaries: AuditCanaries | None = None

    # A round ----------------------------------------------------------------------------------

    def ask_before(self, grid: Grid, timeout: float) -> None:
        """Ask all that clients are asked before the rounds; RunError where too few answer."""
        while (question := self.algorithm.before_rounds()) is not None:
            self._learn_before(question, grid, timeout)

    def ask(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> Iterable[Message]:
        """The messages to the round's cohort; none where the round's model was kept before.

        That is a round that a kill interrupted after ``keep``: its model is in ``arrays`` already.
        ``server_round``: Flower's number.
        """
        number = self.first_round + server_round
        if self.outcome.accepted and self.outcome.number == number:
            return []
        sent = arrays["model"]
        self.model = array_from_bytes(sent.data)
        question = self.algorithm.training(number, self.model)
        if question.model is self.model:
            question = replace(question, sent=sent)
        quorum = self.algorithm.quorum()
        self.phase = Phase(question, self.sums, self.setup, quorum, self.canaries)
        self.outcome = self.phase.outcome
        return self.phase.ask(grid)

    def take(self, replies: Iterable[Message]) -> ArrayRecord | None:
        """The new model from the nodes' contributions, if the quorum answered; None: as before.

        Whoever may have released something is counted in ``participations`` even if the round does
        not count: then the model is what ``missed`` says, and the charge stands. RunError where
        nobody answers in ``PATIENCE`` rounds in a row.
        """
        if self.outcome.accepted or self.phase is None:
            return None  # ``arrays`` are its model
        outcome = self.phase.take(replies)
        self.participations.update(outcome.possibly_released)
        self._give_up_when_nobody_answers()
        if not outcome.accepted:
            missed = self.algorithm.missed(outcome.number)
            if missed is None:
                return None
            return ArrayRecord({"model": Array(missed)})
        update = self.algorithm.update
        model = update(outcome.number, self.model, outcome.total, outcome.weight)
        # Let go of what is as large as the model: question and sum.
        self.phase = None
        outcome.total = np.zeros(0, np.int64)
        self.keep(model)
        return ArrayRecord({"model": Array(model)})

    def ask_evaluation(
        self, server_round: int, arrays: ArrayRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of an evaluation on clients; none unless one is switched on.

        It is a release of its own. Where clients have models of their own, a simulation asks for
        their accuracy, weighted as updates are.
        """
        number = self.first_round + server_round
        if self.own_models is not None:
            return self.own_models.ask(number, arrays, grid, self.algorithm.weights())
        if self.evaluation is None:
            return []
        return self.evaluation.messages(number, arrays, grid)

    def take_evaluation(self, replies: Iterable[Message]) -> None:
        """Let the evaluation, if there is one, read what it asked for.

        Its bytes are added to the round's; its scores stay with it, for the round's row.
        """
        if self.own_models is not None:
            self.own_models.take(replies)
        if self.evaluation is not None:
            self.evaluation.take(replies)
            self.outcome.bytes_down += self.evaluation.outcome.bytes_down
            self.outcome.bytes_up += self.evaluation.outcome.bytes_up

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients asked in round ``number``, ascending; the same however often it is asked.

        Random and rotating cohorts follow from the public seed and amplify nothing. A Poisson
        sample is secret: it comes from the noise stream, and only the last drawn one is known.
        """
        if self.drawn[0] != number:
            self.drawn = (number, self._draw(number))
        return self.drawn[1]

    def switch_on(self, evaluation: ClientEvaluation) -> None:
        """Let ``evaluation`` ask clients after a round; ValueError where it does not fit.

        It does not where the algorithm has a way of its own to evaluate on clients, or where the
        evaluation protects records and the training's releases do not: one for clients that
        contribute nothing instead knows no records, of which one may turn an update into any other.
        An evaluation of records makes records the unit of the whole statement.
        """
        algorithm = self.algorithm
        if self.own_models is not None:
            raise ValueError(
                f"evaluation: {algorithm.algorithm} has its own way to evaluate on clients; "
                "set evaluation=none"
            )
        if evaluation.unit is Unit.RECORD:
            planned = algorithm.claims().planned()
            why = departures(planned, Unit.RECORD, algorithm.adjacency)
            if why:
                raise ValueError(f"unit=record: {why[0]}; set the evaluation's unit to client")
            algorithm.unit = Unit.RECORD
        self.evaluation = evaluation

    # Checkpoint -------------------------------------------------------------------------------

    def keep_journals(self, sums: Path, evaluation: Path) -> None:
        """Keep secure sums in these files, from which an interrupted phase goes on."""
        self.sums.journal = sums
        if self.evaluation is not None:
            self.evaluation.sums.journal = evaluation

    def sign(self, signer: QuestionSigner) -> None:
        """Have ``signer`` sign everything that clients are asked from now on."""
        self.sums.signer = signer
        if self.evaluation is not None:
            self.evaluation.sums.signer = signer

    def planned_phases(self, purposes: Iterable[str]) -> list[PlannedPhase]:
        """Returns all that a client may be asked for; ``purposes``: of the algorithm's client half.

        Rounds are trainings, and every other purpose is asked for once, before the first of them.
        """
        claims = self.algorithm.claims()
        rounds = self.setup.budget.rounds
        event = self.algorithm.release_event() if claims.alike else None
        phases = [PlannedPhase("train", 1, rounds, event=event)]
        phases += [PlannedPhase(p, 1, 1, event=claims.before) for p in purposes if p != "train"]
        if self.evaluation is not None and self.evaluation.is_on:
            every = self.evaluation.every
            asked = self.evaluation.event()
            phases.append(PlannedPhase(PROTECTED, every, rounds, every, asked))
        return phases

    def state(self, number: int, model: Parameters, num_nodes: int) -> RunState:
        """All that a resumed run needs, after round ``number`` with its ``model``.

        Where cohorts are secret, that of the next round is drawn here, so that a resumed server
        asks the same clients. ``num_nodes``: how many answer now.
        """
        placement = self.setup.placement
        if isinstance(placement, SimulatedPlacement):
            num_nodes = placement.shares or num_nodes  # what was interrupted is not done yet
        state = RunState(number, model, num_nodes=num_nodes)
        state.participations = dict(self.participations)
        state.before = dict(self.before)
        state.algorithm = self.algorithm.state()
        state.sums = self.sums.state()
        if self.setup.cohorts.kind == "poisson":
            upcoming = self.outcome.number + 1
            state.cohort = upcoming, self.cohort(upcoming)
        if self.evaluation is not None:
            state.evaluation = self.evaluation.state()
        if self.canaries is not None:
            state.canaries = self.canaries.state()
        return state

    def resume(self, state: RunState) -> None:
        """The inverse of ``state``; called once, before ``start``, by a server that goes on."""
        placement = self.setup.placement
        if isinstance(placement, SimulatedPlacement):
            placement.shares = state.num_nodes or None
        self.first_round = state.round
        self.outcome = state.trained or Outcome(state.round)
        self.participations = Counter(state.participations)
        self.before = Counter(state.before)
        if state.cohort is not None:
            self.drawn = state.cohort
        self.sums.restore(state.sums)
        if self.evaluation is not None and state.evaluation:
            self.evaluation.restore(state.evaluation)
        if self.canaries is not None and state.canaries:
            self.canaries.restore(state.canaries)
        self.algorithm.restore(state.algorithm)

    # Privacy ----------------------------------------------------------------------------------

    def claims(self, claimed: Claimed = (None, None), before: Event | None = None) -> Claims:
        """The usual claims, where what clients release differs in how often only.

        The adversaries are a server that reads messages, and one that sees only sums where there
        are sums, and they are secure, or simulated as such. Answers before the rounds are added to
        the rounds' for each client.

        Args:
            claimed: What the paper's theorem states: ε of one round, and of the whole run.
            before: What an answer before the rounds releases, where rounds release something else.
        """
        release = self.algorithm.release_event
        return Claims(
            exposures=lambda: self._exposures(release(), before, claimed),
            spent=lambda: self._spent(release(), before),
            planned=lambda: self._planned(release(), before),
            claimed=claimed,
            before=before,
        )

    def claims_of_paths(
        self, path: Callable[[int], Event], adversary: str, claimed: Claimed = (None, None)
    ) -> Claims:
        """The claims where clients differ in noise: by their sizes, or by an ε of their own.

        Uploads are read one by one; nothing is hidden in a sum, or counts on a trusted server.

        Args:
            path: Gives all that a client (its id) has released so far, as one event.
            adversary: Who sees the clients' messages.
            claimed: As for ``claims``.
        """
        algorithm = self.algorithm
        releases = self.setup.budget.releases

        def exposures() -> list[Exposure]:
            paths = {client: path(client) for client in self.participations}
            return [exposed.by_paths(algorithm.release_event(), paths, adversary, claimed)]

        return Claims(
            exposures=exposures,
            spent=partial(self.costliest_path, path),
            planned=lambda: exposed.planned(algorithm.release_event(), releases),
            claimed=claimed,
            alike=False,
        )

    def costliest(self, events: Iterable[Event]) -> Event:
        """The event with the largest ε, of at least one, for this algorithm's neighbours."""
        algorithm = self.algorithm
        delta = self.setup.budget.delta
        return exposed.costliest(events, delta, algorithm.unit, algorithm.adjacency)

    def costliest_path(self, path: Callable[[int], Event]) -> Event:
        """The costliest ``path`` of those who took part; nothing for nobody."""
        if not self.participations:
            return ComposedEvent(())
        return self.costliest(map(path, self.participations))

    def exposure_in_sums(self, release: Event, participations: Mapping[int, int]) -> Exposure:
        """Returns the exposure to a server that sees only sums, of clients' ``release``."""
        facts = self.sums.facts(self.algorithm.weights())
        conditions = self.setup.secure_sums.conditions(self.setup.cohort_size)
        return exposed.by_sums(release, participations, facts, conditions)

    def exposures(self) -> list[Exposure]:
        """Returns the exposure to each adversary, with an evaluation and an audit's canaries."""
        exposures = self.algorithm.claims().exposures()
        if self.evaluation is not None:
            exposures = self.evaluation.compose(exposures)
        if self.canaries is not None:
            exposures = self.canaries.compose(exposures)
        return exposures

    def spent(self, roughly: bool = False) -> Event:
        """Returns the releases of the most exposed client, its evaluations included.

        They are counted as the budget's adversary sees them. Two clients' worst parts may be taken
        together, which is above what any one of them has released. ``roughly``: round up the number
        of releases (``exposure.rounded_up``), at most to as many as are planned: in a long run most
        rounds then share an ε that was computed before.
        """
        evaluation: list[Event] = []
        if self.evaluation is not None:
            evaluation = self.evaluation.spent()
        spent = ComposedEvent((self.algorithm.claims().spent(), *evaluation))
        if roughly:
            return exposed.rounded_up(spent, self.setup.budget.releases)
        return spent

    def statement(self, void: Iterable[str] = ()) -> Statement:
        """Claimed and proven privacy of everything released so far, at the budget's δ.

        ``void``: reasons for which it counts not, such as noise that follows from a seed.
        """
        return self._stated(Statement.of, self.exposures(), self._warnings(), void)

    def released(self) -> list[dict[str, Any]]:
        """Returns the releases to each adversary so far, in the form of ``guarantee.released``."""
        return [each for exposure in self.exposures() for each in released(exposure)]

    def without_epsilon(self, error: Exception, void: Iterable[str] = ()) -> Statement:
        """Returns a statement of the charges, without ε, after ``statement`` has raised ``error``.

        Where exposures by adversary cannot be had either, it has each client's number of releases.
        """
        exposures = [exposed.by_ledgers(self.participations)]
        warnings: list[str] = []
        with suppress(Exception):
            exposures = self.exposures()
        with suppress(Exception):
            warnings = self._warnings()
        return self._stated(partial(Statement.without_epsilon, error), exposures, warnings, void)

    # Helpers ----------------------------------------------------------------------------------

    def _draw(self, number: int) -> NDArray[np.int64]:
        """The cohort of round ``number``; of ``members``, as many as configured or there are."""
        if self.members is None:
            return self.setup.cohorts.cohort(number, self.setup.noise)
        size = min(self.setup.cohort_size, len(self.members))
        if not size:
            return self.members
        rng = experiment_rng(self.setup.seed, "cohort", number)
        return np.sort(self.members[rng.choice(len(self.members), size, replace=False)])

    def _learn_before(self, question: Question, grid: Grid, timeout: float) -> None:
        """One phase before the rounds; RunError where too few answer."""
        asked = len(question.cohort)
        sums = Aggregator(self.setup, asked, f"secure {question.purpose} groups")
        sums.journal = self.sums.journal
        sums.signer = self.sums.signer
        outcome = Phase(question, sums, self.setup, self.setup.quorum).run(grid, timeout)
        self.outcome.add(outcome)
        self.participations.update(outcome.possibly_released)
        if self.algorithm.claims().before is not None:
            self.before.update(outcome.possibly_released)
        self.sums.record_sizes(outcome.sum_sizes)
        if not outcome.answered or not outcome.accepted:
            raise RunError(
                f"only {len(outcome.answered)} of {asked} clients answered before the rounds "
                f"({question.purpose}): {reasons(outcome.failed)}. Run it again: answers once paid "
                "for are kept"
            )
        self.algorithm.learn(question, outcome)

    def _give_up_when_nobody_answers(self) -> None:
        # Whoever is accused now is not asked again, so that the next round is better off.
        outcome = self.outcome
        self.silent_rounds += 1
        if outcome.answered or outcome.accused or not outcome.cohort_size:
            self.silent_rounds = 0
        if self.silent_rounds == PATIENCE:
            said = reasons(outcome.failed)
            raise RunError(f"no answer could be used in {PATIENCE} rounds: {said}")

    def _exposures(self, release: Event, before: Event | None, claimed: Claimed) -> list[Exposure]:
        found = self._exposures_of(release, self.participations - self.before, claimed)
        if before is None:
            return found
        earlier = self._exposures_of(before, self.before, claimed)
        return [exposed.with_earlier(*pair) for pair in zip(earlier, found, strict=True)]

    def _exposures_of(
        self, release: Event, participations: Mapping[int, int], claimed: Claimed
    ) -> list[Exposure]:
        """Returns the exposures to releases of one kind."""
        exposures = [exposed.by_messages(release, participations, claimed)]
        if self.algorithm.summed and self.setup.secure_sums.mode != "off":
            exposures.append(self.exposure_in_sums(release, participations))
        return exposures

    def _spent(self, release: Event, before: Event | None) -> Event:
        in_rounds = self.participations - self.before
        rounds = exposed.most_released(self._seen(release), in_rounds)
        if before is None or not self.before:
            return rounds
        return ComposedEvent((exposed.most_released(self._seen(before), self.before), rounds))

    def _planned(self, release: Event, before: Event | None) -> Event:
        rounds = exposed.planned(self._seen(release), self.setup.budget.releases)
        if before is None:
            return rounds
        return ComposedEvent((self._seen(before), rounds))

    def _seen(self, release: Event) -> Event:
        """``release`` as the budget's adversary sees it."""
        facts = self.sums.facts(self.algorithm.weights())
        return exposed.seen_by(self.setup.budget.threat, release, facts)

    def _stated(
        self,
        statement: Callable[..., Statement],
        exposures: list[Exposure],
        warnings: list[str],
        void: Iterable[str],
    ) -> Statement:
        """``statement`` of what is this algorithm's."""
        algorithm = self.algorithm
        budget = self.setup.budget
        return statement(
            algorithm=algorithm.algorithm,
            unit=algorithm.unit,
            adjacency=algorithm.adjacency,
            delta=budget.delta,
            # The one that the budget is meant for comes first.
            exposures=sorted(exposures, key=lambda e: e.threat != budget.threat),
            claim=algorithm.claim,
            difference=algorithm.difference,
            warnings=tuple(warnings),
            void=tuple(void),
            split=self.setup.split,
        )

    def _warnings(self) -> list[str]:
        """The settings', the algorithm's and the evaluation's."""
        warnings = [*self.setup.warnings, *self.algorithm.warnings()]
        if self.evaluation is not None:
            warnings += self.evaluation.warnings()
        return warnings


def reasons(failed: Mapping[int, str]) -> str:
    """Why clients are missing, the most frequent reasons first, each with one client's number."""
    stopped: dict[str, list[int]] = {}
    for client, reason in failed.items():
        stopped.setdefault(reason, []).append(client)
    often = sorted(stopped.items(), key=lambda one: -len(one[1]))[:MAX_REASONS]
    said = [f"{pluralize(len(who), 'client')} ({who[0]}): {reason}" for reason, who in often]
    return "; ".join(said)


def _forget(model: Parameters) -> None:
    """Keep nothing."""
