"""Federated averaging, the server: the mean of the clients' updates, and a step along it.

McMahan et al., AISTATS 2017. How updates are protected (``murmur.privacy.protection``) and how the
model follows their mean (``murmur.round.server_step``) are choices of their own: FedAdam and
FedYogi are a server step, DP-FedAvg and DP-FTRL a protection. With a proximal term on the clients
it is FedProx (Li et al., MLSys 2020); with one client that holds all data it is centralised
training.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import GridCodec, Integers, WeightCodec, vector_codec
from murmur.learning.objective import KINDS
from murmur.learning.vector_layout import VectorLayout
from murmur.privacy.events import MAX_VECTOR_ENTRIES
from murmur.privacy.protection import Protection
from murmur.round.server_step import Sgd
from strategies.base import (
    Claimed,
    Claims,
    CohortStrategy,
    Event,
    Forecast,
    Parameters,
    ServerSetup,
)


class FedAvg(CohortStrategy):
    """w ← step(w, mean of w_i − w).

    ValueError for secure sums under a protection that must publish every round.

    Its subclasses change what the mean is (``update``), which arrays clients send beside each other
    (``parts``), or what becomes of the means (``apply``); bounds, noise and prices stay the
    protection's.

    Args:
        setup: What the ServerApp gives.
        server_step: How the model follows the mean update; it may keep moments from round to
            round.
        protection: Makes a ``Protection`` for a budget and cohorts: what bounds updates, who
            noises them, and against whom. The strategy's threats, adjacency, weights and claim are
            the protection's.

    Attributes:
        parts: The arrays that one contribution holds, by name; here the update (d,) alone.
    """

    algorithm = "federated averaging"
    tasks = KINDS

    def __init__(
        self, setup: ServerSetup, *, server_step: Sgd, protection: Callable[..., Protection]
    ) -> None:
        self.protection = own = protection(setup.budget, setup.cohorts.cohorts())
        self.threats = own.supported_threats(summed=self.summed)
        self.adjacency, self.weighted = own.adjacency, own.weighted
        self.claim, self.difference = own.claim, own.difference
        self.extendable = own.extendable
        self.algorithm = f"{type(self).algorithm} ({own.name})"
        super().__init__(setup)
        if own.always_published and self.rounds.sums.settings.is_on:
            raise ValueError(
                "secure_aggregation=on: a sum of too few clients is lost as a whole, so that one "
                "client more or less moves it by more than its update; set "
                "privacy.secure_aggregation=off, or protection=distributed"
            )
        longest = self.trainer.num_parameters
        if setup.budget.is_private and longest > MAX_VECTOR_ENTRIES:
            raise ValueError(
                f"model: {longest:,} numbers; at most {MAX_VECTOR_ENTRIES:,} are released with "
                "noise. Train a part of them, such as a low-rank adapter (model=lora)"
            )
        self.server_step = server_step
        self.parts = VectorLayout(update=self.trainer.num_parameters)

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """Returns the protection's arrays and no settings.

        The array is the clipping norm of this round, where updates are clipped.
        """
        return self.protection.arrays(), {}

    def codec(self) -> WeightCodec | GridCodec:
        """The arrays that clients send, side by side, as the protection leaves them.

        Integers in steps of the clipping norm where there is a bound, else float32. ``extra``
        entries are the protection's own, such as the bit of adaptive clipping.
        """
        return vector_codec(
            self.parts.size + self.protection.num_extra_entries, self.protection.bound
        )

    def quorum(self) -> float:
        """0 where every round is published, whoever came; else the run's quorum.

        A round that a trusted server left out would say something of those who were asked.
        """
        return 0.0 if self.protection.always_published else super().quorum()

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """One server step along the mean.

        The protection noises the sum here where the server is trusted to; then ``mean`` is what is
        published, and all that follows is post-processing. Canaries of an audit see it as well.
        """
        noise = self.setup.noise("update", number)
        mean = self.protection.mean(number, total, weight, noise)
        mean *= self.codec().grid
        if self.rounds.canaries is not None:
            self.rounds.canaries.observe(mean)
        return self.apply(number, model, self.parts.split(mean))

    def apply(
        self, number: int, model: Parameters, means: Mapping[str, NDArray[np.float64]]
    ) -> Parameters:
        """The next model from the ``means`` of what clients sent, all of which may be published.

        ``means``: arrays by the names of ``parts``, in the units of an update.
        """
        return self.server_step.step(model, means["update"])

    def forecast(self) -> Forecast | None:
        """By the sum of all rounds' updates, each of the clipping norm; None: nothing is noised.

        Where every update has the whole noise, a sum has it as often as it has updates. An
        aggregate of rows is told by their sum: a median of them is noisier.
        """
        noise = self.protection.noise_on_a_sum()
        if not noise:
            return None
        on_an_entry = {"clipping norm": self.protection.clip, "noise in clipping norms": noise}
        if self.setup.budget.threat == "local" or not self.summed:
            noise *= math.sqrt(self.setup.cohort_size)
        rounds = math.sqrt(self.setup.budget.rounds)
        ratio = self.setup.cohort_size * rounds / (noise * math.sqrt(self.parts.size))
        return Forecast.of(self.setup, ratio, noise=on_an_entry)

    # Privacy --------------------------------------------------------------------------------

    def release_event(self) -> Event:
        """Returns the protection's event of one update, for an adversary that reads the message.

        Not private where the server adds the noise: it reads updates in the clear.
        """
        return self.protection.release_event()

    def claims(self, claimed: Claimed = (None, None), before: Event | None = None) -> Claims:
        """Those who see the models, where the protection is the server's, and the server."""
        usual = super().claims(claimed, before)
        protection = self.protection
        participations = self.rounds.participations
        return replace(
            usual,
            exposures=lambda: [*protection.published(participations), *usual.exposures()],
            spent=lambda: protection.spent(participations) or usual.spent(),
            planned=lambda: protection.planned() or usual.planned(),
        )

    # Checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """Returns the state of the server step and of the protection."""
        return {
            **{f"server_step.{k}": v for k, v in self.server_step.state().items()},
            **{f"protection.{k}": v for k, v in self.protection.state().items()},
        }

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        for name, part in (("server_step.", self.server_step), ("protection.", self.protection)):
            part.restore({k.removeprefix(name): v for k, v in state.items() if k.startswith(name)})

    def forget(self) -> None:
        """Drop what the protection remembers of sums that nobody has published.

        The matrix mechanism keeps raw sums as long as there are rounds to come.
        """
        self.protection.forget()
