"""DP-SGD at one holder of data, as both halves of an algorithm describe it.

Abadi et al., "Deep learning with differential privacy", CCS 2016. With L = ``lot_size``, C =
``clipping_norm``, η = ``learning_rate``, and n examples, one round takes ⌈E·n/L⌉ steps

    w ← w − η · (Σ_{i in lot} clip(g_i, C) + N_Z(0, (mC)²)) / L,    each i in the lot w.p. L/n

where m is the least noise multiplier that the steps of all rounds need for the budget. What leaves
is the model, post-processing of the noisy sums. ``strategy=dpsgd_fedavg`` is this alone; NbAFL and
KD-DPFL have it as one way to train.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.examples import LocalData
from murmur.learning.training.dpsgd import SENSITIVITY, DpSgd
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.events import Unit
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from murmur.privacy.noise import NoiseGenerator
from murmur.settings import Count, settings


@settings
class Lots:
    """How often DP-SGD looks at the data of one holder.

    Attributes:
        epochs: E, passes over the data in one round, as expected.
        lot_size: L, examples of a step on average; lots are Poisson samples.
    """

    epochs: Count
    lot_size: Count

    def schedule(self, rounds: int = 1, unit: Unit = Unit.RECORD) -> LotSchedule:
        """Their steps and noise where a budget is for ``rounds`` rounds of a ``unit`` together."""
        return LotSchedule(self.lot_size, self.epochs, SENSITIVITY, rounds, unit)


def signal_to_noise(
    schedule: LotSchedule, budget: Budget, size: int, clients: int, numbers: int
) -> float:
    """How long what ``clients`` agree on is beside their noise, over all steps of all rounds.

    As if every example's gradient had the clipping norm and the same direction.

    Args:
        schedule: the lots.
        budget: finite; what the schedule is calibrated to.
        size: examples of one client.
        clients: of a cohort.
        numbers: d, entries of a gradient.
    """
    mechanism = schedule.mechanism(budget.epsilon, budget.delta, size)
    steps = schedule.rounds * schedule.steps(size)
    examples = schedule.rate(size) * size
    noise = mechanism.noise_multiplier * math.sqrt(numbers)
    return examples * math.sqrt(steps * clients) / noise


@settings
class LocalDpSgd(DpSgd, Lots):
    """A client's own DP-SGD: how often, and how its steps are computed."""


def train_privately(
    trainer: Trainer,
    descent: DpSgd,
    schedule: LotSchedule,
    epsilon: float,
    delta: float,
    size: int,
    data: LocalData,
    noise: NoiseGenerator,
    *,
    drift: Callable[[], NDArray[np.int64]] | None = None,
    **more: Any,
) -> NDArray[np.float32]:
    """One round of DP-SGD from the trainer's present parameters; lots and noise from ``noise``.

    Given public parameters to start from, those afterwards are private for a record that is nulled,
    and so may leave. What that costs is ``schedule.event`` for the same ``epsilon``, ``delta`` and
    ``size``.

    Args:
        trainer: its parameters are where training starts and ends.
        descent: how the steps are computed.
        schedule: how many steps, over how many rounds.
        epsilon: of all the schedule's rounds together; finite.
        delta: the same.
        size: the number of examples by which the round was charged; sets steps and sampling rate.
        data: the examples; their labels may be distributions, with ``soft_targets``.
        noise: must be secret, for lots as for noise.
        drift: what a step's sum (d,) gets beside the noise, in grid steps; must not depend on the
            data but through parameters that are private already.
        more: of ``DpSgd.train``.

    Returns:
        The trainer's parameters (d,) afterwards.

    Raises:
        ValueError: the model keeps statistics over batches, a budget is out of range, or there are
            more records than ``size``.
    """
    if len(data) > size:
        # A client's own noise is for as many records as it was charged for.
        raise ValueError(f"size={size}: there are {len(data)} records")
    mechanism = schedule.mechanism(epsilon, delta, size)

    def perturb(total: NDArray[np.int64]) -> NDArray[np.int64]:
        noisy = mechanism.perturb(total, noise)
        if drift is None:
            return noisy
        return noisy + drift()

    descent.train(
        trainer,
        data.images,
        data.labels,
        indices=data.indices,
        size=size,
        steps=schedule.steps(size),
        sample=lambda examples: mechanism.sample(examples, noise),
        perturb=perturb,
        **more,
    )
    return trainer.parameters()
