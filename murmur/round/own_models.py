"""Models that clients keep: what a simulation's researcher sees of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from murmur.learning.codec import WeightCodec
from murmur.round.aggregator import Aggregator
from murmur.round.cohorts import Weights
from murmur.round.phase import Phase
from murmur.round.question import Question
from murmur.round.setup import ServerSetup

EVALUATE = "evaluate"  # the purpose of such a question


class OwnModels:
    """Asks all clients for the accuracy of their own models, and keeps the means until read.

    The server of such an algorithm has nothing to test. These reports are no part of the protocol:
    they cost nothing, and a device refuses them.

    A strategy that has them sets ``rounds.own_models``; ``Rounds`` does the rest. Nothing of it
    is in a checkpoint: a figure that was not read before a kill is lost, and nothing else depends
    on it.

    Args:
        setup: The run's setup.
        sums: The strategy's; reports are summed in the clear even where trainings are summed
            securely.
        names: Names of the figures in [0, 1] that a client reports, in order.
        every: Rounds between two questions, and one after the last; 0: after the last only.
    """

    def __init__(
        self, setup: ServerSetup, sums: Aggregator, names: Sequence[str], every: int = 1
    ) -> None:
        self.setup = setup
        self.sums = sums
        self.names = names
        self.every = every
        self.codec = WeightCodec(len(names), bound=1.0)
        self._phase: Phase | None = None
        self._found: dict[str, float] = {}

    def ask(
        self, number: int, arrays: ArrayRecord, grid: Grid, weights: Weights
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
        self._phase = Phase(question, self.sums, self.setup)
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
