"""The partition of PrivateKT's authors, as their published code divides MNIST."""

import numpy as np

from murmur.learning.data.class_counts import (
    Rng,
    Rows,
    apportion,
    count_classes,
    symmetric_dirichlet,
)
from murmur.learning.data.partitions import Concentration
from murmur.learning.data.shards import ClientShards, assign
from murmur.settings import Count, settings


@settings
class AuthorsPartition:
    """The partition of PrivateKT's authors (their ``preprocessing.py``, ``local_data_partition``).

    Each class is shuffled once and consumed from its start. Client i of the first n−1 draws
    q_i ~ Dir(α·1_C), rounds ``local_size``·q_i to whole counts, and takes that many from each class
    or what is left of it: a class that has run out is not made up for, so late clients are
    smaller. The last client takes all that remains, several times the others' share. With 48,000
    examples and 600 each this is their MNIST run with 80 clients.

    Two departures, neither visible in the result: counts are rounded by the largest remainder
    (theirs: each to the nearest, the largest corrected), and a draw that leaves a client with
    fewer than ``min_size`` examples is repeated (theirs keeps an empty client). Their random
    order is a file of their repository; here it follows from the seed.

    Attributes:
        alpha: concentration, in [1e-6, 1e6]; theirs is 0.5.
        local_size: examples drawn for a client, theirs is 600; None: N // num_clients.
        min_size: the fewest examples a client may end with.
        max_retries: how many times it draws before it gives up.
    """

    alpha: Concentration = 0.5
    local_size: Count | None = None
    min_size: Count = 1
    max_retries: Count = 100

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> ClientShards:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        size = self.local_size or len(labels) // num_clients
        if size > len(labels):
            raise ValueError(f"local_size={size}: must be at most the {len(labels)} examples")

        smallest = 0
        for _ in range(self.max_retries):
            counts = self._draw(available, size, num_clients, rng)
            smallest = max(smallest, int(counts.sum(axis=1).min()))
            if smallest >= self.min_size:
                return assign(labels, counts, rng)
        raise ValueError(
            f"min_size={self.min_size}: no draw in max_retries={self.max_retries} gave every "
            f"client so many examples, the best gave the smallest {smallest}; raise "
            f"alpha={self.alpha}, lower min_size, local_size or num_clients"
        )

    def _draw(self, available: Rows, size: int, num_clients: int, rng: Rng) -> Rows:
        """Counts (clients, classes) of one draw, out of ``available`` (classes,) examples."""
        mixtures = symmetric_dirichlet(rng, self.alpha, num_clients - 1, len(available))
        wanted = np.cumsum(apportion(size, mixtures), axis=0)
        taken = np.concatenate([np.minimum(wanted, available), available[None]])
        return np.diff(taken, axis=0, prepend=0)
