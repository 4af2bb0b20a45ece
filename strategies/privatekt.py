"""PrivateKT, the server: pick public images, debias the clients' labels, distil them.

Qi, Wu, Wu, He, Huang, Xie: "Differentially private knowledge transfer for federated learning",
Nature Communications 14 (2023), s41467-023-38794-x. One round:

1. draw K images from the public pool D_p, P(i) ∝ exp(u_i), u_i the entropy of Θ on i   (eq. 4)
2. clients answer with randomised labels (``clients.privatekt``)
3. ŷ_i = (mean one-hot − (1−β)/C) / β over the answers                                  (eq. 3)
4. push (indices, ŷ) into a buffer of B rounds; fine-tune Θ on all of it → Θ'
5. draw M images ∝ exp(−entropy under Θ'); one epoch towards Θ' 's own predictions       (eq. 5)

All but the answers stands in ``murmur.algorithms.privatekt``. With ``answers=disjoint``, which is
not the paper's, every client has K images of its own and the server computes posteriors.
``strategy=votes`` asks the same question and takes sums. Symbols: K = ``K``, C = ``classes``.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from murmur.algorithms.privatekt.answers import AnswerKind, LabelQuery, SharedLabels, answer_kind
from murmur.algorithms.privatekt.knowledge import KnowledgeBuffer, Learning
from murmur.format import format_number
from murmur.learning.public_labels import cohort_for_plurality
from murmur.privacy.events import ComposedEvent, Event
from murmur.random import experiment_rng
from strategies.base import (
    Claimed,
    Claims,
    Codec,
    CohortStrategy,
    Forecast,
    Integers,
    Parameters,
    ServerSetup,
)
from strategies.forecast import ONE_RELEASE


class LabelStrategy(CohortStrategy):
    """Asks clients about public images, and lets a ``KnowledgeBuffer`` learn from their answers.

    The protected unit is a client's whole data set; what the server learns is post-processing.
    ValueError for settings that do not fit the pool.

    Args:
        setup: What the ServerApp gives; its public pool is what is asked about.
        kind: How clients answer.
        K: Public images that each client labels in a round.
        learning: How the server's model learns from the answers.
        apart: How many clients have images of their own; 1 where all are asked about the same.

    Attributes:
        indices: This round's images: (K,), or (K·cohort,), client by client, where each has its
            own.
        answers: The kind of answer, by which answers are read.
        buffer: The server's model and its buffer of answers.
    """

    difference = "nothing is claimed beyond what is proven."

    def __init__(
        self, setup: ServerSetup, kind: type[AnswerKind], K: int, learning: Learning, apart: int = 1
    ) -> None:
        super().__init__(setup)
        pool = len(setup.public)
        if not 1 <= K * apart <= pool:
            of_all = " over that of the cohort" if apart > 1 else ""
            raise ValueError(
                f"K={K}: must lie in 1..{pool // apart}, the size of the public pool{of_all}"
            )
        self.K = K
        self.buffer = KnowledgeBuffer(self.trainer, setup.public, setup.seed, learning)
        self.classes = self.trainer.num_classes
        self.answers = kind(LabelQuery(setup.budget, K, self.classes, apart))
        self.indices = np.zeros(0, np.int64)

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """K distinct public images, drawn by the model's entropy on them (eq. 4)."""
        self.indices = self.buffer.draw(number, model, self.K)
        return {"indices": self.indices}, {}

    def codec(self) -> Codec:
        """The codec of the answers."""
        return self.answers.codec

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """Buffer what the answers say, fine-tune, self-train (eq. 3 to 5).

        ``total``: the sum of the answers, of ``weight`` clients, who count alike.
        """
        if weight:
            self.buffer.observe(number, self.indices, self.answers, total, weight)
        return self.buffer.learn(number, model)

    def release_event(self) -> Event:
        """Returns the privacy event of one client's answer, by its own noise."""
        return self.answers.event()

    def forecast(self) -> Forecast | None:
        """By answers of which 60% name an image's class; labels are few numbers already."""
        if not self.setup.budget.is_private:
            return None
        ratio = self.buffer.margin_in_sigmas(self.answers, self.setup.cohort_size, self.K)
        return Forecast.of(self.setup, ratio, helps=(ONE_RELEASE,))

    def state(self) -> dict[str, NDArray]:
        """The knowledge buffer; the round's images are drawn anew, from the same seed and model."""
        return self.buffer.state()

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        self.buffer.restore(state)


class PrivateKT(LabelStrategy):
    """The server half. See ``conf/strategy/privatekt.yaml`` for every knob.

    The adversary reads every client's labels, which is why rounds add up. ValueError for settings
    that do not fit the pool or each other.

    Args:
        setup, K, learning: As for ``LabelStrategy``.
        answers: "paper": all clients label the same images; "disjoint": each has its own.
        use_labels: False: nobody is asked, and the server only trains itself: the control that
            shows what clients add.
    """

    algorithm = "PrivateKT"
    has_paper_budget = True
    answers: SharedLabels

    def __init__(
        self, setup: ServerSetup, *, answers: str, K: int, use_labels: bool, learning: Learning
    ) -> None:
        self.is_disjoint = answers == "disjoint"
        apart = setup.cohort_size if self.is_disjoint else 1
        super().__init__(setup, answer_kind(answers), K, learning, apart)
        if self.is_disjoint and learning.target != "posterior":
            raise ValueError(f"target={learning.target!r}: answers=disjoint needs 'posterior'")
        if self.is_disjoint and setup.cohorts.kind == "poisson":
            raise ValueError(
                "schedule=poisson: answers=disjoint needs images for a cohort of known size; set "
                "federation.schedule=random or rotate"
            )
        self.use_labels = use_labels
        if not use_labels:
            self.rounds.members = np.zeros(0, np.int64)
        if not self.is_disjoint and setup.budget.paper_semantics:
            self.claim = (
                "each round is ε-locally differentially private, and shuffled reports keep the "
                "whole run at that ε (Qi et al. 2023)"
            )
            self.difference = (
                "the labels of all rounds tell of the same data, so their losses add up; shuffling "
                "would need a non-colluding shuffler and unlinkable reports, and still composes."
            )

    @property
    def epsilon(self) -> float:
        """ε of one round of randomised labels; inf without protection.

        That of the paper is for a round; of one for the run ``Budget.per_round`` leaves this.
        """
        mechanism = self.answers.mechanism
        return math.inf if mechanism is None else mechanism.epsilon * self.K

    def warnings(self) -> list[str]:
        """Returns a warning if the cohort is too small for the plurality of noisy labels."""
        if not self.setup.budget.is_private or not self.use_labels or self.is_disjoint:
            return []
        needed = cohort_for_plurality(self.answers.keep, self.classes)
        if self.setup.cohort_size >= needed:
            return []
        each = format_number(self.epsilon / self.K)
        return [
            f"clients_per_round={self.setup.cohort_size}: at ε={each} per "
            f"label, plurality needs about {needed} clients (60% agreement, z=2.5); the labels "
            "will often be wrong. Raise epsilon, lower strategy.K, or ask more clients"
        ]

    def forecast(self) -> Forecast | None:
        """By labels of which 60% name an image's class; None where nobody is asked.

        Where each client has its own images, it is by all labels which images of one class get:
        the model learns what a class looks like.
        """
        forecast = super().forecast()
        if forecast is None or not self.use_labels:
            return None
        if not self.is_disjoint:
            own = "images of its own for each client (experiment=digits_disjoint)"
            return replace(forecast, helps=(own, "strategy=votes", *forecast.helps))
        labels = self.K * self.setup.budget.releases * self.setup.num_clients
        return replace(forecast, ratio=self.answers.margin_in_sigmas(labels / self.classes))

    # The round ------------------------------------------------------------------------------

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """K distinct public images, drawn by the model's entropy on them (eq. 4).

        ``disjoint``: K for each client, (clients, K), in an order in which none comes twice before
        all have; and the cohort, by which a client finds its row.
        """
        if not self.is_disjoint:
            return super().task(number, model)
        clients = self.rounds.cohort(number)
        pool = len(self.setup.public)
        order = experiment_rng(self.setup.seed, "questions", 0).permutation(pool)
        count = self.K * self.setup.cohort_size
        self.indices = order[((number - 1) * count + np.arange(count)) % pool]
        rows = self.indices.reshape(-1, self.K)[: len(clients)]
        return {"indices": rows, "clients": clients}, {}

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """As ``LabelStrategy``; from no answers where nobody is asked."""
        return super().update(number, model, total, weight if self.use_labels else 0)

    # Privacy --------------------------------------------------------------------------------

    def release_event(self) -> Event:
        """Returns the privacy event of one client's answer; empty where nobody is asked.

        K labels at ε/K each. Reports of the same images may hide in a sum, of disjoint ones never.
        """
        return super().release_event() if self.use_labels else ComposedEvent(())

    def claims(self, claimed: Claimed = (None, None), before: Event | None = None) -> Claims:
        """ε for a round, and the same ε for the run; nothing for what is not the paper's."""
        if not self.is_disjoint and self.setup.budget.paper_semantics:
            each = self.epsilon if self.use_labels else 0.0
            claimed = each, each
        return super().claims(claimed, before)
