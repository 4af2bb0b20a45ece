"""What every strategy has in common: it asks cohorts, counts what they release, and moves a model.

A strategy is an algorithm's server half. It says what to ask (``task``), in which form answers
travel (``codec``), what one costs (``release_event``), and what to do with their sum (``update``);
its phases (``murmur.round.phase``) do the rest. Flower's own ``start`` drives the rounds, in which
``configure_train`` and ``aggregate_train`` are one phase, and ``configure_evaluate`` and
``aggregate_evaluate`` another where an evaluation on clients is switched on.

What an algorithm asks clients *before* the rounds is a phase as well: ``before_rounds`` gives the
question, ``learn`` takes the outcome, and so on until there is no further question, so that the
second may depend on what the first has shown.

The class reads in that order: what an algorithm says, Flower's own methods, what a run calls (its
questions, cohorts, checkpoints), helpers. What every algorithm's strategy names of other rooms
(``Codec``, ``Event``, ``Question``, ...) it may import from here.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from murmur.format import pluralize
from murmur.learning.array_bytes import array_from_bytes
from murmur.learning.codec import Codec, Integers
from murmur.learning.metrics import area_under_curve, evaluate_logits
from murmur.privacy.accounting import Adjacency, Unit
from murmur.privacy.events import Event
from murmur.privacy.guarantee import Exposure, departures
from murmur.random import experiment_rng
from murmur.round.aggregator import Aggregator
from murmur.round.cohorts import ALIKE, Weights
from murmur.round.phase import AuditCanaries, Phase
from murmur.round.question import Outcome, Question
from murmur.round.setup import ServerSetup
from murmur.round.task import RunError
from strategies.parts import Foretold, OwnModels, PrivacyReport

if TYPE_CHECKING:
    from murmur.round.client_evaluation import ClientEvaluation

Parameters = NDArray[np.float32]

MOST_REASONS = 3  # that the end of such a run names
PATIENCE = 3  # rounds without a single answer after which a run ends
_COHORT = "cohort"  # of a snapshot: the next round's number, and its clients
_BEFORE = "before"  # clients and how often they answered before the rounds
_EVALUATION = "evaluation."  # begins the names of its part of a snapshot
_CANARIES = "canaries."


class CohortStrategy(Strategy, ABC):
    """A Flower Strategy whose rounds are phases with cohorts of clients, on nodes that host them.

    Whatever a server draws is drawn once. ``keep`` gets a round's new model as soon as there is
    one, and must have it on disk with a ``snapshot`` when it returns: nothing that follows from the
    model leaves before. A server that is resumed there has ``round`` as it was then, asks nobody to
    train, and draws nothing. Secret cohorts are drawn with the snapshot before their round.

    A subclass sets the class attributes that fit it, and fills in ``task``, ``codec``, ``update``
    and ``release_event``; the other methods of the first section have answers that it may replace.
    Its constructor raises ValueError where settings do not fit together, before anybody is asked.

    Attributes
    ----------
    algorithm, claim, difference : str
        Words for the statement: the name, what the paper's theorem says, and why the proven figure
        differs.
    threats : tuple of str
        The adversaries that it supports (``Budget.threat``); a private budget for another one is
        refused when the strategy is made.
    units : tuple of str
        Whose data it can protect (``Budget.unit``); a private budget for another unit is refused.
    unit, adjacency : Unit, Adjacency
        Whose data is protected, and which two data sets are neighbours.
    has_paper_budget : bool
        Whether its paper states a budget in terms of its own (``Budget.paper``).
    weighted : bool
        Whether clients count by their number of examples, rather than alike.
    summed : bool
        Whether answers are summed; else ``update`` gets a row for each client that answered, in the
        order of ``round.answered``. The client half says the same.
    extendable : bool
        Whether rounds can be added to a run; False where all are planned together.
    setup : ServerSetup
        What the ServerApp has given: budget, cohorts, public pool, test set, seed.
    trainer : Trainer
        The process's one model, reset in place; its parameters are nobody's between two calls.
    sums : Aggregator
        How trainings are summed, in the clear or securely, and who has lied in a secure sum.
    report : PrivacyReport
        What all adversaries have seen, and the statement.
    participations : Counter
        How often each client may have released something, failed nodes' clients included.
    before : Counter
        Of these, how often before the rounds; kept where ``event_before`` says what that costs.
    first_round : int
        Rounds already done by an interrupted run; Flower counts from 1 again after a resume.
    round : Outcome
        The last round's training, and what its evaluation and stages add to the round's row.
    phase : Phase or None
        The training that is under way; None between two.
    model : float32 array (d,)
        The global model that the present round began with, read-only.
    keep : callable
        Called with each new model before it leaves; does nothing unless the run keeps checkpoints.
    drawn : tuple
        The number of the round whose cohort was drawn last, and that cohort.
    silent_rounds : int
        Rounds in a row without an answer or an accusation; the run ends at ``PATIENCE`` of them.
    evaluation : ClientEvaluation or None
        The evaluation on clients that ``switch_on`` has added; None: clients are not evaluated.
    own_models : OwnModels or None
        Where what is scored are models that clients keep, which train without noise: what a
        simulation's researcher sees of them. It takes the place of an evaluation on clients.
    canaries : AuditCanaries or None
        An audit's canaries, which join every training that counts; None: there is no such audit.
    """

    algorithm: str
    threats: tuple[str, ...] = ("local",)
    units: tuple[str, ...] = ("client",)
    unit: Unit = Unit.CLIENT
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    has_paper_budget: bool = False
    claim: str = ""
    difference: str = ""
    weighted: bool = False
    summed: bool = True
    extendable: bool = True

    def __init__(self, setup: ServerSetup) -> None:
        setup.budget.require_threat(self.algorithm, self.threats)
        setup.budget.require_unit(self.algorithm, self.units)
        setup.budget.require_paper(self.algorithm, self.has_paper_budget)
        self.setup = setup
        self.trainer = setup.trainer
        self.sums = Aggregator(setup, setup.cohort_size, "secure groups", rows=not self.summed)
        self.report = PrivacyReport(self)
        self.participations: Counter[int] = Counter()
        self.before: Counter[int] = Counter()
        self.first_round = 0  # rounds already done by an interrupted run
        self.round = Outcome(0)
        self.phase: Phase | None = None
        self.model: Parameters = np.zeros(0, np.float32)
        self.keep: Callable[[Parameters], None] = _forget  # a run that is not resumed draws once
        self.drawn: tuple[int, NDArray[np.int64]] = (0, np.zeros(0, np.int64))  # a round's cohort
        self.silent_rounds = 0
        self.evaluation: ClientEvaluation | None = None
        self.own_models: OwnModels | None = None
        self.canaries: AuditCanaries | None = None

    # What an algorithm says -----------------------------------------------------------------

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """Arrays and settings that the cohort needs in round ``number`` beside the model (d,).

        None, unless an algorithm says more. Called once for each round, before ``codec``;
        ``number`` counts from 1 over all resumes. Whatever it returns is sent to every client of
        the cohort, which reads it as hostile input.
        """
        return {}, {}

    @abstractmethod
    def codec(self) -> Codec:
        """The form of this round's contributions; called after ``task``.

        The client half must build an equal one, from its own settings.
        """

    @abstractmethod
    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The next global model (d,) from the total of this round's contributions.

        Called where at least the quorum has answered. Noise that it adds comes from
        ``setup.noise``; what it returns is kept before it is sent to anybody.

        ``total``: their sum, of the codec's shape; or, where they are not ``summed``, a row for
        each client, (clients, *shape); it may be overwritten. ``weight``: of all of them together.
        """

    @abstractmethod
    def release_event(self) -> Event:
        """What one participation releases about one client, to whoever reads that client's message.

        By the client's own noise alone: what a sum hides in addition is the report's business
        (``PrivacyReport.secure_exposure``). Where clients differ, it is the costliest one's.
        """

    def before_rounds(self) -> Question | None:
        """What clients are asked next before the rounds; None: nothing (more).

        Asked again after each answer to it, so ``learn`` must bring it on. A question may depend on
        what was learned from those before.
        """
        return None

    def event_before(self) -> Event | None:
        """What an answer before the rounds releases, where rounds release something else.

        None: nothing is asked before the rounds, or the algorithm says itself what it costs.
        """
        return None

    def learn(self, question: Question, outcome: Outcome) -> None:
        """Take the answers to a question of ``before_rounds``; at least the quorum answered.

        What it learns belongs into ``state``: a resumed run must not ask, and charge, again.
        """

    def quorum(self) -> float:
        """The share of the cohort that must answer for a round to count."""
        return self.setup.quorum

    def weights(self) -> Weights:
        """By their sizes, where the algorithm weighs clients and sizes are public; else alike.

        A node's reply is rejected whose weight is not that of its clients together.
        """
        sizes = self.setup.client_sizes
        if not self.weighted or sizes is None:
            return ALIKE
        return Weights(sizes.__getitem__, min(sizes), max(sizes))

    def initial_parameters(self) -> Parameters:
        """The global model (d,) before the first round."""
        return self.trainer.initial(experiment_rng(self.setup.seed, "initial model"))

    def evaluate(self, model: Parameters) -> dict[str, float]:
        """Accuracy, loss and ``setup.metrics`` on the server's test set; of two classes AUC.

        Called after every round and once before the first, with the published model: it costs
        clients nothing. The loss is the mean cross-entropy in nats. Figures that are not finite are
        left out of the round's row. Where clients have models of their own, it is what these have
        reported instead: nothing before the first round, nor on devices, which do not answer.
        """
        if self.own_models is not None:
            return self.own_models.read()
        self.trainer.load(model)
        test = self.setup.test
        logits = self.trainer.logits(test.images)
        result = evaluate_logits(logits, test.labels)
        scores = {"accuracy": result.accuracy, "loss": result.loss}
        if self.trainer.num_classes == 2:
            scores["auc"] = area_under_curve(logits[:, 1] - logits[:, 0], test.labels)
        more = {name: score(logits, test.labels) for name, score in self.setup.metrics.items()}
        return scores | more

    def state(self) -> dict[str, NDArray]:
        """What a checkpoint must hold beside the model; override together with ``restore``.

        By name. Names that begin with "evaluation." or "canaries." are taken, and so are "cohort",
        "before" and those of ``Aggregator.state``.
        """
        return {}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up what ``state`` returned, in a strategy that was made with the same settings."""

    def missed(self, number: int) -> Parameters | None:
        """The model after round ``number`` where too few answered; None: it stays as it is."""
        return None

    def forget(self) -> None:
        """The last round is over: drop what only further ones need, and nobody should read."""

    def noise_facts(self) -> dict[str, float]:
        """How much noise a round's sum holds, for planners; by name.

        Only ``murmur advise`` reads it: nothing that is sent or charged follows from it.
        """
        return {}

    def model_noise(self) -> float | None:
        """σ of the noise in each weight of the last model, for its drawing; None: not known."""
        return None

    def foretold(self) -> Foretold | None:
        """What is left of the score without noise; None: nothing is lost, or nobody can tell."""
        return None

    def signal_to_noise(self) -> float | None:
        """How long, over the whole run, what clients agree on is beside the noise on it.

        As if all of a cohort said the same, so the most that can be hoped for. None where nothing
        is noised, or where it cannot be told from settings that are public.
        """
        return None

    def would_help(self) -> list[str]:
        """Changes of its own that would leave less of its signal in the noise, for a forecast."""
        return ["fewer numbers to release (a smaller model, fewer features)"]

    def claimed_epsilon(self) -> tuple[float | None, float | None]:
        """What the paper's theorem states: ε of one round and of the whole run.

        None, each by itself, where it states nothing. Printed beside what is proven, never charged.
        """
        return None, None

    def exposures(self) -> list[Exposure]:
        """What each adversary has seen of every client so far."""
        return self.report.exposures()

    def spent(self) -> Event:
        """What the most exposed client has released so far, as the budget's adversary sees it."""
        return self.report.spent()

    def planned(self) -> Event:
        """All that the run will release of the client that it asks most often.

        As the budget's adversary sees it. It must cost no more than the budget allows.
        """
        return self.report.planned()

    def warnings(self) -> list[str]:
        """What a user should know before the run starts: settings that work against each other.

        Also that the noise drowns what is summed, and what helps, where that is foretold.
        """
        said = self.foretold()
        if said is None or not said.is_drowned:
            return []
        return [said.text()]

    # Flower's own methods -------------------------------------------------------------------

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Ask what clients are asked before the rounds, then do the rounds.

        RunError where too few answer a question before the rounds, or nobody answers in
        ``PATIENCE`` rounds in a row. Arguments are those of Flower's ``start``.
        """
        timeout = kwargs.get("timeout", self.setup.round_timeout)
        while (question := self.before_rounds()) is not None:
            self._learn_before_rounds(question, grid, timeout)
        return super().start(grid, initial_arrays, *args, **kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the round's cohort; nobody where the round's model was kept before.

        That is a round that a kill interrupted after ``keep``: its model is in ``arrays`` already.
        """
        number = self.first_round + server_round
        if self.round.accepted and self.round.number == number:
            return []
        sent = arrays["model"]
        self.model = array_from_bytes(sent.data)
        question = self.training(number, self.model)
        if question.model is self.model:
            question = replace(question, sent=sent)
        self.phase = Phase(question, self.sums, self.setup, self.quorum(), self.canaries)
        self.round = self.phase.outcome
        return self.phase.ask(grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum the nodes' contributions and update the model, if the quorum answered.

        Whoever may have released something is counted in ``participations`` even if the round does
        not count: then the model is what ``missed`` says, and the charge stands.
        """
        if self.round.accepted or self.phase is None:
            return None, None  # ``arrays`` are its model
        outcome = self.phase.take(replies)
        self.participations.update(outcome.possibly_released)
        self._give_up_when_nobody_answers()
        if not outcome.accepted:
            model = self.missed(outcome.number)
            if model is None:
                return None, None
            return ArrayRecord({"model": Array(model)}), None
        model = self.update(outcome.number, self.model, outcome.total, outcome.weight)
        # Let go of what is as large as the model: question and sum.
        self.phase = None
        outcome.total = np.zeros(0, np.int64)
        self.keep(model)
        return ArrayRecord({"model": Array(model)}), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing, unless an evaluation is switched on: it is a release of its own.

        Where clients have models of their own, a simulation asks for their accuracy, weighted as
        updates are.
        """
        number = self.first_round + server_round
        if self.own_models is not None:
            return self.own_models.ask(number, arrays, grid, self.weights())
        if self.evaluation is None:
            return []
        return self.evaluation.messages(number, arrays, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the evaluation, if there is one, read what it asked for.

        Its bytes are added to the round's; its scores stay with it, for the round's row.
        """
        if self.own_models is not None:
            self.own_models.take(replies)
        if self.evaluation is not None:
            self.evaluation.take(replies)
            self.round.bytes_down += self.evaluation.outcome.bytes_down
            self.round.bytes_up += self.evaluation.outcome.bytes_up
        return None

    def summary(self) -> None:
        """Nothing: the run's folder holds the whole configuration."""

    # A run ----------------------------------------------------------------------------------

    def training(self, number: int, model: Parameters) -> Question:
        """What round ``number`` asks its cohort, from the global ``model`` (d,) on.

        Calls ``task``, then ``codec``. Override it where clients must see another model than the
        server's.
        """
        arrays, settings = self.task(number, model)
        return Question(
            purpose="train",
            number=number,
            cohort=self.cohort(number).tolist(),
            model=model,
            codec=self.codec(),
            event=self.release_event,
            arrays=arrays,
            settings=settings,
            weights=self.weights(),
            kind="train",
        )

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients asked in round ``number``, ascending; the same however often it is asked.

        Random and rotating cohorts follow from the public seed and amplify nothing. A Poisson
        sample is secret: it comes from the noise stream, and only the last drawn one is known.
        """
        if self.drawn[0] != number:
            self.drawn = (number, self.setup.cohorts.cohort(number, self.setup.noise))
        return self.drawn[1]

    def switch_on(self, evaluation: "ClientEvaluation") -> None:
        """Let ``evaluation`` ask clients after a round; ValueError where it does not fit.

        It does not where the algorithm has a way of its own to evaluate on clients, or where the
        evaluation protects records and the training's releases do not: one for clients that
        contribute nothing instead knows no records, of which one may turn an update into any other.
        An evaluation of records makes records the unit of the whole statement.
        """
        if self.own_models is not None:
            raise ValueError(
                f"evaluation: {self.algorithm} has its own way to evaluate on clients; "
                "set evaluation=none"
            )
        if evaluation.unit is Unit.RECORD:
            why = departures(self.planned(), Unit.RECORD, self.adjacency)
            if why:
                raise ValueError(f"unit=record: {why[0]}; set the evaluation's unit to client")
            self.unit = Unit.RECORD
        self.evaluation = evaluation

    def snapshot(self) -> dict[str, NDArray]:
        """All that a checkpoint holds beside model and participations.

        Where cohorts are secret, that of the next round is drawn here, so that a resumed server
        asks the same clients.
        """
        state = {**self.state(), **self.sums.state(), **self._next_cohort()}
        if self.before:
            pairs = sorted(self.before.items())
            state[_BEFORE] = np.array(pairs, np.int64)
        for part, prefix in ((self.evaluation, _EVALUATION), (self.canaries, _CANARIES)):
            if part is not None:
                state |= {f"{prefix}{name}": values for name, values in part.state().items()}
        return state

    def resume(self, snapshot: Mapping[str, NDArray]) -> None:
        """The inverse of ``snapshot``; called once, before ``start``, by a server that goes on."""
        state = dict(snapshot)
        self.sums.restore({name: state.pop(name) for name in self.sums.state()})
        if _COHORT in state:
            number, *clients = state.pop(_COHORT).tolist()
            self.drawn = (number, np.array(clients, np.int64))
        if _BEFORE in state:
            pairs = state.pop(_BEFORE).tolist()
            self.before = Counter(dict(pairs))
        for part, prefix in ((self.evaluation, _EVALUATION), (self.canaries, _CANARIES)):
            names = [name for name in state if name.startswith(prefix)]
            own = {name.removeprefix(prefix): state.pop(name) for name in names}
            if part is not None and own:
                part.restore(own)
        self.restore(state)

    # Helpers --------------------------------------------------------------------------------

    def _learn_before_rounds(self, question: Question, grid: Grid, timeout: float) -> None:
        """One phase before the rounds; RunError where too few answer."""
        asked = len(question.cohort)
        sums = Aggregator(self.setup, asked, f"secure {question.purpose} groups")
        sums.journal = self.sums.journal
        outcome = Phase(question, sums, self.setup, self.setup.quorum).run(grid, timeout)
        self.round.add(outcome)
        self.participations.update(outcome.possibly_released)
        if self.event_before() is not None:
            self.before.update(outcome.possibly_released)
        self.sums.record_sizes(outcome.sum_sizes)
        if not outcome.answered or not outcome.accepted:
            raise RunError(
                f"only {len(outcome.answered)} of {asked} clients answered before the rounds "
                f"({question.purpose}): {reasons(outcome.failed)}. Run it again: answers once paid "
                "for are kept"
            )
        self.learn(question, outcome)

    def _next_cohort(self) -> dict[str, NDArray]:
        """Where cohorts are secret: that of the round after this one, with its number."""
        if self.setup.cohorts.kind != "poisson":
            return {}
        number = self.round.number + 1
        return {_COHORT: np.array([number, *self.cohort(number)], np.int64)}

    def _give_up_when_nobody_answers(self) -> None:
        # Whoever is accused now is not asked again, so that the next round is better off.
        helped = self.round.answered or self.round.accused or not self.round.cohort_size
        self.silent_rounds = 0 if helped else self.silent_rounds + 1
        if self.silent_rounds == PATIENCE:
            said = reasons(self.round.failed)
            raise RunError(f"no answer could be used in {PATIENCE} rounds: {said}")


def reasons(failed: Mapping[int, str]) -> str:
    """Why clients are missing, the most frequent reasons first, each with one client's number."""
    stopped: dict[str, list[int]] = {}
    for client, reason in failed.items():
        stopped.setdefault(reason, []).append(client)
    often = sorted(stopped.items(), key=lambda one: -len(one[1]))[:MOST_REASONS]
    said = [f"{pluralize(len(who), 'client')} ({who[0]}): {reason}" for reason, who in often]
    return "; ".join(said)


def _forget(model: Parameters) -> None:
    """Keep nothing."""
