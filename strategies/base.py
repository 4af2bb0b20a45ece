"""What every strategy has in common: cohorts over nodes, exact sums, quorum, participation.

An algorithm says what to ask (``task``), in which form answers travel (``codec``), and what to do
with their sum (``update``): ``strategies.algorithm``. Flower's own ``start`` drives the rounds.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from murmur.common import experiment_rng
from murmur.learning.codec import MalformedError, Sum
from murmur.privacy.accounting import Adjacency, Unit
from murmur.round.answers import accept, exposed
from murmur.round.blame import Blame
from murmur.round.errors import RunError
from murmur.round.message_size import reply_size, request_size
from murmur.round.reply_limit import REPLIES
from murmur.round.secure_groups import groups_of
from murmur.round.secure_journal import Journal
from murmur.round.secure_sum import SecureRound, Summed
from murmur.round.setup import Round, ServerSetup
from murmur.round.untrusted_text import said
from strategies.algorithm import Algorithm, Parameters

if TYPE_CHECKING:
    from murmur.round.canaries import Canaries
    from murmur.round.client_evaluation import ClientEvaluation

_EVALUATION, _CANARIES = "evaluation.", "canaries."  # begin the names of their parts of a snapshot
_COHORT = "cohort"  # of a snapshot: the next round's number, and its clients
PATIENCE = 3  # rounds without a single answer after which a run ends


class CohortStrategy(Algorithm, Strategy):
    """A Flower Strategy whose rounds sum integer contributions over nodes that host cohorts.

    Whatever a server draws is drawn once. ``keep`` gets a round's new model as soon as there is
    one, and must have it on disk with a ``snapshot`` when it returns: nothing that follows from the
    model leaves before. A server that is resumed there has ``round`` as it was then, asks nobody to
    train, and draws nothing. Secret cohorts are drawn with the snapshot before their round.
    """

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self.first_round = 0  # rounds already done by an interrupted run
        self.participations: Counter[int] = Counter()
        self.round = Round(0)
        self.keep: Callable[[Parameters], None] = _forget  # a run that is not resumed draws once
        self.drawn: tuple[int, NDArray[np.int64]] = 0, np.zeros(0, np.int64)  # a round's cohort
        self.silent_rounds = 0
        self.run = uuid.uuid4().hex  # names this process's secure sums; no draw follows from it
        self.secure_round: SecureRound | None = None
        self.journal: Path | None = None  # of secure sums that an interruption must not lose
        self.least_survivors = 0  # of any sum that was taken; 0: none was
        self.blame = Blame(int(setup.secure_sums.liars * setup.num_clients))
        self.model: Parameters = np.zeros(0, np.float32)
        self.evaluation: ClientEvaluation | None = None
        self.canaries: Canaries | None = None
        self.told: tuple[dict[str, NDArray], dict[str, int]] = {}, {}  # in this round's task

    def switch_on(self, evaluation: ClientEvaluation) -> None:
        """Let ``evaluation`` ask clients after a round; ValueError where it does not fit."""
        if type(self).configure_evaluate is not CohortStrategy.configure_evaluate:
            raise ValueError(
                f"evaluation: {self.algorithm} has its own way to evaluate on clients; "
                "set evaluation=none"
            )
        if evaluation.unit is Unit.RECORD:
            if not Adjacency.REPLACE_ONE.covers(self.adjacency):
                raise ValueError(
                    "unit=record: means records that are replaced, the training's privacy clients "
                    "that are added or removed; set the evaluation's unit to client"
                )
            # What protects a client protects each of its records, but not the reverse.
            self.unit = Unit.RECORD
        self.evaluation = evaluation

    def snapshot(self) -> dict[str, NDArray]:
        """All that a checkpoint holds beside model and participations."""
        evaluation = {} if self.evaluation is None else self.evaluation.state()
        canaries = {} if self.canaries is None else self.canaries.state()
        return {
            **self.state(),
            **self._next_cohort(),
            "least_survivors": np.array([self.least_survivors], np.int64),
            **self.blame.state(),
            **{f"{_EVALUATION}{name}": values for name, values in evaluation.items()},
            **{f"{_CANARIES}{name}": values for name, values in canaries.items()},
        }

    def resume(self, snapshot: Mapping[str, NDArray]) -> None:
        """The inverse of ``snapshot``."""
        state = dict(snapshot)
        self.least_survivors = int(state.pop("least_survivors")[0])
        self.blame.restore({"blame": state.pop("blame")})
        if _COHORT in state:
            number, *clients = state.pop(_COHORT).tolist()
            self.drawn = number, np.array(clients, np.int64)
        for part, prefix in ((self.evaluation, _EVALUATION), (self.canaries, _CANARIES)):
            names = [name for name in state if name.startswith(prefix)]
            own = {name.removeprefix(prefix): state.pop(name) for name in names}
            if part is not None and own:
                part.restore(own)
        self.restore(state)

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients asked in round ``number``, ascending; the same however often it is asked."""
        if self.drawn[0] != number:
            self.drawn = number, super().cohort(number)
        return self.drawn[1]

    # Flower's own methods -------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample the cohort, find its nodes, one message for each node."""
        number = self.first_round + server_round
        if self.round.counted and self.round.number == number:
            return []  # its model was kept before an interruption
        self.round = Round(number)
        self.model = arrays["model"].numpy()
        extra, settings = self.told = self.task(number, self.model)
        record = ArrayRecord({"model": arrays["model"]})
        for name, values in extra.items():
            record[name] = Array(values)
        secure = self.setup.secure_sums.is_on
        journal = Journal(number, self.journal if secure else None)
        self._assign(journal, grid)
        self.round.invited = self.round.asked
        self.secure_round = None
        if secure:
            self.round.invited = self._prepare_secure_sum(journal, grid)
        messages = []
        for node, clients in self.round.invited.items():
            REPLIES.allow(self.codec(), len(clients))
            knobs = ConfigRecord({**settings, "round": number, "clients": clients})
            content = RecordDict({"model": record, "task": knobs})
            if self.secure_round is not None:
                self.secure_round.invite(clients, content)
            messages.append(
                Message(content, dst_node_id=node, message_type="train", group_id=str(number))
            )
            self.round.bytes_down += request_size(content, clients)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum the nodes' contributions and update the model, if the quorum answered."""
        if self.round.counted:
            return None, None  # ``arrays`` are its model
        total = Sum(self.codec())
        waiting = dict(self.round.invited)
        for reply in replies:
            node = reply.metadata.src_node_id
            clients = waiting.pop(node, None)
            if clients is None:
                continue  # a duplicate, or a node that was not asked
            if reply.has_error():
                reason = f"node failed: {said(reply.error.reason)}"
                self._fail(self._exposed(clients, reply), clients, reason)
                continue
            try:
                into = self.secure_round or total
                answered, refusals = accept(into, clients, reply.content, self.weights().of)
                self.round.bytes_up += reply_size(
                    reply.content, "report", self.codec(), self.weights().of
                )
            except (MalformedError, KeyError, TypeError, ValueError) as error:
                self._fail(clients, clients, f"rejected: {said(error)}")
                continue
            self.participations.update(answered)
            self.round.failed.update(refusals)
        for clients in waiting.values():
            self._fail(self._exposed(clients), clients, "no answer before the deadline")
        if self.secure_round is not None:
            self.secure_round.keep(self.participations)
            sizes = self.secure_round.finish(total)
            named = self.blame.add(self.round.accused, self.secure_round.spoiled)
            self.round.accused |= named
        else:
            # The clients that a secure sum would have covered.
            sizes = [len(set(group) & set(total.clients)) for group in self._groups()]
        self._remember_survivors(sizes)
        self.round.accepted = sorted(total.clients)
        self._give_up_when_nobody_answers()
        # Distributed noise needs enough clients in every sum; the protocol enforces this.
        short = min((size for size in sizes if size), default=0) < self.setup.least_survivors
        if short or len(total.clients) < self.least_answers():
            return None, None
        self.round.counted = True
        if self.canaries is not None:
            self.canaries.join(self.round.number, self.model, *self.told, total)
        model = self.update(self.round.number, self.model, total.total, total.weight)
        self.keep(model)
        return ArrayRecord({"model": Array(model)}), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing, unless an evaluation is switched on: it is a release of its own."""
        if self.evaluation is None:
            return []
        return self.evaluation.messages(self.first_round + server_round, arrays, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the evaluation, if there is one, read what it asked for."""
        if self.evaluation is not None:
            self.evaluation.take(replies)
            self.round.bytes_down += self.evaluation.bytes_down
            self.round.bytes_up += self.evaluation.bytes_up
        return None

    def summary(self) -> None:
        """Nothing: the run's folder holds the whole configuration."""

    # Helpers --------------------------------------------------------------------------------

    def _next_cohort(self) -> dict[str, NDArray]:
        """Where cohorts are secret: that of the round after this one, with its number."""
        if self.setup.cohorts.kind != "poisson":
            return {}
        number = self.round.number + 1
        return {_COHORT: np.array([number, *self.cohort(number)], np.int64)}

    def _assign(self, journal: Journal, grid: Grid) -> None:
        """Find the nodes of the round's cohort; whoever has none is reported and pays nothing."""
        if journal.terms:  # a cohort that was drawn from the noise stream cannot be drawn again
            cohort = [client for terms in journal.terms for client in terms.clients]
        else:
            drawn = self.cohort(self.round.number).tolist()
            cohort = [client for client in drawn if client not in self.blame.accused]
        placement = self.setup.placement.place(grid, cohort)
        self.round.asked = placement.asked
        self.round.away = len(placement.away)
        self.round.failed.update(placement.away)
        journal.restore(self.round)

    def _prepare_secure_sum(self, journal: Journal, grid: Grid) -> dict[int, list[int]]:
        """Exchange keys; who may be asked to train, by node: nobody where too few take part."""
        try:
            self._require_enough()
            self.secure_round = SecureRound(
                self.setup.secure_sums,
                self.run,
                self.round,
                Summed(
                    self.setup.strategy,
                    "train",
                    self.codec(),
                    self.release_event(),
                    self.weights(),
                    self.setup.seeded_noise,
                ),
                self.blame,
                grid,
                self.setup.round_timeout,
                journal,
                self._groups(),
                self.setup.secure_sums.least_survivors(self.setup.cohort_size),
            )
        except ValueError as error:  # a cohort that was drawn too small for its own rules
            clients = [client for clients in self.round.asked.values() for client in clients]
            self.round.failed.update(dict.fromkeys(clients, f"secure aggregation: {error}"))
            return {}
        if journal.masked is not None:
            self.participations = Counter(journal.participations)
        return self.secure_round.prepare()

    def _groups(self) -> list[list[int]]:
        """Who sums with whom in this round."""
        cohort = [client for clients in self.round.asked.values() for client in clients]
        setup = self.setup
        rng = experiment_rng(setup.seed, "secure groups", self.round.number)
        return groups_of(cohort, setup.secure_sums, setup.cohort_size, rng)

    def _require_enough(self) -> None:
        """ValueError where so few could be asked that their noise might not keep the budget."""
        least, whole = self.setup.least_survivors, replace(self.setup.secure_sums, groups=1)
        sure = min(whole.least_survivors(len(group)) for group in self._groups())
        if sure < least:
            raise ValueError(
                f"a sum over {sure} clients is too small: {least} share the noise that it needs"
            )

    def _remember_survivors(self, sizes: Iterable[int]) -> None:
        """Sums over so many clients each were seen; 0: none was."""
        seen = [size for size in (self.least_survivors, *sizes) if size]
        self.least_survivors = min(seen, default=0)

    def _exposed(self, clients: list[int], reply: Message | None = None) -> list[int]:
        """Of whom something may have left, where their node sent an error, or nothing."""
        return exposed(self.setup.placement, clients, self.round.number, "train", reply)

    def _fail(self, released: list[int], clients: list[int], reason: str) -> None:
        """``released``: of whom something may have left before the failure: they took part."""
        self.participations.update(released)
        self.round.failed.update(dict.fromkeys(clients, reason))

    def _give_up_when_nobody_answers(self) -> None:
        # Whoever is accused now is not asked again, so that the next round is better off.
        helped = self.round.accepted or self.round.accused or not self._cohort_size()
        self.silent_rounds = 0 if helped else self.silent_rounds + 1
        if self.silent_rounds == PATIENCE:
            client, reason = next(iter(self.round.failed.items()))
            raise RunError(
                f"no client answered in {PATIENCE} rounds; client {client} said: {reason}"
            )

    def least_answers(self) -> int:
        """How many clients must answer for a round to count; what they answer has no part in it."""
        return math.ceil(self.setup.quorum * self._cohort_size())

    def _cohort_size(self) -> int:
        return sum(len(clients) for clients in self.round.asked.values()) + self.round.away


def _forget(model: Parameters) -> None:
    """Keep nothing."""
