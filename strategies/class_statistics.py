"""Class statistics, the server: one noisy sum, a pool that knows the rest, and a linear model.

Every client releases once, under secure sums, what its classes look like in fixed features φ. Their
sum W is a first linear model. Labels spread from it over the unlabelled public pool (Zhou et al.
2003), a ridge regression on them gives W₀, and what the sum says beyond the pool is added to it
(``schemes.class_statistics.moments.posterior``). Few settings, one round, d·C numbers up: what any
other algorithm should beat where there is a public pool. Everything after the sum is
post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learning.contribution import Codec, Integers
from learning.label_spreading import LabelSpreading
from learning.linear_model import require_linear, to_parameters
from privacy.events import Event
from rounds.setup import ServerSetup
from schemes.class_statistics.moments import posterior
from schemes.class_statistics.release import StatisticsRelease
from strategies.algorithm import Parameters
from strategies.base import CohortStrategy


class ClassStatistics(CohortStrategy):
    """The server half.

    ``components``: of the features, how many clients release; None: all. ``spreading``: settings of
    ``LabelSpreading``; None: the sum alone.
    """

    algorithm = "class statistics"
    threats = ("local", "secure_aggregation")
    difference = "nothing is claimed beyond what is proven."

    def __init__(
        self, setup: ServerSetup, *, components: int | None, spreading: Mapping[str, Any] | None
    ) -> None:
        super().__init__(setup)
        require_linear(self.trainer, "class statistics")
        self.features = int(np.prod(self.trainer.input_shape))
        classes = self.trainer.num_classes
        self.release = StatisticsRelease(setup.budget, self.features, classes, components)
        self.spreading = None if spreading is None else LabelSpreading(**spreading)
        if self.spreading is not None and len(setup.public) < 2:
            raise ValueError(
                "spreading: needs a public pool; set federation.public, or spreading=null"
            )

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """Nothing: the client knows what to release."""
        return {}, {}

    def codec(self) -> Codec:
        """Integers on the grid of the clipping norm."""
        return self.release.codec

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The linear model that the sum and the pool explain best."""
        seen = self.release.read(total)
        released = len(seen)
        found = np.pad(seen, ((0, self.features - released), (0, 0)))
        if self.spreading is not None:
            pool = self.setup.public.reshape(len(self.setup.public), -1)
            found = self.spreading.refine(self.spreading.graph(pool), pool, found)
            found[:released] = posterior(
                seen,
                pool[:, :released],
                found[:released],
                self.release.sigma(weight),
                weight,
            )
        return to_parameters(self.trainer, found)

    def release_event(self) -> Event:
        """One noised vector of norm 1."""
        return self.release.event()
