"""Rounds of clipped gradients on fixed features, the client: one gradient, clipped and protected.

    G_i = n_i^(−p) Σ_x φ(x) (e_y − softmax(Wᵀφ(x) + τ·log π_i))ᵀ,   φ(x) = (b, f(x))
    g_i = clip_C( flat_q(G_i) )

(``murmur.algorithms.gradient_rounds``). What the protection bounds is g_i as a whole, so that
nothing needs to be known of features, labels or the number of examples. With ``model=centred`` the
client is asked once, before the rounds, for the mean direction of its features.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clients.base import ClientSetup, Event, LocalData, NoiseGenerator, Task, TaskError
from clients.fedavg import ProtectedClient
from murmur.algorithms.class_moments import CENTRE, CentreSum, beside_centre
from murmur.algorithms.gradient_rounds import flattened, gradient
from murmur.learning.codec import Codec
from murmur.learning.linear_model import Head
from murmur.learning.vector_layout import VectorLayout
from murmur.privacy.protection import Protection
from murmur.settings import Positive


class GradientRoundsClient(ProtectedClient):
    """Answers with its gradient; clients count alike.

    The protected unit is a client: both releases are bounded as wholes. They share the budget, and
    each is charged when it is made.

    Args:
        setup: tools, public data and budget, from the host.
        protection: as for ``ProtectedClient``; it bounds and noises the gradient (size,).
        constant: b, above 0: the constant beside the features.
        balance: p in [0, 1]: the sum over examples is divided by their number to this power.
        logit_adjustment: τ in [0, 1]: the share of its log class frequencies that is added to
            logits.
        flatten: q in [0, 1): singular values of the gradient go to the power 1 − q.
        centre_share: fraction of μ², in (0, 1), for the centre of ``model=centred``; unused without
            a centre.
    """

    purposes = ("train", CENTRE)

    def __init__(
        self,
        setup: ClientSetup,
        *,
        protection: Callable[..., Protection],
        constant: Positive,
        balance: Annotated[float, Field(ge=0, le=1)],
        logit_adjustment: Annotated[float, Field(ge=0, le=1)],
        flatten: Annotated[float, Field(ge=0, lt=1)],
        centre_share: Annotated[float, Field(gt=0, lt=1)],
    ) -> None:
        self.head = Head(setup.trainer, "gradient_rounds")
        self.objective = setup.trainer.objective
        if logit_adjustment and not self.objective.has_classes:
            raise ValueError(
                f"logit_adjustment={logit_adjustment}: is by a client's classes, and "
                f"task={self.objective.kind} has none; set it to 0"
            )
        budget, self.centre_sum = beside_centre(setup.budget, self.head, centre_share)
        super().__init__(replace(setup, budget=budget), protection)
        self.parts = VectorLayout(update=self.head.size)
        self.constant = constant
        self.balance = balance
        self.logit_adjustment = logit_adjustment
        self.flatten = flatten

    def codec(self, task: Task) -> Codec:
        """Codec of the centre, or of the gradient under its protection."""
        asked = self._asked_for_centre(task)
        return super().codec(task) if asked is None else asked.codec

    def event(self, task: Task) -> Event:
        """Price of the centre, or of the gradient under its protection.

        TaskError where a centre is asked for that the model does not have.
        """
        asked = self._asked_for_centre(task)
        if asked is None:
            return super().event(task)
        self.require_asked(task)
        self.require_model(task)
        return asked.event()

    def train(self, task: Task, data: LocalData) -> NDArray:
        """The centre in steps (d,), or the gradient (size,) at the task's model.

        No step is taken. Weights come first in the gradient, then biases, as in the parameters.
        """
        images = data.images[data.indices]
        asked = self._asked_for_centre(task)
        if asked is not None:
            return asked.of(images)
        model = self.require_model(task)
        weights = np.vstack(
            [self.head.biases(model) / self.constant, self.head.weights(model)],
        )
        rows = self.head.inputs(images, model)
        labels = data.labels[data.indices]
        found = gradient(
            rows,
            labels,
            weights,
            self.constant,
            self.balance,
            self.logit_adjustment,
            self.objective,
        )
        found = flattened(found, self.flatten)
        return self.head.joined(found[1:], found[0])

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray:
        """Release of the centre, or of the gradient under its protection."""
        asked = self._asked_for_centre(task)
        if asked is None:
            return super().privatize(update, task, noise)
        return asked.privatize(update, noise)

    def weight(self, client: int) -> int:
        """Every client counts alike."""
        return 1

    def _asked_for_centre(self, task: Task) -> CentreSum | None:
        """The centre's release where ``task`` asks for that; TaskError where there is none."""
        if task.purpose != CENTRE:
            return None
        if self.centre_sum is None:
            raise TaskError("purpose=centre: this run's model has no centre")
        return self.centre_sum
