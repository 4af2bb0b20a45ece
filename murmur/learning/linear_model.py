"""Linear models in closed form: ridge regression, and their weights as a trainer's parameters.

One thread of linear algebra throughout: results do not depend on the number of cores.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.learning.process import one_thread
from murmur.learning.training.trainer import Trainer


def ridge(
    features: NDArray[np.float32],
    targets: NDArray[np.float64],
    penalty: float,
    components: int | None = None,
) -> NDArray[np.float64]:
    """W (d, C) that minimises Σ ‖φ_i W − y_i‖² + ``penalty``·‖W‖², through the origin.

    ``features`` (N, d), ``targets`` (N, C). ``components``: only the first features get weights,
    the others 0; the last whitened components are mostly noise to whom has few examples.
    """
    from sklearn.linear_model import Ridge

    with one_thread():
        model = Ridge(alpha=penalty, fit_intercept=False, solver="cholesky")
        model.fit(features[:, :components].astype(np.float64), targets)
    weights = np.zeros((features.shape[1], targets.shape[1]))
    weights[:components] = np.atleast_2d(model.coef_).T
    return weights


def centred(labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """e_y − 1/C for each label, (N, C): a target that knows no class's frequency."""
    return np.eye(classes)[labels] - 1 / classes


def require_linear(trainer: Trainer, user: str) -> None:
    """ValueError unless ``trainer``'s model is one linear layer, which ``user`` asks for."""
    features = int(np.prod(trainer.input_shape))
    if trainer.num_parameters != (features + 1) * trainer.num_classes:
        raise ValueError(f"{user}: fits a linear model in closed form; set model=linear")


def to_parameters(trainer: Trainer, weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """The parameters of a linear layer without a bias.

    Args:
        trainer: whose model is one linear layer.
        weights: (d, C).
    """
    matrix = torch.from_numpy(weights.T.astype(np.float32))
    named = {}
    for name, part in trainer.state_dict().items():
        named[name] = torch.zeros_like(part)
        if part.ndim == 2:
            named[name] = matrix
    return trainer.flatten(named)


def weights_of(trainer: Trainer, parameters: NDArray[np.float32]) -> NDArray[np.float64]:
    """The weights (d, C) of the linear layer's ``parameters``, without its bias."""
    parts = trainer.state_dict(parameters).values()
    return next(part for part in parts if part.ndim == 2).numpy().T.astype(np.float64)
