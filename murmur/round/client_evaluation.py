"""Evaluation on clients, the server: ask some of them, every few rounds, for a protected result.

A component beside the strategy, which any strategy can switch on (``conf/evaluation``). What each
client sends is protected, charged in its ledger like a training release, and composes with the
training in one statement. It is a row of that client's own, or, where the server needs no more than
their sum (``summed``), part of one, which is taken securely where the run does so. In simulations
the researcher can be shown the unprotected figures beside the protected ones; that is no release,
and a device refuses it.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from murmur.checks import require_count
from murmur.format import format_number
from murmur.learning.codec import Codec, Integers
from murmur.privacy.accounting import Threat, Unit, epsilon
from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent
from murmur.privacy.exposure import seen_by, with_evaluation
from murmur.privacy.guarantee import Exposure
from murmur.random import experiment_rng
from murmur.round.cohorts import ALIKE
from murmur.round.phase import Outcome, Phase, Question
from murmur.round.run_state import participation_arrays
from murmur.round.setup import ServerSetup
from murmur.round.summation import Aggregator

PROTECTED = "evaluate"
CLEAN = "evaluate without protection"


class ClientEvaluation(ABC):
    """An evaluation on clients: its schedule, its answers and their privacy cost.

    The strategy calls ``messages`` after each round and ``take`` with the replies. A subclass says
    what is asked and how figures come of it.

    Args:
        setup: The run's setup.
        clients: How many are asked, all if there are fewer.
        every: Rounds from one evaluation to the next.
        show_clean: Ask simulated clients for the unprotected result too.

    Attributes:
        summed: Rows are added up, and their noise may be shared.
        unit: The unit that one row protects.
        name: Name of the evaluation in the statement's warnings.
        participations: How often each client may have released a row.
        outcome: Outcome of the last evaluation's protected phase.
        scores: Figures of the last round's evaluation; empty where none was due or nobody
            answered.

    Raises:
        ValueError: A count is below 1, or the run's sums or model do not go with this evaluation.
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
        self.setup = setup
        self.every = every
        self.show_clean = show_clean
        self.clients = min(clients, setup.num_clients)
        sure = setup.secure_sums.least_survivors(self.clients)
        if self.summed and sure < setup.least_survivors:
            raise ValueError(
                f"clients={clients}: a sum over {sure} is too small: {setup.least_survivors} share "
                "the noise that it needs; ask as many clients as train in a round"
            )
        self.sums = Aggregator(
            setup, self.clients, "secure evaluation groups", rows=not self.summed
        )
        self.participations: Counter[int] = Counter()
        self.outcome = Outcome(0)
        self.scores: dict[str, float] = {}
        self.phases: dict[str, Phase] = {}

    # What an evaluation fills in ------------------------------------------------------------

    @property
    @abstractmethod
    def is_on(self) -> bool:
        """True if any client is asked at all."""

    @abstractmethod
    def codec(self, purpose: str) -> Codec:
        """The form of one client's row, protected or clean."""

    @abstractmethod
    def event(self) -> Event:
        """Returns the privacy event of one protected row, for a server that reads the message."""

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
        """The clients asked after round ``number``, ascending.

        Drawn from the run's seed, which everybody knows: nothing is gained from sampling. They need
        not be those that train in the round.
        """
        rng = experiment_rng(self.setup.seed, "evaluation cohort", number)
        return np.sort(rng.choice(self.setup.num_clients, self.clients, replace=False))

    def messages(self, number: int, arrays: ArrayRecord, grid: Grid) -> list[Message]:
        """One message for each node and purpose, or none where nothing is due in round ``number``.

        ``arrays`` hold the ``model`` (d,) to evaluate.
        """
        self.phases = {}
        self.scores = {}
        self.outcome = Outcome(number)
        if not self.is_on or number % self.every:
            return []
        model = arrays["model"].numpy()
        self.phases[PROTECTED] = self._phase(PROTECTED, number, model)
        if self.show_clean:
            self.phases[CLEAN] = self._phase(CLEAN, number, model)
        self.outcome = self.phases[PROTECTED].outcome
        return [message for phase in self.phases.values() for message in phase.ask(grid)]

    def take(self, replies: Iterable[Message]) -> None:
        """Read what the nodes sent; ``scores`` holds the figures, if the quorum answered.

        If fewer did, it holds how many answered and what all evaluations have cost, for that they
        cost.
        """
        received = list(replies)
        for phase in self.phases.values():
            phase.take(received)
        self.participations.update(self.outcome.possibly_released)
        if not self.outcome.answered:
            return
        _, total = self.costs(self.setup.budget.delta)
        self.scores = {
            "evaluation_clients": float(len(self.outcome.answered)),
            "evaluation_epsilon": total,
        }
        if self.outcome.accepted:
            self._score()

    @property
    def answered(self) -> int:
        """How many clients the last evaluation is over."""
        return len(self.outcome.answered)

    @property
    def failed(self) -> dict[int, str]:
        """Who did not answer in the last evaluation, or lied in its secure sum, and why."""
        return self.outcome.failed | self.outcome.accused

    def _phase(self, purpose: str, number: int, model: NDArray[np.float32]) -> Phase:
        question = Question(
            purpose=purpose,
            number=number,
            cohort=self.cohort(number).tolist(),
            model=model,
            codec=self.codec(purpose),
            event=self.event if purpose == PROTECTED else None,
            kind="evaluate",
        )
        return Phase(question, self.sums, self.setup, self.setup.quorum)

    def _score(self) -> None:
        """Figures from the rows, or from their sum, a single row."""
        protected = self.outcome
        clean = Outcome(protected.number)
        if CLEAN in self.phases:
            clean = self.phases[CLEAN].outcome
        rows = protected.total
        both: tuple[Integers, Integers] | None = None
        if self.summed:
            rows = rows[None]
            both = (rows, clean.total[None])
        else:
            _, left, right = np.intersect1d(
                protected.answered, clean.answered, assume_unique=True, return_indices=True
            )
            both = (rows[left], clean.total[right])
        known = bool(clean.answered) and len(both[0]) > 0
        self.scores |= self.score(protected.number, rows, both if known else None)

    # Privacy --------------------------------------------------------------------------------

    def spent(self) -> list[Event]:
        """Returns the most exposed client's releases here; empty before the first evaluation.

        They are counted as the budget's adversary sees them.
        """
        most = max(self.participations.values(), default=0)
        if most:
            return [RepeatedEvent(self.seen(self.setup.budget.threat), most)]
        return []

    def seen(self, threat: str) -> Event:
        """One release as ``threat`` sees it: in a sum, where it sees sums only and that is one."""
        facts = None
        if self.summed and self.setup.secure_sums.mode != "off":
            facts = self.sums.facts(ALIKE)
        return seen_by(threat, self.event(), facts)

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
        """Proven ε of one result, at δ = 0 if it can be, and of the most exposed client's all.

        Against a server that reads rows; where they are summed, against the budget's adversary.
        """
        threat = Threat.LOCAL
        if self.summed:
            threat = Threat(self.setup.budget.threat)
        one = self.seen(threat)
        all_of_it = ComposedEvent(tuple(self.spent()))
        alone = epsilon(one, 0.0, threat).epsilon
        if math.isinf(alone):
            alone = epsilon(one, delta, threat).epsilon
        return alone, epsilon(all_of_it, delta, threat).epsilon

    def warnings(self) -> list[str]:
        """Returns a warning with the cost of the evaluation alone, which no statement has apart."""
        if not self.participations:
            return []
        each, total = self.costs(self.setup.budget.delta)
        return [
            f"the {self.name} alone is ε={format_number(each)} for each result and "
            f"{format_number(total)} for all of the most exposed client's; that counts only "
            "against those who see no training message"
        ]

    # Checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """Who took part how often; override together with ``restore``."""
        clients, counts = participation_arrays(self.participations)
        return {"clients": clients, "counts": counts, **self.sums.state()}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up what ``state`` returned."""
        pairs = zip(state["clients"].tolist(), state["counts"].tolist(), strict=True)
        self.participations = Counter(dict(pairs))
        self.sums.restore(state)
