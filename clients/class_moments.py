"""Second moments of classes, the client: sums over its records, with its share of the noise.

It is asked twice: before the round for Σ f/‖f‖, the centre of its features, and in it for each
class's Σ u uᵀ about that centre (``murmur.algorithms.class_moments``). Whatever centre the server
sends, no u is longer than 1, and whatever a record holds: one that is not finite is one of zeros.

With a record as unit a release covers the exchange of one record for another. Up to its noise it
tells how many records of each class the client has, and so how many in all: no ε is about that.
"""

from typing import Annotated

from numpy.typing import NDArray
from pydantic import Field

from clients.base import Client, ClientSetup, Codec, Event, LocalData, NoiseGenerator, Task
from murmur.algorithms.class_moments import CENTRE, NoisySum, Releases
from murmur.learning.linear_model import Head


class ClassMomentsClient(Client):
    """Releases both sums, each once, as integers with its share of the noise.

    Args:
        setup: tools, public data and budget, from the host.
        constant, records, centre_share: as the server's half has them. The budget says whether
            noise hides a record or the client's whole data set; ``records``, or the largest
            published size, bounds how many records one client may add up.
    """

    threats = ("local", "secure_aggregation")
    units = ("client", "record")
    purposes = ("train", CENTRE)

    def __init__(
        self,
        setup: ClientSetup,
        *,
        constant: Annotated[float, Field(gt=0, lt=1)],
        records: int | None,
        centre_share: Annotated[float, Field(gt=0, lt=1)],
    ) -> None:
        super().__init__(setup)
        self.head = Head(self.trainer, "class_moments")
        self.releases = Releases(
            setup.budget, self.head, constant, records, setup.client_sizes, centre_share
        )

    def codec(self, task: Task) -> Codec:
        """Integers on the release's grid."""
        return self._release(task).codec

    def event(self, task: Task) -> Event:
        """One noised sum over records, centre or moments, each for its part of the budget."""
        self.require_asked(task)
        self.require_model(task)
        return self._release(task).event()

    def train(self, task: Task, data: LocalData) -> NDArray:
        """The sum over this client's records, in steps; with the client as unit their mean.

        Each record is rounded by itself, and adds the same to the sum whatever the others are.
        """
        images = data.images[data.indices]
        if task.purpose == CENTRE:
            return self.releases.centre.of(images)
        inputs = self.head.inputs(images, self.require_model(task))
        return self.releases.moments.of(inputs, data.labels[data.indices])

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray:
        """The sum, cut to what the public number of records can reach, and noised."""
        return self._release(task).privatize(update, noise)

    def _release(self, task: Task) -> NoisySum:
        return self.releases.centre if task.purpose == CENTRE else self.releases.moments
