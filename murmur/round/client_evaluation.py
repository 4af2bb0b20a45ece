"""Evaluation on clients, the server: ask some of them, every few rounds, for a protected result.

A component beside the strategy, which any strategy can switch on (``conf/evaluation``). What each
client sends is protected, charged in its ledger like a training release, and composes with the
training in one statement. It is a row of that client's own, or, where the server needs no more than
their sum (``summed``), part of one, which is taken securely where the run does so. In simulations
the researcher can be shown the unprotected figures beside the protected ones; that is no release,
and a device refuses it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from murmur.common import experiment_rng, require_count
from murmur.learning.codec import Codec, Integers, MalformedError, Rows, Sum
from murmur.privacy.accounting import Threat, Unit, epsilon
from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent, SummedEvent
from murmur.privacy.statement import Exposure
from murmur.round.answers import accept, exposed
from murmur.round.blame import Blame
from murmur.round.evaluation_report import with_evaluation
from murmur.round.evaluation_sum import EvaluationSum
from murmur.round.message_size import reply_size, request_size
from murmur.round.reply_limit import REPLIES
from murmur.round.secure_sum import SecureRound, Summed
from murmur.round.setup import ServerSetup
from murmur.round.untrusted_text import said
from murmur.round.weights import Weights

ALIKE = Weights(lambda client: 1)  # every client counts as much
PROTECTED, CLEAN = "evaluate", "evaluate without protection"


class ClientEvaluation(ABC):
    """Who is asked when, what came back, and what all of it has cost.

    ``clients``: how many are asked, all if there are fewer. ``every``: rounds from one evaluation
    to the next. ``show_clean``: ask simulated clients for the unprotected result too. ``summed``:
    rows are added up, and their noise may be shared. ``least_survivors``: of any such sum; 0: none.
    ``secure_sum``: of this round's evaluation, if it is one.
    """

    summed: bool = False
    unit: Unit = Unit.CLIENT
    name: str = "protected evaluation"

    def __init__(self, setup: ServerSetup, *, clients: int, every: int, show_clean: bool) -> None:
        require_count("cluster_client_num", clients)
        require_count("every", every)
        if setup.secure_sums.is_on and not self.summed:
            raise ValueError(
                "secure_aggregation=on: clients then release nothing but masked sums, and this "
                "evaluation is a row of each client's; set evaluation=protected_counts with "
                "evaluation.counts.noise=gaussian, or evaluation=none"
            )
        if setup.trainer.statistics:
            raise ValueError(
                "model: keeps statistics that stay with each client, so there is no global model "
                "to evaluate; choose a model without batch normalisation, or evaluation=none"
            )
        self.setup, self.every, self.show_clean = setup, every, show_clean
        self.clients = min(clients, setup.num_clients)
        sure = setup.secure_sums.least_survivors(self.clients)
        if self.summed and sure < setup.least_survivors:
            raise ValueError(
                f"clients={clients}: a sum over {sure} is too small: {setup.least_survivors} share "
                "the noise that it needs; ask as many clients as train in a round"
            )
        self.blame = Blame(int(setup.secure_sums.liars * setup.num_clients))
        self.journal: Path | None = None  # of a secure sum that an interruption must not lose
        self.least_survivors = self.answered = 0
        self.secure_sum: EvaluationSum | None = None
        self.participations: Counter[int] = Counter()
        self.failed: dict[int, str] = {}
        self.scores: dict[str, float] = {}
        self.bytes_down = self.bytes_up = 0
        self._number = 0
        self._waiting: dict[tuple[str, int], list[int]] = {}

    # What an evaluation fills in ------------------------------------------------------------

    @property
    @abstractmethod
    def is_on(self) -> bool:
        """Whether anybody is asked at all."""

    @abstractmethod
    def codec(self, purpose: str) -> Codec:
        """The form of one client's row, protected or clean."""

    @abstractmethod
    def event(self) -> Event:
        """What one protected row costs."""

    @abstractmethod
    def score(
        self, number: int, rows: Integers, clean: tuple[Integers, Integers] | None
    ) -> dict[str, float]:
        """Figures for the round's result row, from the rows of all that answered (n, width).

        Where they are summed, the sum (1, width) of ``answered`` clients. ``clean``: protected and
        unprotected rows of those clients that sent both.
        """

    # The phase ------------------------------------------------------------------------------

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients asked after round ``number``, ascending."""
        rng = experiment_rng(self.setup.seed, "evaluation cohort", number)
        return np.sort(rng.choice(self.setup.num_clients, self.clients, replace=False))

    def messages(self, number: int, arrays: ArrayRecord, grid: Grid) -> list[Message]:
        """One message for each node, or none where nothing is due in round ``number``."""
        self._number, self._waiting, self.failed, self.scores = number, {}, {}, {}
        self.secure_sum = None
        self.bytes_down = self.bytes_up = 0
        if not self.is_on or number % self.every:
            return []
        cohort = self.cohort(number).tolist()
        trusted = [client for client in cohort if client not in self.blame.accused]
        placement = self.setup.placement.place(grid, trusted)
        self.failed.update(placement.away)
        invited: dict[str, Mapping[int, list[int]]] = {
            PROTECTED: placement.asked,
            CLEAN: placement.asked,
        }
        if self.setup.secure_sums.is_on:
            invited[PROTECTED] = self._prepare_sum(number, placement.asked, grid)
        messages = []
        for purpose in (PROTECTED, CLEAN) if self.show_clean else (PROTECTED,):
            for node, clients in invited[purpose].items():
                REPLIES.allow(self.codec(purpose), len(clients))
                task = ConfigRecord({"purpose": purpose, "round": number, "clients": clients})
                content = RecordDict({"model": arrays, "task": task})
                if self.secure_sum is not None and purpose == PROTECTED:
                    self.secure_sum.secure.invite(clients, content)
                self._waiting[purpose, node] = clients
                self.bytes_down += request_size(content, clients) if purpose == PROTECTED else 0
                messages.append(
                    Message(content, dst_node_id=node, message_type="evaluate", group_id=purpose)
                )
        return messages

    def take(self, replies: Iterable[Message]) -> None:
        """Read what the nodes sent; ``scores`` holds the figures, if the quorum answered."""
        if not self.is_on:
            return
        kind = Sum if self.summed else Rows
        rows = {purpose: kind(self.codec(purpose)) for purpose in (PROTECTED, CLEAN)}
        for reply in replies:
            purpose = reply.metadata.group_id
            clients = self._waiting.pop((purpose, reply.metadata.src_node_id), None)
            if clients is None:
                continue  # a duplicate, or a node that was not asked
            if reply.has_error():
                reason = f"node failed: {said(reply.error.reason)}"
                self._fail(purpose, self._exposed(clients, reply), clients, reason)
                continue
            into: SecureRound | Sum | Rows = rows[purpose]
            if self.secure_sum is not None and purpose == PROTECTED:
                into = self.secure_sum.secure
            try:
                answered, refused = accept(into, clients, reply.content, ALIKE.of)
            except (MalformedError, KeyError, TypeError, ValueError) as error:
                self._fail(purpose, clients, clients, f"rejected: {said(error)}")
                continue
            if purpose == PROTECTED:
                self.participations.update(answered)
                self.failed |= refused
                self.bytes_up += reply_size(reply.content, "report")
        for (purpose, _), clients in self._waiting.items():
            late = "no answer before the deadline"
            self._fail(purpose, self._exposed(clients), clients, late)
        self._waiting = {}
        self._finish_sum(rows[PROTECTED])
        self._score(rows[PROTECTED], rows[CLEAN])

    def _prepare_sum(
        self, number: int, asked: Mapping[int, list[int]], grid: Grid
    ) -> Mapping[int, list[int]]:
        """Exchange keys; who may be asked, by node: nobody where too few take part."""
        row = self.codec(PROTECTED)
        known = self.setup.strategy, PROTECTED, row, self.event(), ALIKE
        summed = Summed(*known, self.setup.seeded_noise)
        about = (self.clients, summed, self.blame, grid, self.journal, self.participations)
        try:
            self.secure_sum = EvaluationSum(self.setup, number, asked, *about)
        except ValueError as error:
            clients = [client for clients in asked.values() for client in clients]
            self.failed.update(dict.fromkeys(clients, f"secure aggregation: {error}"))
            return {}
        self.participations = self.secure_sum.participations
        return self.secure_sum.invited

    def _finish_sum(self, rows: Sum | Rows) -> None:
        sizes = [len(rows.clients)]
        if self.secure_sum is not None and isinstance(rows, Sum):
            sizes, about = self.secure_sum.finish(rows), self.secure_sum.about
            self.failed |= about.failed | about.accused
            self.bytes_up += about.bytes_up
            self.bytes_down += about.bytes_down
        seen = [size for size in (self.least_survivors, *sizes) if size]
        self.least_survivors = min(seen, default=0)

    def _score(self, protected: Sum | Rows, clean: Sum | Rows) -> None:
        count = self.answered = len(protected.clients)
        if not count:
            return
        _, total = self.costs(self.setup.budget.delta)
        self.scores = {"evaluation_clients": float(count), "evaluation_epsilon": total}
        if count < math.ceil(self.setup.quorum * self.clients):
            return
        if isinstance(protected, Sum) and isinstance(clean, Sum):
            known = protected.total[None], clean.total[None]
            self.scores |= self.score(self._number, known[0], known if clean.clients else None)
            return
        assert isinstance(protected, Rows) and isinstance(clean, Rows)
        who, rows = protected.integers()
        whose, truth = clean.integers()
        _, left, right = np.intersect1d(who, whose, assume_unique=True, return_indices=True)
        both = (rows[left], truth[right]) if len(left) else None
        self.scores |= self.score(self._number, rows, both)

    def _exposed(self, clients: list[int], reply: Message | None = None) -> list[int]:
        """Of whom something may have left, where their node sent an error, or nothing."""
        return exposed(self.setup.placement, clients, self._number, PROTECTED, reply)

    def _fail(self, purpose: str, released: list[int], clients: list[int], reason: str) -> None:
        """``released``: of whom something may have left before the failure: they took part."""
        if purpose == PROTECTED:
            self.participations.update(released)
            self.failed.update(dict.fromkeys(clients, reason))

    # Privacy --------------------------------------------------------------------------------

    def spent(self) -> list[Event]:
        """What the most exposed client has released here; empty before the first evaluation."""
        most = max(self.participations.values(), default=0)
        return [RepeatedEvent(self.seen(self.setup.budget.threat), most)] if most else []

    def seen(self, threat: str) -> Event:
        """One release as ``threat`` sees it: in a sum, where it sees sums only and that is one."""
        sums = self.setup.secure_sums
        if threat != Threat.SECURE_AGGREGATION or not self.summed or sums.mode == "off":
            return self.event()
        survivors = self.least_survivors or sums.least_survivors(self.clients)
        failure = sums.failure_probability(self.clients)
        return SummedEvent(self.event(), max(1, survivors - sums.colluders), failure=failure)

    def compose(self, exposures: Iterable[Exposure]) -> list[Exposure]:
        """Every adversary's view with the evaluation in it.

        Whoever sees the training is taken to see the evaluation as well. Where an exposure does
        not name its clients one by one, each gets the most exposed client's evaluations.
        """
        if not self.participations:
            return list(exposures)
        counts = dict(sorted(self.participations.items()))
        return [with_evaluation(e, self.seen(e.threat), counts) for e in exposures]

    def costs(self, delta: float) -> tuple[float, float]:
        """Proven ε of one result, at δ = 0 if it can be, and of the most exposed client's all."""
        threat = Threat(self.setup.budget.threat) if self.summed else Threat.LOCAL
        one, all_of_it = self.seen(threat), ComposedEvent(tuple(self.spent()))
        alone = epsilon(one, 0.0, threat).epsilon
        if math.isinf(alone):
            alone = epsilon(one, delta, threat).epsilon
        return alone, epsilon(all_of_it, delta, threat).epsilon

    def warnings(self) -> list[str]:
        """What the evaluation alone cost, which no figure of a statement says by itself."""
        if not self.participations:
            return []
        each, total = self.costs(self.setup.budget.delta)
        return [
            f"the {self.name} alone is ε={each:.6g} for each result and {total:.6g} for all of the "
            "most exposed client's; that counts only against those who see no training message"
        ]

    # Checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """Who took part how often; override together with ``restore``."""
        clients = np.array(sorted(self.participations), np.int64)
        counts = np.array([self.participations[int(c)] for c in clients], np.int64)
        least = np.array([self.least_survivors], np.int64)
        seen = {"clients": clients, "counts": counts, "least_survivors": least}
        return {**seen, **self.blame.state()}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up what ``state`` returned."""
        pairs = zip(state["clients"].tolist(), state["counts"].tolist(), strict=True)
        self.participations = Counter(dict(pairs))
        self.least_survivors = int(state["least_survivors"][0])
        self.blame.restore(state)
