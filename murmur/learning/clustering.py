"""Deep embedded clustering: an autoencoder whose latent space holds a clustering head.

Xie, Girshick, Farhadi, "Unsupervised deep embedding for clustering analysis", ICML 2016; the
reconstruction loss stays on as in Guo et al., IJCAI 2017 (IDEC).

    q_ij ∝ 1 / (1 + ‖z_i − μ_j‖²)          soft assignment of latent z_i to centroid μ_j   (eq. 1)
    p_ij ∝ q_ij² / f_j                     target distribution, f_j = Σ_i q_ij             (eq. 3)
    loss = mean ‖x − x̂‖² + γ · KL(P ‖ Q)

The model's outputs are log q, so that their softmax is q: as targets of the trainer, P minimises
KL(P ‖ Q). Its own backend adds the reconstruction.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor, nn

from murmur.learning.models import Flatten, dense
from murmur.learning.training.backends import AutogradBackend
from murmur.learning.training.parameters import FlatModel
from murmur.learning.training.trainer import Trainer

_BATCH_EXAMPLES = 512


class ClusteringBackend(AutogradBackend):
    """Gradient of the mean reconstruction error plus γ times the clustering cross-entropy.

    Args:
        flat: a model that is a ``ClusteringAutoencoder``.
        input_shape: (C, H, W).
    """

    def __init__(self, flat: FlatModel, input_shape: tuple[int, int, int]) -> None:
        super().__init__(flat, input_shape)
        self._model: ClusteringAutoencoder = flat.module  # type: ignore[assignment]

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``Backend``; targets are P (N, clusters)."""
        gradient = self._flat.gradient.zero_()
        with torch.enable_grad():
            latent = self._model.encoder(x)
            loss = nn.functional.mse_loss(self._model.decoder(latent), x.flatten(1))
            if self._model.clustering_weight:
                kept = (y * self._model.assign(latent)).sum(1).mean()
                loss = loss - self._model.clustering_weight * kept
        loss.backward()
        return gradient


class ClusteringAutoencoder(nn.Module):
    """Fully connected encoder and decoder around a latent space with centroids.

    Args:
        features: of an image, C·H·W.
        clusters: number of centroids.
        hidden: widths of the encoder's layers; the decoder has them in reverse.
        latent: dimensions of the latent space.

    Attributes:
        clustering_weight: γ; belongs to the training at hand and is set before it; 0: reconstruct
            only.
    """

    init = "torch"
    backend = ClusteringBackend

    def __init__(self, features: int, clusters: int, hidden: Sequence[int], latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(Flatten(), *dense(features, hidden, latent))
        self.decoder = nn.Sequential(*dense(latent, [*reversed(hidden)], features))
        self.centroids = nn.Parameter(torch.zeros(clusters, latent))
        self.clustering_weight = 0.0

    def forward(self, images: Tensor) -> Tensor:
        """Logarithms of q (N, clusters) for images (N, C, H, W)."""
        return self.assign(self.encoder(images))

    def assign(self, latent: Tensor) -> Tensor:
        """Logarithms of q (N, clusters) for latents (N, latent)."""
        # Not cdist, whose gradient is infinite where a latent meets its centroid.
        squares = (latent[:, None] - self.centroids).square().sum(2)
        return nn.functional.log_softmax(-torch.log1p(squares), dim=1)

    def initialise(self, rng: np.random.Generator) -> None:
        """Draw the centroids, standard normal."""
        drawn = rng.standard_normal(self.centroids.shape, dtype=np.float32)
        self.centroids.copy_(torch.from_numpy(drawn))


def autoencoder(
    input_shape: tuple[int, int, int],
    num_classes: int,
    *,
    hidden: Sequence[int] = (128,),
    latent: int = 10,
) -> ClusteringAutoencoder:
    """The model of ``conf/model/clustering``; as many clusters as classes.

    Args:
        input_shape: (C, H, W).
        num_classes: number of clusters.
        hidden: widths of the encoder's layers.
        latent: dimensions of the latent space.

    Raises:
        ValueError: a width is below 1.
    """
    if latent < 1:
        raise ValueError(f"latent={latent}: must be at least 1")
    return ClusteringAutoencoder(math.prod(input_shape), num_classes, hidden, latent)


def clustering_model(trainer: Trainer) -> ClusteringAutoencoder:
    """The trainer's module; ValueError if it has no clustering head."""
    module = trainer.flat.module
    if not isinstance(module, ClusteringAutoencoder):
        raise ValueError(
            f"model={type(module).__name__}: has no clustering head; choose model=clustering"
        )
    return module


def assignments(trainer: Trainer, images: NDArray[np.float32]) -> NDArray[np.float64]:
    """Soft assignments q (N, clusters) of images (N, C, H, W) under the present parameters."""
    return softmax(trainer.logits(images).astype(np.float64), axis=1)


def target_distribution(
    soft: NDArray[np.float64], frequencies: NDArray[np.float64]
) -> NDArray[np.float32]:
    """P of Q, sharpened, and evened out by how large clusters are (eq. 3).

    The frequencies are those of a public pool: a client's own would pull a client that holds one
    kind of example only into all clusters.

    Args:
        soft: Q (N, k).
        frequencies: f (k,).

    Returns:
        (N, k), rows sum to 1.
    """
    weighted = soft**2 / frequencies
    return (weighted / weighted.sum(axis=1, keepdims=True)).astype(np.float32)


def latents(trainer: Trainer, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Latents (N, latent) under the trainer's present parameters."""
    model = clustering_model(trainer)
    with torch.inference_mode():
        parts = [model.encoder(part) for part in torch.tensor(images).split(_BATCH_EXAMPLES)]
    return torch.cat(parts).numpy()


def reconstruction_loss(trainer: Trainer, images: NDArray[np.float32]) -> float:
    """Mean squared error per pixel under the trainer's present parameters."""
    model = clustering_model(trainer)
    total = 0.0
    with torch.inference_mode():
        for part in torch.tensor(images).split(_BATCH_EXAMPLES):
            restored = model.decoder(model.encoder(part))
            total += float((restored - part.flatten(1)).square().sum(dtype=torch.float64))
    return total / images.size


def place_centroids(
    trainer: Trainer, images: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Parameters (d,) with the centroids moved to the k-means centres of the images' latents.

    Args:
        trainer: of a clustering model, whose present parameters give the latents.
        images: (N, C, H, W), public ones.
        rng: the experiment's randomness.

    Raises:
        ValueError: there are fewer images than clusters.
    """
    from sklearn.cluster import KMeans

    clusters = len(clustering_model(trainer).centroids)
    if len(images) < clusters:
        raise ValueError(f"images={len(images)}: k-means needs at least {clusters}")
    state = int(rng.integers(2**31))
    # In double precision, whose sums do not depend on how the library blocks them as visibly.
    points = latents(trainer, images).astype(np.float64)
    centres = KMeans(clusters, n_init=4, random_state=state).fit(points).cluster_centers_
    named = trainer.flat.state_dict()
    named["centroids"] = torch.tensor(centres, dtype=torch.float32)
    return trainer.flat.flatten(named)


def clustering_accuracy(found: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Share of examples whose cluster is the one matched to their class (eq. 10, Hungarian)."""
    from scipy.optimize import linear_sum_assignment

    size = int(max(found.max(), labels.max())) + 1
    together = np.zeros((size, size), np.int64)
    np.add.at(together, (found, labels), 1)
    rows, columns = linear_sum_assignment(together, maximize=True)
    return float(together[rows, columns].sum() / len(labels))
