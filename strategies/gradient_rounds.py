"""Rounds of clipped gradients on fixed features, the server: W ← W + (L/T)·mean, and nothing else.

An algorithm of this project's own for federations without a public pool; there is no paper. Clients
send one gradient a round (``murmur.algorithms.gradient_rounds``) and take no local step. Protection
and server step are choices as in federated averaging; DP-FTRL over the same rounds is
``protection=matrix``. With ``model=centred`` the mean direction of all features is released before
the rounds, for a part of the budget of its own, and taken away from them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from murmur.algorithms.class_moments import CENTRE, CentreSum, beside_centre, centre
from murmur.learning.codec import Integers
from murmur.learning.linear_model import Head
from murmur.learning.objective import KINDS
from murmur.learning.vector_layout import VectorLayout
from murmur.privacy.protection import Protection
from murmur.round.server_step import Momentum, Sgd
from murmur.settings import Positive
from strategies.base import (
    Claimed,
    Claims,
    CohortStrategy,
    Event,
    Forecast,
    Outcome,
    Parameters,
    Question,
    ServerSetup,
)
from strategies.fedavg import FedAvg
from strategies.forecast import SCORE

Fraction = Annotated[float, Field(ge=0, lt=1)]


class Centred(CohortStrategy):
    """Asks clients before the rounds for the centre of their features, where the model has one.

    What is made of the noisy sum is post-processing.

    Attributes:
        head: The model's parts.
        centre_sum: The centre's release; None: there is no centre.
        middle: (d,) float32. The centre; empty before it is known, and always where the
            model has none.
    """

    head: Head
    centre_sum: CentreSum | None
    middle: Parameters = np.zeros(0, np.float32)

    def before_rounds(self) -> Question | None:
        """The sum of the features' directions, unless it is known.

        Asked of the cohort of round 1, by one message for each client, so that the answer that a
        ledger has stored is found again after a crash, however clients are spread over nodes then.
        """
        if self.centre_sum is None or len(self.middle):
            return None
        return Question(
            purpose=CENTRE,
            number=1,
            cohort=self.rounds.cohort(1).tolist(),
            # Clients check its size; its values are not used.
            model=self.setup.initial_parameters(),
            codec=self.centre_sum.codec,
            event=self.centre_sum.event,
            alone=True,
        )

    def claims(self, claimed: Claimed = (None, None), before: Event | None = None) -> Claims:
        """The centre, if there is one, beside the rounds."""
        if self.centre_sum is not None:
            before = self.centre_sum.event()
        return super().claims(claimed, before)

    def learn(self, question: Question, outcome: Outcome) -> None:
        """The centre, shrunk by what noise explains of it; 0 where noise explains all."""
        assert self.centre_sum is not None
        total = self.centre_sum.read(outcome.total)
        deviation = self.centre_sum.deviation(outcome.weight)
        found = centre(total, self.protected_units(outcome.answered), deviation)
        self.middle = found.astype(np.float32)

    def training(self, number: int, model: Parameters) -> Question:
        """The model with its centre in place, which clients subtract from their features."""
        return super().training(number, self.head.with_centre(model, self.middle))

    def warnings(self) -> list[str]:
        """Returns also that the noise drowns the sum, and what would help."""
        found = super().warnings()
        forecast = self.forecast()
        if forecast is not None and forecast.is_drowned:
            found.append(forecast.text())
        return found

    def protected_units(self, clients: Sequence[int]) -> int:
        """How many vectors the sum of ``clients`` holds, at least 1: one of each client."""
        return max(1, len(clients))

    def state(self) -> dict[str, NDArray]:
        """The centre, beside what the rounds remember."""
        return {**super().state(), "centre": self.middle}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        super().restore(state)
        self.middle = state["centre"].copy()


class GradientRounds(Centred, FedAvg):
    """The server half.

    The protected unit is a client. Where the model has a centre, the clients of round 1 release it
    before the rounds, with noise of their own. It and the rounds share the budget, and
    ``claims`` has it apart.

    Args:
        setup: What the ServerApp gives.
        server_step: What becomes of a round's step (L/T)·mean; plain steps of rate 1 add nothing.
        protection: As in ``FedAvg``; it bounds and noises gradients (size,), biases included.
        constant: b, above 0: the constant beside the features. A bias is b·W₀, so that its step is
            b times that of W₀.
        length: L, that of all steps together, where the server step adds none.
        average: In [0, 1): the share of the rounds, the last ones, whose models' mean is the
            result. At least one round is taken, so that 0 gives the last model.
        centre_share: Fraction of μ², in (0, 1), for the centre of ``model=centred``; without a
            centre it is unused.

    Attributes:
        total: Sum of the models of the last rounds so far, ``summed_models`` of them.
    """

    algorithm = "rounds of clipped gradients"
    tasks = KINDS

    def __init__(
        self,
        setup: ServerSetup,
        *,
        server_step: Sgd,
        protection: Callable[..., Protection],
        constant: Positive,
        length: Positive,
        average: Fraction,
        centre_share: Annotated[float, Field(gt=0, lt=1)],
    ) -> None:
        self.head = Head(setup.trainer, "gradient_rounds")
        budget, self.centre_sum = beside_centre(setup.budget, self.head, centre_share)
        setup = replace(setup, budget=budget)
        super().__init__(setup, server_step=server_step, protection=protection)
        if self.centre_sum is not None and self.threats and "local" not in self.threats:
            raise ValueError(  # a trusted server would have to noise the centre
                "model=centred: clients noise their centre themselves; set protection=distributed, "
                "or model=linear"
            )
        self.weighted = False
        self.extendable = False  # a step is a share of ``length``, and the last models are averaged
        self.parts = VectorLayout(update=self.head.size)
        each = length / budget.rounds
        biases = np.full(self.head.classes, constant)
        self.rates = each * self.head.joined(np.ones((self.head.features, len(biases))), biases)
        self.last = max(1, round(average * budget.rounds))
        self.total = np.zeros(0)  # of the models of the last rounds
        self.summed_models = 0

    # Rounds ---------------------------------------------------------------------------------

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """One step; after the last round the mean of the last models, which is post-processing.

        The mean is over those of the last rounds that counted.
        """
        model = self.head.with_centre(model, self.middle)
        model = super().update(number, model, total, weight)
        rounds = self.setup.budget.rounds
        if number <= rounds - self.last:
            return model
        if not self.summed_models:
            self.total = np.zeros(len(model))
        self.total = self.total + model
        self.summed_models += 1
        if number < rounds:
            return model
        return self._mean_of_the_last()

    def missed(self, number: int) -> Parameters | None:
        """After the last round the mean of the last models, though this one gave none."""
        if number < self.setup.budget.rounds or not self.summed_models:
            return None
        return self._mean_of_the_last()

    def _mean_of_the_last(self) -> Parameters:
        return (self.total / self.summed_models).astype(np.float32)

    def apply(
        self, number: int, model: Parameters, means: Mapping[str, NDArray[np.float64]]
    ) -> Parameters:
        """W + (L/T)·mean, by the server step.

        ``means["update"]`` (size,) has the weights' gradient, then the biases', whose steps are b
        times as long. The centre at the beginning of the model does not move.
        """
        moved = np.zeros(len(model))
        moved[len(model) - self.head.size :] = self.rates * means["update"]
        return self.server_step.step(model, moved)

    def model_noise(self) -> float | None:
        """σ of the noise in each weight of the result, that of all clients; None: not known.

        It is known where the result is linear in what clients send, but for what they compute on
        the way: with plain or momentum steps.
        """
        step = self.server_step
        if type(step) not in (Sgd, Momentum):
            return None
        budget = self.setup.budget
        once = self.protection.clip * self.protection.noise_on_a_sum()
        once *= math.sqrt(self.setup.cohort_size / budget.honest_clients) / self.setup.cohort_size
        rounds = np.arange(budget.rounds)
        # How far the model has moved so many rounds after a step of 1.
        places = np.cumsum(step.learning_rate * getattr(step, "momentum", 0.0) ** rounds)
        moved = [places[: budget.rounds - asked][-self.last :].sum() for asked in rounds]
        return float(self.rates[0] * once * np.linalg.norm(moved)) / self.last

    def forecast(self) -> Forecast | None:
        """As of federated averaging, but the share that is kept is one of the score itself."""
        of_sum = super().forecast()
        if of_sum is None:
            return None
        return replace(
            of_sum,
            rule=SCORE,
            units=self.setup.cohort_size,
            unit="owners",
            classes=self.head.classes,
        )

    # Checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """The sum of the last models, beside the centre and what averaging remembers."""
        return {
            **super().state(),
            "models.total": self.total,
            "models.count": np.array([self.summed_models], np.int64),
        }

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        super().restore(state)
        self.total = state["models.total"].copy()
        self.summed_models = int(state["models.count"][0])
