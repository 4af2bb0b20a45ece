"""How clients train: local SGD and DP-SGD, as parts that an algorithm's client has.

An algorithm chooses what training starts from, what it makes of the result and what that costs; how
the steps are taken stands here once. Local SGD can be done for all clients of a node at once, as a
stack (``murmur.learning.training.stack``), which then finds its results ready.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, LocalData, NoiseGenerator, Task
from murmur.algorithms.dpsgd import LocalDpSgd, train_privately
from murmur.checks import is_finite
from murmur.learning.training import batches, trial
from murmur.learning.training.stack import ClientBatch
from murmur.privacy.budget import Budget
from murmur.privacy.events import Event, NonPrivateEvent
from murmur.settings import Count, Positive, settings


@settings
class LocalSgd:
    """Passes (``epochs``) or ``steps``, one of the two, in batches of ``batch_size``.

    Attributes:
        batch_size: examples of a step, at least 1; the last batch of a pass may be smaller.
        learning_rate: rate of SGD, finite and above 0.
        epochs, steps: passes or steps; exactly one is set, to at least 0; ValueError otherwise.
    """

    batch_size: Count
    learning_rate: Positive
    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        self.count(examples=1)

    def count(self, examples: int) -> int:
        """Steps over so many examples; ValueError where it is not either epochs or steps.

        With ``steps`` it is that number, whatever ``examples``.
        """
        return batches.count_steps(self.epochs, self.steps, examples, self.batch_size)


class LocalTraining:
    """Local SGD of ``client``; ``proximal_mu``: the pull μ/2·‖w − start‖² towards the start.

    ``Client.share`` says from what and on which rows. Training that diverges, which some data may
    do and others not, counts as no training at all: its result is the model that it started from.

    Attributes:
        sgd: number of steps, batch size and learning rate.
        how: arguments of ``Trainer.train`` for these settings, for other ways to train.
    """

    def __init__(self, client: Client, sgd: LocalSgd, proximal_mu: float = 0.0) -> None:
        self.client = client
        self.trainer = client.trainer
        self.sgd = sgd
        self.how: dict[str, Any] = {
            "batch_size": sgd.batch_size,
            "lr": sgd.learning_rate,
            "epochs": sgd.epochs,
            "steps": sgd.steps,
            "proximal_mu": proximal_mu,
        }
        self._ahead: dict[tuple[int, int], tuple[ClientBatch, NDArray[np.float32] | None]] = {}

    def train(self, task: Task, data: LocalData) -> NDArray[np.float32]:
        """The parameters (d,) after training, the caller's own.

        What ``train_ahead`` has got ready is used once and dropped.
        """
        share, model = self._ahead.pop((task.round, task.client), (None, None))
        if share is None:
            share = self.client.share(task, data)
        if model is None:
            model = self.trainer.train_single(data.images, data.labels, share, **self.how)
        if not is_finite(model):
            return share.start.copy()
        return model

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """Train for all of ``asked`` as one stack, where the model allows it (see ``Client``).

        Does nothing where it does not, or for those whom the stack leaves out: ``train`` then
        trains them one by one. On a GPU results differ from that by the rounding of sums. What an
        earlier stack has left is dropped.
        """
        self._ahead.clear()
        stack = self.trainer.stack
        if stack is None:
            return
        data = asked[0][1]
        parts = [self.client.share(task, data) for task, data in asked]
        models = stack.train(data.images, data.labels, parts, **self.how)
        for (task, _), share, model in zip(asked, parts, models, strict=True):
            self._ahead[task.round, task.client] = share, model


class PrivateTraining:
    """DP-SGD of ``client`` (``murmur.algorithms.dpsgd``), each client at an ε of its own.

    The protected unit is the budget's, a record or the whole client, nulled or not. The noise is
    inside the training, so no sum with other clients hides it any better.

    Args:
        client: owner of the model, which must not mix examples: no batch normalisation.
        how: lots, clipping and rates.
        budget: its δ, and the rounds over which a client's ε is for all its uploads together; its ε
            is not read.

    Attributes:
        open: unprotected training of as many epochs: plain SGD in batches of a lot's size.

    Raises:
        ValueError: the model mixes examples, or the settings do not suit it.
    """

    def __init__(self, client: Client, how: LocalDpSgd, budget: Budget) -> None:
        trial.require_separate_examples(client.trainer)
        if how.views > 1 and tuple(client.trainer.input_shape[1:]) == (1, 1):
            raise ValueError(
                f"views={how.views}: are shifts of an image by pixels, which features have not; "
                "set strategy.local.views=1 or features=none"
            )
        self.client = client
        self.how = how
        self.delta = budget.delta
        self.schedule = how.schedule(budget.releases, budget.record_unit)
        self.open = LocalTraining(client, LocalSgd(how.lot_size, how.learning_rate, how.epochs))

    def event(self, epsilon: float, size: int) -> Event:
        """The steps of one round on ``size`` examples.

        ``epsilon``: the client's, for all rounds of the budget together; infinite: not private.
        ``size``: the public number of examples, which sets the sampling rate.
        """
        if np.isinf(epsilon):
            return NonPrivateEvent()
        return self.schedule.event(epsilon, self.delta, size)

    def train(
        self, task: Task, data: LocalData, epsilon: float, noise: NoiseGenerator
    ) -> NDArray[np.float32]:
        """The parameters (d,) after one round of DP-SGD from the task's model.

        ``epsilon`` and the client's public size are those of ``event``: noise and price come from
        one schedule. Lots and noise are drawn from ``noise``, and must stay secret alike.
        """
        trainer = self.client.trainer
        trainer.load(self.client.require_model(task))
        size = self.client.size(task.client)
        return train_privately(
            trainer, self.how, self.schedule, epsilon, self.delta, size, data, noise
        )
