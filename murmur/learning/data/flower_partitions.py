"""The partitioners of flwr-datasets, by name.

Ours (``murmur.learning.data.partitions``) stay the default where both have one: they need neither
the package nor a table in Arrow, so that a run of many clients starts sooner; they give every
client an example, or say why not; and they draw from the run's own stream
(``murmur.common``).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class FlowerPartitioner:
    """``flwr_datasets.partitioner.NAME`` over the column ``label``.

    Args:
        name: of the class, such as ``DirichletPartitioner``.
        settings: its own, but for the number of partitions, the column of labels and the seed,
            which are the run's.

    Raises:
        ValueError: flwr-datasets is not installed, has no such class, or it refuses the settings.
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        try:
            import flwr_datasets.partitioner as known
        except ImportError as error:
            raise ValueError(
                f"name={name}: this needs the package flwr-datasets; install it (extra `data`)"
            ) from error
        if name not in known.__all__:
            raise ValueError(f"name={name}: must be one of {', '.join(sorted(known.__all__))}")
        self.make, self.settings = getattr(known, name), dict(settings)

    def __call__(
        self,
        labels: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> list[NDArray[np.int64]]:
        """See ``murmur.learning.data.partitions.Partition``."""
        from datasets import Dataset

        own = {
            "num_partitions": num_clients,
            "partition_by": "label",
            "seed": int(rng.integers(2**31)),
        }
        takes = inspect.signature(self.make).parameters
        given = {key: value for key, value in own.items() if key in takes} | self.settings
        try:
            partitioner = self.make(**given)
            partitioner.dataset = Dataset.from_dict(
                {"label": labels, "row": np.arange(len(labels))}
            )
            if partitioner.num_partitions != num_clients:
                raise ValueError(
                    f"makes {partitioner.num_partitions} partitions for {num_clients} clients"
                )
            parts = [partitioner.load_partition(client)["row"] for client in range(num_clients)]
        except (TypeError, ValueError) as error:
            raise ValueError(f"settings={self.settings}: {error}") from error
        shares = [np.sort(np.asarray(part, np.int64)) for part in parts]
        if empty := [client for client, share in enumerate(shares) if not len(share)]:
            raise ValueError(f"settings={self.settings}: leaves client {empty[0]} without examples")
        return shares
