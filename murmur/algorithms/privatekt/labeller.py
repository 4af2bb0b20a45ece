"""A client's own labels of public images, before they are randomised."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from murmur.algorithms.privatekt.answers import ABSTAINED
from murmur.learning.linear_model import centred, ridge, to_parameters, weights_of
from murmur.learning.training.trainer import Trainer
from murmur.settings import settings


@settings
class Labeller:
    """Labels public images by the client's model; ``learner="ridge"`` trains it in closed form.

    Attributes:
        learner: ``sgd``: the caller trains; or ``ridge``, for linear models.
        penalty: of ``murmur.learning.linear_model.ridge``.
        components: of the same; None: all features.
    """

    learner: Literal["sgd", "ridge"]
    penalty: float
    components: int | None

    @property
    def is_closed_form(self) -> bool:
        """True if nothing is trained by steps."""
        return self.learner == "ridge"

    def fit(
        self,
        trainer: Trainer,
        start: NDArray[np.float32],
        rows: NDArray[np.float32],
        labels: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """Parameters (d,): ``start`` plus a ridge regression of what it leaves unexplained.

        Args:
            trainer: whose model is linear.
            start: (d,).
            rows: the client's examples, (n, features).
            labels: their classes, (n,).
        """
        weights = weights_of(trainer, start)
        wanted = centred(labels, trainer.num_classes) - rows @ weights
        return to_parameters(weights + ridge(rows, wanted, self.penalty, self.components))

    def labels(
        self, trainer: Trainer, images: NDArray[np.float32], abstain: float
    ) -> NDArray[np.int64]:
        """Labels (K,) of ``images`` under the trainer's present model; not private yet.

        ``abstain``: the share of the images, the least sure ones, that get ``ABSTAINED`` for one.
        """
        logits = trainer.logits(images)
        labels = logits.argmax(axis=1).astype(np.int64)
        withheld = int(abstain * len(labels))
        if withheld:
            ordered = np.sort(logits, axis=1)
            margin = ordered[:, -1] - ordered[:, -2]
            labels[np.argsort(margin, kind="stable")[:withheld]] = ABSTAINED
        return labels
