"""``audit=canaries``: clients without data join a simulated run, and their scores measure its ε.

Andrew, Kairouz, Oh, Oprea, McMahan and Suriyakumar, "One-shot empirical privacy estimation for
federated learning", ICLR 2024: a canary's update is a random direction, as long as clipping
allows, and its score is how much of that direction the adversary sees. Here directions share no
entry, and every canary tosses a coin, so that the run is a one-run audit as well
(``murmur.privacy.audit``): where clients are exchanged it sends a result of training or the
opposite, else it contributes or it does not. Then it is out of the run where only what a trusted
server publishes is seen, and else sends what follows from null records.

A canary takes part in as many rounds as the most exposed client, and goes the same way: its result
is clipped, noised and packed by the client class of the run, and joins the sum that the server
takes. It has no data, so no ledger charges it. The server adds it after the others' sum, so it
costs no message, and nobody's noise depends on it; the model is that of a disturbed run. Where the
adversary reads messages, a canary's is scored and added to nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clients.base import Canary, Client, LocalData, Task, has_canaries, null_records
from murmur.learning.sums import SumAccumulator
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.audit import MIN_CANARIES, CanaryAudit
from murmur.privacy.events import is_gaussian
from murmur.privacy.guarantee import Exposure, Guarantee
from murmur.random import experiment_rng
from strategies.base import CohortStrategy


class CanaryClients:
    """The canaries of a run: the ``AuditCanaries`` of its phases (``murmur.round.phase``).

    One lives in the server's process for the whole run. In each round that counts, the phase calls
    ``join`` with the clients' sum; a strategy whose mean is published then calls ``look``. At the
    end the privacy report calls ``compose``.

    Args:
        client: the run's client class, which clips, noises and packs what a canary sends.
        strategy: whose sums they join.
        count: how many, at least ``MIN_CANARIES``.

    Attributes:
        threat: the adversary that the run's budget is meant for; scores are what it sees.
        watched: what it sees of every client, as the strategy states it before the run.
        rate: the probability with which a client joins a round of secret Poisson cohorts; None
            where cohorts follow from the seed.
        patterns: without a rate, the rounds of those clients that are asked most often. Canary i
            takes the i-th, over and over. Empty with a rate.
        inside: (count,) bool, the coins. They follow from the run's seed: the audit needs them to
            be fair and independent of the noise, not secret.
        scores: (count,) float64, a canary's inner products with what was seen, added over rounds.
        others, task, directions: of the round in progress, from ``join`` for ``look``: the clients'
            sum without canaries, what they were asked, and the direction of each that joined.

    Raises:
        ValueError: they cannot say anything about the run's claim; the text says why, and what to
            do.
    """

    def __init__(self, client: Client, strategy: CohortStrategy, count: int) -> None:
        self.client = client
        self.strategy = strategy
        self.count = count
        if count < MIN_CANARIES:
            raise ValueError(f"canaries={count}: must be at least {MIN_CANARIES}, or 0")
        setup = strategy.setup
        name = strategy.algorithm
        if not has_canaries(client):
            raise ValueError(
                f"canaries={count}: {name} has no canaries, since its noise goes into training or "
                "its answers are no vectors and no labels; set audit=none and use `murmur audit`"
            )
        most = client.most_canaries()
        if most is not None and count > most:
            raise ValueError(f"canaries={count}: must be at most {most}, the size of an answer")
        if not strategy.summed:
            raise ValueError(
                f"canaries={count}: {name} does not sum what clients send; set audit=none"
            )
        if strategy.unit is Unit.RECORD:
            raise ValueError(
                f"canaries={count}: this run protects records, and canaries are clients; set "
                "audit=none and use `murmur audit`"
            )
        self.threat = Threat(setup.budget.threat)
        self.watched = next(e for e in strategy.claims().exposures() if e.threat == self.threat)
        if not (self._is_private(self.watched) and setup.budget.delta):
            raise ValueError(
                f"canaries={count}: nothing to measure, since the run has no ε at its δ; set "
                "audit=none, or a budget with privacy.delta above 0"
            )
        self.rate = setup.cohorts.cohorts().rate
        self.patterns: list[tuple[int, ...]] = []
        if self.rate is None:
            longest = setup.cohorts.participations
            self.patterns = sorted(p for p in setup.cohorts.patterns if len(p) == longest)
        self.inside = experiment_rng(setup.seed, "canary coins").random(count) < 0.5
        self.scores = np.zeros(count)

    def add_to(self, task: Task, total: SumAccumulator) -> None:
        """Add the releases of those who take part in this round; score messages and sums.

        A canary that is out sends the opposite result where clients are replaced; else what follows
        from null records, or nothing where only what a trusted server publishes is seen. Where the
        adversary reads messages, a canary is scored by its own message and ``total`` stays as it
        is. Where it sees sums, all whose turn it is, in or out, are scored by the sum with canaries
        in it. What a trusted server publishes is scored by ``observe``.

        Canaries are in the sum under negative ids, -1, -2, ..., so none passes for a client. Each
        has noise of its own, from the operating system unless the run's noise is seeded.

        Args:
            task: what a client of the cohort is asked. Each canary stands beside it, and is asked
                and weighed as that one is.
            total: the sum of the clients that answered; canaries are added to it.
        """
        self.others = total.total.astype(np.float64)
        self.task = task
        number = task.round
        codec = self.client.codec(self.task)
        weight = self.client.weight(self.task.client)
        self.directions: dict[int, NDArray[np.int8]] = {}
        for name in self._joining(number):
            canary = self._canary(name)
            self.directions[name] = canary.direction
            result = canary.result
            if not self.inside[name]:
                if self.strategy.adjacency is Adjacency.REPLACE_ONE:
                    result = canary.negated
                elif self.threat is Threat.CENTRAL:
                    continue
                else:
                    result = self._of_nothing()
            noise = self.strategy.setup.noise(f"canary {name}", number)
            packed = codec.pack(self.client.privatize(result, self.task, noise))
            if self.threat is Threat.LOCAL:  # the message says it all; the sum is left alone
                self._score(name, canary.direction, codec.expand(packed, 1))
            else:
                total.add(-1 - name, packed, weight)
        if self.threat is Threat.SECURE_AGGREGATION:
            for name, direction in self.directions.items():
                self._score(name, direction, total.total)

    def observe(self, mean: NDArray[np.float64]) -> None:
        """Score what the server publishes of the round's sum, where that is what is seen.

        The adversary knows all other clients, hence the direction of their sum; the part of
        ``mean`` along it is taken out before scoring. Every canary is scored, also those that did
        not join: that is what tells in from out.

        Args:
            mean: (d,), noised, as it is published. It may be shorter than what is summed; then the
                first d entries of sum and directions count.
        """
        if self.threat is Threat.CENTRAL:
            known = self.others[: len(mean)]
            known = known / (np.linalg.norm(known) or 1.0)
            unknown = mean - (mean @ known) * known
            for name in range(self.count):
                direction = self.directions.get(name)
                if direction is None:  # it did not join, and what was seen says so
                    direction = self._canary(name).direction
                self._score(name, direction[: len(mean)], unknown)

    def state(self) -> dict[str, NDArray]:
        """The scores so far, for a checkpoint; coins and directions follow from the seed."""
        return {"scores": self.scores}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up the scores of a checkpoint."""
        self.scores = np.array(state["scores"])

    def compose(self, exposures: Sequence[Exposure]) -> list[Exposure]:
        """The exposures of a statement, with what was measured.

        It is written beside the adversary that the budget is meant for, with the note that canaries
        took part. What is measured is a lower bound of that adversary's ε for the whole run, for
        one client, at the budget's δ; it changes no proven figure.

        Args:
            exposures: of all adversaries, as the strategy states them.

        Returns:
            The same in the same order; unchanged where no canary was scored yet.
        """
        if not self.scores.any():
            return list(exposures)
        delta = self.strategy.setup.budget.delta
        event = self.watched.per_round
        found = CanaryAudit.of(
            self.scores, self.inside, delta, is_gaussian(event), is_gaussian(event, exactly=True)
        )
        effect = "which disturb the model"
        if self.threat is Threat.LOCAL:
            effect = "whose messages are in no sum"
        elif self.threat is Threat.SECURE_AGGREGATION:
            effect += " and add noise to its sums: clients are hidden less than they are"
        note = f"{self.count} canary clients of an audit took part, {effect}"
        composed = []
        for exposure in exposures:
            if exposure.threat == self.threat:
                exposure = replace(exposure, canaries=found, notes=(*exposure.notes, note))
            composed.append(exposure)
        return composed

    def _joining(self, number: int) -> list[int]:
        """Who takes part in round ``number``: numbers in 0..count - 1, ascending.

        As secretly drawn as clients are, or as often as the client that is asked most often.
        """
        if self.rate is not None:
            drawn = self.strategy.setup.noise("canaries", number).uint32(self.count)
            return np.flatnonzero(drawn < self.rate * 2**32).tolist()
        patterns = self.patterns
        return [name for name in range(self.count) if number in patterns[name % len(patterns)]]

    def _canary(self, name: int) -> Canary:
        """Canary ``name`` as the client class makes it by the run's seed; the same in every round.

        Needs ``task`` of ``join``, since an answer's shape may depend on what is asked.
        """
        return self.client.canary(self.task, name, self.count)

    def _of_nothing(self) -> NDArray:
        """Training result on null records: a client that contributes nothing."""
        shape = self.client.trainer.input_shape
        record = LocalData(np.zeros((1, *shape), np.float32), np.zeros(1, np.int64), np.arange(1))
        return self.client.train(self.task, null_records(record))

    def _score(self, name: int, direction: NDArray, seen: NDArray) -> None:
        self.scores[name] += float(direction.ravel().astype(np.float64) @ seen.ravel())

    def _is_private(self, exposure: Exposure) -> bool:
        """Returns whether a round's ε, proven or assumed, is finite at the budget's δ."""
        strategy = self.strategy
        delta = strategy.setup.budget.delta
        found = Guarantee.of(exposure, delta, strategy.unit, strategy.adjacency)
        rounds = (found.proven_per_round, found.assumed_per_round)
        return any(epsilon is not None and math.isfinite(epsilon) for epsilon in rounds)
