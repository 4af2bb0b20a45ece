"""Robust aggregation, the server: a median, a trimmed mean or Krum of the clients' updates.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning", ICML 2018 (median and
trimmed mean by coordinate). Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with
adversaries", NeurIPS 2017 (Krum). The functions are Flower's own; ``conf/aggregation`` names the
classes, and a folder of one's own may name others.

The server sees each client's row, so there are two ways to be private. ``protection=distributed``
with ``privacy.threat=local``: each row carries its client's whole noise. ``protection=rows`` with
``privacy.threat=central``: a trusted server noises each row before it aggregates, charged as one
release of sensitivity 2C that nothing averages. Noise that is made for a mean is refused: one
client may move the aggregate by as much as its own update, not by an n-th of that.
"""

from collections.abc import Callable
from typing import Annotated, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum
from numpy.typing import NDArray
from pydantic import Field

from murmur.learning.objective import KINDS
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.protection import Protection
from murmur.privacy.protection.central import NoisedRows, ServerNoise
from murmur.round.server_step import Sgd
from strategies.base import Integers, Parameters, ServerSetup
from strategies.fedavg import FedAvg

Rows = NDArray[np.float64]


class Aggregation(Protocol):
    """A choice of ``conf/aggregation``: gives one update for the rows of many clients.

    A class is called with the cohort's size and its own settings; ValueError, by the setting, where
    these do not fit. What rows cost does not depend on it: whoever adds noise adds it to each row.
    """

    def aggregate(self, rows: Rows) -> NDArray[np.float64]:
        """Returns the update (d,) of ``rows`` (n, d), n at least 1 and at most the cohort."""


class Median:
    """The median of each coordinate, as Flower's FedMedian."""

    def __init__(self, cohort_size: int) -> None:
        pass

    def aggregate(self, rows: Rows) -> NDArray[np.float64]:
        """Returns the median (d,) of ``rows`` (n, d)."""
        return np.median(rows, axis=0)


class TrimmedMean:
    """The mean of each coordinate without the share ``trimmed`` of rows at either end."""

    def __init__(self, cohort_size: int, *, trimmed: Annotated[float, Field(ge=0, lt=0.5)]) -> None:
        self.trimmed = trimmed

    def aggregate(self, rows: Rows) -> NDArray[np.float64]:
        """Returns the trimmed mean (d,) of ``rows`` (n, d)."""
        return trim_mean(rows, self.trimmed)


class Krum:
    """The mean of the rows that are closest to their neighbours, against hostile clients.

    Args:
        cohort_size: clients that are asked in a round.
        malicious: hostile clients that it withstands.
        selected: rows whose mean is taken; 1 is Krum, more is Multi-Krum.

    Raises:
        ValueError: the cohort is not larger than 2 ``malicious`` + 2.
    """

    def __init__(
        self,
        cohort_size: int,
        *,
        malicious: Annotated[int, Field(ge=0)],
        selected: Annotated[int, Field(ge=1)],
    ) -> None:
        if 2 * malicious + 2 >= cohort_size:
            raise ValueError(
                f"malicious={malicious}: Krum needs a cohort of more than 2 × malicious + 2, it "
                f"is {cohort_size}"
            )
        self.malicious = malicious
        self.selected = selected

    def aggregate(self, rows: Rows) -> NDArray[np.float64]:
        """Returns the mean (d,) of the selected of ``rows`` (n, d)."""
        return krum(rows, self.malicious, self.selected)


class Robust(FedAvg):
    """w ← step(w, aggregate of the rows w_i − w).

    Every client counts alike.

    Args:
        setup: what the ServerApp gives.
        server_step: how the model follows the aggregate.
        protection: ``none``, ``distributed`` or ``rows``, as in ``conf/protection``; see the head
            of this file.
        aggregation: makes the rule of ``conf/aggregation`` for a cohort of so many clients.

    Raises:
        ValueError: a threat or a protection that relies on sums, or too small a cohort.
    """

    algorithm = "robust aggregation"
    tasks = KINDS
    summed = False

    def __init__(
        self,
        setup: ServerSetup,
        *,
        server_step: Sgd,
        protection: Callable[..., Protection],
        aggregation: Callable[[int], Aggregation],
    ) -> None:
        super().__init__(setup, server_step=server_step, protection=protection)
        self.weighted = False
        _require_rows(self.protection)
        self.aggregation = aggregation(setup.cohort_size)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """One server step along the aggregate of the rows (clients, d).

        ``total``: the rows, of whoever answered. With ``protection=rows`` they are noised first,
        and clients that did not answer count as noised zeros. Without any row the model stays.
        """
        rows = total
        if isinstance(self.protection, NoisedRows):
            rows = self.protection.noised_rows(total, self.setup.noise("update", number))
        if not len(rows):
            return model
        step = self.codec().grid
        if self.protection.bound is not None:
            step = self.protection.clip / CLIP_STEPS
        aggregate = self.aggregation.aggregate(rows.astype(np.float64) * step)
        return self.apply(number, model, {"update": aggregate})


def krum(rows: Rows, malicious: int, selected: int) -> Rows:
    """The mean (d,) of the ``selected`` of ``rows`` (n, d) that are closest to their neighbours.

    Flower's ``select_multikrum``, with ``malicious`` as the number of hostile rows.
    """
    contents = [RecordDict({"row": ArrayRecord({"row": Array(row)})}) for row in rows]
    chosen = select_multikrum(contents, malicious, selected)
    return np.mean([content.array_records["row"]["row"].numpy() for content in chosen], axis=0)


def _require_rows(protection: Protection) -> None:
    """ValueError for a protection that relies on a sum, and for a norm that adapts by one."""
    if isinstance(protection, ServerNoise) and not isinstance(protection, NoisedRows):
        raise ValueError(
            f"protection={type(protection).__name__}: its noise is made for a mean, and one client "
            "may move a robust aggregate by its whole update; set protection=rows"
        )
    if protection.num_extra_entries:
        raise ValueError(
            "clipping.adaptive=True: the share of short updates is a sum, which rows have not; "
            "set protection.clipping.adaptive=false"
        )
