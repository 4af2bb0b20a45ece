"""What every strategy has in common: the methods that an algorithm fills in, and Flower's own.

A strategy is an algorithm's server half. It says what to ask (``task``), in which form answers
travel (``codec``), what one costs (``release_event``), and what to do with their sum (``update``).
Flower's ``start`` drives the rounds, and ``murmur.round.rounds`` does in each of them what no
algorithm overrides: cohorts, phases, an evaluation on clients, an audit's canaries, and the state
that a resumed run needs.

What every algorithm's strategy names of other rooms (``Codec``, ``Event``, ``Question``, ...) it
may import from here.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from murmur.learning.codec import Codec, Integers
from murmur.privacy.accounting import Adjacency, Unit
from murmur.privacy.events import Event
from murmur.privacy.exposure import Claimed, Claims
from murmur.round.cohorts import ALIKE, Weights
from murmur.round.question import Outcome, Question
from murmur.round.rounds import Rounds
from murmur.round.setup import ServerSetup
from strategies.forecast import Forecast

__all__ = [
    "Adjacency",
    "Claimed",
    "Claims",
    "Codec",
    "CohortStrategy",
    "Event",
    "Forecast",
    "Integers",
    "Outcome",
    "Parameters",
    "Question",
    "ServerSetup",
    "Unit",
    "Weights",
]

Parameters = NDArray[np.float32]


class CohortStrategy(Strategy, ABC):
    """A Flower Strategy whose rounds are phases with cohorts of clients, on nodes that host them.

    A subclass sets the class attributes that fit it, and fills in ``task``, ``codec``, ``update``
    and ``release_event``; the other methods of the first section have answers that it may replace.
    Its constructor raises ValueError where settings do not fit together, before anybody is asked.
    A class learns classes, unless it names its tasks (``murmur.learning.objective``) in ``tasks``;
    each for itself, since what a base learns a subclass may not.

    Attributes:
        algorithm, claim, difference: Words for the statement: the name, what the paper's theorem
            says, and why the proven figure differs.
        threats: The adversaries that it supports (``Budget.threat``); a private budget for another
            one is refused when the strategy is made.
        units: Units that it can protect (``Budget.unit``); a private budget for another unit is
            refused.
        unit, adjacency: The protected unit, and which two data sets are neighbours.
        has_paper_budget: Whether its paper states a budget in terms of its own (``Budget.paper``).
        weighted: Whether clients count by their number of examples, rather than alike.
        summed: Whether answers are summed; else ``update`` gets a row for each client that
            answered, in the order of ``rounds.outcome.answered``. The client half says the same.
        extendable: Whether rounds can be added to a run; False where all are planned together.
        setup: What the ServerApp has given: budget, cohorts, public pool, test set, seed.
        trainer: The process's one model, reset in place; its parameters are nobody's between two
            calls.
        rounds: Cohorts, phases and what has happened in them; the same for every algorithm.
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
        self.rounds = Rounds(self, setup)

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
        """Returns the event of one participation, for an adversary that reads the client's message.

        Only the client's own noise counts: what a sum hides in addition is in ``claims``. Where
        clients differ, it is the costliest one's.
        """

    def before_rounds(self) -> Question | None:
        """Returns the next question before the rounds; None: there is none, or no more.

        Called until it returns None; ``learn`` must make progress. A question may depend on the
        answers to those before.
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

    def evaluate(self, model: Parameters) -> dict[str, float]:
        """The task's scores (``Objective.scores``) and ``setup.metrics`` on the server's test set.

        Called after every round and once before the first, with the published model: it costs
        clients nothing. Figures that are not finite are left out of the round's row. Where clients
        have models of their own, it is what these have reported instead: nothing before the first
        round, nor on devices, which do not answer.
        """
        if self.rounds.own_models is not None:
            return self.rounds.own_models.read()
        self.trainer.load(model)
        test = self.setup.test
        logits = self.trainer.logits(test.images)
        scores = self.trainer.objective.scores(logits, test.labels)
        more = {name: score(logits, test.labels) for name, score in self.setup.metrics.items()}
        return scores | more

    def state(self) -> dict[str, NDArray]:
        """Returns the arrays, by name, that a checkpoint must hold beside the model.

        Override it together with ``restore``. Names that begin with "evaluation." or "canaries."
        are taken, and so are "cohort", "before" and those of ``Aggregator.state``.
        """
        return {}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up what ``state`` returned, in a strategy that was made with the same settings."""

    def claims(self, claimed: Claimed = (None, None), before: Event | None = None) -> Claims:
        """Returns the privacy claims for the statement; each is computed when it is asked for.

        Args:
            claimed: What the paper's theorem states: ε of one round, and of the whole run. None,
                each by itself, where it states nothing. Printed beside what is proven, never
                charged.
            before: What an answer before the rounds releases, where rounds release something else.

        Returns:
            Where what clients release differs in how often only.
        """
        return self.rounds.claims(claimed, before)

    # What few algorithms change -------------------------------------------------------------

    def training(self, number: int, model: Parameters) -> Question:
        """Returns the question to the cohort of round ``number``, with the global ``model`` (d,).

        Calls ``task``, then ``codec``. Override it where clients must see another model than the
        server's.
        """
        arrays, settings = self.task(number, model)
        return Question(
            purpose="train",
            number=number,
            cohort=self.rounds.cohort(number).tolist(),
            model=model,
            codec=self.codec(),
            event=self.release_event,
            arrays=arrays,
            settings=settings,
            weights=self.weights(),
            kind="train",
        )

    def missed(self, number: int) -> Parameters | None:
        """The model after round ``number`` where too few answered; None: it stays as it is."""
        return None

    def forget(self) -> None:
        """The last round is over: drop what only further ones need, and nobody should read."""

    def model_noise(self) -> float | None:
        """σ of the noise in each weight of the last model, for its drawing; None: not known."""
        return None

    def forecast(self) -> Forecast | None:
        """Returns what noise leaves of the score; None: nothing is noised, or nobody can tell.

        It uses public settings alone. Nothing that is sent or charged follows from it.
        """
        return None

    def warnings(self) -> list[str]:
        """Returns warnings before the run starts: settings that work against each other."""
        return []

    # Flower's own methods -------------------------------------------------------------------

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Ask what clients are asked before the rounds, then do the rounds.

        RunError where too few answer a question before the rounds, or nobody answers in several
        rounds in a row. Arguments are those of Flower's ``start``.
        """
        self.rounds.ask_before(grid, kwargs.get("timeout", self.setup.round_timeout))
        return super().start(grid, initial_arrays, *args, **kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages to the round's cohort."""
        return self.rounds.ask(server_round, arrays, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model, where enough have answered."""
        return self.rounds.take(replies), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of an evaluation on clients, if one is switched on."""
        return self.rounds.ask_evaluation(server_round, arrays, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing: figures stay with the evaluation, for the round's row."""
        self.rounds.take_evaluation(replies)
        return None

    def summary(self) -> None:
        """Nothing: the run's folder holds the whole configuration."""
