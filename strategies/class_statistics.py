"""Class statistics, the server: one noisy sum, a pool that knows the rest, and a linear model.

Every client releases once, under secure sums, what its classes look like in fixed features φ. Their
sum W is a first linear model. Labels spread from it over the unlabelled public pool (Zhou et al.
2003), a ridge regression on them gives W₀, and what the sum says beyond the pool is added to it
(``murmur.algorithms.class_statistics.posterior``). Few settings, one round, d·C numbers up:
what any other algorithm should beat where there is a public pool. Everything after the sum is
post-processing.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from murmur.algorithms.class_statistics import StatisticsRelease, coordinates, posterior, unit
from murmur.learning.linear_model import require_linear, to_parameters
from murmur.learning.public_labels import LabelSpreading
from strategies.base import (
    Codec,
    CohortStrategy,
    Event,
    Forecast,
    Integers,
    Parameters,
    ServerSetup,
)
from strategies.forecast import FEWER_NUMBERS


class ClassStatistics(CohortStrategy):
    """The server half.

    The protected unit is a client, which releases one matrix of norm 1 in a run. The model is
    linear, without biases. ValueError where the model is no linear one, or where the pool is too
    small for what is asked of it.

    Args:
        setup: What the ServerApp gives; its budget must be for one round.
        components: How many numbers clients release for each class; None: as many as there are
            features.
        coordinates: What these numbers are of: "features", or "pool", an image's place in the pool
            (``murmur.algorithms.class_statistics.coordinates``), which needs ``spreading``.
        spreading: Settings of ``LabelSpreading``; None: the noisy sum alone is the model.
    """

    algorithm = "class statistics"
    threats = ("local", "secure_aggregation")
    difference = "nothing is claimed beyond what is proven."

    def __init__(
        self,
        setup: ServerSetup,
        *,
        components: int | None,
        coordinates: Literal["features", "pool"],
        spreading: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(setup)
        require_linear(self.trainer, "class statistics")
        self.features = int(np.prod(self.trainer.input_shape))
        classes = self.trainer.num_classes
        self.release = StatisticsRelease(setup.budget, self.features, classes, components)
        self.spreading = None if spreading is None else LabelSpreading(**spreading)
        self.in_pool = coordinates == "pool"
        needed = self.release.shape[0] + 2 if self.in_pool else 2
        if self.spreading is not None and len(setup.public) < needed:
            raise ValueError(
                f"spreading: needs a public pool of {needed} images or more; set "
                "federation.public, or spreading=null"
            )
        if self.in_pool and self.spreading is None:
            raise ValueError("coordinates='pool': are those of the graph; set strategy.spreading")

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """Where the pool's images are, float32 (P, k); with features nothing."""
        return ({"coordinates": self._places} if self.in_pool else {}), {}

    def codec(self) -> Codec:
        """Integers on the grid of the clipping norm."""
        return self.release.codec

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The linear model that the sum and the pool explain best.

        In the pool's coordinates the sum scores the pool's images, and labels spread from there;
        with features, the ``posterior`` adds what the sum says beyond the pool. ``weight``: of
        clients that count alike, so their number.
        """
        seen = self.release.read(total)
        if self.in_pool:
            return to_parameters(self._refined(unit(self._places) @ seen))
        released = len(seen)
        found = np.pad(seen, ((0, self.features - released), (0, 0)))
        if self.spreading is not None:
            found = self._refined(self._pool @ found)
            found[:released] = posterior(
                seen,
                self._pool[:, :released],
                found[:released],
                self.release.sigma(weight),
                weight,
            )
        return to_parameters(found)

    def _refined(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights (features, C) to which labels lead that spread from ``scores`` (P, C)."""
        assert self.spreading is not None
        return self.spreading.refine(self.spreading.graph(self._pool), self._pool, scores)

    @cached_property
    def _pool(self) -> NDArray[np.float32]:
        """The public images as rows (P, features)."""
        return self.setup.public.reshape(len(self.setup.public), -1)

    @cached_property
    def _places(self) -> NDArray[np.float32]:
        """The released coordinates of the pool's images."""
        assert self.spreading is not None
        return coordinates(self.spreading.graph(self._pool), self.release.shape[0])

    def forecast(self) -> Forecast | None:
        """Returns the ratio of an image's class score to the largest noise on all C scores.

        An image of d whitened features is √d long, and the classes' means lie within √(C − 1) of
        the centre: n/√C of a sum of norm n speaks for each class at √(C − 1)/√d of its length. Of C
        Gaussian noises the largest is about σ√(2 ln C). Of all: as if n equal matrices of norm 1
        were summed.
        """
        if not self.setup.budget.is_private:
            return None
        components, classes = self.release.shape
        clients = self.setup.cohort_size
        lead = clients / (self.release.sigma(clients) * math.sqrt(components * classes))
        ratio = lead * math.sqrt((classes - 1) / (2 * math.log(classes)))
        return Forecast.of(self.setup, ratio, helps=(FEWER_NUMBERS,))

    def release_event(self) -> Event:
        """One noised vector of norm 1, by the client's own noise; its exchange moves it by 2."""
        return self.release.event()
