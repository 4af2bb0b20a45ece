"""Clients of different sizes: given one by one, by groups, or by a power law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.common import require_integer, require_number
from murmur.learning.data.allocation import (
    apportion,
    count_classes,
    deal,
    deal_sizes,
    draw_counts,
    require_concentration,
    symmetric_dirichlet,
)


@dataclass(frozen=True)
class QuantitySkew:
    """Clients of different sizes, with even or Dirichlet-skewed labels.

    Exactly one of ``exponent``, ``groups`` and ``sizes`` says how large they are. With the last
    two, examples beyond the sum stay unused.

    Attributes:
        exponent: at least 0; client i's size follows the power law (i+1)^-exponent, on top of
            ``min_size`` each. 0: equal sizes. All examples are used.
        groups: group name → ``count`` clients of ``size`` examples each, in this order; KD-DPFL's
            MNIST run is ``large``: 5 × 6,000 and ``general``: 40 × 500.
        sizes: every client's number of examples.
        alpha: None: examples whatever their label; a number: labels as in ``Dirichlet`` with
            ``per="client"``.
        min_size: the fewest examples a client may get.
    """

    exponent: float | None = None
    groups: Mapping[str, Mapping[str, int]] | None = None
    sizes: Sequence[int] | None = None
    alpha: float | None = None
    min_size: int = 1

    def __post_init__(self) -> None:
        given = [
            name for name in ("exponent", "groups", "sizes") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"exponent={self.exponent}: exactly one of exponent, groups and sizes must be "
                f"set, the others null; set are {given}"
            )
        require_integer("min_size", self.min_size, 1)
        if self.alpha is not None:
            require_concentration("alpha", self.alpha)
        if self.exponent is not None:
            require_number("exponent", self.exponent, 0, 100)
        for name, group in (self.groups or {}).items():
            if not isinstance(group, Mapping) or set(group) != {"count", "size"}:
                raise ValueError(f"groups.{name}={group}: must hold count and size, nothing else")
            require_integer(f"groups.{name}.count", group["count"], 1)
            require_integer(f"groups.{name}.size", group["size"], self.min_size)
        for index, size in enumerate(self.sizes or ()):
            require_integer(f"sizes[{index}]", size, self.min_size)

    def __call__(
        self,
        labels: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> list[NDArray[np.int64]]:
        """See ``murmur.learning.data.partitions.Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        sizes = self.client_sizes(len(labels), num_clients)
        if self.alpha is None:
            return deal_sizes(len(labels), sizes, rng)
        mixtures = symmetric_dirichlet(rng, self.alpha, num_clients, num_classes)
        return deal(labels, draw_counts(sizes, mixtures, available, rng), rng)

    def client_sizes(self, total: int, num_clients: int) -> NDArray[np.int64]:
        """Each client's number of examples out of ``total``, shape (clients,).

        Raises:
            ValueError: the settings name another number of clients, or more than ``total``.
        """
        if self.exponent is not None:
            weights = np.arange(1, num_clients + 1, dtype=np.float64) ** -self.exponent
            return self.min_size + apportion(total - num_clients * self.min_size, weights)
        if self.groups is not None:
            name = "groups"
            sizes = [g["size"] for g in self.groups.values() for _ in range(g["count"])]
        else:
            name, sizes = "sizes", list(self.sizes or ())
        if len(sizes) != num_clients:
            raise ValueError(
                f"num_clients={num_clients}: {name} describes {len(sizes)} clients; make them equal"
            )
        if sum(sizes) > total:
            raise ValueError(
                f"{name}={sum(sizes)} examples in all: there are only {total} private ones; "
                "lower the sizes or the public pool"
            )
        return np.array(sizes, dtype=np.int64)
