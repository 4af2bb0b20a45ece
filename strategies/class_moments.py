"""Second moments of classes, the server: two noisy sums, and linear discriminants from them.

An algorithm of this project's own for few owners of many records; there is no paper. Clients
release the centre of their features before the one round, and in it each class's second moments
about it (``murmur.algorithms.class_moments``). Everything after the sums is post-processing.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from murmur.algorithms import class_moments
from murmur.learning.linear_model import Head
from murmur.settings import Positive
from strategies.base import Codec, Event, Forecast, Integers, Parameters, ServerSetup, Unit
from strategies.forecast import THRESHOLD
from strategies.gradient_rounds import Centred


class ClassMoments(Centred):
    """The server half.

    One question before the one round, then the round; both sums share one budget, of which each has
    its part. The result is a ``centred`` linear model. Everything here is post-processing.

    Args:
        setup: What the ServerApp gives; its budget must be for one round.
        constant: b in (0, 1), the constant beside the features.
        shrinkage: Shrinkage of the ridge l, above 0.
        records: n, all clients' records together, public; None: the sum of the clients' published
            sizes.
        centre_share: Fraction of μ², in (0, 1), for the centre; the moments get the rest.
    """

    algorithm = "second moments of classes"
    threats = ("local", "secure_aggregation")
    units = ("client", "record")
    difference = "nothing is claimed beyond what is proven."

    def __init__(
        self,
        setup: ServerSetup,
        *,
        constant: Annotated[float, Field(gt=0, lt=1)],
        shrinkage: Positive,
        records: int | None,
        centre_share: Annotated[float, Field(gt=0, lt=1)],
    ) -> None:
        self.head = Head(setup.trainer, "class_moments")
        super().__init__(setup)
        self.releases = class_moments.Releases(
            setup.budget, self.head, constant, records, setup.client_sizes, centre_share
        )
        self.centre_sum = self.releases.centre
        self.unit = self.releases.unit
        self.constant = constant
        self.shrinkage = shrinkage
        self.records = records

    def codec(self) -> Codec:
        """Returns the codec of the moments."""
        return self.releases.moments.codec

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """Linear discriminants from the sum, as the parameters of the model.

        What ``model`` was is forgotten but for its shape: there is one round.
        """
        weights, offsets = class_moments.discriminants(
            self.releases.moments.matrices(total),
            self.protected_units(self.rounds.outcome.answered),
            self.constant,
            self.releases.moments.deviation(weight),
            self.shrinkage,
        )
        weights = weights.T * math.sqrt(1 - self.constant**2)
        model = self.head.with_centre(model, self.middle)
        return self.head.with_layer(model, self.head.joined(weights, offsets))

    def release_event(self) -> Event:
        """The moments'."""
        return self.releases.moments.event()

    def forecast(self) -> Forecast | None:
        """Whether the noise drowns the moments in S_w of a full cohort; None: there is no noise.

        What share of the score is kept where it does not is left open: data sets with the same
        public numbers keep 0.93 and 0.79 (``python -m research.planner.owners``).
        """
        clients = self.setup.cohort_size
        noise = self.releases.moments.deviation(clients)
        if not noise:
            return None
        units = self.protected_units(range(clients))
        head = self.head
        ratio = class_moments.signal_to_noise(units, head.classes, head.features, noise)
        return replace(
            Forecast.of(self.setup, ratio),
            rule=THRESHOLD,
            units=units,
            unit="owners" if self.unit is Unit.CLIENT else "records",
            classes=head.classes,
        )

    def protected_units(self, clients: Sequence[int]) -> int:
        """How many records ``clients`` have, or how many clients they are; at least 1.

        ``records`` counts as it was stated, however many clients answered.
        """
        if self.unit is Unit.CLIENT:
            return max(1, len(clients))
        sizes = self.setup.client_sizes
        if self.records is not None or sizes is None:
            assert self.records is not None
            return self.records
        return max(1, sum(sizes[client] for client in clients))
