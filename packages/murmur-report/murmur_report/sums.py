"""Secure sums as the server sees them, in which one client is attacked."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_app.audit_api import (
    PROTECTED,
    RECORD,
    Client,
    CohortStrategy,
    InlineGrid,
    LocalData,
    Outcome,
    Phase,
    SecureSummation,
    SimulatedHost,
    Task,
    identify,
)
from murmur.privacy.noise import NoiseGenerator
from murmur_report.views import Messages

CHECKED = 4  # draws that go the whole way


class SumRefusedError(Exception):
    """No sum came about; the message says who refused it, and why."""


class Asked(SimulatedHost):
    """A host whose clients release what the attack draws, in one sum after the other."""

    def begin(self, draw: Callable[[Any, Task], NDArray]) -> None:
        """A run of its own: whoever was asked in an earlier one can be asked again.

        Args:
            draw: (client half, task) -> release; everything before and after is the host's own.
        """
        self.site = replace(self.site, run=uuid4().hex)
        self.train = lambda half, task, data, noise: draw(half, task)


class SecureSum:
    """Secure sums of round 1 in which one client is attacked, as the server sees them.

    The strategy of the run asks for the sum and unmasks it, real nodes charge, release and mask.
    The fewest clients answer that a sum may be over, the lightest ones beside the one that is
    attacked, and the server knows what colluders among them have sent.

    What clients release is drawn with noise of the attack's own, by their own code. Of the first
    draws the sum goes the whole way, through policy, ledger, collector, masks and unmasking, and
    must be, to the last bit, the weighted sum of what was drawn; later draws are added up as these
    were.

    Args:
        strategy: of a configuration with secure sums on.
        node: hosts the victim.
        others: hosts everybody else; it may be asked for other settings.
        victim: the client that is attacked.

    Raises:
        SumRefusedError: no sum comes about.

    Attributes:
        charged: what the victim's ledger holds for one such sum.
        parts: client -> what it releases there.
    """

    def __init__(self, strategy: CohortStrategy, node: Asked, others: Asked, victim: int) -> None:
        self.strategy = strategy
        self.node = node
        self.others = others
        self.victim = victim
        self.parts: dict[int, Messages] = {}
        self._fresh = strategy.state()
        self._model = strategy.setup.initial_parameters()
        self._data: dict[int, LocalData] = {}
        self._answering: list[int] = []  # of these the last ``colluders`` tell what they send
        self._colluders = strategy.setup.secure_sums.colluders
        self._checked = 0
        identify()
        self._whole_way(self.data_of(victim), NoiseGenerator.from_os())
        self.charged = list(node.ledger.events(victim))[-1]

    def __call__(self, source: LocalData | NDArray, noise: NoiseGenerator) -> NDArray:
        """One sum in which the victim's part comes from ``source``, less what colluders sent.

        The first draws go the whole way; later ones are added up as these were.
        """
        if self._checked == CHECKED:
            return _added_up(self._part(client, source, noise) for client in self._hidden)
        self._checked += 1
        return self._whole_way(source, noise)

    def _part(self, client: int, source: LocalData | NDArray, noise: NoiseGenerator) -> NDArray:
        """Returns ``client``'s term of the sum, from its own data; the victim's from ``source``."""
        if client != self.victim:
            source = self.data_of(client)
        return self.parts[client](source, noise)

    def data_of(self, client: int) -> LocalData:
        """Returns the data of ``client``."""
        if client not in self._data:
            self._data[client] = self._host(client).data.of(client)
        return self._data[client]

    def _host(self, client: int) -> Asked:
        """The node that hosts ``client``."""
        if client == self.victim:
            return self.node
        return self.others

    @property
    def _hidden(self) -> list[int]:
        """Clients whose noise the server does not know."""
        return self._answering[: len(self._answering) - self._colluders]

    def _whole_way(self, source: LocalData | NDArray, noise: NoiseGenerator) -> NDArray:
        """Returns one sum, as ``__call__``, through nodes, ledgers, masks and unmasking.

        Raises:
            SumRefusedError: a node refuses its part.
            RuntimeError: what is unmasked is not, to the last bit, the sum of what was drawn.
        """
        drawn: dict[int, NDArray] = {}

        def draw(half: Client, task: Task) -> NDArray:
            part = self.parts.setdefault(task.client, Messages(half, task))
            own = source if task.client == self.victim else self.data_of(task.client)
            release = part.release(own, noise)
            drawn[task.client] = part.integers(release)
            return release

        for node in (self.node, self.others):
            node.begin(draw)
        strategy = self.strategy
        strategy.restore(self._fresh)
        strategy.rounds.outcome = Outcome(0)
        unmasked = self._round(strategy)
        if not np.array_equal(unmasked, _added_up(drawn.values())):
            raise RuntimeError("what was unmasked is not the sum of what clients released")
        return _added_up(drawn[client] for client in self._hidden)

    def _round(self, strategy: CohortStrategy) -> NDArray:
        """The sum that ``strategy`` unmasks, over the fewest clients that it may be over."""
        grid = InlineGrid(self._answer, {}, strategy.setup.num_clients)
        model = ArrayRecord({"model": Array(self._model)})
        messages, phase = self._ask(strategy, model, grid)
        invited = {client: each for each in messages for client in _clients(each, "task")}
        if self.victim not in invited:
            raise _refused(phase.outcome)
        self._answering = self._fewest(phase, invited)
        outcome = phase.take(self._answer_of(client, invited[client]) for client in self._answering)
        if self.victim not in outcome.answered:
            raise _refused(outcome)
        return outcome.total

    def _ask(
        self, strategy: CohortStrategy, model: ArrayRecord, grid: Grid
    ) -> tuple[list[Message], Phase]:
        """Returns the server's messages of round 1, in a sum of its own, and their phase."""
        strategy.rounds.sums.run = uuid4().hex
        messages = list(strategy.configure_train(1, model, ConfigRecord(), grid))
        assert strategy.rounds.phase is not None
        return messages, strategy.rounds.phase

    @staticmethod
    def weights(strategy: CohortStrategy, node: SimulatedHost) -> dict[int, int]:
        """Returns the weights of the clients that are asked."""
        cohort = map(int, strategy.rounds.cohort(1))
        return {client: node.client.weight(client) for client in cohort}

    def _fewest(self, phase: Phase, invited: Iterable[int]) -> list[int]:
        """The victim, and the lightest of the others that its sum needs."""
        summation = phase.summation
        assert isinstance(summation, SecureSummation)
        [terms] = [each for each in summation.journal.terms if self.victim in each.clients]
        others = [c for c in terms.clients if c in set(invited) - {self.victim}]
        weights = self.weights(self.strategy, self.others)
        return [self.victim, *sorted(others, key=weights.__getitem__)[: terms.minimum - 1]]

    def _answer(self, message: Message, _: Context) -> Message:
        """Returns the answer of the node of a message's only client."""
        [client] = _clients(message, RECORD)
        return self._answer_of(client, message)

    def _answer_of(self, client: int, message: Message) -> Message:
        """Returns the answer of ``client``'s node."""
        kind = message.metadata.message_type
        return Message(self._host(client).answer(message.content, kind), reply_to=message)


class EvaluationSums(SecureSum):
    """Secure sums of the strategy's evaluation in which one client is attacked."""

    def _ask(
        self, strategy: CohortStrategy, model: ArrayRecord, grid: Grid
    ) -> tuple[list[Message], Phase]:
        evaluation = strategy.rounds.evaluation
        assert evaluation is not None
        evaluation.sums.run = uuid4().hex
        messages = evaluation.messages(evaluation.every, model, grid)
        protected = [each for each in messages if each.content["task"]["purpose"] == PROTECTED]
        return protected, evaluation.phases[PROTECTED]

    @staticmethod
    def weights(strategy: CohortStrategy, node: SimulatedHost) -> dict[int, int]:
        """Everybody counts alike."""
        evaluation = strategy.rounds.evaluation
        assert evaluation is not None
        return dict.fromkeys(map(int, evaluation.cohort(evaluation.every)), 1)


def _added_up(parts: Iterable[NDArray]) -> NDArray:
    """The sum of integers of one shape."""
    return np.sum(list(parts), axis=0)


def _refused(outcome: Outcome) -> SumRefusedError:
    """Who failed first, and why; nobody, where no sum was asked for."""
    client, why = next(iter(outcome.failed.items()), ("nobody", "said why"))
    return SumRefusedError(f"client {client}: {why}")


def _clients(message: Message, record: str) -> list[int]:
    """Returns the clients that ``message`` is for."""
    named = message.content.config_records[record]["clients"]
    assert isinstance(named, list)
    return [int(client) for client in named]
