"""Linear models: ridge regression, and where their weights lie in a trainer's parameters.

One thread of linear algebra throughout: results do not depend on the number of cores.
"""

import math

import numpy as np
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


def to_parameters(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """The parameters of a linear layer of ``weights`` (d, C), without a bias."""
    return np.append(weights.T, np.zeros(weights.shape[1])).astype(np.float32)


def weights_of(trainer: Trainer, parameters: NDArray[np.float32]) -> NDArray[np.float64]:
    """The weights (d, C) of the linear layer's ``parameters``, without its bias."""
    matrix = parameters[: -trainer.num_classes].reshape(trainer.num_classes, -1)
    return matrix.T.astype(np.float64)


def unit(features: NDArray[np.floating]) -> NDArray[np.float64]:
    """f/‖f‖ (n, d) of ``features`` (n, d) or (n, d, 1, 1); a record of zeros stays one.

    One that is not finite becomes one: features of large finite numbers may overflow.
    """
    rows = _flat(features)
    rows[~np.isfinite(rows).all(axis=1)] = 0
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, 1e-12)


def _flat(features: NDArray[np.floating]) -> NDArray[np.float64]:
    return features.reshape(len(features), math.prod(features.shape[1:])).astype(np.float64)


def directions(
    rows: NDArray[np.float64], centre: NDArray[np.floating], radius: float
) -> NDArray[np.float64]:
    """v/max(‖v‖, q) (n, d) with v = ``rows`` − ``centre``, as ``murmur.learning.models.Centred``.

    ``rows`` (n, d), ``centre`` (d,), ``radius``: q, above 0. Lengths are at most 1.
    """
    away = rows - centre
    lengths = np.linalg.norm(away, axis=1, keepdims=True)
    return away / np.maximum(lengths, radius)


class Head:
    """The parts of a linear model, ``linear`` or ``centred``, in its flat parameters (p,).

    Attributes:
        features: d.
        classes: C.
        radius: q of a centred model; None: the model has no centre.
        size: entries of weights and biases together, which stand side by side.

    Raises ValueError, in the name of ``user``, where ``trainer``'s model is no linear one.
    """

    def __init__(self, trainer: Trainer, user: str) -> None:
        self.features = int(np.prod(trainer.input_shape))
        self.classes = trainer.num_classes
        found: float | None = getattr(trainer.flat.module, "radius", None)
        self.radius = found
        self.size = (self.features + 1) * self.classes
        centre = self.features
        if self.radius is None:
            centre = 0
        if trainer.num_parameters != centre + self.size:
            raise ValueError(f"{user}: trains a linear model; set model=linear or model=centred")
        self._centre = slice(0, centre)
        self._weights = slice(centre, centre + self.features * self.classes)
        self._biases = slice(centre + self.features * self.classes, centre + self.size)

    def centre(self, parameters: NDArray) -> NDArray:
        """C (d,) of a centred model; empty otherwise."""
        return parameters[self._centre]

    def weights(self, parameters: NDArray) -> NDArray[np.float64]:
        """The weights (d, C)."""
        flat = parameters[self._weights].astype(np.float64)
        return flat.reshape(self.classes, self.features).T

    def biases(self, parameters: NDArray) -> NDArray[np.float64]:
        """The biases (C,)."""
        return parameters[self._biases].astype(np.float64)

    def joined(self, weights: NDArray, biases: NDArray) -> NDArray[np.float64]:
        """Weights (d, C) and biases (C,) as they stand side by side, (size,)."""
        return np.concatenate([weights.T.ravel(), biases])

    def with_centre(self, parameters: NDArray[np.float32], centre: NDArray) -> NDArray[np.float32]:
        """``parameters`` with another centre, if the model has one; an empty ``centre``: as is."""
        if not len(centre):
            return parameters
        return np.concatenate([centre, parameters[self._centre.stop :]]).astype(np.float32)

    def with_layer(self, parameters: NDArray[np.float32], layer: NDArray) -> NDArray[np.float32]:
        """``parameters`` with the weights and biases ``layer`` (size,)."""
        return np.concatenate([self.centre(parameters), layer]).astype(np.float32)

    def inputs(self, images: NDArray[np.float32], parameters: NDArray) -> NDArray[np.float64]:
        """Inputs of the linear layer, (n, d), from features (n, d, 1, 1)."""
        if self.radius is None:
            return _flat(images)
        return directions(unit(images), self.centre(parameters), self.radius)
