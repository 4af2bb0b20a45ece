"""Class statistics with other public pools: ``python -m research.frontier.pools``.

MNIST at 250 clients of 48 images, Dirichlet 0.5, against a server that sees sums. The functions are
those of the algorithm, and the sum's noise is Gaussian of the same size, without a federation
around it. Pools of the same distribution, of 1,000 images, skewed (its classes from five times as
frequent to once), and of Fashion-MNIST. Needs ``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics

import numpy as np
from numpy.typing import NDArray

from fl_app.config.compose import compose
from fl_app.config.instantiate import build
from murmur.algorithms.class_statistics import moments, posterior
from murmur.learning.data.examples import Dataset
from murmur.learning.data.partitions import Dirichlet
from murmur.learning.features import scattering
from murmur.learning.public_labels import LabelSpreading
from murmur.privacy.accounting.calibrate import gaussian_noise_multiplier

CLIENTS, EXAMPLES, TEST, POOL, RELEASED = 250, 48, 2000, 6000, 50
SHARE = 0.85  # of the clients hold noise that counts: 10% drop out, 5% collude


def _dataset(name: str) -> Dataset:
    return build(compose([f"dataset={name}"]).dataset, "dataset")


def _pools(seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    train = _dataset("mnist").train
    rows = rng.permutation(len(train))[:POOL]  # the first of a permutation that clients skip
    keep = rng.random(POOL) < np.linspace(1, 0.2, 10)[train.labels[rows]]
    other = _dataset("fashion_mnist").train
    foreign = other.images[rng.permutation(len(other))[:POOL]]
    return {
        f"{POOL:,} images": train.images[rows],
        "1,000 images": train.images[rows[:1000]],
        "skewed 5:1": train.images[rows[keep]],
        "Fashion-MNIST": foreign,
    }


def accuracy(pool: NDArray[np.float32], epsilon: float, seed: int) -> float:
    """On images that neither the clients nor the pool have."""
    train = _dataset("mnist").train
    order = np.random.default_rng(seed).permutation(len(train))[POOL:]
    own, test = np.split(order[: CLIENTS * EXAMPLES + TEST], [CLIENTS * EXAMPLES])
    features = scattering(components=200)
    fitted = features.fit(pool)
    public, private, unseen = (
        features.apply(fitted, images).reshape(len(images), -1)
        for images in (pool, train.images[own], train.images[test])
    )
    rng, labels = np.random.default_rng(seed + 1000), train.labels[own]
    shards = Dirichlet(alpha=0.5)(labels, CLIENTS, 10, rng)
    total = np.sum([moments(private[s][:, :RELEASED], labels[s], 10) for s in shards], axis=0)
    sigma = 2 * gaussian_noise_multiplier(epsilon, 1e-5) / math.sqrt(SHARE)
    total = total + rng.normal(0, sigma, total.shape)
    spreading = LabelSpreading()
    weights = spreading.refine(spreading.graph(public), public, public[:, :RELEASED] @ total)
    weights[:RELEASED] = posterior(total, public[:, :RELEASED], weights[:RELEASED], sigma, CLIENTS)
    return float(((unseen @ weights).argmax(axis=1) == train.labels[test]).mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0, 8.0])
    parser.add_argument("--only", default="", metavar="REGEX", help="pools whose name it finds")
    chosen = parser.parse_args()
    print("| pool | " + " | ".join(f"ε = {e:g}" for e in chosen.epsilon) + " |")
    print("|---|" + "---|" * len(chosen.epsilon))
    pools = [_pools(seed) for seed in range(1, chosen.seeds + 1)]
    for name in (name for name in pools[0] if re.search(chosen.only, name)):
        means = [
            statistics.mean(accuracy(pool[name], e, seed) for seed, pool in enumerate(pools, 1))
            for e in chosen.epsilon
        ]
        print(f"| {name} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |", flush=True)


if __name__ == "__main__":
    main()
