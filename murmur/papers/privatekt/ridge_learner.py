"""PrivateKT's server with a linear model in closed form: posteriors, ridge, label spreading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from murmur.learning.label_spreading import LabelSpreading
from murmur.learning.linear_model import ridge

_SHARPNESS = 5.0  # of a ridge regression's scores, whose targets are 1 apart, as log-odds


def targets_of(
    evidence: NDArray[np.float32], belief: NDArray[np.float64] | float = 0.0
) -> NDArray[np.float32]:
    """The posterior (N, C) of ``evidence`` and ``belief``, both as logarithms."""
    return softmax(evidence + belief, axis=1).astype(np.float32)


class RidgeLearner:
    """Fits weights (d, C) to what the answers say of some images of a ``pool`` (P, C, H, W).

    ``penalty`` and ``components``: of ``murmur.learning.linear_model.ridge``; ``refits``: how often
    posteriors are taken anew from the model that they led to; ``spreading``: settings of
    ``LabelSpreading``, None for none.
    """

    def __init__(
        self,
        pool: NDArray[np.float32],
        *,
        penalty: float,
        components: int | None,
        refits: int,
        spreading: Mapping[str, Any] | None,
    ) -> None:
        if refits < 0:
            raise ValueError(f"refits={refits}: must be at least 0")
        self.pool = pool.reshape(len(pool), -1)
        self.penalty, self.components, self.refits = penalty, components, refits
        self.spreading = None if spreading is None else LabelSpreading(**spreading)

    def fit(
        self, indices: NDArray[np.int64], values: NDArray[np.float32], posterior: bool
    ) -> NDArray[np.float64]:
        """Ridge regression and label spreading, again from the posterior that they lead to.

        ``values`` (N, C) of the images ``indices``: evidence if ``posterior``, else targets.
        """
        rows, classes = self.pool[indices], values.shape[1]
        weights = np.zeros((self.pool.shape[1], classes))
        for _ in range(1 + self.refits):
            wanted = values
            if posterior:
                wanted = targets_of(values, log_softmax(_SHARPNESS * (rows @ weights), axis=1))
            centred = (wanted - 1 / classes).astype(np.float64)
            weights = ridge(rows, centred, self.penalty, self.components)
            if self.spreading is not None:
                graph = self.spreading.graph(self.pool)
                weights = self.spreading.refine(graph, self.pool, self.pool @ weights)
        return weights
