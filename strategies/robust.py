"""Robust aggregation, the server: a median, a trimmed mean or Krum of the clients' updates.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning", ICML 2018 (median and
trimmed mean by coordinate). Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with
adversaries", NeurIPS 2017 (Krum). The functions are Flower's own.

The server sees each client's row, so there are two ways to be private. ``protection=distributed``
with ``privacy.threat=local``: each row carries its client's whole noise. ``protection=rows`` with
``privacy.threat=central``: a trusted server noises each row before it aggregates, charged as one
release of sensitivity 2C that nothing averages. Noise that is made for a mean is refused: one
client may move the aggregate by as much as its own update, not by an n-th of that.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum
from numpy.typing import NDArray
from pydantic import Field

from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.protection import Protection
from murmur.privacy.protection.central import NoisedRows, ServerNoise
from murmur.round.server_step import Sgd
from strategies.base import Integers, Parameters, ServerSetup
from strategies.fedavg import FedAvg

Rows = NDArray[np.float64]


class Robust(FedAvg):
    """w ← step(w, aggregate of the rows w_i − w).

    Every client counts alike. ValueError for a threat or a protection that relies on sums, and for
    too small a cohort.

    Parameters
    ----------
    setup : ServerSetup
        What the ServerApp gives.
    server_step : Sgd
        How the model follows the aggregate.
    protection : callable
        ``none``, ``distributed`` or ``rows``, as in ``conf/protection``; see the head of this file.
    aggregation : str
        "median", "trimmed_mean" or "krum".
    trimmed : float
        The share of rows that a trimmed mean leaves out at either end, by coordinate; below ½.
    malicious : int
        Against how many hostile clients Krum chooses; the cohort must be larger than twice that
        and 2.
    selected : int
        How many rows Krum takes the mean of; 1 is Krum, more is Multi-Krum.
    """

    algorithm = "robust aggregation"
    summed = False

    def __init__(
        self,
        setup: ServerSetup,
        *,
        server_step: Sgd,
        protection: Callable[..., Protection],
        aggregation: Literal["median", "trimmed_mean", "krum"],
        trimmed: Annotated[float, Field(ge=0, lt=0.5)],
        malicious: Annotated[int, Field(ge=0)],
        selected: Annotated[int, Field(ge=1)],
    ) -> None:
        super().__init__(setup, server_step=server_step, protection=protection)
        self.weighted = False
        _require_rows(self.protection)
        if aggregation == "krum" and 2 * malicious + 2 >= setup.cohort_size:
            raise ValueError(
                f"malicious={malicious}: Krum needs a cohort of more than 2 × malicious + 2, it "
                f"is {setup.cohort_size}"
            )
        rules: dict[str, Callable[[Rows], Rows]] = {
            "median": lambda rows: np.median(rows, axis=0),  # as Flower's FedMedian
            "trimmed_mean": lambda rows: trim_mean(rows, trimmed),
            "krum": lambda rows: krum(rows, malicious, selected),
        }
        self.aggregate = rules[aggregation]

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
        aggregate = self.aggregate(rows.astype(np.float64) * step)
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
