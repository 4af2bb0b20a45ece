"""The server half of a summation as a phase sees it, and what lasts from one phase to the next.

``Summation`` is one phase's. ``Aggregator`` lasts: who has lied, the fewest clients that any sum
was over, and where the journal is from which an interrupted phase is resumed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from murmur.learning.sums import RowStore, SumAccumulator
from murmur.privacy.exposure import SumFacts
from murmur.random import experiment_rng
from murmur.round.cohorts import Weights
from murmur.round.question import Outcome
from murmur.round.setup import SumSetup
from murmur.round.signed import NO_SUM, QuestionSigner
from murmur.secure_sum.blame import Blame
from murmur.secure_sum.settings import SecureSumSettings


class Summation:
    """The server half: what becomes of the answers of one phase. Each way overrides what it needs.

    The phase calls the methods in their order: ``members`` and ``prepare`` once, ``invite`` for
    each message, ``accept`` for each reply that has a contribution, and ``finish`` once.
    ``outcome`` is the phase's: a summation notes there who fails, whose data may have been
    released, and what its own messages weigh.

    Attributes:
        added: What has been added so far; audits' canaries are added to it at the end.
        side_by_side: Whether a node's contribution has a part for each of its clients; else it is
            their sum.
    """

    added: SumAccumulator | RowStore
    side_by_side: bool

    def members(self, cohort: Sequence[int]) -> list[int]:
        """Returns the clients of ``cohort`` that are asked, ascending."""
        return list(cohort)

    def prepare(self, outcome: Outcome, grid: Grid) -> dict[int, list[int]]:
        """Returns the clients to ask, by node: ``outcome.asked`` less those that cannot take part.

        ``grid``: for messages that a summation needs beforehand.
        """
        return outcome.asked

    def invite(self, clients: Sequence[int], content: RecordDict) -> None:
        """Add what a node's ``clients`` need to take part to the message ``content``."""

    def terms(self, clients: Iterable[int]) -> list[bytes]:
        """Returns digests of the terms of the secure sums of ``clients``; ``NO_SUM`` is none."""
        return [NO_SUM]

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Add one node's contribution, that of ``clients``.

        Raises MalformedError, KeyError, TypeError or ValueError on whatever no honest node sends;
        the total is then as it was.
        """

    def finish(self, outcome: Outcome) -> None:
        """All have answered that will: complete ``added``, and ``outcome.sum_sizes``."""


class Aggregator:
    """How the phases of one kind are summed, the trainings of a run or its evaluations.

    Args:
        setup: Its ``secure_sums`` say whether sums are secure, and how strictly.
        usual: How many clients a phase asks by configuration; a cohort may be smaller.
        stream: The purpose under which groups are drawn, one for each kind of phase.
        rows: Whether each client's contribution is needed, which secure sums cannot give.

    Attributes:
        run: Names this process's secure sums; no draw follows from it.
        journal: The file of a secure sum that an interruption must not lose; None: nothing is
            kept.
        least_survivors: The fewest clients that any sum was over; 0 where none was taken.
        signer: Signs what clients are asked; None: the server has no key.
        resumed_round: The number of the one phase that a killed server may have asked before;
            None: of the next.
    """

    def __init__(self, setup: SumSetup, usual: int, stream: str, rows: bool = False) -> None:
        self.settings = setup.secure_sums
        if rows and self.settings.is_on:
            raise ValueError(
                "secure_aggregation=on: clients then release nothing but masked sums, and here "
                "each client's own contribution is needed; set privacy.secure_aggregation=off"
            )
        self.setup = setup
        self.usual = usual
        self.stream = stream
        self.rows = rows
        self.run = uuid.uuid4().hex
        self.blame = Blame(int(self.settings.liars * setup.num_clients))
        self.journal: Path | None = None
        self.signer: QuestionSigner | None = None
        self.least_survivors = 0
        self.resumed_round: int | None = 0

    @property
    def min_anonymity_set(self) -> int:
        """The fewest clients that a secure sum must hide, however small a cohort has become."""
        return self.settings.least_survivors(self.usual)

    @property
    def least_counted(self) -> int:
        """How many clients' noise a statement counts on in every sum, whoever has answered.

        So many as a sum must hide, which clients know beforehand; fewer where a sum without masks
        was over fewer.
        """
        return min(self.least_survivors or self.min_anonymity_set, self.min_anonymity_set)

    def facts(self, weights: Weights) -> SumFacts:
        """Returns the facts of these sums that statements and plans need."""
        return SumFacts(
            survivors=self.least_counted,
            colluders=self.settings.colluders,
            failure=self.settings.failure_probability(self.usual),
            weight_of=weights.of,
            least_weight=weights.least,
            greatest_weight=weights.greatest,
            adversary=self.settings.adversary,
        )

    @property
    def min_sum_size(self) -> int:
        """The fewest clients that a sum must be over for its noise to suffice; 0: any number."""
        if self.rows:
            return 0
        return self.setup.least_survivors

    def groups(self, cohort: Sequence[int], number: int) -> list[list[int]]:
        """Who sums with whom in round ``number``, drawn by the run's seed: always the same."""
        rng = experiment_rng(self.setup.seed, self.stream, number)
        return groups_of(cohort, self.settings, self.usual, rng)

    def require_enough(self, groups: Iterable[Sequence[int]]) -> None:
        """ValueError where a sum could be over so few that their noise might not keep the budget.

        Where clients share the noise, each adds a part of it only.
        """
        whole = replace(self.settings, groups=1)
        sure = min(whole.least_survivors(len(group)) for group in groups)
        if sure < self.min_sum_size:
            raise ValueError(
                f"a sum over {sure} clients is too small: {self.min_sum_size} share the noise that "
                "it needs"
            )

    def record_sizes(self, sizes: Iterable[int]) -> None:
        """Sums over ``sizes`` clients each were seen; 0: there was none.

        Called after each phase that costs something; a statement counts on no more than the least.
        """
        seen = [size for size in (self.least_survivors, *sizes) if size]
        self.least_survivors = min(seen, default=0)

    def state(self) -> dict[str, NDArray]:
        """For a checkpoint."""
        least = np.array([self.least_survivors], np.int64)
        return {"least_survivors": least, **self.blame.state()}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        self.least_survivors = int(state["least_survivors"][0])
        self.blame.restore(state)
        self.resumed_round = None


def groups_of(
    cohort: Sequence[int], settings: SecureSumSettings, usual: int, rng: np.random.Generator
) -> list[list[int]]:
    """``settings.groups`` groups of almost the same size, each in increasing order.

    ``usual``: the cohort's size by configuration. There are fewer groups where a smaller cohort
    would leave one without the minimum of a usual group.
    """
    count = min(settings.groups, max(1, len(cohort) // settings.least_survivors(usual)))
    clients = np.sort(np.asarray(cohort, np.int64))
    if count > 1:
        rng.shuffle(clients)
    return [sorted(group.tolist()) for group in np.array_split(clients, count)]
