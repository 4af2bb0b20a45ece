"""The secure sum of an evaluation: the same protocol as in training, with a state of its own."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from flwr.serverapp import Grid

from murmur.common import experiment_rng
from murmur.learning.codec import Sum
from murmur.round.blame import Blame
from murmur.round.secure_groups import groups_of
from murmur.round.secure_journal import Journal
from murmur.round.secure_sum import SecureRound, Summed
from murmur.round.setup import Round, ServerSetup


class EvaluationSum:
    """Clients of ``asked``, by node, sum what ``summed`` says in round ``number``.

    ``usual``: how many are asked by configuration. ``path``: of its journal.
    ``participations``: of the evaluations before. Raises ValueError where too few are left.
    """

    def __init__(
        self,
        setup: ServerSetup,
        number: int,
        asked: Mapping[int, list[int]],
        usual: int,
        summed: Summed,
        blame: Blame,
        grid: Grid,
        path: Path | None,
        participations: Counter[int],
    ) -> None:
        self.about = Round(number, asked=dict(asked))
        journal = Journal(number, path)
        journal.restore(self.about)
        cohort = [client for clients in asked.values() for client in clients]
        settings = setup.secure_sums
        rng = experiment_rng(setup.seed, "secure evaluation groups", number)
        self.secure = SecureRound(
            settings,
            uuid.uuid4().hex,
            self.about,
            summed,
            blame,
            grid,
            setup.round_timeout,
            journal,
            groups_of(cohort, settings, usual, rng),
            settings.least_survivors(usual),
        )
        # After an interruption: as they were when the masked answers had come.
        resumed = journal.masked is not None
        self.participations = Counter(journal.participations) if resumed else participations
        self.invited = self.secure.prepare()

    def finish(self, total: Sum) -> list[int]:
        """Add the sums to ``total``; how many clients each is over."""
        self.secure.keep(self.participations)
        return self.secure.finish(total)
